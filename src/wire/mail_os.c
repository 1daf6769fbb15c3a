/* SPDX-License-Identifier: Apache-2.0 */
/* mail_os.c - the site's end of a mailbox: see mail.h.
 *
 *   PUT mail/req/ID --> GET mail/ans/ID, again and again --> DELETE mail/ans/ID
 *                            |no answer in time, or stopped
 *                            v
 *                       DELETE mail/req/ID      (the hub may have it already: every request may be sent again) */
#include "wire/mail.h"

#include <inttypes.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/os.h"

enum { SLICE_MS = 50, TOLD_EVERY_S = 900 };

struct mail {
    struct object_store *store;
    char address[MAIL_ADDRESS_MAX];
    atomic_bool stopped;
    uint64_t exchanges;
    time_ns told;
};

static const char *environment(const char *name, const char *other) {
    const char *v = getenv(name); /* nobody calls setenv once threads run */
    if ((v == NULL || *v == '\0') && other != NULL) v = getenv(other);
    return v != NULL ? v : "";
}

enum brg_status mail_open(const char *address, struct mail **out, struct err *e) {
    struct object_place p;
    struct object_store *store = NULL;
    const char *endpoint = environment("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL");
    const char *region = environment("AWS_REGION", "AWS_DEFAULT_REGION");
    const char *ca = environment("BERINGIA_S3_CA", NULL);
    if (*endpoint == '\0')
        return err_set(e, BRG_E_CONFIG,
                       "bucket:%.200s: where is that store? set AWS_ENDPOINT_URL to "
                       "https://HOST[:PORT]",
                       address);
    TRY(object_place_parse(address, endpoint, *region != '\0' ? region : "us-east-1", &p, e));
    if (strlen(ca) >= sizeof p.ca || (*ca != '\0' && access(ca, R_OK) != 0))
        return err_set(e, BRG_E_CONFIG, "BERINGIA_S3_CA: %.200s cannot be read", ca);
    (void)snprintf(p.ca, sizeof p.ca, "%s", ca);
    TRY(object_store_open(&p, "", 64 << 20, &store, e));
    struct mail *m = mem_alloc(1, sizeof *m);
    object_store_patience(store, MAIL_SILENCE_S);
    m->store = store;
    m->told = os_now();
    (void)snprintf(m->address, sizeof m->address, "%.*s", MAIL_ADDRESS_MAX - 1, address);
    *out = m;
    return BRG_OK;
}

static void tell(struct mail *m) {
    struct object_counts c = object_store_counts(m->store);
    m->told = os_now();
    if (m->exchanges < 2) return; /* a question at the start: not worth a line */
    log_line(LOG_INFO, "wire", "mail",
             "exchanges=%" PRIu64 " puts=%" PRIu64 " gets=%" PRIu64 " deletes=%" PRIu64
             " failures=%" PRIu64 " bytes_up=%" PRIu64 " bytes_down=%" PRIu64,
             m->exchanges, c.writes, c.reads, c.deletes, c.failures, c.bytes_up, c.bytes_down);
}

void mail_close(struct mail *m) {
    if (m == NULL) return;
    tell(m);
    object_store_close(m->store);
    mem_free(m);
}

void mail_stop(struct mail *m) {
    atomic_store(&m->stopped, true);
    object_store_stop(m->store);
}

static void nap(struct mail *m, uint32_t pause_ms, time_ns until) {
    uint64_t random;
    os_random(&random, sizeof random);
    time_ns wake = os_now() + (time_ns)mail_pause_spread(pause_ms, random) * NS_PER_MS;
    if (wake > until) wake = until;
    while (os_now() < wake && !atomic_load(&m->stopped)) {
        struct timespec t = {.tv_nsec = SLICE_MS * NS_PER_MS};
        (void)nanosleep(&t, NULL);
    }
}

/* What the store says that another look may mend. */
static bool passes(enum brg_status s) {
    return s == BRG_E_MISSING || s == BRG_E_NET || s == BRG_E_MESSAGE;
}

/* What cannot be removed the hub sweeps. */
static void drop(struct mail *m, const char *key) {
    struct err why = {0};
    if (object_delete(m->store, key, &why) != BRG_OK)
        log_line(LOG_DEBUG, "wire", "mail_left", "key=%s cause=\"%s\"", key, why.text);
}

static enum brg_status await(struct mail *m, const char *id, time_ns until, struct buf *bytes,
                             struct err *e) {
    char key[MAIL_KEY_MAX];
    uint32_t pause = MAIL_PAUSE_FIRST_MS;
    struct err why = {0};
    mail_key(MAIL_ANSWERS, id, key);
    for (;;) {
        nap(m, pause, until);
        if (atomic_load(&m->stopped)) return err_set(e, BRG_E_TIMEOUT, "stopped");
        enum brg_status s = object_get_bytes(m->store, key, SPOOL_BYTES_MAX, bytes, &why);
        if (s == BRG_OK) break;
        if (!passes(s)) {
            if (e != NULL) *e = why;
            return s;
        }
        if (os_now() >= until)
            return err_set(e, BRG_E_NET, "bucket:%.200s: %s%.300s", m->address,
                           s == BRG_E_MISSING ? "no answer; does the hub run, with blobs.mailbox, "
                                                "and is this its address?"
                                              : "",
                           s == BRG_E_MISSING ? "" : why.text);
        pause = mail_pause_next(pause, MAIL_PAUSE_SITE_MS);
    }
    drop(m, key);
    return BRG_OK;
}

enum brg_status mail_exchange(struct mail *m, const struct spool_request *r, struct buf *bytes,
                              struct spool_answer *out, struct err *e) {
    char id[ID_HEX_BYTES], key[MAIL_KEY_MAX];
    struct id128 random;
    AUTO_BUF struct buf text = {.bytes_max = SPOOL_BYTES_MAX};
    CHECK(r->form == SPOOL_MAIL);
    time_ns until = os_now() + (time_ns)r->timeout_ms * NS_PER_MS;
    os_random(&random, sizeof random);
    id_hex(&random, id);
    mail_key(MAIL_REQUESTS, id, key);
    spool_request_encode(r, &text);
    CHECK(!text.overflow);
    m->exchanges++;
    enum brg_status s = object_put_bytes(m->store, key, text.data, text.bytes_count, e);
    explicit_bzero(text.data, text.bytes_count); /* the token */
    if (s == BRG_E_MISSING)
        return err_set(e, BRG_E_CONFIG, "bucket:%.200s: there is no such bucket", m->address);
    TRY(s);
    s = await(m, id, until, bytes, e);
    if (s != BRG_OK) drop(m, key);
    if (os_now() - m->told > TOLD_EVERY_S * (time_ns)NS_PER_S) tell(m);
    TRY(s);
    TRY(spool_answer_decode(bytes->data, bytes->bytes_count, out, e));
    if (out->http == 0) return err_set(e, BRG_E_NET, "the hub's mailbox: %.200s", out->text);
    return BRG_OK;
}
