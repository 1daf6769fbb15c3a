/* SPDX-License-Identifier: Apache-2.0 */
/* net_os.h - what every client of the hub shows and checks: its token, the hub's certificate. Shore.
 *
 * Where nothing is given the environment counts: BERINGIA_TOKEN_FILE, else BERINGIA_TOKEN (the token
 * itself), and BERINGIA_CA. A token never comes from a command line, which all users of a machine can
 * read. A certificate is always verified; with a CA file of one's own, by that CA alone. */
#ifndef WIRE_NET_OS_H
#define WIRE_NET_OS_H

#include <curl/curl.h>

#include "base/base.h"

enum { NET_TOKEN_MAX = 256, NET_PATH_MAX = 1024 };

struct net_identity {
    char token[NET_TOKEN_MAX];     /* "": none */
    char token_file[NET_PATH_MAX]; /* "": none; read again when the hub does not know the token */
    char ca[NET_PATH_MAX];         /* "": the system's */
    bool local; /* a token for this machine, without TLS: it must not go through a proxy */
};
/* token_file, ca: NULL or "" asks the environment. url: of the hub.
 *   E_MISSING, E_CONFIG: the file is not there, others may read it, it holds no token; or the token
 *   would go through a network unencrypted. */
enum brg_status net_identity_open(const char *url, const char *token_file, const char *ca,
                                  struct net_identity *out, struct err *e) MUST_USE;
/* For an object store: no token, and the CA of BERINGIA_S3_CA, else the system's. */
void net_identity_store(struct net_identity *out);
bool net_url_is_local(const char *url); /* http:// on this machine: nobody can listen on the way */
/* The token file has another token by now (it was rotated): takes it, true. */
bool net_identity_renew(struct net_identity *id);
void net_identity_fini(struct net_identity *id); /* wipes */

/* A list that begins with the token's header, where there is one; false: no memory. */
bool net_headers_begin(const struct net_identity *id, struct curl_slist **out);
/* Protocols, TLS, verification: after each curl_easy_reset. Borrows id until the request's end. */
void net_curl_secure(CURL *h, const struct net_identity *id);
/* What to do about a failure of TLS; "" for other failures. */
const char *net_tls_remedy(CURLcode rc);

/* A file with one token, mode 0600, of this user; out[NET_TOKEN_MAX]. */
enum brg_status net_token_read(const char *path, char out[NET_TOKEN_MAX], struct err *e) MUST_USE;

#endif
