/* SPDX-License-Identifier: Apache-2.0 */
/* spool.h - requests and answers as files, for nodes without a network: docs/protocol.md section 11. And as objects of a
 * bucket, where hub and sites meet that nobody reaches: mail.h, section 14.
 *
 *   SPOOL/req/ID.c  ID.t   a request (control, transfer), renamed here when it is whole
 *   SPOOL/run/ID.c  ID.t   one that the courier works on
 *   SPOOL/ans/ID           its answer; SPOOL/ans/ID.p: bytes moved so far, while a transfer runs
 *   SPOOL/tmp/             half-written ones
 *
 * The bytes of contributions and checkpoints are not in the spool: a request names the file on the shared disk that
 * they are read from or written to, so weights are not copied twice. */
#ifndef WIRE_SPOOL_H
#define WIRE_SPOOL_H

#include "base/base.h"
#include "wire/wire.h"

enum {
    SPOOL_PATH_MAX = 4096,
    SPOOL_TARGET_MAX = 300,
    SPOOL_BYTES_MAX = WIRE_BODY_MAX + 8192,
    SPOOL_ID_MAX = 64,
    SPOOL_TOKEN_MAX = 256,
};
/* FILES: of a directory; its courier has the token. MAIL: of a bucket; each request shows its own, and names no file. */
enum spool_form { SPOOL_FILES = 1, SPOOL_MAIL = 2 };
enum spool_method { SPOOL_GET = 1, SPOOL_POST = 2, SPOOL_PUT = 3 };

struct spool_request {
    enum spool_form form; /* 0 counts as FILES when written */
    enum spool_method method;
    char target[SPOOL_TARGET_MAX]; /* "/v1/lease" */
    uint32_t timeout_ms;
    char file[SPOOL_PATH_MAX]; /* "": none. PUT: the body is there; GET: the body goes there */
    uint64_t offset,
        bytes; /* PUT: of the piece; GET: where to go on. MAIL: of the answer, at most; 0: all */
    char token[SPOOL_TOKEN_MAX]; /* MAIL; "": none */
    const uint8_t *body;         /* POST; borrowed */
    size_t body_bytes;
};
struct spool_answer {
    uint32_t http;            /* 0: none came */
    char text[WIRE_TEXT_MAX]; /* why none came */
    const uint8_t *body;      /* borrowed */
    size_t body_bytes;
};

void spool_request_encode(const struct spool_request *r, struct buf *out);
/* Strict; E_MESSAGE names the line. What a courier must not do is refused here: targets outside /v1/, operator's
 * requests, files that are not absolute; by mail also what never ends (events), and bodies of weights. */
enum brg_status spool_request_decode(const void *data, size_t n, struct spool_request *out,
                                     struct err *e) MUST_USE;
void spool_answer_encode(const struct spool_answer *a, struct buf *out);
enum brg_status spool_answer_decode(const void *data, size_t n, struct spool_answer *out,
                                    struct err *e) MUST_USE;

/* ---- spool_os.c: the site's end -------------------------------------------------------------------- */
/* Puts the request into the spool and waits for its answer: at most timeout without one, or without progress where
 * it names a file. *stop ends the wait. The answer borrows `bytes`. E_NET: nobody answers; E_TIMEOUT: stopped. */
enum brg_status spool_exchange(const char *dir, const struct spool_request *r,
                               bool (*stopped)(void *user), void *user, struct buf *bytes,
                               struct spool_answer *out, struct err *e) MUST_USE;
/* The directories below dir, mode 0700. E_CONFIG where dir belongs to somebody else or others may write to it. */
enum brg_status spool_open(const char *dir, struct err *e) MUST_USE;

#endif
