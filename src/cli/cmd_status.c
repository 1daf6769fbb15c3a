/* SPDX-License-Identifier: Apache-2.0 */
/* cmd_status.c - beringia status: a bar, a line a site. Asks the hub as anybody may, by HTTP. */
#include <curl/curl.h>
#include <getopt.h>
#include <jansson.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "base/os.h"
#include "cli/ask.h"
#include "cli/cli.h"

static const char HELP[] =
    "beringia status - how a run is doing\n"
    "\n"
    "  beringia status RUN|URL [--json] [--watch] [--token FILE] [--ca FILE]\n"
    "\n"
    "  RUN      a run directory on this machine, whose hub is running\n"
    "  URL      of a hub, for example http://127.0.0.1:7070\n"
    "  --json   what the hub says, as it is (docs/protocol.md)\n"
    "  --watch  again every second, until the run is complete or Ctrl-C; on a\n"
    "           terminal in place, with --json a line each time\n" CLI_WHO_HELP "\n"
    "Lines that begin with ! are alarms, with what to do; docs/operating.md.\n"
    "Colours only on a terminal, and not where NO_COLOR is set.\n";

enum { BODY_MAX = 64 << 20, BAR_CELLS = 40, SPARK_MAX = 20 };

/* ---- Showing --------------------------------------------------------------------------------------------- */
static double number(const json_t *o, const char *key) {
    return json_number_value(json_object_get(o, key)); /* 0 where it is missing or null */
}
static bool truth(const json_t *o, const char *key) {
    return json_is_true(json_object_get(o, key));
}

/* 12345678 -> "12.3M" */
static const char *short_number(double v, char out[16]) {
    static const char *const units[] = {"", "k", "M", "G", "T", "P"};
    size_t i = 0;
    while (v >= 1000 && i + 1 < ARRAY_COUNT(units)) {
        v /= 1000;
        i++;
    }
    (void)snprintf(out, 16, i == 0 ? "%.0f%s" : "%.1f%s", v, units[i]);
    return out;
}

static const char *duration(double s, char out[24]) {
    if (s < 120)
        (void)snprintf(out, 24, "%.0f s", s);
    else if (s < 7200)
        (void)snprintf(out, 24, "%.0f min", s / 60);
    else if (s < 172800)
        (void)snprintf(out, 24, "%.1f h", s / 3600);
    else
        (void)snprintf(out, 24, "%.1f d", s / 86400);
    return out;
}

static void show_bar(const json_t *o, bool colour, FILE *to) {
    static const struct {
        const char *key, *cell, *colour;
    } parts[] = {{"merged", "█", "\x1b[32m"},
                 {"skipped", "▒", "\x1b[35m"},
                 {"staged", "▓", "\x1b[36m"},
                 {"leased", "░", "\x1b[33m"}};
    const json_t *counts = json_object_get(o, "counts");
    double total = number(o, "positions") * number(o, "epochs"), sum = 0;
    int drawn = 0;
    if (total <= 0) total = 1;
    for (size_t i = 0; i < ARRAY_COUNT(parts); i++) {
        sum += number(counts, parts[i].key);
        int upto = (int)(sum / total * BAR_CELLS + 0.5);
        if (colour) fputs(parts[i].colour, to);
        for (; drawn < upto && drawn < BAR_CELLS; drawn++) fputs(parts[i].cell, to);
    }
    if (colour) fputs("\x1b[0m", to);
    for (; drawn < BAR_CELLS; drawn++) fputs("·", to);
}

static void show_loss(const json_t *o, FILE *to) {
    static const char *const bars[] = {"▁", "▂", "▃", "▄", "▅", "▆", "▇", "█"};
    const json_t *versions = json_object_get(o, "versions");
    size_t n = json_array_size(versions);
    double v[SPARK_MAX], low = 0, high = 0;
    size_t count = 0;
    for (size_t i = 0; i < n && count < SPARK_MAX; i++) {
        double loss = number(json_array_get(versions, i), "loss");
        if (loss <= 0) continue;
        v[count] = loss;
        if (count == 0 || loss < low) low = loss;
        if (count == 0 || loss > high) high = loss;
        count++;
    }
    if (count == 0) return;
    fprintf(to, "  loss %.4f ", v[count - 1]);
    for (size_t i = 0; i < count; i++)
        fputs(bars[high > low ? (size_t)((v[i] - low) / (high - low) * 7) : 0], to);
}

