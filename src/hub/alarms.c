/* SPDX-License-Identifier: Apache-2.0 */
/* alarms.c - see the header. Thresholds are here, in one place, with their reason. */
#include <stdio.h>
#include <string.h>

#include "hub/alarms.h"
#include "wire/json.h"

enum {
    STILL_ROUNDS = 4,          /* a round that lasts four times the last ones' mean */
    STILL_LEAST_S = 300,       /* and at least this: short rounds vary */
    STILL_FIRST_S = 3600,      /* no round is known yet: model and queue may be slow */
    STILL_WINDOW = 8,          /* rounds the mean is of */
    AGENT_SILENT_S = 3 * 3600, /* an agent reports at least each hour, from cron too */
    SITES_NAMED = 20,          /* silent ones; the rest is a number */
    DOUBT_S = 600,             /* a site that is refused for its claim asks more often than this */
    REJECTED_LEAST = 3,        /* one refused contribution is an accident */
};

const char *alarm_level_name(enum alarm_level l) {
    static const char *const names[] = {"info", "warn", "error"};
    return (size_t)l < ARRAY_COUNT(names) ? names[l] : "info";
}

struct walk {
    void (*visit)(void *user, const struct alarm *a);
    void *user;
    enum alarm_level level; /* that is told in this pass */
};

static void raise(const struct walk *w, const char *id, enum alarm_level level, const char *subject,
                  const char *text, const char *remedy) {
    struct alarm a = {.id = id, .level = level};
    if (level != w->level) return;
    (void)snprintf(a.subject, sizeof a.subject, "%s", subject);
    (void)snprintf(a.text, sizeof a.text, "%s", text);
    (void)snprintf(a.remedy, sizeof a.remedy, "%s", remedy);
    w->visit(w->user, &a);
}

/* "90 s", "12 min", "3.5 h" */
static void put_time(double s, char out[24]) {
    if (s < 120)
        (void)snprintf(out, 24, "%.0f s", s);
    else if (s < 7200)
        (void)snprintf(out, 24, "%.0f min", s / 60);
    else
        (void)snprintf(out, 24, "%.1f h", s / 3600);
}

/* Somebody is wrong: a site that makes things up, or this hub. */
static void of_doubt(const struct walk *w, const struct hub_view *v, time_ns now) {
    char text[ALARM_TEXT_MAX];
    const struct hub_doubt *d = &v->doubt;
    if (d->name[0] == '\0' || now - d->at > (time_ns)DOUBT_S * NS_PER_S) return;
    (void)snprintf(
        text, sizeof text,
        "says it has seen version %llu and term %u, without a proof: it alone is refused",
        (unsigned long long)d->version, d->term);
    raise(
        w, "unproved", ALARM_WARN, d->name, text,
        "is this hub an old copy? docs/operating.md, \"the hub holds\"; else start the site with a "
        "new --state, or revoke its token");
}

