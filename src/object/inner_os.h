/* SPDX-License-Identifier: Apache-2.0 */
/* inner_os.h - private to src/object: the store's state, and one request of it. */
#ifndef OBJECT_INNER_OS_H
#define OBJECT_INNER_OS_H

#include <curl/curl.h>
#include <pthread.h>
#include <stdatomic.h>

#include "object/object.h"

struct object_store {
    struct object_place place;
    char credentials[1024], name[400], sigv4[128];
    uint64_t part_bytes;
    long silence_s, connect_ms;
    atomic_bool stopped;
    pthread_mutex_t lock; /* guards what follows */
    struct object_keys keys;
    struct object_counts counts;
    int64_t date; /* of the last answer */
    CURL *idle[16];
    size_t idle_count;
};

enum object_kind { OBJECT_GET, OBJECT_PUT, OBJECT_PUT_SMALL, OBJECT_POST, OBJECT_DELETE };
struct object_request {
    struct object_store *store;
    enum object_kind kind;
    const char *key; /* NULL: the bucket */
    const char *
        query; /* sorted, escaped, each name with its '=': libcurl signs it as it stands. NULL: none */
    char range[64];
    int fd; /* PUT: bytes begin to end of it */
    uint64_t begin, end;
    const void *data; /* POST, PUT_SMALL */
    size_t data_bytes;
    struct hash payload;     /* zero: not signed */
    const struct hash *meta; /* for x-amz-meta-sha256 */
    object_sink *sink;       /* of a good answer; NULL: body */
    void *user;
    uint64_t from;
    time_ns until; /* 0: for ever */
    char what[160];
    /* the answer */
    long http;
    struct buf body;
    uint64_t total, length; /* total: UINT64_MAX where nothing was told */
    struct hash sha256;
    char etag[128];
    int64_t date; /* 0: not told */
    /* while it runs */
    CURL *curl;
    uint64_t at, skipped, moved_up, moved_down;
    enum brg_status sink_status;
    struct err sink_error;
    char header[1200], error[CURL_ERROR_SIZE];
};
/* Asks; object_request_fini after it, whatever came. */
enum brg_status object_perform(struct object_request *r, struct err *e) MUST_USE;
void object_request_fini(struct object_request *r);

enum brg_status object_put_part(struct object_store *s, const char *key, const char *upload,
                                uint32_t number, int fd, uint64_t at, uint64_t end, char etag[128],
                                struct err *e) MUST_USE;

#endif