/* Of the newest version that somebody has measured, and how well the sites agreed in the newest round. */
static void show_health(const json_t *o, FILE *to) {
    const json_t *versions = json_object_get(o, "versions");
    size_t n = json_array_size(versions);
    double cos = n > 0 ? number(json_array_get(versions, n - 1), "cos_sites") : 0;
    for (size_t i = n; i-- > 0;) {
        const json_t *v = json_array_get(versions, i);
        if (number(v, "heldout") <= 0) continue;
        fprintf(to, "  held out %.4f (version %.0f)", number(v, "heldout"), number(v, "version"));
        break;
    }
    if (cos != 0) fprintf(to, "  sites agree %.3f", cos);
}

static void show_site(const json_t *site, bool colour, FILE *to) {
    char a[16], b[16], ago[24];
    bool joined = truth(site, "joined"), live = joined && truth(site, "live");
    const char *state = !joined ? "gone" : live ? cli_word(site, "phase") : "silent";
    const char *paint = !colour ? "" : live ? "\x1b[32m" : joined ? "\x1b[31m" : "\x1b[90m";
    fprintf(to,
            "  %-16s %s%-9s%s  base %-6.0f %8s tok/s  loss %-7.4f  %s %-8s merged %s tok in %.0f "
            "contributions%s%s\n",
            cli_word(site, "name"), paint, state, colour ? "\x1b[0m" : "", number(site, "base"),
            short_number(live ? number(site, "tokens_per_s") : 0, a), number(site, "loss"),
            joined ? "leased" : "keeps", short_number(number(site, "samples_leased"), ago),
            short_number(number(site, "tokens_merged"), b), number(site, "merged"),
            joined && !live ? ", last heard " : "",
            joined && !live && number(site, "heard_ago_s") >= 0
                ? duration(number(site, "heard_ago_s"), ago)
                : "");
}

static void show_head(const json_t *o, FILE *to) {
    char a[16], b[16], c[16], left[24];
    double rate = number(o, "tokens_per_s"),
           missing = number(o, "tokens_total") - number(o, "tokens");
    fprintf(to, "%5.1f %%  version %.0f  %s of %s tokens  %s tok/s", 100 * number(o, "progress"),
            number(o, "head"), short_number(number(o, "tokens"), a),
            short_number(number(o, "tokens_total"), b), short_number(rate, c));
    if (rate > 0 && missing > 0) fprintf(to, "  about %s left", duration(missing / rate, left));
}

/* A facility whose agent reports: what it runs, what waits, what its scheduler said last. */
static void show_facility(const json_t *f, FILE *to) {
    const json_t *jobs = json_object_get(f, "jobs"), *probes = json_object_get(f, "probes");
    double running = 0, pending = 0;
    char a[24], ago[24];
    for (size_t i = 0; i < json_array_size(jobs); i++) {
        const char *state = cli_word(json_array_get(jobs, i), "state");
        running += strcmp(state, "running") == 0;
        pending += strcmp(state, "pending") == 0;
    }
    fprintf(to, "  %-16s queue: %.0f running, %.0f pending", cli_word(f, "name"), running, pending);
    for (size_t i = 0; i < json_array_size(probes); i++) {
        const json_t *p = json_array_get(probes, i);
        double wait = number(p, "start") - number(p, "at");
        fprintf(to, "; %s %s", cli_word(p, "shape"), cli_word(p, "class"));
        if (strcmp(cli_word(p, "class"), "fine") == 0)
            fprintf(to, " in %s", duration(wait > 0 ? wait : 0, a));
    }
    if (number(f, "heard_ago_s") >= 0)
        fprintf(to, "; agent heard %s ago", duration(number(f, "heard_ago_s"), ago));
    fprintf(to, "\n");
}

/* What sites that come through a bucket cost. */
static void show_mailbox(const json_t *m, FILE *to) {
    if (!json_is_object(m)) return;
    fprintf(to,
            "mailbox: %.0f answered, %.0f refused, %.0f stale; %.0f lists, %.0f writes, %.0f "
            "reads: cost %.4f%s\n",
            number(m, "answers"), number(m, "refused"), number(m, "stale"), number(m, "lists"),
            number(m, "writes") - number(m, "lists"), number(m, "reads"), number(m, "cost"),
            truth(m, "up") ? "" : "  DOWN");
}

