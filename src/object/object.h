/* SPDX-License-Identifier: Apache-2.0 */
/* object.h - the room's face: an object store that speaks S3. docs/s3.md
 *
 *   sign.c       Signature Version 4 in the query of a URL ("presigned"), by nettle's HMAC-SHA256. Pure
 *   answer.c     the store's XML: errors, lists, uploads; credentials files. Pure
 *   keys_os.c    where credentials come from
 *   object_os.c  requests: libcurl signs them (CURLOPT_AWS_SIGV4)
 *
 * Sources: AWS, "Authenticating Requests: Using Query Parameters (AWS Signature Version 4)", and the Amazon S3 API
 * Reference. Only what MinIO, Ceph and Swift's s3api understand as well is used: addresses by path, ListObjectsV2,
 * multipart uploads, ranges.
 *
 * Credentials are in struct object_keys and nowhere else: no URL, log line or error text has the secret. A presigned
 * URL is a capability for one object, one method and a limited time; it is not logged either. */
#ifndef OBJECT_OBJECT_H
#define OBJECT_OBJECT_H

#include "base/base.h"

enum {
    OBJECT_KEY_MAX =
        512, /* below the prefix; of [A-Za-z0-9._/-], so that nothing needs an escape */
    OBJECT_URL_MAX = 4096, /* a session token may be long */
    OBJECT_TEXT_MAX = 1100,
    OBJECT_ANSWER_MAX = 8 << 20, /* of XML */
    OBJECT_PARTS_MAX = 10000,    /* of an upload, by S3's own limit */
};

/* ---- Where and who --------------------------------------------------------------------------------- */
struct object_place {
    char endpoint[256]; /* "https://s3.example.org", no slash at its end */
    char region[64], bucket[64];
    char prefix[200]; /* "" or "a/b": no slash at either end */
    char ca[1024];    /* PEM; "": the system's */
};
/* "s3://BUCKET[/PREFIX]" and an endpoint. E_CONFIG says which is wrong, and that plain HTTP is for this machine alone. */
enum brg_status object_place_parse(const char *url, const char *endpoint, const char *region,
                                   struct object_place *out, struct err *e) MUST_USE;

struct object_keys {
    char id[160], secret[160], session[2048]; /* session "": none */
};
/* A credentials file of the usual form: [profile], aws_access_key_id, aws_secret_access_key, aws_session_token. Pure.
 * name is the file's, for the errors, which never repeat a line of it. */
enum brg_status object_keys_parse(const char *name, const void *text, size_t n, const char *profile,
                                  struct object_keys *out, struct err *e) MUST_USE;
/* From file (mode 0600, profile "default" or AWS_PROFILE); "": AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY and
 * AWS_SESSION_TOKEN, else AWS_SHARED_CREDENTIALS_FILE, else ~/.aws/credentials. E_CONFIG, E_MISSING. */
enum brg_status object_keys_read(const char *file, struct object_keys *out, struct err *e) MUST_USE;
void object_keys_wipe(struct object_keys *k);

/* ---- Signing. Pure --------------------------------------------------------------------------------- */
struct object_param {
    const char *name, *value; /* as they are: escaped here */
};
struct object_signing {
    const char *method, *host, *path; /* path: escaped already, begins with a slash */
    const char *region, *service;     /* service: "s3" */
    const struct object_keys *keys;
    int64_t unix_s;
    uint32_t expires_s;
    const struct object_param *params; /* more of the query: partNumber, uploadId */
    size_t params_count;
};
enum { OBJECT_PARAMS_MAX = 8, OBJECT_DATE_BYTES = 17 };
/* Appends the query, "X-Amz-Algorithm=...&X-Amz-Signature=...", behind the question mark. */
void object_sign_query(const struct object_signing *s, struct buf *out);
struct hash object_signing_key(const char *secret, const char *date8, const char *region,
                               const char *service);
void object_date(int64_t unix_s, char out[OBJECT_DATE_BYTES]); /* "20130524T000000Z" */
void object_escape(const char *text, bool slashes_stay, struct buf *out);

/* ---- Answers. Pure, fuzzed -------------------------------------------------------------------------- */
struct object_entry { /* of a list: an object, an upload under way, a part of one */
    char key[OBJECT_KEY_MAX + 256], upload[OBJECT_TEXT_MAX], etag[128];
    uint64_t bytes;
    uint32_t number; /* of a part */
    int64_t unix_s;  /* last modified, begun; 0: not told */
};
typedef void object_visit(void *user, const struct object_entry *x);
struct object_answer {
    char root[64];                /* "Error", "ListBucketResult", ... */
    char code[64], text[200];     /* of an error */
    char upload[OBJECT_TEXT_MAX]; /* of an upload that was begun */
    bool more;                    /* a list goes on after next */
    char next[OBJECT_TEXT_MAX], next_upload[OBJECT_TEXT_MAX];
};
/* visit (may be NULL) is called for each entry. E_MESSAGE: no XML of this kind. Entries before a fault were visited. */
enum brg_status object_answer_parse(const void *xml, size_t n, object_visit *visit, void *user,
                                    struct object_answer *out, struct err *e) MUST_USE;
/* What a store's refusal means and what to do, as one line; gives the status. what: "GET blobs/ab...". */
enum brg_status object_refusal(long http, const void *body, size_t n, const char *place,
                               const char *what, struct err *e);

