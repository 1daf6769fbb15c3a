/* SPDX-License-Identifier: Apache-2.0 */
/* doctor_net.c - the way to the hub: which proxy, how far, whose certificate, does it know the token, do the
 * clocks agree, how fast. One request tells most of it; what failed first is the finding, the rest would follow from
 * it. */
#include <curl/curl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <time.h>

#include "base/os.h"
#include "cli/doctor.h"

enum {
    TIMEOUT_S = 20,
    BODY_MAX = 1 << 20,
    PROBE_BYTES = 8 << 20, /* of a download; of an upload at most half of it */
    CLOCK_WARN_S = 30,
    CLOCK_WRONG_S = 300,
    CERTIFICATE_WARN_DAYS = 14
};

struct probe { /* one request and what came of it */
    struct doctor *d;
    CURL *curl;
    struct curl_slist *headers;
    struct buf body;
    bool count_only; /* the body is not kept */
    uint64_t bytes;
    time_t date;
    CURLcode rc;
    long http, connect_http;
    char error[CURL_ERROR_SIZE];
};

static size_t on_body(char *data, size_t size, size_t count, void *user) {
    struct probe *p = user;
    p->bytes += size * count;
    if (!p->count_only && p->body.bytes_count + size * count < BODY_MAX)
        buf_put(&p->body, data, size * count);
    return size * count;
}

static size_t on_header(char *data, size_t size, size_t count, void *user) {
    struct probe *p = user;
    char text[80];
    size_t n = size * count;
    if (n > 6 && n < sizeof text && strncasecmp(data, "date: ", 6) == 0) {
        memcpy(text, data + 6, n - 6);
        text[n - 6] = '\0';
        p->date = curl_getdate(text, NULL);
    }
    return n;
}

static void probe_begin(struct probe *p, const char *path) {
    char url[1200];
    curl_easy_reset(p->curl);
    buf_reset(&p->body);
    p->bytes = 0;
    p->count_only = false;
    p->error[0] = '\0';
    (void)snprintf(url, sizeof url, "%.1000s%s", p->d->hub, path);
    curl_easy_setopt(p->curl, CURLOPT_URL, url);
    net_curl_secure(p->curl, &p->d->id);
    curl_easy_setopt(p->curl, CURLOPT_HTTPHEADER, p->headers);
    curl_easy_setopt(p->curl, CURLOPT_NOSIGNAL, 1L);
    curl_easy_setopt(p->curl, CURLOPT_CERTINFO, 1L);
    curl_easy_setopt(p->curl, CURLOPT_WRITEFUNCTION, on_body);
    curl_easy_setopt(p->curl, CURLOPT_WRITEDATA, p);
    curl_easy_setopt(p->curl, CURLOPT_HEADERFUNCTION, on_header);
    curl_easy_setopt(p->curl, CURLOPT_HEADERDATA, p);
    curl_easy_setopt(p->curl, CURLOPT_ERRORBUFFER, p->error);
    curl_easy_setopt(p->curl, CURLOPT_CONNECTTIMEOUT, (long)TIMEOUT_S / 2);
    curl_easy_setopt(p->curl, CURLOPT_TIMEOUT, (long)TIMEOUT_S);
}

static void probe_end(struct probe *p) {
    p->rc = curl_easy_perform(p->curl);
    p->http = p->connect_http = 0;
    (void)curl_easy_getinfo(p->curl, CURLINFO_RESPONSE_CODE, &p->http);
    (void)curl_easy_getinfo(p->curl, CURLINFO_HTTP_CONNECTCODE, &p->connect_http);
}

static double seconds(const struct probe *p, CURLINFO what) {
    double s = 0;
    (void)curl_easy_getinfo(p->curl, what, &s);
    return s;
}

/* ---- The proxy ----------------------------------------------------------------------------------- */
static const char *variable(const char *a, const char *b) {
    const char *v = getenv(a);
    if (v == NULL || *v == '\0') v = getenv(b);
    return v != NULL ? v : "";
}

/* Without a user and a password, which nobody has to see. */
static void proxy_shown(const char *proxy, char out[256]) {
    const char *host = strstr(proxy, "://");
    host = host != NULL ? host + 3 : proxy;
    const char *at = strrchr(host, '@');
    (void)snprintf(out, 256, "%s%.240s", at != NULL ? "(user)@" : "", at != NULL ? at + 1 : host);
}

