/* SPDX-License-Identifier: Apache-2.0 */
/* mail.h - requests and answers as objects of a bucket, where hub and sites meet though nobody reaches anybody.
 * docs/protocol.md section 14, docs/s3.md.
 *
 *   mail/req/ID   a request (spool.h, MAIL), put by a site, taken away by the hub when it begins to work on it
 *   mail/ans/ID   its answer, put by the hub, taken away by the site
 *
 *   mail.c     names, pauses, ages. Pure
 *   mail_os.c  the site's end; the hub's is hub/mailbox_os.c
 *
 * Nobody is told of an object that another puts, so both ends look, with pauses that grow while nothing comes: each look is
 * a request that somebody pays for. Ages are reckoned by the store's clock alone. */
#ifndef WIRE_MAIL_H
#define WIRE_MAIL_H

#include "base/base.h"
#include "object/object.h"
#include "wire/spool.h"

enum {
    MAIL_PAUSE_FIRST_MS = 100, /* while something happens */
    MAIL_PAUSE_SITE_MS = 2000, /* the longest of a site that waits; the hub's is a setting */
    MAIL_PATIENCE_S =
        20, /* a site waits no shorter for an answer: twice the slowest looks, and a hub at work */
    MAIL_SILENCE_S =
        10, /* a store that says nothing for so long is not reached: objects are small */
    MAIL_PIECE_BYTES = 128 << 10, /* of a file that the hub has to send itself: the ledger */
    MAIL_OLD_S = 3600,            /* an answer that nobody fetched is swept then */
    MAIL_SLACK_S = 5,             /* a store's seconds are whole, and its list may lag */
    MAIL_KEY_MAX = 64,
    MAIL_ADDRESS_MAX = 300, /* "bucket:s3://BUCKET/PREFIX" */
};
#define MAIL_REQUESTS "mail/req/"
#define MAIL_ANSWERS "mail/ans/"

/* ---- Pure ---------------------------------------------------------------------------------------- */
/* below: MAIL_REQUESTS or MAIL_ANSWERS. */
void mail_key(const char *below, const char *id, char out[MAIL_KEY_MAX]);
/* "mail/req/ID" -> ID, 32 lower-case hexadecimal digits. False: it is no request's name. */
bool mail_key_id(const char *key, const char *below, char out[ID_HEX_BYTES]);
/* The pause after one that brought nothing: half as long again, at most `last_ms`. */
uint32_t mail_pause_next(uint32_t pause_ms, uint32_t last_ms);
/* 80 to 120 hundredths of it, so that many who wait do not look at the same moments. random: any 64 bits. */
uint32_t mail_pause_spread(uint32_t pause_ms, uint64_t random);
/* Whoever put it there at put_s (the store's word; 0: not told) does not wait any more at now_s (the store's clock). */
bool mail_stale(int64_t put_s, int64_t now_s, uint32_t timeout_ms);

/* ---- The site's end -------------------------------------------------------------------------------
 * address: "s3://BUCKET/PREFIX", what the hub prints. The rest comes from the environment: AWS_ENDPOINT_URL_S3, else
 * AWS_ENDPOINT_URL; AWS_REGION, else AWS_DEFAULT_REGION, else us-east-1; BERINGIA_S3_CA; credentials as object_keys_read
 * finds them. A mail belongs to one thread; mail_stop may be called from any. E_CONFIG, E_MISSING: which of these is wrong. */
struct mail;
enum brg_status mail_open(const char *address, struct mail **out, struct err *e) MUST_USE;
void mail_close(struct mail *m); /* takes NULL too; says what it asked of the store */
void mail_stop(struct mail *m);
/* Puts the request, waits for its answer at most r->timeout_ms. A store that is not reached meanwhile is waited for as
 * well. The answer borrows `bytes`. E_NET: no answer, or no store: try again. E_TIMEOUT: mail_stop was called. E_CONFIG,
 * E_REFUSED: the store refuses this site; E_MESSAGE: the answer is none. */
enum brg_status mail_exchange(struct mail *m, const struct spool_request *r, struct buf *bytes,
                              struct spool_answer *out, struct err *e) MUST_USE;

#endif
