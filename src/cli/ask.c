/* SPDX-License-Identifier: Apache-2.0 */
/* ask.c - see ask.h. */
#include <curl/curl.h>
#include <jansson.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/os.h"
#include "cli/ask.h"

enum { TIMEOUT_S = 10 };

/* RUN/hub.json, as far as it concerns a client. */
static enum brg_status hub_json_read(const char *path, struct hub_address *out, struct err *e) {
    AUTO_BUF struct buf b;
    buf_init(&b, 4096);
    TRY(os_read_file(path, 4096, &b, e));
    json_t *o = json_loadb((const char *)b.data, b.bytes_count, 0, NULL);
    const char *url = json_string_value(json_object_get(o, "url"));
    const char *connect = json_string_value(json_object_get(o, "connect"));
    enum brg_status s = BRG_OK;
    if (url == NULL || strlen(url) >= sizeof out->url ||
        (connect != NULL && strlen(connect) >= sizeof out->connect)) {
        s = err_set(e, BRG_E_MESSAGE, "%s: has no url", path);
    } else {
        (void)snprintf(out->url, sizeof out->url, "%s", url);
        (void)snprintf(out->connect, sizeof out->connect, "%s", connect != NULL ? connect : "");
    }
    json_decref(o);
    return s;
}

bool cli_who_option(struct hub_who *w, int option, const char *value) {
    if (option == CLI_OPT_TOKEN) w->token = value;
    if (option == CLI_OPT_CA) w->ca = value;
    return option == CLI_OPT_TOKEN || option == CLI_OPT_CA;
}

static enum brg_status find_run(const struct hub_who *who, struct hub_address *out, struct err *e) {
    const char *run = who->run;
    char path[OS_PATH_MAX], token[OS_PATH_MAX], ca[OS_PATH_MAX];
    os_path(path, run, "hub.json");
    if (!os_exists(path))
        return err_set(e, os_exists(run) ? BRG_E_NET : BRG_E_MISSING,
                       "%s: no hub is running for this run; "
                       "start it with `beringia hub %s`, or see `beringia audit %s`",
                       path, run, run);
    TRY(hub_json_read(path, out, e));
    out->local = true;
    os_path(token, run, "hub.token");
    os_path(ca, run, "tls/ca.pem");
    bool mine = access(token, R_OK) == 0;
    return net_identity_open(out->url,
                             who->token != NULL ? who->token
                             : mine             ? token
                                                : NULL,
                             who->ca != NULL ? who->ca
                             : os_exists(ca) ? ca
                                             : NULL,
                             &out->id, e);
}

enum brg_status cli_hub_find(const struct hub_who *who, struct hub_address *out, struct err *e) {
    const char *what = who->run;
    memset(out, 0, sizeof *out);
    if (strncmp(what, "http://", 7) != 0 && strncmp(what, "https://", 8) != 0)
        return find_run(who, out, e);
    size_t n = strlen(what);
    while (n > 0 && what[n - 1] == '/') n--;
    if (n >= sizeof out->url) return err_set(e, BRG_E_USAGE, "the URL is too long");
    (void)snprintf(out->url, sizeof out->url, "%.*s", (int)n, what);
    return net_identity_open(out->url, who->token, who->ca, &out->id, e);
}

static size_t on_body(char *data, size_t size, size_t n, void *user) {
    struct buf *b = user;
    buf_put(b, data, size * n);
    return b->overflow ? 0 : size * n;
}

/* json: NULL for GET. */
static enum brg_status ask(const struct hub_address *hub, const char *full, const char *json,
                           struct buf *out, long *out_http, struct err *e) {
    char error[CURL_ERROR_SIZE] = "", to[160];
    CURL *c = curl_easy_init();
    struct curl_slist *headers, *connect = NULL;
    CHECK(c != NULL);
    CHECK(net_headers_begin(&hub->id, &headers));
    headers = curl_slist_append(headers, "Content-Type: application/json");
    (void)curl_easy_setopt(c, CURLOPT_URL, full);
    net_curl_secure(c, &hub->id);
    if (hub->connect[0] != '\0') {
        (void)snprintf(to, sizeof to, "::%s", hub->connect);
        connect = curl_slist_append(NULL, to);
        (void)curl_easy_setopt(c, CURLOPT_CONNECT_TO, connect);
    }
    if (hub->local) (void)curl_easy_setopt(c, CURLOPT_NOPROXY, "*");
    (void)curl_easy_setopt(c, CURLOPT_WRITEFUNCTION, on_body);
    (void)curl_easy_setopt(c, CURLOPT_WRITEDATA, out);
    (void)curl_easy_setopt(c, CURLOPT_ERRORBUFFER, error);
    (void)curl_easy_setopt(c, CURLOPT_TIMEOUT, (long)TIMEOUT_S);
    (void)curl_easy_setopt(c, CURLOPT_NOSIGNAL, 1L);
    (void)curl_easy_setopt(c, CURLOPT_HTTPHEADER, headers);
    if (json != NULL) (void)curl_easy_setopt(c, CURLOPT_POSTFIELDS, json);
    CURLcode rc = curl_easy_perform(c);
    (void)curl_easy_getinfo(c, CURLINFO_RESPONSE_CODE, out_http);
    curl_easy_cleanup(c);
    curl_slist_free_all(headers);
    curl_slist_free_all(connect);
    if (rc == CURLE_OK) return BRG_OK;
    const char *tls = net_tls_remedy(rc);
    return err_set(e, BRG_E_NET, "%s: %s%s", full,
                   error[0] != '\0' ? error : curl_easy_strerror(rc),
                   *tls != '\0' ? tls : "; is the hub running?");
}

/* The hub's own sentence where it has one. */
static enum brg_status refused(const struct hub_address *hub, const char *full, long http,
                               const struct buf *body, struct err *e) {
    json_t *o = json_loadb((const char *)body->data, body->bytes_count, 0, NULL);
    const char *text = json_string_value(json_object_get(o, "text"));
    enum brg_status s;
    if (http == 401)
        s = err_set(e, BRG_E_REFUSED,
                    "%s: the hub %s; give --token FILE or set BERINGIA_TOKEN_FILE (beringia token)",
                    full, hub->id.token[0] != '\0' ? "does not know this token" : "wants a token");
    else if (text != NULL)
        s = err_set(e, BRG_E_REFUSED, "the hub refused: %s", text);
    else
        s = err_set(e, BRG_E_NET, "%s: HTTP %ld; is this a hub?", full, http);
    json_decref(o);
    return s;
}

enum brg_status cli_hub_get(const struct hub_address *hub, const char *path, struct buf *out,
                            struct err *e) {
    char full[512];
    long http = 0;
    (void)snprintf(full, sizeof full, "%s%s", hub->url, path);
    TRY(ask(hub, full, NULL, out, &http, e));
    if (http == 200) return BRG_OK;
    if (http == 401 || http == 403 || http == 429) return refused(hub, full, http, out, e);
    return err_set(e, BRG_E_NET, "%s: HTTP %ld; is this a hub?", full, http);
}

enum brg_status cli_hub_post(const struct hub_address *hub, const char *path, const char *json,
                             struct buf *out, struct err *e) {
    char full[512];
    long http = 0;
    (void)snprintf(full, sizeof full, "%s%s", hub->url, path);
    TRY(ask(hub, full, json, out, &http, e));
    return http == 200 ? BRG_OK : refused(hub, full, http, out, e);
}

const char *cli_word(const json_t *answer, const char *key) {
    const char *s = json_string_value(json_object_get(answer, key));
    return s != NULL ? s : "";
}
