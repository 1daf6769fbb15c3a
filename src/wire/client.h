/* SPDX-License-Identifier: Apache-2.0 */
/* client.h - the site's side of the wire: HTTP(S) through libcurl. Shore.
 *
 * A client is one connection with keep-alive and belongs to one thread; client_stop() alone may be
 * called from others. Every time limit follows from one setting, timeout_ns:
 *   connect            timeout / 3
 *   a control message  timeout, from sending to the last byte of the answer
 *   a transfer         no byte moved for timeout
 * http_proxy, https_proxy, all_proxy and no_proxy of the environment are honoured. The hub's certificate is
 * always verified.
 *
 * Where the hub's blobs are in an object store it answers transfers with URLs of that store (direct.h): the bytes go there and
 * come from there, without the hub's token, and with the CA of BERINGIA_S3_CA where that is set.
 *
 * Through a bucket a control message has no less than MAIL_PATIENCE_S, and weights go by such URLs alone.
 *
 * Statuses: E_NET nothing usable came back, trying again later is right; E_REFUSED the hub (or a
 * proxy before it) said no for good; E_MESSAGE the answer is no message of this protocol; E_TIMEOUT
 * client_stop was called. */
#ifndef WIRE_CLIENT_H
#define WIRE_CLIENT_H

#include "base/base.h"
#include "wire/agent.h"
#include "wire/wire.h"

enum { CLIENT_PIECE_BYTES = 1 << 20 /* of an upload, in one request */ };

struct client_options {
    const char *url;        /* "http://host:port" or "https://..."; a path in front of /v1 is kept.
                        * "spool:/DIR": through files that a courier carries (spool.h).
                        * "bucket:s3://BUCKET/PREFIX": through the hub's mailbox there (mail.h) */
    const char *token_file; /* mode 0600, sent as "Authorization: Bearer"; read again when the hub
                             * does not know the token. NULL: as the environment says (net_os.h) */
    const char
        *ca_file; /* of the hub's CA, PEM. NULL: as the environment says, else the system's */
    time_ns timeout_ns;
};

/* The time limit that a client of url has where `asked` is wanted: 30 s where that is 0, and through a bucket, where both ends
 * look seldom, no less than MAIL_PATIENCE_S. */
time_ns client_timeout(const char *url, time_ns asked);

struct client;
/* Once a process, before any thread is started. */
enum brg_status client_global_init(struct err *e) MUST_USE;
/* What a client of these options shows: for a look before any is opened. E_CONFIG, E_MISSING: net_os.h. */
struct net_identity;
enum brg_status client_identity(const struct client_options *o, struct net_identity *out,
                                struct err *e) MUST_USE;
enum brg_status client_open(const struct client_options *o, struct client **out, struct err *e)
    MUST_USE;
void client_close(struct client *c);
/* From any thread: what runs now ends soon with E_TIMEOUT, and so does everything after. */
void client_stop(struct client *c);

enum brg_status client_post(struct client *c, const struct wire_request *r, struct wire_answer *out,
                            struct err *e) MUST_USE;
/* An agent's report and its answer. */
enum brg_status client_agent(struct client *c, const struct wire_report *r,
                             struct wire_agent_answer *out, struct err *e) MUST_USE;
enum brg_status client_run(struct client *c, struct wire_run *out, struct err *e) MUST_USE;
/* Sends what the hub does not have yet of the file under key did; resumes where an earlier try
 * ended. OK: the hub has all of it. */
enum brg_status client_upload(struct client *c, const struct id128 *did, const char *path,
                              struct err *e) MUST_USE;
/* Appends to path.part what is missing of version's checkpoint, then renames it to path. E_MISSING:
 * the hub does not have this version. The caller verifies the content and removes a bad file. */
enum brg_status client_download(struct client *c, uint64_t version, const char *path, struct err *e)
    MUST_USE;

/* What the last download gave was not what it should be. Where it came from an object store (true), the next one says
 * so, and the hub puts that object there anew. */
bool client_doubt(struct client *c);

/* The same of the update that leads from version's parent to it. E_MISSING: there is none, take the whole. */
enum brg_status client_download_update(struct client *c, uint64_t version, const char *path,
                                       struct err *e) MUST_USE;

/* The same of the ledger in version's checkpoint. E_MISSING: this hub has it not apart, or not any more. */
enum brg_status client_download_ledger(struct client *c, uint64_t version, const char *path,
                                       struct err *e) MUST_USE;

#endif
