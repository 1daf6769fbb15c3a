/* SPDX-License-Identifier: Apache-2.0 */
/* answer.c - what an object store says, from outside and so never believed: XML of a few known shapes, and the text of
 * credentials files.
 *
 * Of XML this reads elements, text, the five named entities and numeric ones, CDATA, comments and declarations. A DOCTYPE
 * is refused: nothing here needs one, and what entities can be made to do is well known. Attributes are skipped,
 * prefixes of names too. Depth, names and texts are bounded; nothing is allocated. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "object/object.h"

enum { DEPTH_MAX = 12, NAME_BYTES = 64 };

struct xml {
    const char *p, *end;
    char names[DEPTH_MAX][NAME_BYTES]; /* of the open elements */
    unsigned depth;
    char text[OBJECT_TEXT_MAX]; /* of the innermost one, so far */
    size_t text_bytes;
    bool leaf; /* nothing was opened in it yet */
};

struct walk {
    struct object_answer *answer;
    struct object_entry entry;
    object_visit *visit;
    void *user;
};

/* ---- Meaning ----------------------------------------------------------------------------------------- */
static void text_copy(char *out, size_t cap, const char *text) {
    size_t n = strnlen(text, cap - 1);
    memcpy(out, text, n);
    out[n] = '\0';
}

static uint64_t digits_of(const char *text, size_t n) {
    uint64_t v = 0;
    for (size_t i = 0; i < n; i++) v = v * 10 + (uint64_t)(text[i] - '0');
    return v;
}

/* "2026-11-30T04:41:09.000Z"; 0 where it is something else. */
static int64_t time_of(const char *t) {
    static const char form[] = "dddd-dd-ddTdd:dd:dd";
    for (size_t i = 0; i + 1 < sizeof form; i++) {
        bool digit = t[i] >= '0' && t[i] <= '9';
        if (form[i] == 'd' ? !digit : t[i] != form[i]) return 0;
    }
    int64_t y = (int64_t)digits_of(t, 4), m = (int64_t)digits_of(t + 5, 2);
    int64_t d = (int64_t)digits_of(t + 8, 2);
    if (m < 1 || m > 12 || d < 1 || d > 31) return 0;
    y -= m <= 2;
    int64_t era = y / 400, yoe = y - era * 400;
    if (y < 0) return 0;
    int64_t doy = (153 * (m > 2 ? m - 3 : m + 9) + 2) / 5 + d - 1;
    int64_t days = era * 146097 + yoe * 365 + yoe / 4 - yoe / 100 + doy - 719468;
    int64_t s = days * 86400 + (int64_t)(digits_of(t + 11, 2) * 3600 + digits_of(t + 14, 2) * 60 +
                                         digits_of(t + 17, 2));
    return s > 0 ? s : 0; /* before 1970: nothing that was put there */
}

static bool is_entry(const char *name) {
    return strcmp(name, "Contents") == 0 || strcmp(name, "Upload") == 0 ||
           strcmp(name, "Part") == 0;
}

static void entry_leaf(struct object_entry *x, const char *name, const char *text) {
    uint64_t v = 0;
    if (strcmp(name, "Key") == 0) text_copy(x->key, sizeof x->key, text);
    if (strcmp(name, "UploadId") == 0) text_copy(x->upload, sizeof x->upload, text);
    if (strcmp(name, "ETag") == 0) text_copy(x->etag, sizeof x->etag, text);
    if (strcmp(name, "Size") == 0 && parse_u64(text, &v)) x->bytes = v;
    if (strcmp(name, "PartNumber") == 0 && parse_u64(text, &v) && v <= OBJECT_PARTS_MAX)
        x->number = (uint32_t)v;
    if (strcmp(name, "LastModified") == 0 || strcmp(name, "Initiated") == 0)
        x->unix_s = time_of(text);
}

static void top_leaf(struct object_answer *a, const char *name, const char *text) {
    if (strcmp(name, "Code") == 0) text_copy(a->code, sizeof a->code, text);
    if (strcmp(name, "Message") == 0) text_copy(a->text, sizeof a->text, text);
    if (strcmp(name, "UploadId") == 0) text_copy(a->upload, sizeof a->upload, text);
    if (strcmp(name, "IsTruncated") == 0) a->more = strcmp(text, "true") == 0;
    if (strcmp(name, "NextContinuationToken") == 0 || strcmp(name, "NextKeyMarker") == 0 ||
        strcmp(name, "NextPartNumberMarker") == 0)
        text_copy(a->next, sizeof a->next, text);
    if (strcmp(name, "NextUploadIdMarker") == 0)
        text_copy(a->next_upload, sizeof a->next_upload, text);
}

