/* SPDX-License-Identifier: Apache-2.0 */
/* net_os.c - see net_os.h. */
#include "wire/net_os.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/os.h"

/* ---- The token -------------------------------------------------------------------------------- */

/* memset before a free may be left out by a compiler; this is not. */
static void wipe(void *p, size_t n) {
    explicit_bzero(p, n);
}

static enum brg_status token_take(const char *from, const char *text, size_t n, char *out,
                                  struct err *e) {
    size_t used = 0;
    while (used < n && text[used] > ' ' && text[used] < 0x7f) used++;
    for (size_t i = used; i < n; i++)
        if (text[i] != '\n' && text[i] != '\r' && text[i] != ' ')
            return err_set(e, BRG_E_CONFIG, "%s: want one line with a token", from);
    if (used == 0) return err_set(e, BRG_E_CONFIG, "%s: no token in it", from);
    if (used >= NET_TOKEN_MAX) return err_set(e, BRG_E_CONFIG, "%s: too long for a token", from);
    memcpy(out, text, used);
    out[used] = '\0';
    return BRG_OK;
}

enum brg_status net_token_read(const char *path, char out[NET_TOKEN_MAX], struct err *e) {
    char text[NET_TOKEN_MAX + 2];
    struct stat st;
    AUTO_CLOSE int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOCTTY);
    if (fd < 0) return os_errno(e, errno, "opening", path);
    if (fstat(fd, &st) != 0) return os_errno(e, errno, "looking at", path);
    if ((st.st_mode & 077) != 0)
        return err_set(e, BRG_E_CONFIG, "%s: others may read this token; chmod 600 it", path);
    ssize_t n = read(fd, text, sizeof text);
    if (n < 0) return os_errno(e, errno, "reading", path);
    enum brg_status s = token_take(path, text, (size_t)n, out, e);
    wipe(text, sizeof text);
    return s;
}

static const char *environment(const char *name) {
    const char *v = getenv(name); /* nobody calls setenv once threads run */
    return v != NULL ? v : "";
}

/* Of this machine: nobody can listen on the way. */
bool net_url_is_local(const char *url) {
    static const char *const hosts[] = {"127.", "localhost", "[::1]"};
    if (strncmp(url, "http://", 7) != 0) return false;
    const char *host = url + 7, *end = host + strcspn(host, "/");
    if (memchr(host, '@', (size_t)(end - host)) != NULL) return false;
    for (size_t i = 0; i < ARRAY_COUNT(hosts); i++) {
        size_t n = strlen(hosts[i]);
        if (strncmp(host, hosts[i], n) != 0) continue;
        if (i == 0) return strspn(host, "0123456789.:") == (size_t)(end - host);
        return host[n] == '\0' || host[n] == ':' || host[n] == '/';
    }
    return false;
}

static bool url_has_user(const char *url) {
    const char *host = strstr(url, "://");
    if (host == NULL) return false;
    host += 3;
    return memchr(host, '@', strcspn(host, "/")) != NULL;
}

static enum brg_status path_take(const char *what, const char *path, char out[NET_PATH_MAX],
                                 struct err *e) {
    if (strlen(path) >= NET_PATH_MAX)
        return err_set(e, BRG_E_CONFIG, "%s: the path is too long", what);
    (void)snprintf(out, NET_PATH_MAX, "%s", path);
    return BRG_OK;
}

enum brg_status net_identity_open(const char *url, const char *token_file, const char *ca,
                                  struct net_identity *out, struct err *e) {
    struct net_identity id = {.token = ""};
    const char *direct = environment("BERINGIA_TOKEN");
    if (url_has_user(url)) /* it would stand in logs and messages */
        return err_set(e, BRG_E_CONFIG,
                       "hub address: has a user name or password in it; want a token file");
    if (token_file == NULL || *token_file == '\0') token_file = environment("BERINGIA_TOKEN_FILE");
    if (ca == NULL || *ca == '\0') ca = environment("BERINGIA_CA");
    TRY(path_take("token file", token_file, id.token_file, e));
    TRY(path_take("CA file", ca, id.ca, e));
    if (*token_file != '\0')
        TRY(net_token_read(token_file, id.token, e));
    else if (*direct != '\0')
        TRY(token_take("BERINGIA_TOKEN", direct, strlen(direct), id.token, e));
    if (id.ca[0] != '\0' && access(id.ca, R_OK) != 0) return os_errno(e, errno, "opening", id.ca);
    if (id.token[0] != '\0' && strncmp(url, "http://", 7) == 0 && !net_url_is_local(url))
        return err_set(e, BRG_E_CONFIG,
                       "%.200s: a token would be sent unencrypted; want https:// (beringia tls "
                       "makes the hub's certificate)",
                       url);
    id.local = id.token[0] != '\0' && net_url_is_local(url);
    *out = id;
    wipe(&id, sizeof id);
    return BRG_OK;
}