static void of_hub(const struct walk *w, const struct hub_view *v, const struct view_extra *x) {
    char text[ALARM_TEXT_MAX];
    if (x->full)
        raise(w, "disk_full", ALARM_ERROR, "", "the hub's disk is full; only reads are served",
              "free space on the disk of the run directory; the hub goes on by itself");
    if (x->away)
        raise(w, "journal_away", ALARM_ERROR, "",
              "the server of the journal is not reached; only what is durable is read",
              "look at the database server; the hub goes on by itself and loses nothing");
    if (x->objects != NULL && x->objects->down) {
        (void)snprintf(text, sizeof text, "%.*s", (int)sizeof text - 1, x->objects->cause);
        raise(w, "objects_down", ALARM_ERROR, "", text,
              "sites are served by the hub itself meanwhile, nothing is lost; mend it, and the hub "
              "goes on with it by itself (docs/s3.md)");
    }
    if (x->mailbox != NULL && x->mailbox->down) {
        (void)snprintf(text, sizeof text, "%.*s", (int)sizeof text - 1, x->mailbox->cause);
        raise(w, "mailbox_down", ALARM_ERROR, "", text,
              "sites that come through the bucket wait, nothing is lost; mend it, and the hub goes "
              "on by itself (docs/s3.md)");
    }
    if (v->held)
        raise(w, "hub_behind", ALARM_ERROR, "",
              "a site has seen more than this hub knows: nothing is given out or merged",
              "find the newer journal, or declare a branch with `beringia rollback`: see "
              "docs/operating.md, \"the hub holds\"");
    if (x->merge_bad)
        raise(w, "merge_failed", ALARM_ERROR, "", "the last merge did not work; it is tried again",
              "look at the hub's log (ev=merge_failed): disk space, or a contribution to discard");
    if (!x->merge_bad && x->merges_failed > 0) {
        (void)snprintf(text, sizeof text,
                       "%llu merges failed since the hub started; a later one worked",
                       (unsigned long long)x->merges_failed);
        raise(w, "merges_failed", ALARM_INFO, "", text,
              "the hub's log (ev=merge_failed) names the contributions that were dropped");
    }
    if (v->counts.quarantined > 0) {
        (void)snprintf(text, sizeof text, "%llu positions are in quarantine; the epoch cannot end",
                       (unsigned long long)v->counts.quarantined);
        raise(w, "quarantine", ALARM_WARN, "", text,
              "`beringia quarantine RUN` lists them: give them out again, or skip them");
    }
    if (v->draining)
        raise(w, "draining", ALARM_INFO, "", "sites are asked to hand in and leave",
              "`beringia drain RUN --off` takes it back");
}

/* As long as nothing was merged on the version that the run went back to, or nobody went back: then a person decides. */
static void of_loss(const struct walk *w, const struct hub *h, const struct hub_view *v) {
    struct hub_version_view head;
    char text[ALARM_TEXT_MAX];
    memset(&head, 0, sizeof head);
    if (!hub_version_find(h, v->head, &head)) return;
    if (head.returns > 0) {
        (void)snprintf(text, sizeof text,
                       "held-out loss jumped; the run went back to version %llu, %llu times so far",
                       (unsigned long long)head.version, (unsigned long long)head.returns);
        raise(w, "loss_jumped", ALARM_WARN, "", text,
              "the hub's log (ev=loss_jumped) has the figures; lower the rate if it comes again");
    }
    if (hub_loss_jumped(h, head.version))
        raise(w, "no_way_back", ALARM_ERROR, "",
              "held-out loss jumped, and the hub does not go back (again)",
              "look at rate and data, then `beringia rollback RUN V`: see docs/outer.md");
}

/* How long a round lasted of late, in seconds; 0 where none is known. */
static double round_mean_s(const struct hub *h, uint64_t head) {
    struct hub_version_view last, x;
    if (!hub_version_find(h, head, &last)) return 0;
    uint64_t v = head, rounds = 0;
    double s = 0;
    while (rounds < STILL_WINDOW && hub_version_find(h, v, &x) && x.parent != v && v > 0) {
        struct hub_version_view parent;
        if (!hub_version_find(h, x.parent, &parent)) break;
        v = x.parent;
        rounds++;
        s = (double)(last.wall - parent.wall) / 1e9 / (double)rounds;
    }
    return s > 0 ? s : 0;
}

static void of_head(const struct walk *w, const struct hub *h, const struct hub_view *v,
                    const struct view_extra *x) {
    double mean = round_mean_s(h, v->head);
    double limit = mean > 0 ? mean * STILL_ROUNDS : STILL_FIRST_S;
    char text[ALARM_TEXT_MAX], since[24], usual[24];
    if (limit < STILL_LEAST_S) limit = STILL_LEAST_S;
    if (x->round_s <= limit) return;
    put_time(x->round_s, since);
    put_time(mean, usual);
    if (mean > 0)
        (void)snprintf(text, sizeof text, "no new version for %s; a round lasted %s of late", since,
                       usual);
    else
        (void)snprintf(text, sizeof text, "no new version for %s", since);
    raise(w, "head_still", ALARM_WARN, "", text,
          "is a site syncing or uploading for long? The hub's log, and the sites' "
          "(ev=upload_failed)");
}

