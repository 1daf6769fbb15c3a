/* SPDX-License-Identifier: Apache-2.0 */
/* sign.c - Signature Version 4 as the query of a URL.
 *
 *   canonical = METHOD \n path \n query, sorted \n "host:" HOST \n \n "host" \n "UNSIGNED-PAYLOAD"
 *   to sign   = "AWS4-HMAC-SHA256" \n DATE \n DAY/REGION/SERVICE/aws4_request \n hex SHA-256(canonical)
 *   key       = HMAC(HMAC(HMAC(HMAC("AWS4" secret, DAY), REGION), SERVICE), "aws4_request")
 *
 * The payload is not signed: who has the URL sends what it likes, and the hash that the hub compares says what it was.
 * The published examples of this method are the vectors of test/object. */
#include <nettle/hmac.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "object/object.h"

static struct hash keyed(const void *key, size_t key_bytes, const char *text) {
    struct hmac_sha256_ctx ctx;
    struct hash out;
    hmac_sha256_set_key(&ctx, key_bytes, key);
    hmac_sha256_update(&ctx, strlen(text), (const uint8_t *)text);
    hmac_sha256_digest(&ctx, sizeof out.v, out.v);
    explicit_bzero(&ctx, sizeof ctx);
    return out;
}

struct hash object_signing_key(const char *secret, const char *date8, const char *region,
                               const char *service) {
    char first[sizeof((struct object_keys *)0)->secret + 8];
    (void)snprintf(first, sizeof first, "AWS4%s", secret);
    struct hash k = keyed(first, strlen(first), date8);
    explicit_bzero(first, sizeof first);
    k = keyed(k.v, sizeof k.v, region);
    k = keyed(k.v, sizeof k.v, service);
    return keyed(k.v, sizeof k.v, "aws4_request");
}

/* Howard Hinnant's civil_from_days, from 0000-03-01 on; no locale, no time zone. */
void object_date(int64_t unix_s, char out[OBJECT_DATE_BYTES]) {
    if (unix_s < 0 || unix_s > INT64_C(253402300799)) unix_s = 0; /* four digits of a year */
    int64_t days = unix_s / 86400, rest = unix_s % 86400, z = days + 719468;
    int64_t era = z / 146097, doe = z - era * 146097;
    int64_t yoe = (doe - doe / 1460 + doe / 36524 - doe / 146096) / 365;
    int64_t doy = doe - (365 * yoe + yoe / 4 - yoe / 100), mp = (5 * doy + 2) / 153;
    int64_t d = doy - (153 * mp + 2) / 5 + 1, m = mp < 10 ? mp + 3 : mp - 9;
    int64_t y = yoe + era * 400 + (m <= 2);
    char text[64];
    (void)snprintf(text, sizeof text, "%04u%02u%02uT%02u%02u%02uZ", (unsigned)y, (unsigned)m,
                   (unsigned)d, (unsigned)(rest / 3600), (unsigned)(rest / 60 % 60),
                   (unsigned)(rest % 60));
    memcpy(out, text, OBJECT_DATE_BYTES - 1);
    out[OBJECT_DATE_BYTES - 1] = '\0';
}

void object_escape(const char *text, bool slashes_stay, struct buf *out) {
    for (const unsigned char *c = (const unsigned char *)text; *c != '\0'; c++) {
        bool plain = (*c >= 'A' && *c <= 'Z') || (*c >= 'a' && *c <= 'z') ||
                     (*c >= '0' && *c <= '9') || strchr("-._~", *c) != NULL ||
                     (*c == '/' && slashes_stay);
        if (plain)
            buf_u8(out, *c);
        else
            buf_printf(out, "%%%02X", *c);
    }
}

static int by_name(const void *a, const void *b) {
    const struct object_param *x = a, *y = b;
    return strcmp(x->name, y->name);
}

/* Names are plain words already, so their order is that of their escaped forms. */
static void query_put(const struct object_signing *s, const char *date, const char *scope,
                      struct buf *out) {
    char credential[400], expires[16];
    struct object_param all[OBJECT_PARAMS_MAX + 6] = {{0}};
    size_t n = 0;
    CHECK(s->params_count <= OBJECT_PARAMS_MAX);
    (void)snprintf(credential, sizeof credential, "%s/%s", s->keys->id, scope);
    (void)snprintf(expires, sizeof expires, "%u", s->expires_s);
    all[n++] = (struct object_param){"X-Amz-Algorithm", "AWS4-HMAC-SHA256"};
    all[n++] = (struct object_param){"X-Amz-Credential", credential};
    all[n++] = (struct object_param){"X-Amz-Date", date};
    all[n++] = (struct object_param){"X-Amz-Expires", expires};
    if (s->keys->session[0] != '\0')
        all[n++] = (struct object_param){"X-Amz-Security-Token", s->keys->session};
    all[n++] = (struct object_param){"X-Amz-SignedHeaders", "host"};
    for (size_t i = 0; i < s->params_count; i++) all[n++] = s->params[i];
    qsort(all, n, sizeof all[0], by_name);
    for (size_t i = 0; i < n; i++) {
        if (i > 0) buf_u8(out, '&');
        object_escape(all[i].name, false, out);
        buf_u8(out, '=');
        object_escape(all[i].value, false, out);
    }
}

void object_sign_query(const struct object_signing *s, struct buf *out) {
    char date[OBJECT_DATE_BYTES], day[9], scope[200], hex[HASH_HEX_BYTES];
    AUTO_BUF struct buf canonical = {.bytes_max = 4 * OBJECT_URL_MAX};
    AUTO_BUF struct buf query = {.bytes_max = 2 * OBJECT_URL_MAX};
    AUTO_BUF struct buf to_sign = {.bytes_max = 1024};
    object_date(s->unix_s, date);
    (void)snprintf(day, sizeof day, "%.8s", date);
    (void)snprintf(scope, sizeof scope, "%s/%s/%s/aws4_request", day, s->region, s->service);
    query_put(s, date, scope, &query);
    buf_printf(&canonical, "%s\n%s\n%s\nhost:%s\n\nhost\nUNSIGNED-PAYLOAD", s->method, s->path,
               buf_cstr(&query), s->host);
    CHECK(!canonical.overflow);
    struct hash sum = hash_of(canonical.data, canonical.bytes_count);
    hash_hex(&sum, hex);
    buf_printf(&to_sign, "AWS4-HMAC-SHA256\n%s\n%s\n%s", date, scope, hex);
    struct hash key = object_signing_key(s->keys->secret, day, s->region, s->service);
    struct hash signature = keyed(key.v, sizeof key.v, buf_cstr(&to_sign));
    explicit_bzero(&key, sizeof key);
    hash_hex(&signature, hex);
    buf_printf(out, "%s&X-Amz-Signature=%s", buf_cstr(&query), hex);
}