/* An element has ended; depth counts it still. */
static void element_ends(struct walk *w, struct xml *x) {
    const char *name = x->names[x->depth - 1];
    const char *parent = x->depth > 1 ? x->names[x->depth - 2] : "";
    x->text[x->text_bytes] = '\0';
    if (x->leaf && x->depth == 2) top_leaf(w->answer, name, x->text);
    if (x->leaf && x->depth == 3 && is_entry(parent)) entry_leaf(&w->entry, name, x->text);
    if (x->depth == 2 && is_entry(name)) {
        if (w->visit != NULL) w->visit(w->user, &w->entry);
        memset(&w->entry, 0, sizeof w->entry);
    }
}

/* ---- Form ---------------------------------------------------------------------------------------------- */
static bool starts(const struct xml *x, const char *word) {
    size_t n = strlen(word);
    return (size_t)(x->end - x->p) >= n && memcmp(x->p, word, n) == 0;
}

/* Skips up to and with word. */
static bool skip_past(struct xml *x, const char *word) {
    const char *at = memmem(x->p, (size_t)(x->end - x->p), word, strlen(word));
    if (at == NULL) return false;
    x->p = at + strlen(word);
    return true;
}

static bool text_add(struct xml *x, char c) {
    if (x->text_bytes + 1 >= sizeof x->text) return false;
    x->text[x->text_bytes++] = c == '\0' || c == '\n' || c == '\r' ? ' ' : c;
    return true;
}

static bool entity(struct xml *x) {
    static const struct {
        const char *word;
        char c;
    } named[] = {{"&amp;", '&'}, {"&lt;", '<'}, {"&gt;", '>'}, {"&quot;", '"'}, {"&apos;", '\''}};
    for (size_t i = 0; i < ARRAY_COUNT(named); i++)
        if (starts(x, named[i].word)) {
            x->p += strlen(named[i].word);
            return text_add(x, named[i].c);
        }
    bool hex = starts(x, "&#x");
    uint32_t v = 0;
    const char *p = x->p + (hex ? 3 : 2);
    if (!starts(x, "&#")) return false;
    for (int n = 0; p < x->end && *p != ';' && n < 7; p++, n++) {
        int d = *p >= '0' && *p <= '9'          ? *p - '0'
                : hex && *p >= 'a' && *p <= 'f' ? *p - 'a' + 10
                : hex && *p >= 'A' && *p <= 'F' ? *p - 'A' + 10
                                                : -1;
        if (d < 0) return false;
        v = v * (hex ? 16 : 10) + (uint32_t)d;
    }
    if (p >= x->end || *p != ';') return false;
    x->p = p + 1;
    return text_add(x, v >= 0x20 && v < 0x7f ? (char)v : ' '); /* keys of ours have no others */
}

static bool cdata(struct xml *x) {
    const char *from = x->p + strlen("<![CDATA[");
    if (!skip_past(x, "]]>")) return false;
    for (const char *p = from; p < x->p - 3; p++)
        if (!text_add(x, *p)) return false;
    return true;
}

/* The name behind < or </, without its prefix. */
static bool name_take(struct xml *x, char out[NAME_BYTES]) {
    size_t n = 0;
    while (x->p < x->end && strchr(" \t\r\n/>", *x->p) == NULL) {
        if (*x->p == ':') {
            n = 0;
        } else {
            if (n + 1 >= NAME_BYTES || *x->p == '<') return false;
            out[n++] = *x->p;
        }
        x->p++;
    }
    out[n] = '\0';
    return n > 0 && x->p < x->end;
}

static bool tag_opens(struct walk *w, struct xml *x) {
    x->p++;
    if (x->depth >= DEPTH_MAX || !name_take(x, x->names[x->depth])) return false;
    char quote = '\0';
    for (; x->p < x->end && (quote != '\0' || *x->p != '>'); x->p++) {
        if (quote == '\0' && (*x->p == '"' || *x->p == '\''))
            quote = *x->p;
        else if (*x->p == quote)
            quote = '\0';
    }
    if (x->p >= x->end) return false;
    bool empty = x->p[-1] == '/';
    x->p++;
    x->depth++;
    x->text_bytes = 0;
    x->leaf = true;
    if (x->depth == 1) text_copy(w->answer->root, sizeof w->answer->root, x->names[0]);
    if (!empty) return true;
    element_ends(w, x);
    x->depth--;
    x->leaf = false;
    return true;
}