static bool proxy_told(struct doctor *d) {
    bool tls = strncmp(d->hub, "https:", 6) == 0;
    const char *proxy = tls ? variable("https_proxy", "HTTPS_PROXY") : variable("http_proxy", "");
    const char *none = variable("no_proxy", "NO_PROXY");
    char shown[256];
    if (*proxy == '\0') proxy = variable("all_proxy", "ALL_PROXY");
    if (*proxy == '\0') {
        doctor_say(d, FINDING_FINE, BRG_OK, "proxy", "", "none is set (https_proxy, all_proxy)");
        return false;
    }
    proxy_shown(proxy, shown);
    doctor_say(d, FINDING_FINE, BRG_OK, "proxy", "", "%s%s%.200s%s", shown,
               *none != '\0' ? ", not for " : "", none,
               d->id.local ? "; not for this machine" : "");
    return true;
}

/* ---- What went wrong -------------------------------------------------------------------------------- */
static bool is_page(struct probe *p) {
    const char *text = buf_cstr(&p->body);
    while (*text == ' ' || *text == '\n' || *text == '\r') text++;
    return *text == '<';
}

static void say_connect_code(struct probe *p) {
    if (p->connect_http == 407)
        doctor_say(p->d, FINDING_WRONG, BRG_E_NET, "proxy",
                   "set https_proxy=http://USER:PASSWORD@HOST:PORT, as the facility says",
                   "it wants another user name and password (HTTP 407)");
    else
        doctor_say(p->d, FINDING_WRONG, BRG_E_NET, "proxy",
                   "ask the facility to allow CONNECT to the hub's host and port; or use a courier "
                   "(docs/agent.md)",
                   "it does not let us through to the hub (HTTP %ld)", p->connect_http);
}

static void say_failed(struct probe *p, bool proxy) {
    const char *why = p->error[0] != '\0' ? p->error : curl_easy_strerror(p->rc);
    const char *remedy = "is the hub running, the address right? does a firewall drop it? with a "
                         "proxy: set https_proxy; without any way: a courier (docs/agent.md)";
    const char *about = "route";
    if (p->connect_http >= 300) {
        say_connect_code(p);
        return;
    }
    switch ((int)p->rc) {
    case CURLE_COULDNT_RESOLVE_PROXY:
        about = "proxy";
        remedy = "the proxy's name is not known here: look at https_proxy";
        break;
    case CURLE_COULDNT_RESOLVE_HOST:
        about = "name";
        remedy = "is it spelt right? with a proxy set https_proxy: it looks the name up itself";
        break;
    case CURLE_COULDNT_CONNECT:
    case CURLE_OPERATION_TIMEDOUT:
        if (proxy)
            remedy = "is the proxy of https_proxy right, and the hub running behind it? no_proxy "
                     "names what is reached without it";
        break;
    case CURLE_PEER_FAILED_VERIFICATION:
        about = "certificate";
        remedy = "give the hub's ca.pem (--ca, site.ca, BERINGIA_CA) and the name that its "
                 "certificate has; is it over (beringia tls RUN show), or a clock wrong?";
        break;
    case CURLE_SSL_CONNECT_ERROR:
    case CURLE_RECV_ERROR:
    case CURLE_GOT_NOTHING:
        about = "certificate";
        remedy = "does this port speak HTTPS? a hub without certificate wants http://, one with it "
                 "https://";
        break;
    case CURLE_SSL_CACERT_BADFILE:
        about = "certificate";
        remedy = "the CA file is no PEM certificate: copy RUN/tls/ca.pem again";
        break;
    default: break;
    }
    doctor_say(p->d, FINDING_WRONG, BRG_E_NET, about, remedy, "%s: %.200s", p->d->hub, why);
}

