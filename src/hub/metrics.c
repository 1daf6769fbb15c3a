/* SPDX-License-Identifier: Apache-2.0 */
/* metrics.c - see the header. The form is version 0.0.4 of Prometheus' text exposition format. */
#include <string.h>

#include "hub/alarms.h"
#include "hub/metrics.h"
#include "wire/json.h"

/* ---- The writer ------------------------------------------------------------------------------------ */
static void head(struct buf *out, const char *name, const char *type, const char *help) {
    buf_printf(out, "# HELP beringia_%s %s\n# TYPE beringia_%s %s\n", name, help, name, type);
}

static void put_number(struct buf *out, double v) {
    if (v != v) /* the format has a word for it, JSON has not */
        buf_printf(out, "NaN\n");
    else
        buf_printf(out, "%.17g\n", v);
}

/* Names of sites, shapes and states are of [a-z0-9_-]; a stranger's bytes are still made harmless. */
static void put_label(struct buf *out, const char *key, const char *value, bool first) {
    buf_printf(out, "%s%s=\"", first ? "{" : ",", key);
    for (const char *p = value; *p != '\0'; p++) {
        if (*p == '\\' || *p == '"') buf_u8(out, '\\');
        if (*p == '\n')
            buf_printf(out, "\\n");
        else
            buf_u8(out, (uint8_t)*p);
    }
    buf_u8(out, '"');
}

static void one(struct buf *out, const char *name, const char *type, const char *help, double v) {
    head(out, name, type, help);
    buf_printf(out, "beringia_%s ", name);
    put_number(out, v);
}
static void gauge(struct buf *out, const char *name, const char *help, double v) {
    one(out, name, "gauge", help, v);
}
static void counter(struct buf *out, const char *name, const char *help, double v) {
    one(out, name, "counter", help, v);
}

static void labelled(struct buf *out, const char *name, const char *key, const char *value,
                     double v) {
    buf_printf(out, "beringia_%s", name);
    put_label(out, key, value, true);
    buf_printf(out, "} ");
    put_number(out, v);
}

/* ---- The run --------------------------------------------------------------------------------------- */
static void put_run(const struct hub_view *v, const struct hub_version_view *h,
                    const struct run_settings *s, struct buf *out) {
    char id[ID_HEX_BYTES];
    double total = s->hub.schedule.tokens_total;
    id_hex(&v->run, id);
    head(out, "run_info", "gauge", "Always 1; the run's id is the label.");
    labelled(out, "run_info", "run", id, 1);
    gauge(out, "head_version", "Newest published version.", (double)v->head);
    gauge(out, "tokens_merged", "Training tokens in the newest version.", (double)v->tokens);
    gauge(out, "tokens_target", "Training tokens of the whole run.", total);
    gauge(out, "progress_ratio", "tokens_merged / tokens_target.",
          total > 0 ? (double)v->tokens / total : 0);
    gauge(out, "learning_rate", "Inner learning rate at tokens_merged.",
          schedule_lr(&s->hub.schedule, (double)v->tokens));
    gauge(out, "loss_nats", "Mean training loss of the newest version, nats per token.", h->loss);
    gauge(out, "update_norm", "Norm of the newest version's averaged delta.", h->norm);
    gauge(out, "momentum_cosine", "Mean cosine of the newest contributions to the momentum.",
          h->cos_mean);
    gauge(out, "epoch", "First epoch that is not sealed.", v->epoch);
    gauge(out, "epochs", "Epochs of the run.", v->epochs);
    gauge(out, "positions_per_epoch", "Samples of one epoch.", (double)v->positions);
    gauge(out, "complete", "1 when every position is merged or skipped.", v->complete);
    gauge(out, "draining", "1 while sites are asked to leave.", v->draining);
    gauge(out, "held", "1 while the hub holds (HUB_BEHIND).", v->held);
    gauge(out, "staged_contributions", "Contributions that wait for a merge.",
          (double)v->staged_deltas);
}