static bool tag_closes(struct walk *w, struct xml *x) {
    char name[NAME_BYTES];
    x->p += 2;
    if (x->depth == 0 || !name_take(x, name) || strcmp(name, x->names[x->depth - 1]) != 0)
        return false;
    if (!skip_past(x, ">")) return false;
    element_ends(w, x);
    x->depth--;
    x->leaf = false;
    x->text_bytes = 0;
    return true;
}

static bool step(struct walk *w, struct xml *x) {
    if (starts(x, "<?")) return skip_past(x, "?>");
    if (starts(x, "<!--")) return skip_past(x, "-->");
    if (starts(x, "<![CDATA[")) return x->depth > 0 && cdata(x);
    if (starts(x, "<!")) return false;
    if (starts(x, "</")) return tag_closes(w, x);
    if (*x->p == '<') return tag_opens(w, x);
    if (*x->p == '&') return x->depth > 0 && entity(x);
    char c = *x->p++;
    if (x->depth == 0) return strchr(" \t\r\n", c) != NULL && c != '\0';
    return !x->leaf || text_add(x, c);
}

enum brg_status object_answer_parse(const void *xml, size_t n, object_visit *visit, void *user,
                                    struct object_answer *out, struct err *e) {
    struct xml x = {.p = xml, .end = (const char *)xml + n};
    struct object_answer a = {.root = ""};
    struct walk w = {.answer = &a, .visit = visit, .user = user};
    bool good = n > 0 && n <= OBJECT_ANSWER_MAX;
    while (good && x.p < x.end) {
        bool ended = x.depth == 0 && a.root[0] != '\0';
        if (ended && *x.p == '<' && !starts(&x, "<!--")) break; /* a second root */
        good = step(&w, &x);
    }
    good = good && x.p == x.end && x.depth == 0 && a.root[0] != '\0';
    if (!good) return err_set(e, BRG_E_MESSAGE, "no answer of an object store that can be read");
    *out = a;
    return BRG_OK;
}

/* ---- Refusals -------------------------------------------------------------------------------------------- */
struct refusal {
    const char *code;
    enum brg_status status;
    const char *remedy;
};
static const struct refusal refusals[] = {
    {"RequestTimeTooSkewed", BRG_E_CONFIG,
     "this machine's clock and the store's differ by more than 15 minutes: set the clock (chronyd, "
     "timedatectl)"},
    {"RequestExpired", BRG_E_NET,
     "the URL's time is over, or a clock is wrong: a new one is asked for"},
    {"ExpiredToken", BRG_E_CONFIG, "the session token is over: get new credentials"},
    {"SignatureDoesNotMatch", BRG_E_CONFIG,
     "look at the credentials: the secret is not this access key's (or blobs.region is wrong)"},
    {"InvalidAccessKeyId", BRG_E_CONFIG,
     "look at the credentials: the store does not know this access key"},
    {"InvalidSecurity", BRG_E_CONFIG, "the store does not take these credentials"},
    {"NoSuchBucket", BRG_E_CONFIG, "there is no such bucket: make it, or set blobs.store"},
    {"AuthorizationHeaderMalformed", BRG_E_CONFIG, "set blobs.region to the store's"},
    {"AuthorizationQueryParametersError", BRG_E_CONFIG, "set blobs.region to the store's"},
    {"NoSuchKey", BRG_E_MISSING, "there is no such object"},
    {"NoSuchUpload", BRG_E_MISSING, "there is no such upload"},
    {"XAmzContentSHA256Mismatch", BRG_E_NET, "the bytes changed on the way; they are sent again"},
    {"BadDigest", BRG_E_NET, "the bytes changed on the way; they are sent again"},
    {"IncompleteBody", BRG_E_NET, "the upload was cut; it is sent again"},
    {"RequestTimeout", BRG_E_NET, "the upload stood still; it is sent again"},
    {"SlowDown", BRG_E_NET, "the store wants fewer requests; later again"},
    {"ServiceUnavailable", BRG_E_NET, "later again"},
    {"InternalError", BRG_E_NET, "later again"},
    {"QuotaExceeded", BRG_E_NET,
     "the bucket is full: make room, or keep fewer versions "
     "(hub.keep_checkpoints)"},
};

/* A presigned URL whose time is over is AccessDenied at AWS, with these words; Swift and MinIO say the same. */
static bool says_expired(const struct object_answer *a) {
    return strcmp(a->code, "AccessDenied") == 0 && strstr(a->text, "expired") != NULL;
}

