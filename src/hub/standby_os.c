/* SPDX-License-Identifier: Apache-2.0 */
/* standby_os.c - how a process comes to the journal of a server: at once, after a server that still
 * starts, or, as a standby, after the hub that has it.
 *
 *   following --nobody has the lock--> leading --the last records--> hub
 *       |  ^
 *       `--'  connection lost: back-off, then on from where it stood
 *
 * A standby keeps the machine warm: each record is applied as it comes, so that taking over costs no
 * replay. After its own connection was lost it lets the other hub be first: when a server restarts both
 * lose their sessions, and the run should not change hands for that. */
#include <signal.h>
#include <string.h>

#include "base/os.h"
#include "hub/hub.h"
#include "hub/notify_os.h"
#include "hub/server.h"
#include "store/store.h"

enum { LOOK_MS = 200, PAUSE_MOST_MS = 2000, PATIENCE_S = 60, HEAD_START_MS = 2500 };

struct standby {
    const struct run_dir *run;
    const char *name;
    const sigset_t *stop;
    struct notify *alive;
    struct journal *journal;
    struct hub *hub;
    time_ns lead_from; /* not before */
    int pause_ms;
};

/* False where a signal of `stop` came: the process ends. */
static bool rest(const struct standby *x, int ms) {
    struct timespec t = {.tv_sec = ms / 1000, .tv_nsec = (long)(ms % 1000) * NS_PER_MS};
    if (x->alive != NULL) notify_alive(x->alive, os_now());
    return sigtimedwait(x->stop, NULL, &t) <= 0;
}

static enum brg_status apply(void *user, const struct record *r, struct err *e) {
    return hub_apply(user, r->seq, r->kind, r->body, r->bytes, e);
}

static void drop(struct standby *x) {
    journal_close(x->journal);
    if (x->hub != NULL) hub_destroy(x->hub);
    x->journal = NULL;
    x->hub = NULL;
}

static int longer(struct standby *x) {
    int now = x->pause_ms;
    x->pause_ms = now * 2 > PAUSE_MOST_MS ? PAUSE_MOST_MS : now * 2;
    return now;
}

static enum brg_status begin_following(struct standby *x, struct err *e) {
    uint64_t replayed;
    TRY(journal_open_reader(x->name, &x->journal, e));
    TRY(hub_rebuild(x->journal, &x->run->settings.hub, &x->hub, &replayed, e));
    log_line(LOG_INFO, "hub", "standby", "seq=%llu text=\"follows the journal\"",
             (unsigned long long)journal_last_seq(x->journal));
    return BRG_OK;
}

/* BRG_OK: this process is the writer, and the machine has seen every record. E_BUSY: not yet. */
static enum brg_status look(struct standby *x, struct err *e) {
    TRY(journal_follow(x->journal, apply, x->hub, e));
    if (os_now() < x->lead_from)
        return err_set(e, BRG_E_BUSY, "the other hub may come back to the server first");
    TRY(journal_lead(x->journal, e));
    enum brg_status s = journal_follow(x->journal, apply, x->hub, e);
    if (s == BRG_E_NET) drop(x); /* the lock went with the session: from the beginning */
    return s;
}

static enum brg_status recover(struct standby *x, const struct err *why, struct err *e) {
    enum journal_outcome none;
    if (x->pause_ms == LOOK_MS)
        log_line(LOG_WARN, "hub", "standby_lost", "cause=\"%s\"", why->text);
    enum brg_status s = x->hub != NULL ? journal_again(x->journal, &none, e) : BRG_E_NET;
    if (x->hub == NULL) drop(x);
    x->lead_from = os_now() + (time_ns)HEAD_START_MS * NS_PER_MS;
    return s;
}

static enum brg_status follow(struct standby *x, struct err *e) {
    x->pause_ms = LOOK_MS;
    for (;;) {
        enum brg_status s = BRG_OK;
        struct err why = {0};
        if (x->journal == NULL) s = begin_following(x, &why);
        if (s == BRG_OK) s = look(x, &why);
        if (s == BRG_OK) {
            log_line(LOG_INFO, "hub", "took_over", "seq=%llu",
                     (unsigned long long)journal_last_seq(x->journal));
            return BRG_OK;
        }
        if (s == BRG_E_NET) {
            struct err again = {0};
            enum brg_status back = recover(x, &why, &again);
            if (back != BRG_OK && back != BRG_E_NET && back != BRG_E_BUSY) {
                *e = again;
                return back;
            }
            if (!rest(x, longer(x))) return BRG_E_DRAINED;
            continue;
        }
        if (s != BRG_E_BUSY) {
            *e = why;
            return s;
        }
        x->pause_ms = LOOK_MS;
        if (!rest(x, LOOK_MS)) return BRG_E_DRAINED;
    }
}

static enum brg_status open_patiently(struct standby *x, struct err *e) {
    time_ns until = os_now() + (time_ns)PATIENCE_S * NS_PER_S;
    x->pause_ms = LOOK_MS;
    for (;;) {
        enum brg_status s = journal_open(x->name, false, &x->journal, e);
        if (s != BRG_E_NET || os_now() >= until) return s;
        log_line(LOG_WARN, "hub", "journal_waited_for", "cause=\"%s\"", e->text);
        if (!rest(x, longer(x))) return BRG_E_DRAINED;
    }
}

enum brg_status hub_journal_open(const struct run_dir *run, const char *name, bool standby,
                                 const void *stop, struct notify *alive, struct journal **out,
                                 struct hub **out_hub, struct err *e) {
    struct standby x = {.run = run, .name = name, .stop = stop, .alive = alive};
    enum brg_status s = standby ? follow(&x, e) : open_patiently(&x, e);
    *out = x.journal;
    *out_hub = x.hub;
    /* From here on the server watches this session; where it is lost by now, the first write tells. */
    struct err ignored = {0};
    if (s == BRG_OK) (void)!journal_keep(x.journal, &ignored);
    if (s == BRG_OK) return BRG_OK;
    drop(&x);
    *out = NULL;
    *out_hub = NULL;
    return s == BRG_E_DRAINED ? BRG_OK : s;
}