/* An answer came: whose, and what does it say? */
static void say_answer(struct probe *p) {
    struct doctor *d = p->d;
    struct err e = {0};
    if (p->http == 401)
        doctor_say(d, FINDING_WRONG, BRG_E_REFUSED, "token",
                   d->id.token[0] == '\0'
                       ? "give --token FILE, or site.token, or set BERINGIA_TOKEN_FILE"
                       : "it is wrong, revoked or over: ask the run's operator (beringia token RUN "
                         "create --scope site --name NAME)",
                   d->id.token[0] == '\0' ? "the hub wants one, none was given"
                                          : "the hub does not know it");
    else if (is_page(p))
        doctor_say(d, FINDING_WRONG, BRG_E_NET, "hub",
                   "is the address right? a portal or a proxy answers in the hub's place: log in "
                   "there, or use another way",
                   "a web page (HTTP %ld) and not the hub answers at %s", p->http, d->hub);
    else if (p->http != 200)
        doctor_say(d, FINDING_WRONG, BRG_E_NET, "hub", "look at the hub's log", "HTTP %ld",
                   p->http);
    else if (wire_run_decode(p->body.data, p->body.bytes_count, &d->run, &e) != BRG_OK)
        doctor_say(d, FINDING_WRONG, BRG_E_MESSAGE, "hub",
                   "is this the hub of a run, of this version?", "%.200s", e.text);
    else
        d->run_there = true;
}

/* ---- Figures ------------------------------------------------------------------------------------------ */
static void say_certificate(struct probe *p) {
    struct curl_certinfo *info = NULL;
    if (curl_easy_getinfo(p->curl, CURLINFO_CERTINFO, &info) != CURLE_OK || info == NULL ||
        info->num_of_certs < 1)
        return;
    for (struct curl_slist *s = info->certinfo[0]; s != NULL; s = s->next) {
        if (strncasecmp(s->data, "Expire date:", 12) != 0) continue;
        struct tm tm = {.tm_year = 0};
        if (sscanf(s->data + 12, "%d-%d-%d %d:%d:%d", &tm.tm_year, &tm.tm_mon, &tm.tm_mday,
                   &tm.tm_hour, &tm.tm_min, &tm.tm_sec) != 6)
            continue;
        tm.tm_year -= 1900;
        tm.tm_mon -= 1;
        time_t until = timegm(&tm);
        long long days = (long long)((until - time(NULL)) / 86400);
        bool soon = days < CERTIFICATE_WARN_DAYS;
        doctor_say(p->d, soon ? FINDING_WARN : FINDING_FINE, BRG_OK, "certificate",
                   soon ? "the hub's operator renews it: beringia tls RUN create, restart" : "",
                   "trusted, holds for %lld days", days);
    }
}

static void say_clock(struct probe *p) {
    if (p->date <= 0) return;
    long long off = (long long)(time(NULL) - p->date);
    long long by = off < 0 ? -off : off;
    enum finding f = by >= CLOCK_WRONG_S  ? FINDING_WRONG
                     : by >= CLOCK_WARN_S ? FINDING_WARN
                                          : FINDING_FINE;
    if (f == FINDING_FINE)
        doctor_say(p->d, f, BRG_OK, "clock", "", "agrees with the hub's to %lld s", by + 1);
    else
        doctor_say(p->d, f, BRG_E_CONFIG, "clock",
                   "set one of the clocks (NTP): certificates and time limits go by them",
                   "this machine is %lld s %s the hub", by, off > 0 ? "ahead of" : "behind");
}

static int by_size(const void *a, const void *b) {
    const double *x = a, *y = b;
    return (*x > *y) - (*x < *y);
}

/* On the connection of the first request, if the way keeps it. */
static void say_delay(struct probe *p) {
    double ms[7];
    size_t n = 0;
    for (size_t i = 0; i < ARRAY_COUNT(ms); i++) {
        probe_begin(p, "/v1/run");
        probe_end(p);
        if (p->rc == CURLE_OK && p->http == 200) ms[n++] = 1e3 * seconds(p, CURLINFO_TOTAL_TIME);
    }
    if (n == 0) return;
    qsort(ms, n, sizeof ms[0], by_size);
    bool slow = ms[n / 2] > 2000;
    p->d->delay_ms = ms[n / 2];
    doctor_say(p->d, slow ? FINDING_WARN : FINDING_FINE, BRG_OK, "delay",
               slow ? "heartbeats and leases take that long: see whether a proxy holds them up"
                    : "",
               "%.1f ms a request (of %zu: %.1f to %.1f)", ms[n / 2], n, ms[0], ms[n - 1]);
}

/* Figures that others plan by want a connection that has found its speed: pieces one after another on it, each twice as large
 * as the one before. The first one only warms it up, and of each the round trip is taken off, which a piece pays
 * once whatever its size: at 1 Gbit/s and 90 ms it is three quarters of the time of 4 MB. */
enum { PIECES_MOST = 8, PIECE_BYTES_MOST = 64 << 20 };
#define PIECES_S 2.0

