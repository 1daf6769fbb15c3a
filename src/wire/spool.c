/* SPDX-License-Identifier: Apache-2.0 */
/* spool.c - the text of spooled requests and answers: a first line, "key value" lines in a fixed order, an empty
 * line, the body. */
#include "wire/spool.h"

#include <inttypes.h>
#include <string.h>

static const char mark[] = "BRGSPOOL1\n", mail_mark[] = "BRGSPOOL2\n"; /* of one length */
static const char *const methods[] = {NULL, "GET", "POST", "PUT"};

void spool_request_encode(const struct spool_request *r, struct buf *out) {
    CHECK(r->method >= SPOOL_GET);
    CHECK(r->method <= SPOOL_PUT);
    if (r->form == SPOOL_MAIL)
        buf_printf(out,
                   "%smethod %s\ntarget %s\ntimeout_ms %u\ntoken %s\noffset %" PRIu64
                   "\nbytes %" PRIu64 "\nbody %zu\n\n",
                   mail_mark, methods[r->method], r->target, r->timeout_ms, r->token, r->offset,
                   r->bytes, r->body_bytes);
    else
        buf_printf(out,
                   "%smethod %s\ntarget %s\ntimeout_ms %u\nfile %s\noffset %" PRIu64
                   "\nbytes %" PRIu64 "\nbody %zu\n\n",
                   mark, methods[r->method], r->target, r->timeout_ms, r->file, r->offset, r->bytes,
                   r->body_bytes);
    if (r->body_bytes > 0) buf_put(out, r->body, r->body_bytes);
}

void spool_answer_encode(const struct spool_answer *a, struct buf *out) {
    buf_printf(out, "%shttp %u\ntext %s\nbody %zu\n\n", mark, a->http, a->text, a->body_bytes);
    if (a->body_bytes > 0) buf_put(out, a->body, a->body_bytes);
}

/* ---- Reading ----------------------------------------------------------------------------------------- */

struct lines {
    const char *p, *end;
    const char *wrong; /* the first line that is not as it should be */
};

/* The value of the next line, which must be "key value"; no NUL in it. */
static void line_text(struct lines *l, const char *key, char *out, size_t cap) {
    size_t n = strlen(key);
    const char *stop = l->p < l->end ? memchr(l->p, '\n', (size_t)(l->end - l->p)) : NULL;
    out[0] = '\0';
    if (l->wrong != NULL) return;
    bool good = stop != NULL && (size_t)(stop - l->p) > n && memcmp(l->p, key, n) == 0 &&
                l->p[n] == ' ';
    size_t bytes = good ? (size_t)(stop - l->p) - n - 1 : 0;
    if (!good || bytes >= cap || memchr(l->p + n + 1, '\0', bytes) != NULL) {
        l->wrong = key;
        return;
    }
    memcpy(out, l->p + n + 1, bytes);
    out[bytes] = '\0';
    l->p = stop + 1;
}

static uint64_t line_number(struct lines *l, const char *key, uint64_t max) {
    char text[24];
    uint64_t v = 0;
    line_text(l, key, text, sizeof text);
    if (l->wrong == NULL && (!parse_u64(text, &v) || v > max)) l->wrong = key;
    return l->wrong == NULL ? v : 0;
}

static bool lines_begin(struct lines *l, const char *with, const void *data, size_t n) {
    *l = (struct lines){data, (const char *)data + n, NULL};
    if (n < sizeof mark - 1 || memcmp(data, with, sizeof mark - 1) != 0) return false;
    l->p += sizeof mark - 1;
    return true;
}

/* The body: all that is left, and of the length that was told. */
static void lines_body(struct lines *l, uint64_t told, const uint8_t **body, size_t *bytes) {
    if (l->wrong == NULL && (l->p >= l->end || *l->p != '\n')) l->wrong = "the empty line";
    if (l->wrong != NULL) return;
    l->p++;
    if ((uint64_t)(l->end - l->p) != told) l->wrong = "body";
    *body = (const uint8_t *)l->p;
    *bytes = (size_t)(l->end - l->p);
}

static bool target_fine(const char *t) {
    if (strncmp(t, "/v1/", 4) != 0 || strncmp(t, "/v1/operator", 12) == 0) return false;
    if (strstr(t, "..") != NULL || strstr(t, "//") != NULL) return false;
    for (; *t != '\0'; t++) {
        bool good = (*t >= 'a' && *t <= 'z') || (*t >= '0' && *t <= '9') || strchr("/_-?=&.", *t);
        if (!good) return false;
    }
    return true;
}