static void show(const json_t *o, bool colour, FILE *to) {
    const json_t *sites = json_object_get(o, "sites"), *counts = json_object_get(o, "counts");
    fputs("[", to);
    show_bar(o, colour, to);
    fputs("] ", to);
    show_head(o, to);
    fprintf(to,
            "\nrun %.8s  term %.0f  sites: %.0f joined, %.0f live, %.0f contributing  %s%s%s%s%s",
            cli_word(o, "run"), number(o, "term"), number(o, "sites_joined"),
            number(o, "sites_live"), number(o, "sites_contributing"),
            truth(o, "complete") ? "COMPLETE " : "", truth(o, "draining") ? "DRAINING " : "",
            truth(o, "held") ? "HELD (a site has seen more) " : "",
            truth(o, "full") ? "DISK FULL " : "", truth(o, "away") ? "JOURNAL AWAY " : "");
    show_loss(o, to);
    show_health(o, to);
    fprintf(to,
            "\npositions: merged %.0f, staged %.0f, leased %.0f, available %.0f, skipped %.0f, "
            "quarantined "
            "%.0f; reclaimed %.2f %%\n",
            number(counts, "merged"), number(counts, "staged"), number(counts, "leased"),
            number(counts, "available"), number(counts, "skipped"), number(counts, "quarantined"),
            100 * number(o, "reclaimed_share"));
    show_mailbox(json_object_get(o, "mailbox"), to);
    for (size_t i = 0; i < json_array_size(sites); i++)
        show_site(json_array_get(sites, i), colour, to);
    const json_t *facilities = json_object_get(o, "facilities");
    for (size_t i = 0; i < json_array_size(facilities); i++)
        show_facility(json_array_get(facilities, i), to);
}

/* What somebody should look at, and what to do about it. */
static void show_alarms(const json_t *o, bool colour, FILE *to) {
    const json_t *alarms = json_object_get(o, "alarms");
    for (size_t i = 0; i < json_array_size(alarms); i++) {
        const json_t *a = json_array_get(alarms, i);
        const char *level = cli_word(a, "level"), *about = cli_word(a, "subject");
        const char *paint = !colour                       ? ""
                            : strcmp(level, "error") == 0 ? "\x1b[31m"
                            : strcmp(level, "warn") == 0  ? "\x1b[33m"
                                                          : "\x1b[36m";
        fprintf(to, "%s! %-5s%s %s%s%s; %s\n", paint, level, colour ? "\x1b[0m" : "", about,
                about[0] != '\0' ? ": " : "", cli_word(a, "text"), cli_word(a, "remedy"));
    }
}

/* ---- A terminal that is drawn in place -------------------------------------------------------------------- */
/* No flicker: nothing is cleared before it is drawn over; one write a frame, which terminals that know the
 * mode 2026 show at once. The alternate screen keeps what was there before; lines do not wrap. */
static const char ENTER[] = "\x1b[?1049h\x1b[?25l\x1b[?7l";
static const char LEAVE[] = "\x1b[?7h\x1b[?25h\x1b[?1049l";

static volatile sig_atomic_t interrupted; /* of this process's terminal: nothing else asks for it */
static void on_signal(int sig) {
    (void)sig;
    interrupted = 1;
}

static void write_all(const char *p, size_t n) {
    while (n > 0) {
        ssize_t k = write(STDOUT_FILENO, p, n);
        if (k <= 0) return;
        p += k;
        n -= (size_t)k;
    }
}

static void draw(const char *text) {
    struct winsize w = {.ws_row = 24};
    struct buf frame;
    unsigned rows = 0;
    if (ioctl(STDOUT_FILENO, TIOCGWINSZ, &w) != 0 || w.ws_row == 0) w.ws_row = 24;
    buf_init(&frame, BODY_MAX);
    buf_printf(&frame, "\x1b[?2026h\x1b[H");
    for (const char *p = text; *p != '\0' && rows + 1u < w.ws_row; rows++) {
        size_t n = strcspn(p, "\n");
        buf_put(&frame, p, n);
        buf_printf(&frame, "\x1b[K\n");
        p += p[n] == '\n' ? n + 1 : n;
    }
    buf_printf(&frame, "\x1b[J\x1b[?2026l");
    write_all((const char *)frame.data, frame.bytes_count);
    buf_fini(&frame);
}

struct screen {
    bool json, colour, in_place;
    char *text; /* what was drawn last; malloc's, of open_memstream */
};

static void render(const struct screen *s, const json_t *o, FILE *to) {
    show(o, s->colour, to);
    show_alarms(o, s->colour, to);
}