static void put_ledger(const struct hub_view *v, struct buf *out) {
    const struct hub_counts *c = &v->counts;
    uint64_t all = v->positions * v->epochs;
    uint64_t sum = c->available + c->leased + c->staged + c->merged + c->skipped + c->quarantined;
    head(out, "positions", "gauge",
         "Positions of the ledger by state; all states add up to positions_per_epoch x epochs.");
    labelled(out, "positions", "state", "merged", (double)c->merged);
    labelled(out, "positions", "state", "staged", (double)c->staged);
    labelled(out, "positions", "state", "leased", (double)c->leased);
    labelled(out, "positions", "state", "available", (double)c->available);
    labelled(out, "positions", "state", "skipped", (double)c->skipped);
    labelled(out, "positions", "state", "quarantined", (double)c->quarantined);
    labelled(out, "positions", "state", "unopened", (double)(all - sum));
    counter(out, "leases_granted_total", "Leases given out.", (double)v->grants);
    counter(out, "leases_reclaimed_total", "Leases taken from silent sites.", (double)v->reclaimed);
    counter(out, "leases_returned_total", "Leases that sites gave back.", (double)v->returned);
    counter(out, "contributions_rejected_total", "Contributions refused.", (double)v->rejected);
    counter(out, "contributions_discarded_total", "Staged contributions dropped later.",
            (double)v->discarded);
    counter(out, "departures_total", "Times a site left or was replaced.", (double)v->departures);
    counter(out, "samples_granted_total", "Samples in leases given out.",
            (double)v->samples_granted);
    counter(out, "samples_reclaimed_total", "Samples in leases taken back.",
            (double)v->samples_reclaimed);
}

static void put_hub(const struct hub_view *v, const struct view_extra *x,
                    const struct metrics_extra *m, struct buf *out) {
    gauge(out, "uptime_seconds", "Since this hub process started.", x->uptime_s);
    gauge(out, "term", "Starts of the hub in this run.", v->term);
    gauge(out, "journal_sequence", "Records decided.", (double)v->seq);
    gauge(out, "journal_sequence_durable", "Records on disk.", (double)x->seq_durable);
    gauge(out, "disk_full", "1 while the journal has no space and only reads are served.", x->full);
    gauge(out, "journal_away", "1 while the journal's server is not reached.", x->away);
    gauge(out, "disk_free_bytes", "Free space on the run directory's disk.",
          (double)m->disk_free_bytes);
    counter(out, "disk_full_total", "Times the disk became full since the start.",
            (double)x->full_times);
    counter(out, "journal_away_total", "Times the journal's server was lost since the start.",
            (double)x->away_times);
    counter(out, "messages_total", "Messages of sites, agents and operators since the start.",
            (double)x->requests);
    counter(out, "upload_bytes_total", "Bytes of contributions received since the start.",
            (double)x->uploads_bytes);
    counter(out, "merges_total", "Merges since the start.", (double)x->merges);
    counter(out, "merges_failed_total", "Merges that did not work since the start.",
            (double)x->merges_failed);
    gauge(out, "round_seconds", "Since the newest version was made.", x->round_s);
    gauge(out, "last_merge_seconds", "Duration of the last merge.", x->merge_s);
    gauge(out, "last_publish_seconds", "Duration of the last publication.", x->publish_s);
    gauge(out, "viewers", "Connections to /v1/events.", (double)m->viewers);
    counter(out, "viewers_dropped_total", "Viewers that were too slow.",
            (double)m->viewers_dropped);
    counter(out, "events_total", "Snapshots made for viewers.", (double)m->events);
    gauge(out, "connections", "Connections that are open.", (double)m->connections);
    gauge(out, "connections_without_token", "Of these, where no good token was shown yet.",
          (double)m->strangers);
    counter(out, "connections_cut_total", "Connections cut: no token in time, bodies that trickle.",
            (double)m->cut);
    counter(out, "refused_total", "Requests without a good token, or one of another scope.",
            (double)m->refused);
    counter(out, "limited_total", "Requests beyond hub.rate.", (double)m->limited);
    counter(out, "process_cpu_seconds_total", "CPU time of the hub process.", m->cpu_s);
    gauge(out, "process_resident_bytes", "Resident memory of the hub process.",
          (double)m->resident_bytes);
    gauge(out, "process_open_files", "Open file descriptors of the hub process.",
          (double)m->open_files);
    gauge(out, "process_threads", "Threads of the hub process.", (double)m->threads);
}