/* ---- The store. Shore: object_os.c ------------------------------------------------------------------
 * Threads: any; each call takes a connection of its own out of a pool. Blocks until the answer is there, at most
 * a minute without a byte; object_store_stop ends what runs.
 *   E_NET        not reached, or it says: later. Trying again is right
 *   E_CONFIG     credentials, bucket or clock; nothing but a person helps; the text says what to do
 *   E_REFUSED    it says no for another reason
 *   E_MISSING    there is no such object or upload
 *   E_CORRUPT    of another size or hash than it should be
 *   E_MESSAGE    no answer of an object store */
struct object_store;
struct object_counts {
    uint64_t writes;  /* PUT, POST and lists: the dear ones */
    uint64_t lists;   /* of these, lists */
    uint64_t reads;   /* GET */
    uint64_t deletes; /* free at most places */
    uint64_t bytes_up, bytes_down, failures;
};
/* credentials: a file, or "". part_bytes: of multipart uploads; files that are longer go in parts. */
enum brg_status object_store_open(const struct object_place *p, const char *credentials,
                                  uint64_t part_bytes, struct object_store **out, struct err *e)
    MUST_USE;
void object_store_stop(struct object_store *s);
void object_store_close(struct object_store *s); /* takes NULL too; nobody may be in a call */
/* Instead of a minute: how long a request waits without a byte, and for a connection. Before the first request. */
void object_store_patience(struct object_store *s, uint32_t seconds);
struct object_counts object_store_counts(struct object_store *s);
/* What they cost; prices are of 1,000 requests. */
double object_cost(const struct object_counts *c, double price_writes, double price_reads);
/* The store's own clock at its last answer, seconds since 1970; 0: none yet. What it says of its objects' ages is to be
 * compared with this, and not with a clock of this machine. */
int64_t object_store_date(struct object_store *s);

struct object_about {
    uint64_t bytes;
    struct hash sha256; /* as its metadata say; zero: they say nothing */
};
enum brg_status object_look(struct object_store *s, const char *key, struct object_about *out,
                            struct err *e) MUST_USE;
/* A whole file under key. sha256 goes into the metadata, and the store is told to compare. A long one goes in parts,
 * and goes on where an earlier try, of this process or another, was interrupted. Looks afterwards whether the object
 * has the size and the hash. */
enum brg_status object_put_file(struct object_store *s, const char *key, const char *path,
                                const struct hash *sha256, struct err *e) MUST_USE;
enum brg_status object_put_bytes(struct object_store *s, const char *key, const void *data,
                                 size_t n, struct err *e) MUST_USE;
/* Bytes from `from` on, handed to sink; sink's failure ends it and is given. *out_bytes: of the whole object. What
 * was cut on the way is E_NET: go on behind what the sink has. Stops with E_TIMEOUT after `limit` (TIME_NS_NEVER). */
typedef enum brg_status object_sink(void *user, const void *data, size_t n, struct err *e);
enum brg_status object_get(struct object_store *s, const char *key, uint64_t from, time_ns limit,
                           object_sink *sink, void *user, uint64_t *out_bytes, struct err *e)
    MUST_USE;
enum brg_status object_get_bytes(struct object_store *s, const char *key, size_t bytes_max,
                                 struct buf *out, struct err *e) MUST_USE;
enum brg_status object_delete(struct object_store *s, const char *key, struct err *e) MUST_USE;
/* Each object whose key begins with prefix; keys are below the store's own prefix. */
enum brg_status object_list(struct object_store *s, const char *prefix, object_visit *visit,
                            void *user, struct err *e) MUST_USE;

/* Uploads in parts. Parts are numbered from 1; all but the last have part_bytes. */
uint64_t object_part_bytes(const struct object_store *s);
/* The newest upload of key that is under way. E_MISSING. */
enum brg_status object_upload_find(struct object_store *s, const char *key,
                                   char out[OBJECT_TEXT_MAX], struct err *e) MUST_USE;
enum brg_status object_upload_begin(struct object_store *s, const char *key,
                                    const struct hash *sha256_or_null, char out[OBJECT_TEXT_MAX],
                                    struct err *e) MUST_USE;
/* Uploads whose key begins with prefix. */
enum brg_status object_uploads(struct object_store *s, const char *prefix, object_visit *visit,
                               void *user, struct err *e) MUST_USE;
struct object_parts {  /* what of bytes has arrived; fini with object_parts_fini */
    uint32_t count;    /* that there will be */
    char (*etag)[128]; /* [count]; "": not here */
    uint64_t bytes_here;
    uint32_t missing;
};
void object_parts_fini(struct object_parts *p);
enum brg_status object_upload_parts(struct object_store *s, const char *key, const char *upload,
                                    uint64_t bytes, struct object_parts *out, struct err *e)
    MUST_USE;
enum brg_status object_upload_finish(struct object_store *s, const char *key, const char *upload,
                                     const struct object_parts *p, struct err *e) MUST_USE;
enum brg_status object_upload_abort(struct object_store *s, const char *key, const char *upload,
                                    struct err *e) MUST_USE;

/* A URL by which anybody may do `method` with key for so long; part 0: the whole object. No request is made. */
void object_presign(struct object_store *s, const char *method, const char *key,
                    const char *upload_or_null, uint32_t part, uint32_t expires_s, struct buf *out);

#endif
