/* SPDX-License-Identifier: Apache-2.0 */
/* ask.c - see ask.h. */
#include <curl/curl.h>
#include <jansson.h>
#include <stdio.h>
#include <string.h>

#include "base/os.h"
#include "cli/ask.h"

enum { TIMEOUT_S = 10 };

enum brg_status cli_hub_url(const char *what, char *out, size_t cap, struct err *e) {
    char path[OS_PATH_MAX];
    struct buf b;
    if (strncmp(what, "http://", 7) == 0 || strncmp(what, "https://", 8) == 0) {
        size_t n = strlen(what);
        while (n > 0 && what[n - 1] == '/') n--;
        if (n >= cap) return err_set(e, BRG_E_USAGE, "the URL is too long");
        (void)snprintf(out, cap, "%.*s", (int)n, what);
        return BRG_OK;
    }
    os_path(path, what, "hub.json");
    if (!os_exists(path))
        return err_set(e, os_exists(what) ? BRG_E_NET : BRG_E_MISSING,
                       "%s: no hub is running for this run; "
                       "start it with `beringia hub %s`, or see `beringia audit %s`",
                       path, what, what);
    buf_init(&b, 4096);
    enum brg_status s = os_read_file(path, 4096, &b, e);
    json_t *o = s == BRG_OK ? json_loadb((const char *)b.data, b.bytes_count, 0, NULL) : NULL;
    const char *url = json_string_value(json_object_get(o, "url"));
    if (s == BRG_OK && url == NULL) s = err_set(e, BRG_E_MESSAGE, "%s: has no url", path);
    if (s == BRG_OK) (void)snprintf(out, cap, "%s", url);
    json_decref(o);
    buf_fini(&b);
    return s;
}

static size_t on_body(char *data, size_t size, size_t n, void *user) {
    struct buf *b = user;
    buf_put(b, data, size * n);
    return b->overflow ? 0 : size * n;
}

/* json: NULL for GET. */
static enum brg_status ask(const char *full, const char *json, struct buf *out, long *out_http,
                           struct err *e) {
    char error[CURL_ERROR_SIZE] = "";
    CURL *c = curl_easy_init();
    CHECK(c != NULL);
    struct curl_slist *headers = curl_slist_append(NULL, "Content-Type: application/json");
    (void)curl_easy_setopt(c, CURLOPT_URL, full);
    (void)curl_easy_setopt(c, CURLOPT_PROTOCOLS_STR, "http,https");
    (void)curl_easy_setopt(c, CURLOPT_WRITEFUNCTION, on_body);
    (void)curl_easy_setopt(c, CURLOPT_WRITEDATA, out);
    (void)curl_easy_setopt(c, CURLOPT_ERRORBUFFER, error);
    (void)curl_easy_setopt(c, CURLOPT_TIMEOUT, (long)TIMEOUT_S);
    (void)curl_easy_setopt(c, CURLOPT_NOSIGNAL, 1L);
    if (json != NULL) {
        (void)curl_easy_setopt(c, CURLOPT_POSTFIELDS, json);
        (void)curl_easy_setopt(c, CURLOPT_HTTPHEADER, headers);
    }
    CURLcode rc = curl_easy_perform(c);
    (void)curl_easy_getinfo(c, CURLINFO_RESPONSE_CODE, out_http);
    curl_easy_cleanup(c);
    curl_slist_free_all(headers);
    if (rc == CURLE_OK) return BRG_OK;
    return err_set(e, BRG_E_NET, "%s: %s; is the hub running?", full,
                   error[0] != '\0' ? error : curl_easy_strerror(rc));
}

enum brg_status cli_hub_get(const char *url, const char *path, struct buf *out, struct err *e) {
    char full[512];
    long http = 0;
    (void)snprintf(full, sizeof full, "%s%s", url, path);
    TRY(ask(full, NULL, out, &http, e));
    if (http != 200) return err_set(e, BRG_E_NET, "%s: HTTP %ld; is this a hub?", full, http);
    return BRG_OK;
}

enum brg_status cli_hub_post(const char *url, const char *path, const char *json, struct buf *out,
                             struct err *e) {
    char full[512];
    long http = 0;
    (void)snprintf(full, sizeof full, "%s%s", url, path);
    TRY(ask(full, json, out, &http, e));
    if (http == 200) return BRG_OK;
    json_t *o = json_loadb((const char *)out->data, out->bytes_count, 0, NULL);
    const char *text = json_string_value(json_object_get(o, "text"));
    enum brg_status s = text != NULL
                            ? err_set(e, BRG_E_REFUSED, "the hub refused: %s", text)
                            : err_set(e, BRG_E_NET, "%s: HTTP %ld; is this a hub?", full, http);
    json_decref(o);
    return s;
}