static const struct refusal *refusal_find(const struct object_answer *a) {
    const char *code = says_expired(a) ? "RequestExpired" : a->code;
    for (size_t i = 0; i < ARRAY_COUNT(refusals); i++)
        if (strcmp(refusals[i].code, code) == 0) return &refusals[i];
    return NULL;
}

static void harmless(char *text) {
    for (char *c = text; *c != '\0'; c++)
        if ((unsigned char)*c < 0x20 || (unsigned char)*c >= 0x7f || *c == '"') *c = ' ';
}

enum brg_status object_refusal(long http, const void *body, size_t n, const char *place,
                               const char *what, struct err *e) {
    struct object_answer a = {.root = ""};
    bool read = object_answer_parse(body, n, NULL, NULL, &a, NULL) == BRG_OK;
    if (!read) memset(&a, 0, sizeof a);
    harmless(a.code);
    harmless(a.text);
    const struct refusal *r = refusal_find(&a);
    if (r != NULL)
        return err_set(e, r->status, "the object store %s, %s: %s (HTTP %ld): %s", place, what,
                       a.code, http, r->remedy);
    if (http == 404)
        return err_set(e, BRG_E_MISSING, "the object store %s: there is no %s (HTTP 404)", place,
                       what);
    if (http == 416)
        return err_set(e, BRG_E_CORRUPT, "the object store %s, %s: shorter than it should be",
                       place, what);
    if (http == 401 || http == 403)
        return err_set(e, BRG_E_REFUSED,
                       "the object store %s, %s: %s (HTTP %ld) %s: may these credentials do this? "
                       "Look at the bucket's policy, and at the clock",
                       place, what, a.code[0] != '\0' ? a.code : "refused", http, a.text);
    if (http >= 500 || http == 408 || http == 429)
        return err_set(e, BRG_E_NET, "the object store %s, %s: HTTP %ld %s; later again", place,
                       what, http, a.code);
    return err_set(e, read ? BRG_E_REFUSED : BRG_E_NET, "the object store %s, %s: HTTP %ld %s %s%s",
                   place, what, http, a.code, a.text,
                   read ? "" : "(no S3 there? look at blobs.endpoint and the proxy)");
}

/* ---- Places -------------------------------------------------------------------------------------------- */
static bool all_of(const char *text, size_t n, const char *more) {
    for (size_t i = 0; i < n; i++) {
        char c = text[i];
        bool plain = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9');
        if (!plain && (c == '\0' || strchr(more, c) == NULL)) return false;
    }
    return true;
}

/* http:// is for this machine: a presigned URL is a capability, and weights are read on the way. */
static bool endpoint_fine(const char *url) {
    static const char *const local[] = {"http://127.", "http://localhost", "http://[::1]"};
    bool https = strncmp(url, "https://", 8) == 0;
    const char *host = https ? url + 8 : url + 7;
    if (!https && strncmp(url, "http://", 7) != 0) return false;
    if (*host == '\0' || !all_of(host, strlen(host), ".-:[]")) return false;
    if (https) return true;
    for (size_t i = 0; i < ARRAY_COUNT(local); i++) {
        size_t n = strlen(local[i]);
        if (strncmp(url, local[i], n) != 0) continue;
        if (i == 0) return strspn(url + n, "0123456789.:") == strlen(url + n);
        return url[n] == '\0' || url[n] == ':';
    }
    return false;
}

enum brg_status object_place_parse(const char *url, const char *endpoint, const char *region,
                                   struct object_place *out, struct err *e) {
    struct object_place p = {.endpoint = ""};
    if (strncmp(url, "s3://", 5) != 0)
        return err_set(e, BRG_E_CONFIG, "\"%.100s\": want s3://BUCKET or s3://BUCKET/PREFIX", url);
    const char *bucket = url + 5;
    size_t n = strcspn(bucket, "/");
    const char *prefix = bucket[n] == '/' ? bucket + n + 1 : "";
    size_t m = strlen(prefix);
    if (m > 0 && prefix[m - 1] == '/') m--;
    if (n < 3 || n >= sizeof p.bucket || !all_of(bucket, n, ".-_"))
        return err_set(e, BRG_E_CONFIG,
                       "\"%.100s\": the bucket's name: want 3 to 63 letters, digits, dots, dashes",
                       url);
    if (m >= sizeof p.prefix || !all_of(prefix, m, "._-/") || strstr(prefix, "..") != NULL ||
        strstr(prefix, "//") != NULL || *prefix == '/')
        return err_set(e, BRG_E_CONFIG,
                       "\"%.100s\": the prefix: want letters, digits, dots, dashes and slashes",
                       url);
    size_t k = strlen(endpoint);
    while (k > 0 && endpoint[k - 1] == '/') k--;
    if (k >= sizeof p.endpoint)
        return err_set(e, BRG_E_CONFIG, "the object store's endpoint is too long");
    (void)snprintf(p.endpoint, sizeof p.endpoint, "%.*s", (int)k, endpoint);
    if (!endpoint_fine(p.endpoint))
        return err_set(
            e, BRG_E_CONFIG,
            "endpoint \"%.100s\": want https://HOST[:PORT] (http:// only on this machine: "
            "URLs and weights would be readable on the way)",
            endpoint);
    if (*region == '\0' || strlen(region) >= sizeof p.region ||
        !all_of(region, strlen(region), "-_"))
        return err_set(e, BRG_E_CONFIG, "region \"%.60s\": want a word such as us-east-1", region);
    (void)snprintf(p.bucket, sizeof p.bucket, "%.*s", (int)n, bucket);
    (void)snprintf(p.prefix, sizeof p.prefix, "%.*s", (int)m, prefix);
    (void)snprintf(p.region, sizeof p.region, "%s", region);
    *out = p;
    return BRG_OK;
}