static void put_objects(const struct objects_view *o, struct buf *out) {
    static const struct objects_view none = {.on = false};
    if (o == NULL) o = &none;
    gauge(out, "objects_up",
          "1 while the object store of blobs.store answers; 0 where there is none.", o->up);
    gauge(out, "objects", "Objects of kept versions that are in it.", (double)o->objects);
    counter(out, "objects_down_total", "Times it was lost since the start.", (double)o->times_down);
    head(out, "objects_requests_total", "counter",
         "Requests of the hub to it since the start: writes (and lists), reads, deletes.");
    labelled(out, "objects_requests_total", "kind", "writes", (double)o->writes);
    labelled(out, "objects_requests_total", "kind", "reads", (double)o->reads);
    labelled(out, "objects_requests_total", "kind", "deletes", (double)o->deletes);
    counter(out, "objects_failures_total", "Of these, those that did not work.",
            (double)o->failures);
    counter(out, "objects_cost_total",
            "Of these, what they cost by blobs.price_writes and blobs.price_reads.", o->cost);
    counter(out, "objects_up_bytes_total", "Bytes that the hub put there since the start.",
            (double)o->bytes_up);
    counter(out, "objects_down_bytes_total", "Bytes that the hub fetched from there.",
            (double)o->bytes_down);
}

static void put_mailbox(const struct mailbox_view *m, struct buf *out) {
    static const struct mailbox_view none = {.on = false};
    if (m == NULL) m = &none;
    gauge(out, "mailbox_up",
          "1 while the mailbox of blobs.mailbox can be looked into; 0 where there is none.",
          m->on && !m->down);
    head(out, "mailbox_messages_total", "counter",
         "Requests of sites in it since the start: taken, answered, refused (not understood), "
         "stale (nobody waits any more).");
    labelled(out, "mailbox_messages_total", "what", "taken", (double)m->requests);
    labelled(out, "mailbox_messages_total", "what", "answered", (double)m->answers);
    labelled(out, "mailbox_messages_total", "what", "refused", (double)m->refused);
    labelled(out, "mailbox_messages_total", "what", "stale", (double)m->stale);
    head(out, "mailbox_requests_total", "counter",
         "Requests of the hub to the store for it: lists, writes (without lists), reads, deletes.");
    labelled(out, "mailbox_requests_total", "kind", "lists", (double)m->lists);
    labelled(out, "mailbox_requests_total", "kind", "writes", (double)(m->writes - m->lists));
    labelled(out, "mailbox_requests_total", "kind", "reads", (double)m->reads);
    labelled(out, "mailbox_requests_total", "kind", "deletes", (double)m->deletes);
    counter(out, "mailbox_failures_total", "Of these, those that did not work.",
            (double)m->failures);
    counter(out, "mailbox_cost_total",
            "Of these, what they cost by blobs.price_writes and blobs.price_reads.", m->cost);
    counter(out, "mailbox_in_bytes_total", "Bytes that the hub fetched from it, lists and all.",
            (double)m->bytes_in);
    counter(out, "mailbox_out_bytes_total", "Bytes that the hub put there.", (double)m->bytes_out);
}