struct pieces {
    uint32_t count;
    uint64_t bytes; /* of the next one */
    double spent, mb, s;
};

static void piece_note(const struct probe *p, struct pieces *k, double bytes, double s) {
    double rtt = p->d->links ? p->d->delay_ms / 1e3 : 0;
    if (k->count == 1) k->mb = k->s = 0;
    k->count++;
    k->spent += s;
    k->mb += bytes / 1e6;
    k->s += s - rtt > s / 8 ? s - rtt : s / 8;
    if (k->bytes < PIECE_BYTES_MOST) k->bytes *= 2;
}

static bool again(const struct probe *p, const struct pieces *k) {
    return p->d->links && k->count < PIECES_MOST && (k->count < 2 || k->spent < PIECES_S);
}

static void measure_down(struct probe *p) {
    char path[64], range[64];
    struct pieces k = {.bytes = PROBE_BYTES};
    (void)snprintf(path, sizeof path, "/v1/versions/%llu/checkpoint",
                   (unsigned long long)p->d->run.head);
    do {
        (void)snprintf(range, sizeof range, "0-%llu", (unsigned long long)k.bytes - 1);
        probe_begin(p, path);
        p->count_only = true;
        curl_easy_setopt(p->curl, CURLOPT_RANGE, range);
        curl_easy_setopt(p->curl, CURLOPT_TIMEOUT, 60L);
        probe_end(p);
        double s = seconds(p, CURLINFO_TOTAL_TIME) - seconds(p, CURLINFO_PRETRANSFER_TIME);
        if (p->http == 403)
            doctor_say(p->d, FINDING_WARN, BRG_OK, "token", "a site needs one of scope site",
                       "it may not read weights");
        if (p->bytes == 0 || s <= 0 || (p->http != 200 && p->http != 206)) return;
        piece_note(p, &k, (double)p->bytes, s);
        p->d->down_mb_s = k.mb / k.s;
    } while (again(p, &k));
}

/* Zeros are what a proxy that packs would make short work of: random ones, then. */
struct upload {
    uint64_t left;
    struct prng prng;
};
static size_t on_read(char *out, size_t size, size_t count, void *user) {
    struct upload *u = user;
    size_t n = size * count;
    if (n > u->left) n = (size_t)u->left;
    for (size_t i = 0; i < n; i += 8) {
        uint64_t v = prng_u64(&u->prng);
        memcpy(out + i, &v, n - i < 8 ? n - i : 8);
    }
    u->left -= n;
    return n;
}

/* A hub that does not know this yet drops it by itself, in the end. */
static void drop_upload(struct probe *p, const char *hex) {
    char path[96];
    (void)snprintf(path, sizeof path, "/v1/blobs/%s", hex);
    probe_begin(p, path);
    curl_easy_setopt(p->curl, CURLOPT_CUSTOMREQUEST, "DELETE");
    probe_end(p);
}

/* What came of a piece; false: no figure. */
static bool piece_fine(struct probe *p, uint64_t n, double s) {
    if (p->rc == CURLE_OK && p->http == 200 && s > 0) return true;
    if (p->http == 403)
        doctor_say(p->d, FINDING_WARN, BRG_OK, "token", "a site needs one of scope site",
                   "it may not hand in");
    else if (p->http == 413 || is_page(p))
        doctor_say(p->d, FINDING_WRONG, BRG_E_NET, "upload",
                   "a proxy on the way limits bodies: ask for 2 MiB at least",
                   "%llu KiB were not let through (HTTP %ld)", (unsigned long long)n >> 10,
                   p->http);
    else
        doctor_say(p->d, FINDING_WRONG, BRG_E_NET, "upload", "the line, the proxy, the hub's disk?",
                   "HTTP %ld %.150s", p->http, p->error);
    return false;
}