/* ---- Credentials files ----------------------------------------------------------------------------------- */
struct line {
    const char *p;
    size_t n;
};
static struct line trimmed(const char *p, size_t n) {
    while (n > 0 && (*p == ' ' || *p == '\t')) p++, n--;
    while (n > 0 && (p[n - 1] == ' ' || p[n - 1] == '\t' || p[n - 1] == '\r')) n--;
    return (struct line){p, n};
}

static bool line_is(struct line l, const char *word) {
    return l.n == strlen(word) && memcmp(l.p, word, l.n) == 0;
}

/* Printable, without blanks, and short enough. */
static bool value_take(struct line v, char *out, size_t cap) {
    if (v.n == 0 || v.n >= cap) return false;
    for (size_t i = 0; i < v.n; i++)
        if ((unsigned char)v.p[i] <= 0x20 || (unsigned char)v.p[i] >= 0x7f) return false;
    memcpy(out, v.p, v.n);
    out[v.n] = '\0';
    return true;
}

static bool pair_take(struct line key, struct line value, struct object_keys *k) {
    if (line_is(key, "aws_access_key_id")) return value_take(value, k->id, sizeof k->id);
    if (line_is(key, "aws_secret_access_key"))
        return value_take(value, k->secret, sizeof k->secret);
    if (line_is(key, "aws_session_token")) return value_take(value, k->session, sizeof k->session);
    return true; /* others' settings: region, output */
}

enum brg_status object_keys_parse(const char *name, const void *text, size_t n, const char *profile,
                                  struct object_keys *out, struct err *e) {
    struct object_keys k = {.id = ""};
    const char *p = text, *end = p + n;
    bool inside = false, found = false;
    enum brg_status s = BRG_OK;
    for (unsigned number = 1; p < end && s == BRG_OK; number++) {
        const char *stop = memchr(p, '\n', (size_t)(end - p));
        if (stop == NULL) stop = end;
        struct line l = trimmed(p, (size_t)(stop - p));
        p = stop < end ? stop + 1 : end;
        if (l.n == 0 || *l.p == '#' || *l.p == ';') continue;
        if (*l.p == '[') {
            struct line inner = l.n > 2 && l.p[l.n - 1] == ']' ? trimmed(l.p + 1, l.n - 2) : l;
            inside = line_is(inner, profile);
            found |= inside;
            continue;
        }
        const char *eq = memchr(l.p, '=', l.n);
        if (!inside) continue;
        struct line key = eq == NULL ? l : trimmed(l.p, (size_t)(eq - l.p));
        struct line value = eq == NULL ? (struct line){l.p, 0}
                                       : trimmed(eq + 1, l.n - (size_t)(eq - l.p) - 1);
        if (eq == NULL || !pair_take(key, value, &k))
            s = err_set(e, BRG_E_CONFIG, "%s:%u: want KEY = VALUE, the value without blanks", name,
                        number);
    }
    if (s == BRG_OK && !found)
        s = err_set(e, BRG_E_CONFIG, "%s: has no profile [%s]", name, profile);
    if (s == BRG_OK && (k.id[0] == '\0' || k.secret[0] == '\0'))
        s = err_set(e, BRG_E_CONFIG, "%s: [%s] wants aws_access_key_id and aws_secret_access_key",
                    name, profile);
    if (s == BRG_OK) *out = k;
    object_keys_wipe(&k);
    return s;
}

void object_keys_wipe(struct object_keys *k) {
    explicit_bzero(k, sizeof *k);
}