/* ---- Sites ----------------------------------------------------------------------------------------- */
static double of_up(const struct hub_site_view *v) {
    return v->joined && v->live;
}
static double of_joined(const struct hub_site_view *v) {
    return v->joined;
}
static double of_heard(const struct hub_site_view *v) {
    return v->heard_ago_ns == TIME_NS_NEVER ? -1 : (double)v->heard_ago_ns / 1e9;
}
static double of_base(const struct hub_site_view *v) {
    return (double)v->base;
}
static double of_rate(const struct hub_site_view *v) {
    return v->joined && v->live ? v->tokens_per_s : 0;
}
static double of_loss(const struct hub_site_view *v) {
    return v->loss;
}
static double of_leases(const struct hub_site_view *v) {
    return (double)v->leases;
}
static double of_leased(const struct hub_site_view *v) {
    return (double)v->samples_leased;
}
static double of_done(const struct hub_site_view *v) {
    return (double)v->samples_done;
}
static double of_incarnation(const struct hub_site_view *v) {
    return v->inc;
}
static double of_contributions(const struct hub_site_view *v) {
    return (double)v->contributions;
}
static double of_merged(const struct hub_site_view *v) {
    return (double)v->merged;
}
static double of_rejected(const struct hub_site_view *v) {
    return (double)v->rejected;
}
static double of_tokens(const struct hub_site_view *v) {
    return (double)v->tokens_merged;
}

static const struct site_metric {
    const char *name, *type, *help;
    double (*of)(const struct hub_site_view *v);
} site_metrics[] = {
    {"site_up", "gauge", "1 while the site is joined and heard of within a lease time.", of_up},
    {"site_joined", "gauge", "1 while the site is a member.", of_joined},
    {"site_incarnation", "gauge", "Processes of the site so far.", of_incarnation},
    {"site_heard_seconds", "gauge", "Since the site was heard of; -1 never.", of_heard},
    {"site_base_version", "gauge", "Version the site has loaded.", of_base},
    {"site_tokens_per_second", "gauge", "Training speed the site reports; 0 while not up.",
     of_rate},
    {"site_loss_nats", "gauge", "Training loss the site reports.", of_loss},
    {"site_leases", "gauge", "Leases the site holds.", of_leases},
    {"site_samples_leased", "gauge", "Samples in them.", of_leased},
    {"site_samples_done", "gauge", "Samples of them that are trained.", of_done},
    {"site_contributions_total", "counter", "Contributions accepted.", of_contributions},
    {"site_merged_total", "counter", "Contributions merged.", of_merged},
    {"site_rejected_total", "counter", "Contributions refused.", of_rejected},
    {"site_tokens_merged_total", "counter", "Training tokens merged of this site.", of_tokens},
};

static void put_sites(const struct hub *h, time_ns now, struct buf *out) {
    uint32_t n = hub_sites_count(h);
    uint64_t joined = 0, live = 0, contributing = 0;
    double rate = 0;
    AUTO_FREE struct hub_site_view *v = mem_alloc(n > 0 ? n : 1, sizeof *v);
    for (uint32_t i = 0; i < n; i++) {
        hub_site_at(h, i, now, &v[i]);
        joined += v[i].joined;
        live += v[i].joined && v[i].live;
        contributing += v[i].joined && v[i].live && v[i].leases > 0;
        rate += of_rate(&v[i]);
    }
    head(out, "sites", "gauge", "Sites: joined, live, contributing.");
    labelled(out, "sites", "state", "joined", (double)joined);
    labelled(out, "sites", "state", "live", (double)live);
    labelled(out, "sites", "state", "contributing", (double)contributing);
    gauge(out, "tokens_per_second", "Training speed of all live sites together.", rate);
    for (size_t k = 0; k < ARRAY_COUNT(site_metrics); k++) {
        const struct site_metric *m = &site_metrics[k];
        head(out, m->name, m->type, m->help);
        for (uint32_t i = 0; i < n; i++) labelled(out, m->name, "site", v[i].name, m->of(&v[i]));
    }
    head(out, "site_phase", "gauge", "1 for the phase that the site reports.");
    for (uint32_t i = 0; i < n; i++) {
        if (!v[i].joined || !v[i].live) continue;
        buf_printf(out, "beringia_site_phase");
        put_label(out, "site", v[i].name, true);
        put_label(out, "phase", wire_phase_name(v[i].phase), false);
        buf_printf(out, "} 1\n");
    }
}