/* As a piece of a contribution that is never handed in. */
static bool piece_up(struct probe *p, uint64_t n, double *out_s) {
    char path[96], hex[ID_HEX_BYTES];
    struct id128 did;
    struct upload u = {.left = n};
    os_random(&did, sizeof did);
    prng_seed(&u.prng, 1);
    id_hex(&did, hex);
    (void)snprintf(path, sizeof path, "/v1/blobs/%s?offset=0", hex);
    probe_begin(p, path);
    curl_easy_setopt(p->curl, CURLOPT_UPLOAD, 1L);
    curl_easy_setopt(p->curl, CURLOPT_READFUNCTION, on_read);
    curl_easy_setopt(p->curl, CURLOPT_READDATA, &u);
    curl_easy_setopt(p->curl, CURLOPT_INFILESIZE_LARGE, (curl_off_t)n);
    curl_easy_setopt(p->curl, CURLOPT_TIMEOUT, 60L);
    probe_end(p);
    *out_s = seconds(p, CURLINFO_TOTAL_TIME) - seconds(p, CURLINFO_PRETRANSFER_TIME);
    bool fine = piece_fine(p, n, *out_s);
    drop_upload(p, hex);
    return fine;
}

static void measure_up(struct probe *p) {
    const uint64_t most = 4 * p->d->run.parameters; /* the hub takes no larger contribution */
    struct pieces k = {.bytes = PROBE_BYTES / 2};
    double s = 0;
    do {
        uint64_t n = most < k.bytes ? most : k.bytes;
        if (!piece_up(p, n, &s)) return;
        piece_note(p, &k, (double)n, s);
        p->d->up_mb_s = k.mb / k.s;
    } while (again(p, &k));
}

/* In words: what a round costs on this line. */
static void say_speed(struct doctor *d) {
    static const double bytes_of[] = {4, 4, 2, 1.04, 0.54, 0.3}; /* of a parameter, by codec */
    double p = (double)d->run.parameters;
    uint32_t codec = d->run.codec < ARRAY_COUNT(bytes_of) ? d->run.codec : 0;
    if (d->down_mb_s > 0)
        doctor_say(d, FINDING_FINE, BRG_OK, "download", "",
                   "%.1f MB/s: the weights (%.0f MB) take %.0f s", d->down_mb_s, 4 * p / 1e6,
                   4 * p / 1e6 / d->down_mb_s);
    if (d->up_mb_s <= 0) return;
    double mb = p * bytes_of[codec] / 1e6, s = mb / d->up_mb_s;
    bool slow = s > 600;
    doctor_say(d, slow ? FINDING_WARN : FINDING_FINE, BRG_OK, "upload",
               slow ? "long rounds (outer.steps) or a smaller outer.codec hide it; it costs delay, "
                      "not work"
                    : "",
               "%.1f MB/s: a contribution (%.0f MB) takes %.0f s behind the training's back",
               d->up_mb_s, mb, s);
}

void doctor_net(struct doctor *d) {
    struct err e = {0};
    struct probe p = {.d = d};
    if (strncmp(d->hub, "bucket:", 7) == 0) {
        doctor_bucket(d);
        return;
    }
    if (strncmp(d->hub, "http", 4) != 0) {
        doctor_say(d, FINDING_WRONG, BRG_E_CONFIG, "hub",
                   "want http://HOST:PORT, https://HOST:PORT or bucket:s3://BUCKET/PREFIX",
                   "the address is \"%.100s\"", d->hub);
        return;
    }
    enum brg_status s = net_identity_open(d->hub, d->token, d->ca, &d->id, &e);
    if (s != BRG_OK) {
        doctor_say(d, FINDING_WRONG, s, strstr(e.text, "oken") != NULL ? "token" : "certificate",
                   "", "%.300s", e.text);
        return;
    }
    bool proxy = proxy_told(d);
    buf_init(&p.body, BODY_MAX);
    p.curl = curl_easy_init();
    CHECK(p.curl != NULL);
    CHECK(net_headers_begin(&d->id, &p.headers));
    p.headers = curl_slist_append(p.headers, "Expect:");
    probe_begin(&p, "/v1/run");
    probe_end(&p);
    if (p.rc != CURLE_OK)
        say_failed(&p, proxy);
    else
        say_answer(&p);
    if (p.rc == CURLE_OK && !is_page(&p)) {
        say_certificate(&p);
        say_clock(&p);
    }
    if (d->run_there) {
        doctor_say(d, FINDING_FINE, BRG_OK, "hub", "", "%s, version %llu, %llu parameters", d->hub,
                   (unsigned long long)d->run.head, (unsigned long long)d->run.parameters);
        say_delay(&p);
        measure_down(&p);
        if (d->upload) measure_up(&p);
        say_speed(d);
    }
    curl_easy_cleanup(p.curl);
    curl_slist_free_all(p.headers);
    buf_fini(&p.body);
}