void net_identity_store(struct net_identity *out) {
    struct err e = {0};
    memset(out, 0, sizeof *out);
    if (path_take("BERINGIA_S3_CA", environment("BERINGIA_S3_CA"), out->ca, &e) != BRG_OK)
        out->ca[0] = '\0';
}

bool net_identity_renew(struct net_identity *id) {
    char token[NET_TOKEN_MAX];
    struct err e = {0};
    if (id->token_file[0] == '\0' || net_token_read(id->token_file, token, &e) != BRG_OK)
        return false;
    bool other = strcmp(token, id->token) != 0;
    if (other) memcpy(id->token, token, sizeof token);
    wipe(token, sizeof token);
    return other;
}

void net_identity_fini(struct net_identity *id) {
    wipe(id, sizeof *id);
}

bool net_headers_begin(const struct net_identity *id, struct curl_slist **out) {
    char line[NET_TOKEN_MAX + 32];
    *out = NULL;
    if (id->token[0] == '\0') return true;
    (void)snprintf(line, sizeof line, "Authorization: Bearer %s", id->token);
    *out = curl_slist_append(NULL, line);
    wipe(line, sizeof line);
    return *out != NULL;
}

/* ---- TLS ---------------------------------------------------------------------------------------- */

/* Where distributions keep the CAs that everybody trusts: libcurl knows the one of the system that it was built for,
 * and a program that was carried to another must look for itself. NULL: libcurl's own is there, or none is. */
static const char *ca_elsewhere(void) {
    static const char *const places[] = {
        "/etc/ssl/certs/ca-certificates.crt", /* Debian, Ubuntu */
        "/etc/pki/tls/certs/ca-bundle.crt",   /* Red Hat and its like */
        "/etc/ssl/ca-bundle.pem",             /* SUSE */
        "/etc/ssl/cert.pem",
    };
    const curl_version_info_data *v = curl_version_info(CURLVERSION_NOW);
    bool knows = v->age >= CURLVERSION_SEVENTH;
    if (!knows || (v->cainfo != NULL && access(v->cainfo, R_OK) == 0) ||
        (v->capath != NULL && access(v->capath, R_OK) == 0))
        return NULL;
    for (size_t i = 0; i < ARRAY_COUNT(places); i++)
        if (access(places[i], R_OK) == 0) return places[i];
    return NULL;
}

void net_curl_secure(CURL *h, const struct net_identity *id) {
    curl_easy_setopt(h, CURLOPT_PROTOCOLS_STR, "http,https");
    curl_easy_setopt(h, CURLOPT_FOLLOWLOCATION, 0L); /* a token goes where it was meant to go */
    curl_easy_setopt(h, CURLOPT_SSL_VERIFYPEER, 1L);
    curl_easy_setopt(h, CURLOPT_SSL_VERIFYHOST, 2L);
    curl_easy_setopt(h, CURLOPT_SSLVERSION, (long)CURL_SSLVERSION_TLSv1_2);
    curl_easy_setopt(h, CURLOPT_HEADEROPT, (long)CURLHEADER_SEPARATE); /* none for a proxy */
    if (id->local) curl_easy_setopt(h, CURLOPT_NOPROXY, "*");
    const char *ca = id->ca[0] != '\0' ? id->ca : ca_elsewhere();
    if (ca == NULL) return;
    curl_easy_setopt(h, CURLOPT_CAINFO, ca);
    curl_easy_setopt(h, CURLOPT_CAPATH, NULL);
}

const char *net_tls_remedy(CURLcode rc) {
    if (rc == CURLE_PEER_FAILED_VERIFICATION)
        return "; the hub's certificate is not trusted: is it the right hub, is the CA file the "
               "hub's ca.pem, is the certificate or this machine's clock out of date?";
    if (rc == CURLE_SSL_CACERT_BADFILE) return "; the CA file cannot be used: want a PEM file";
    if (rc == CURLE_SSL_CONNECT_ERROR)
        return "; is the address one of https, and TLS 1.2 or newer?";
    return "";
}