/* ---- Facilities ------------------------------------------------------------------------------------ */
static uint64_t jobs_in(const struct hub_facility *f, const char *state) {
    uint64_t n = 0;
    for (uint32_t k = 0; k < f->jobs_count; k++)
        n += f->jobs[k].n > 0 && strcmp(f->jobs[k].word, state) == 0;
    return n;
}

static void put_facilities(const struct hub *h, time_ns now, struct buf *out) {
    static const char *const states[] = {"pending", "running", "suspended"};
    uint32_t n = hub_facilities_count(h);
    head(out, "facility_heard_seconds", "gauge",
         "Since the facility's agent reported; -1 not since the hub started.");
    for (uint32_t i = 0; i < n; i++) {
        const struct hub_facility *f = hub_facility_at(h, i);
        labelled(out, "facility_heard_seconds", "facility", f->name,
                 f->heard > 0 ? (double)(now - f->heard) / 1e9 : -1);
    }
    head(out, "facility_jobs", "gauge", "Jobs of orders by state.");
    for (uint32_t i = 0; i < n; i++) {
        const struct hub_facility *f = hub_facility_at(h, i);
        for (size_t k = 0; k < ARRAY_COUNT(states); k++) {
            buf_printf(out, "beringia_facility_jobs");
            put_label(out, "facility", f->name, true);
            put_label(out, "state", states[k], false);
            buf_printf(out, "} ");
            put_number(out, (double)jobs_in(f, states[k]));
        }
    }
    head(out, "facility_wait_estimate_seconds", "gauge",
         "Wait that the scheduler's newest estimate for a shape means.");
    for (uint32_t i = 0; i < n; i++) {
        const struct hub_facility *f = hub_facility_at(h, i);
        for (uint32_t k = 0; k < f->shapes_count; k++) {
            const struct wire_item *p = &f->probes[k];
            if (p->n == 0 || strcmp(p->word, "fine") != 0) continue;
            buf_printf(out, "beringia_facility_wait_estimate_seconds");
            put_label(out, "facility", f->name, true);
            put_label(out, "shape", p->shape, false);
            buf_printf(out, "} ");
            put_number(out, p->start > p->at ? (double)(p->start - p->at) : 0);
        }
    }
    head(out, "orders_open", "gauge", "Orders to agents that are not over.");
    uint64_t open = 0;
    for (uint32_t i = 0; i < hub_orders_count(h); i++) open += hub_order_at(h, i)->open;
    buf_printf(out, "beringia_orders_open ");
    put_number(out, (double)open);
}

static void put_alarm(void *user, const struct alarm *a) {
    struct buf *out = user;
    buf_printf(out, "beringia_alarm");
    put_label(out, "alarm", a->id, true);
    put_label(out, "level", alarm_level_name(a->level), false);
    put_label(out, "subject", a->subject, false);
    buf_printf(out, "} 1\n");
}

void metrics_put(const struct hub *h, time_ns now, const struct run_settings *s,
                 const struct view_extra *x, const struct metrics_extra *m, struct buf *out) {
    struct hub_view v;
    struct hub_version_view newest;
    memset(&newest, 0, sizeof newest);
    hub_view(h, now, &v);
    (void)hub_version_find(h, v.head, &newest);
    put_run(&v, &newest, s, out);
    put_ledger(&v, out);
    put_hub(&v, x, m, out);
    put_objects(x->objects, out);
    put_mailbox(x->mailbox, out);
    put_sites(h, now, out);
    put_facilities(h, now, out);
    head(out, "alarm", "gauge", "1 for each alarm that stands; absent where it does not.");
    hub_alarms(h, now, x, put_alarm, out);
}