static bool token_fine(const char *t) {
    for (; *t != '\0'; t++)
        if ((unsigned char)*t <= 0x20 || (unsigned char)*t >= 0x7f) return false;
    return true;
}

/* What each form may carry, beyond its lines. NULL: it is fine; else the line that is not. */
static const char *files_wrong(const struct spool_request *r) {
    bool file = r->file[0] != '\0';
    if (file && r->file[0] != '/') return "file";
    /* A file is read for an upload and written by a download, and for nothing else. */
    if (r->method == SPOOL_PUT && (!file || strncmp(r->target, "/v1/blobs/", 10) != 0))
        return "file";
    if (r->method == SPOOL_GET && file && strncmp(r->target, "/v1/versions/", 13) != 0)
        return "file";
    return r->method == SPOOL_POST && file ? "body" : NULL;
}

static const char *mail_wrong(const struct spool_request *r) {
    if (r->method == SPOOL_PUT) return "method";
    if (!token_fine(r->token)) return "token";
    if (strncmp(r->target, "/v1/events", 10) == 0) return "target"; /* never ends */
    if (r->method != SPOOL_GET && (r->offset > 0 || r->bytes > 0)) return "offset";
    return r->bytes > WIRE_BODY_MAX || (r->offset > 0 && r->bytes == 0) ? "bytes" : NULL;
}

enum brg_status spool_request_decode(const void *data, size_t n, struct spool_request *out,
                                     struct err *e) {
    struct lines l;
    struct spool_request r = {.form = SPOOL_FILES};
    char method[8];
    if (n <= SPOOL_BYTES_MAX && lines_begin(&l, mail_mark, data, n)) r.form = SPOOL_MAIL;
    if (n > SPOOL_BYTES_MAX || (r.form == SPOOL_FILES && !lines_begin(&l, mark, data, n)))
        return err_set(e, BRG_E_MESSAGE,
                       "a spooled request: no BRGSPOOL1 or BRGSPOOL2, or too long");
    line_text(&l, "method", method, sizeof method);
    for (int m = SPOOL_GET; m <= SPOOL_PUT; m++)
        if (strcmp(method, methods[m]) == 0) r.method = (enum spool_method)m;
    if (r.method == 0 && l.wrong == NULL) l.wrong = "method";
    line_text(&l, "target", r.target, sizeof r.target);
    if (l.wrong == NULL && !target_fine(r.target)) l.wrong = "target";
    r.timeout_ms = (uint32_t)line_number(&l, "timeout_ms", 3600000);
    if (r.form == SPOOL_MAIL)
        line_text(&l, "token", r.token, sizeof r.token);
    else
        line_text(&l, "file", r.file, sizeof r.file);
    r.offset = line_number(&l, "offset", UINT64_MAX / 4);
    r.bytes = line_number(&l, "bytes", UINT64_MAX / 4);
    uint64_t body = line_number(&l, "body", WIRE_BODY_MAX);
    lines_body(&l, body, &r.body, &r.body_bytes);
    if (l.wrong == NULL) l.wrong = r.form == SPOOL_MAIL ? mail_wrong(&r) : files_wrong(&r);
    if (l.wrong == NULL && r.method != SPOOL_POST && r.body_bytes > 0) l.wrong = "body";
    if (l.wrong != NULL)
        return err_set(e, BRG_E_MESSAGE, "a spooled request: %s is not as it should be", l.wrong);
    *out = r;
    return BRG_OK;
}

enum brg_status spool_answer_decode(const void *data, size_t n, struct spool_answer *out,
                                    struct err *e) {
    struct lines l;
    struct spool_answer a = {0};
    if (n > SPOOL_BYTES_MAX || !lines_begin(&l, mark, data, n))
        return err_set(e, BRG_E_MESSAGE, "a spooled answer: no BRGSPOOL1, or too long");
    a.http = (uint32_t)line_number(&l, "http", 999);
    line_text(&l, "text", a.text, sizeof a.text);
    uint64_t body = line_number(&l, "body", WIRE_BODY_MAX);
    lines_body(&l, body, &a.body, &a.body_bytes);
    if (l.wrong != NULL)
        return err_set(e, BRG_E_MESSAGE, "a spooled answer: %s is not as it should be", l.wrong);
    *out = a;
    return BRG_OK;
}
