/* SPDX-License-Identifier: Apache-2.0 */
/* http_os.h - private to the hub's shore: one request on its way, and the answers it may get. */
#ifndef HUB_HTTP_OS_H
#define HUB_HTTP_OS_H

#include <microhttpd.h>

#include "hub/gate_os.h"
#include "hub/server_os.h"

/* MHD_Result is an int before libmicrohttpd 0.9.71; this is never that old. */
enum { METHOD_GET = 1, METHOD_HEAD = 2, METHOD_POST = 4, METHOD_PUT = 8, METHOD_DELETE = 16 };
enum { OPERATOR_BODY_MAX = 4096, PATH_MAX_SEGMENTS = 5 };

struct exchange { /* one request; lives from its headers to its last byte */
    struct hub_server *s;
    struct MHD_Connection *mhd;
    uint32_t method;
    char path[128];                         /* a copy, cut at the slashes */
    const char *segment[PATH_MAX_SEGMENTS]; /* "v1", "versions", "3", "checkpoint" */
    uint32_t segments_count;
    const struct route *route;
    struct buf body; /* POST */
    size_t body_max;
    /* an upload */
    struct id128 did;
    uint64_t offset, received;
    int http;         /* of the answer */
    bool answered;    /* refused before its body: the rest is not read */
    uint32_t allowed; /* no route: the methods that the path does have */
    enum gate_answer gate;
    time_ns wait; /* GATE_RATE */
    struct caller who;
    struct watch *watch; /* of the connection */
    uint64_t surplus;    /* bytes of the body beyond what it may have */
    enum brg_status upload_status;
    struct err upload_error;
};

/* Each answers once. */
/* Takes r, whatever it is made of; headers and the books about the connection are those of every answer. */
enum MHD_Result reply_response(struct exchange *x, int http, struct MHD_Response *r);
enum MHD_Result reply_json(struct exchange *x, int http, struct buf *json);
/* {"code":NAME,"req":0,"term":T,"text":...}: the shape of every answer that is not OK. */
enum MHD_Result reply_problem(struct exchange *x, int http, enum wire_code code, const char *fmt,
                              ...) PRINTF_LIKE(4, 5);
/* The problem that a step_result other than STEP_DONE is. */
enum MHD_Result reply_step(struct exchange *x, enum step_result r);
/* An open file, whole or the one range that was asked for. Takes fd. */
enum MHD_Result reply_file(struct exchange *x, int fd, uint64_t bytes, const struct hash *hash);
/* The same of `bytes` of it from `offset` on. */
enum MHD_Result reply_stretch(struct exchange *x, int fd, uint64_t offset, uint64_t bytes,
                              const struct hash *hash);
enum MHD_Result reply_offset(struct exchange *x, int http, uint64_t offset, const char *text);
enum MHD_Result reply_method(struct exchange *x, uint32_t allowed);

struct route {
    uint32_t method;
    uint32_t segments_count;
    const char *segment[PATH_MAX_SEGMENTS]; /* NULL matches anything */
    size_t body_max;                        /* POST */
    uint32_t scopes;                        /* of the tokens that may, where tokens are wanted */
    enum MHD_Result (*handle)(struct exchange *x);
};
/* NULL where none fits; then *out_allowed has the methods that the path does have. */
const struct route *route_find(const struct exchange *x, uint32_t *out_allowed);

/* What libmicrohttpd calls: of a request, of its end, of a connection's beginning and end. */
enum MHD_Result http_on_request(void *user, struct MHD_Connection *mhd, const char *url,
                                const char *method, const char *version, const char *data,
                                size_t *data_bytes, void **state);
void http_on_completed(void *user, struct MHD_Connection *mhd, void **state,
                       enum MHD_RequestTerminationCode why);
void http_on_connection(void *user, struct MHD_Connection *mhd, void **context,
                        enum MHD_ConnectionNotificationCode what);
/* 403 with the sentence: the token is another site's. */
enum MHD_Result reply_other_name(struct exchange *x);

/* operator_os.c */
enum MHD_Result handle_operator(struct exchange *x);

/* uploads_os.c */
enum MHD_Result upload_begin(struct exchange *x); /* headers are here */
void upload_piece(struct exchange *x, const void *data, size_t n);
enum MHD_Result upload_end(struct exchange *x);
enum MHD_Result handle_blob_get(struct exchange *x);
enum MHD_Result handle_blob_drop(struct exchange *x);
/* A COMMIT: looks at the blob, makes it durable, then asks the machine. */
enum MHD_Result handle_commit(struct exchange *x, const struct wire_request *r);
enum MHD_Result reply_answer(struct exchange *x, const struct wire_answer *a);

#endif