static enum brg_status once(const struct hub_address *hub, struct screen *s, bool *out_complete,
                            struct err *e) {
    struct buf b;
    buf_init(&b, BODY_MAX);
    enum brg_status st = cli_hub_get(hub, "/v1/status", &b, e);
    json_t *o = st == BRG_OK ? json_loadb((const char *)b.data, b.bytes_count, 0, NULL) : NULL;
    if (st == BRG_OK && !json_is_object(o))
        st = err_set(e, BRG_E_MESSAGE, "%s: this is no status of a hub", hub->url);
    if (st == BRG_OK && s->json) {
        printf("%s", buf_cstr(&b));
    } else if (st == BRG_OK && s->in_place) {
        size_t n = 0;
        free(s->text);
        s->text = NULL;
        FILE *to = open_memstream(&s->text, &n);
        CHECK(to != NULL);
        render(s, o, to);
        CHECK(fclose(to) == 0);
        draw(s->text);
    } else if (st == BRG_OK) {
        render(s, o, stdout);
    }
    (void)fflush(stdout);
    *out_complete = truth(o, "complete");
    json_decref(o);
    buf_fini(&b);
    return st;
}

static enum brg_status watch_on(const struct hub_who *who, struct hub_address *hub,
                                struct screen *s, struct err *e) {
    bool complete = false;
    enum brg_status st = once(hub, s, &complete, e);
    while (st == BRG_OK && !complete && !interrupted) {
        (void)sleep(1); /* a signal ends it early */
        if (interrupted) break;
        st = once(hub, s, &complete, e);
        for (int tries = 0; tries < 30 && !interrupted; tries++) {
            bool other_token = hub->local && st == BRG_E_REFUSED;
            if (st != BRG_E_NET && !other_token) break; /* a hub that restarts is waited for */
            (void)sleep(1);
            if (cli_hub_find(who, hub, e) != BRG_OK) continue;
            st = once(hub, s, &complete, e);
        }
    }
    return interrupted ? BRG_OK : st;
}

static enum brg_status watch_in_place(const struct hub_who *who, struct hub_address *hub,
                                      struct screen *s, struct err *e) {
    struct sigaction a = {.sa_handler = on_signal};
    (void)sigaction(SIGINT, &a, NULL);
    (void)sigaction(SIGTERM, &a, NULL);
    (void)sigaction(SIGHUP, &a, NULL);
    write_all(ENTER, sizeof ENTER - 1);
    enum brg_status st = watch_on(who, hub, s, e);
    write_all(LEAVE, sizeof LEAVE - 1);
    if (s->text != NULL) write_all(s->text, strlen(s->text)); /* what was seen last stays */
    free(s->text);
    s->text = NULL;
    return st;
}

int cmd_status(int argc, char **argv) {
    enum { OPT_JSON = 1, OPT_WATCH, OPT_HELP };
    static const struct option options[] = {CLI_WHO_OPTIONS,
                                            {"json", 0, NULL, OPT_JSON},
                                            {"watch", 0, NULL, OPT_WATCH},
                                            {"help", 0, NULL, OPT_HELP},
                                            {NULL, 0, NULL, 0}};
    bool watch = false, tty = isatty(STDOUT_FILENO) == 1, complete = false;
    struct screen screen = {
        .colour = tty && (getenv("NO_COLOR") == NULL || getenv("NO_COLOR")[0] == '\0')};
    struct hub_who who = {0};
    struct hub_address hub;
    struct err e = {0};
    int o;
    while ((o = getopt_long(argc, argv, "h", options, NULL)) != -1) {
        switch (o) {
        case OPT_JSON: screen.json = true; break;
        case OPT_WATCH: watch = true; break;
        case 'h':
        case OPT_HELP: fputs(HELP, stdout); return 0;
        default:
            if (!cli_who_option(&who, o, optarg)) return cli_bad_option("status", argv);
        }
    }
    if (optind + 1 != argc) return cli_usage("status", "want one RUN directory or URL", "");
    who.run = argv[optind];
    if (cli_hub_find(&who, &hub, &e) != BRG_OK) return cli_fail("status", &e);
    CHECK(curl_global_init(CURL_GLOBAL_DEFAULT) == 0);
    screen.in_place = watch && tty && !screen.json;
    enum brg_status s = screen.in_place ? watch_in_place(&who, &hub, &screen, &e)
                        : watch         ? watch_on(&who, &hub, &screen, &e)
                                        : once(&hub, &screen, &complete, &e);
    return s == BRG_OK ? 0 : cli_fail("status", &e);
}