static void of_site(const struct walk *w, const struct hub_site_view *s) {
    char text[ALARM_TEXT_MAX], ago[24];
    if (s->joined && !s->live) {
        put_time(s->heard_ago_ns == TIME_NS_NEVER ? 0 : (double)s->heard_ago_ns / 1e9, ago);
        (void)snprintf(text, sizeof text, "not heard of for %s", ago);
        raise(
            w, "site_silent", ALARM_WARN, s->name, text,
            "look at its job and its network; others get its leases when they need them; start it "
            "again with the same --state");
    }
    if (s->rejected >= REJECTED_LEAST && s->rejected > s->contributions) {
        (void)snprintf(text, sizeof text, "%llu contributions were refused, %llu accepted",
                       (unsigned long long)s->rejected, (unsigned long long)s->contributions);
        raise(w, "site_rejected", ALARM_WARN, s->name, text,
              "the hub's log (ev=rejected) has the reason; look at that site");
    }
}

static void of_facilities(const struct walk *w, const struct hub *h, time_ns now) {
    char text[ALARM_TEXT_MAX], ago[24];
    for (uint32_t i = 0; i < hub_facilities_count(h); i++) {
        const struct hub_facility *f = hub_facility_at(h, i);
        double s = f->heard > 0 ? (double)(now - f->heard) / 1e9 : 0;
        if (s <= AGENT_SILENT_S) continue;
        put_time(s, ago);
        (void)snprintf(text, sizeof text, "its agent has not reported for %s", ago);
        raise(w, "agent_silent", ALARM_WARN, f->name, text,
              "start `beringia agent` there again: orders wait for it");
    }
}

static void of_members(const struct walk *w, const struct hub *h, time_ns now,
                       const struct hub_view *v, const struct view_extra *x) {
    char text[ALARM_TEXT_MAX];
    uint32_t live = 0, silent = 0;
    for (uint32_t i = 0; i < hub_sites_count(h); i++) {
        struct hub_site_view s;
        hub_site_at(h, i, now, &s);
        live += s.joined && s.live;
        bool quiet = s.joined && !s.live;
        silent += quiet;
        if (!quiet || silent <= SITES_NAMED) of_site(w, &s);
    }
    if (silent > SITES_NAMED) {
        (void)snprintf(text, sizeof text, "%u more sites have not been heard of for a lease time",
                       silent - SITES_NAMED);
        raise(w, "site_silent", ALARM_WARN, "", text,
              "so many at once: look at the hub's own network first");
    }
    if (live == 0 && !v->draining)
        raise(w, "no_live_site", ALARM_WARN, "", "no site is live: nothing is trained",
              "nothing is lost; start a site, or look at the facilities' queues");
    if (live > 0 && !v->held && !v->draining && !x->full && !x->away) of_head(w, h, v, x);
    of_facilities(w, h, now);
}

void hub_alarms(const struct hub *h, time_ns now, const struct view_extra *x,
                void (*visit)(void *user, const struct alarm *a), void *user) {
    static const enum alarm_level levels[] = {ALARM_ERROR, ALARM_WARN, ALARM_INFO};
    struct hub_view v;
    hub_view(h, now, &v);
    for (size_t i = 0; i < ARRAY_COUNT(levels); i++) {
        struct walk w = {.visit = visit, .user = user, .level = levels[i]};
        of_hub(&w, &v, x);
        of_doubt(&w, &v, now);
        of_loss(&w, h, &v);
        if (levels[i] == ALARM_WARN && !v.complete) of_members(&w, h, now, &v, x);
    }
}

struct put {
    struct buf *out;
    bool any;
};
static void put_alarm(void *user, const struct alarm *a) {
    struct put *p = user;
    bool first = true;
    buf_printf(p->out, p->any ? ",{" : "{");
    p->any = true;
    json_member_text(p->out, &first, "id", a->id);
    json_member_text(p->out, &first, "level", alarm_level_name(a->level));
    json_member_text(p->out, &first, "subject", a->subject);
    json_member_text(p->out, &first, "text", a->text);
    json_member_text(p->out, &first, "remedy", a->remedy);
    buf_u8(p->out, '}');
}

void view_alarms(const struct hub *h, time_ns now, const struct view_extra *x, struct buf *out,
                 bool *first) {
    struct put p = {.out = out};
    json_key(out, first, "alarms");
    buf_u8(out, '[');
    hub_alarms(h, now, x, put_alarm, &p);
    buf_u8(out, ']');
}
