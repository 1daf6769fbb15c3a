/* SPDX-License-Identifier: Apache-2.0 */
/* json_view.c - see the header; docs/protocol.md lists the members. */
#include <string.h>

#include "hub/alarms.h"
#include "hub/json_view.h"
#include "wire/json.h"

enum { STATUS_VERSIONS = 20 };

void view_version(const struct hub_version_view *v, struct buf *out, bool *first) {
    json_member_u64(out, first, "version", v->version);
    json_member_u64(out, first, "parent", v->parent);
    json_member_u64(out, first, "tokens", v->tokens);
    json_member_u64(out, first, "parts", v->parts);
    json_member_u64(out, first, "sites", v->sites);
    json_member_u64(out, first, "bytes", v->bytes);
    json_member_hash(out, first, "checkpoint", &v->checkpoint);
    json_member_hash(out, first, "theta", &v->theta);
    json_member_f64(out, first, "wall", (double)v->wall / 1e9);
    json_member_f64(out, first, "loss", v->loss);
    json_member_f64(out, first, "norm", v->norm);
    json_member_f64(out, first, "cos", v->cos_mean);
    json_member_f64(out, first, "eta", v->eta_r);
    json_member_f64(out, first, "mu", v->mu_r);
    json_member_f64(out, first, "kappa", v->kappa_r);
    json_member_f64(out, first, "cos_sites", v->cos_sites);
    json_member_f64(out, first, "heldout", v->heldout);
    json_member_u64(out, first, "returns", v->returns);
    json_member_bool(out, first, "radial", v->radial);
    json_member_bool(out, first, "ema", v->has_ema);
}

static void put_counts(const struct hub_counts *c, struct buf *out, bool *first) {
    bool inner = true;
    json_key(out, first, "counts");
    buf_u8(out, '{');
    json_member_u64(out, &inner, "available", c->available);
    json_member_u64(out, &inner, "leased", c->leased);
    json_member_u64(out, &inner, "staged", c->staged);
    json_member_u64(out, &inner, "merged", c->merged);
    json_member_u64(out, &inner, "skipped", c->skipped);
    json_member_u64(out, &inner, "quarantined", c->quarantined);
    buf_u8(out, '}');
}

static void put_site(const struct hub_site_view *v, struct buf *out) {
    bool first = true;
    buf_u8(out, '{');
    json_member_text(out, &first, "name", v->name);
    json_member_u64(out, &first, "site", v->site);
    json_member_u64(out, &first, "inc", v->inc);
    json_member_bool(out, &first, "joined", v->joined);
    json_member_bool(out, &first, "live", v->live);
    json_member_bool(out, &first, "ready", v->ready);
    json_member_text(out, &first, "phase", wire_phase_name(v->phase));
    json_member_text(out, &first, "fabric", v->fabric);
    json_member_f64(out, &first, "heard_ago_s",
                    v->heard_ago_ns == TIME_NS_NEVER ? -1 : (double)v->heard_ago_ns / 1e9);
    json_member_u64(out, &first, "base", v->base);
    json_member_u64(out, &first, "leases", v->leases);
    json_member_u64(out, &first, "samples_leased", v->samples_leased);
    json_member_u64(out, &first, "samples_done", v->samples_done);
    json_member_u64(out, &first, "contributions", v->contributions);
    json_member_u64(out, &first, "merged", v->merged);
    json_member_u64(out, &first, "rejected", v->rejected);
    json_member_u64(out, &first, "tokens_merged", v->tokens_merged);
    json_member_f64(out, &first, "steps_per_s", v->steps_per_s);
    json_member_f64(out, &first, "tokens_per_s", v->tokens_per_s);
    json_member_f64(out, &first, "loss", v->loss);
    json_member_f64(out, &first, "cos_others", v->cos_others);
    json_member_f64(out, &first, "norm_z", v->norm_z);
    buf_u8(out, '}');
}

/* Three different numbers: joined, live (heard of within a lease time), contributing (live, and holding
 * leases or work handed in). */
static void put_sites(const struct hub *h, time_ns now, struct buf *out, bool *first) {
    uint64_t joined = 0, live = 0, contributing = 0;
    double tokens_per_s = 0;
    json_key(out, first, "sites");
    buf_u8(out, '[');
    for (uint32_t i = 0; i < hub_sites_count(h); i++) {
        struct hub_site_view v;
        memset(&v, 0, sizeof v);
        hub_site_at(h, i, now, &v);
        if (i > 0) buf_u8(out, ',');
        put_site(&v, out);
        joined += v.joined;
        live += v.joined && v.live;
        contributing += v.joined && v.live && v.leases > 0;
        if (v.joined && v.live) tokens_per_s += v.tokens_per_s;
    }
    buf_u8(out, ']');
    json_member_u64(out, first, "sites_joined", joined);
    json_member_u64(out, first, "sites_live", live);
    json_member_u64(out, first, "sites_contributing", contributing);
    json_member_f64(out, first, "tokens_per_s", tokens_per_s);
}

static void put_totals(const struct hub_view *v, struct buf *out, bool *first) {
    json_member_u64(out, first, "staged_deltas", v->staged_deltas);
    json_member_u64(out, first, "grants", v->grants);
    json_member_u64(out, first, "reclaimed", v->reclaimed);
    json_member_u64(out, first, "returned", v->returned);
    json_member_u64(out, first, "rejected", v->rejected);
    json_member_u64(out, first, "discarded", v->discarded);
    json_member_u64(out, first, "departures", v->departures);
    json_member_u64(out, first, "samples_granted", v->samples_granted);
    json_member_u64(out, first, "samples_reclaimed", v->samples_reclaimed);
    json_member_f64(
        out, first, "reclaimed_share",
        v->samples_granted > 0 ? (double)v->samples_reclaimed / (double)v->samples_granted : 0);
}

static void put_extra(const struct view_extra *x, struct buf *out, bool *first) {
    bool inner = true;
    json_member_bool(out, first, "full", x->full);
    json_member_bool(out, first, "away", x->away);
    json_member_bool(out, first, "stopping", x->stopping);
    json_member_f64(out, first, "wall", x->wall);
    json_member_f64(out, first, "uptime_s", x->uptime_s);
    json_member_u64(out, first, "requests", x->requests);
    json_member_u64(out, first, "uploads_bytes", x->uploads_bytes);
    json_member_u64(out, first, "full_times", x->full_times);
    json_member_u64(out, first, "away_times", x->away_times);
    json_key(out, first, "round");
    buf_u8(out, '{');
    json_member_f64(out, &inner, "since_s", x->round_s);
    json_member_f64(out, &inner, "last_merge_s", x->merge_s);
    json_member_f64(out, &inner, "last_publish_s", x->publish_s);
    json_member_u64(out, &inner, "merges", x->merges);
    json_member_u64(out, &inner, "merges_failed", x->merges_failed);
    buf_u8(out, '}');
}

static void put_objects(const struct objects_view *o, struct buf *out, bool *first) {
    bool inner = true;
    if (o == NULL || !o->on) return;
    json_key(out, first, "objects");
    buf_u8(out, '{');
    json_member_bool(out, &inner, "up", o->up);
    json_member_text(out, &inner, "cause", o->cause);
    json_member_u64(out, &inner, "objects", o->objects);
    json_member_u64(out, &inner, "writes", o->writes);
    json_member_u64(out, &inner, "reads", o->reads);
    json_member_u64(out, &inner, "deletes", o->deletes);
    json_member_u64(out, &inner, "failures", o->failures);
    json_member_u64(out, &inner, "times_down", o->times_down);
    json_member_u64(out, &inner, "bytes_up", o->bytes_up);
    json_member_u64(out, &inner, "bytes_down", o->bytes_down);
    json_member_f64(out, &inner, "cost", o->cost);
    buf_u8(out, '}');
}

static void put_mailbox(const struct mailbox_view *m, struct buf *out, bool *first) {
    bool inner = true;
    if (m == NULL || !m->on) return;
    json_key(out, first, "mailbox");
    buf_u8(out, '{');
    json_member_bool(out, &inner, "up", !m->down);
    json_member_text(out, &inner, "cause", m->cause);
    json_member_text(out, &inner, "address", m->address);
    json_member_u64(out, &inner, "requests", m->requests);
    json_member_u64(out, &inner, "answers", m->answers);
    json_member_u64(out, &inner, "refused", m->refused);
    json_member_u64(out, &inner, "stale", m->stale);
    json_member_u64(out, &inner, "lists", m->lists);
    json_member_u64(out, &inner, "writes", m->writes);
    json_member_u64(out, &inner, "reads", m->reads);
    json_member_u64(out, &inner, "deletes", m->deletes);
    json_member_u64(out, &inner, "failures", m->failures);
    json_member_u64(out, &inner, "bytes_in", m->bytes_in);
    json_member_u64(out, &inner, "bytes_out", m->bytes_out);
    json_member_f64(out, &inner, "cost", m->cost);
    buf_u8(out, '}');
}

static void put_versions(const struct hub *h, uint64_t from, uint64_t head, uint32_t max,
                         struct buf *out, uint64_t *out_next) {
    uint32_t count = 0;
    uint64_t v = from;
    buf_u8(out, '[');
    for (; v <= head && count < max; v++) {
        struct hub_version_view x;
        bool first = true;
        memset(&x, 0, sizeof x);
        if (!hub_version_find(h, v, &x)) continue;
        if (count++ > 0) buf_u8(out, ',');
        buf_u8(out, '{');
        view_version(&x, out, &first);
        buf_u8(out, '}');
    }
    buf_u8(out, ']');
    *out_next = v;
}

/* said: of a job; or NULL. */
static void put_item(const struct wire_item *i, const struct hub_said *said, struct buf *out) {
    bool first = true;
    buf_u8(out, '{');
    json_member_text(out, &first, "shape", i->shape);
    if (i->order > 0) json_member_u64(out, &first, "order", i->order);
    if (i->job > 0) json_member_u64(out, &first, "job", i->job);
    if (i->id > 0) json_member_u64(out, &first, "id", i->id);
    json_member_text(out, &first, i->kind == ITEM_PROBE ? "class" : "state", i->word);
    json_member_u64(out, &first, "at", i->at);
    json_member_u64(out, &first, "nodes", i->nodes);
    json_member_u64(out, &first, "seconds", i->seconds);
    json_member_u64(out, &first, "gpus", i->gpus);
    json_member_u64(out, &first, "submit", i->submit);
    json_member_u64(out, &first, "start", i->start);
    json_member_u64(out, &first, "end", i->end);
    json_member_text(out, &first, "why", i->why);
    if (said != NULL) {
        json_member_u64(out, &first, "estimate_at", said->at);
        json_member_u64(out, &first, "estimate", said->start);
        json_member_text(out, &first, "estimate_class", said->word);
    }
    buf_u8(out, '}');
}

static void put_items(const char *key, const struct wire_item *items, const struct hub_said *said,
                      uint32_t count, struct buf *out, bool *first) {
    bool any = false;
    json_key(out, first, key);
    buf_u8(out, '[');
    for (uint32_t i = 0; i < count; i++) {
        if (items[i].n == 0) continue;
        if (any) buf_u8(out, ',');
        put_item(&items[i], said != NULL ? &said[i] : NULL, out);
        any = true;
    }
    buf_u8(out, ']');
}

/* What agents reported, and what they were ordered: placement. */
static void put_facilities(const struct hub *h, time_ns now, struct buf *out, bool *first) {
    json_key(out, first, "facilities");
    buf_u8(out, '[');
    for (uint32_t i = 0; i < hub_facilities_count(h); i++) {
        const struct hub_facility *f = hub_facility_at(h, i);
        bool inner = true;
        buf_printf(out, i > 0 ? ",{" : "{");
        json_member_text(out, &inner, "name", f->name);
        json_member_u64(out, &inner, "items", f->n);
        json_member_f64(out, &inner, "heard_ago_s",
                        f->heard > 0 ? (double)(now - f->heard) / 1e9 : -1);
        put_items("shapes", f->shapes, NULL, f->shapes_count, out, &inner);
        put_items("probes", f->probes, NULL, f->shapes_count, out, &inner);
        put_items("jobs", f->jobs, f->said, f->jobs_count, out, &inner);
        put_items("queue", &f->queue, NULL, 1, out, &inner);
        put_items("budget", &f->budget, NULL, 1, out, &inner);
        buf_u8(out, '}');
    }
    buf_u8(out, ']');
    json_key(out, first, "orders");
    buf_u8(out, '[');
    for (uint32_t i = 0; i < hub_orders_count(h); i++) {
        const struct hub_order *o = hub_order_at(h, i);
        bool inner = true;
        buf_printf(out, i > 0 ? ",{" : "{");
        json_member_u64(out, &inner, "id", o->o.id);
        json_member_text(out, &inner, "site", o->site);
        json_member_text(out, &inner, "shape", o->o.shape);
        json_member_u64(out, &inner, "jobs", o->o.jobs);
        json_member_bool(out, &inner, "open", o->open);
        json_member_u64(out, &inner, "over", o->over);
        json_member_bool(out, &inner, "cancel", o->o.cancel);
        json_member_text(out, &inner, "word", o->word);
        json_member_text(out, &inner, "why", o->why);
        buf_u8(out, '}');
    }
    buf_u8(out, ']');
}

void view_status(const struct hub *h, time_ns now, const struct run_settings *s,
                 const struct view_extra *x, struct buf *out) {
    struct hub_view v;
    struct hub_version_view head;
    bool first = true;
    uint64_t next;
    memset(&head, 0, sizeof head);
    hub_view(h, now, &v);
    (void)hub_version_find(h, v.head, &head);
    double tokens_total = s->hub.schedule.tokens_total;
    buf_u8(out, '{');
    json_member_id(out, &first, "run", &v.run);
    json_member_u64(out, &first, "protocol", WIRE_PROTOCOL);
    json_member_u64(out, &first, "term", v.term);
    json_member_u64(out, &first, "seq", v.seq);
    json_member_u64(out, &first, "seq_durable", x->seq_durable);
    json_member_u64(out, &first, "head", v.head);
    json_member_hash(out, &first, "theta", &head.theta);
    json_member_u64(out, &first, "tokens", v.tokens);
    json_member_f64(out, &first, "tokens_total", tokens_total);
    json_member_f64(out, &first, "progress",
                    tokens_total > 0 ? (double)v.tokens / tokens_total : 0);
    json_member_u64(out, &first, "parameters", s->hub.parameters);
    json_member_u64(out, &first, "steps", s->hub.steps);
    json_member_text(out, &first, "codec", codec_name(s->hub.codec));
    json_member_text(out, &first, "down_codec",
                     s->hub.down != 0 ? codec_name(s->hub.down) : "full");
    json_member_f64(out, &first, "lr", schedule_lr(&s->hub.schedule, (double)v.tokens));
    json_member_f64(out, &first, "loss", head.loss);
    json_member_u64(out, &first, "positions", v.positions);
    json_member_u64(out, &first, "epochs", v.epochs);
    json_member_u64(out, &first, "epoch", v.epoch);
    json_member_bool(out, &first, "complete", v.complete);
    json_member_bool(out, &first, "draining", v.draining);
    json_member_bool(out, &first, "held", v.held);
    put_counts(&v.counts, out, &first);
    put_totals(&v, out, &first);
    put_extra(x, out, &first);
    put_sites(h, now, out, &first);
    put_facilities(h, now, out, &first);
    links_view(x->links, out, &first);
    put_objects(x->objects, out, &first);
    put_mailbox(x->mailbox, out, &first);
    view_alarms(h, now, x, out, &first);
    json_key(out, &first, "versions");
    put_versions(h, v.head >= STATUS_VERSIONS ? v.head - STATUS_VERSIONS + 1 : 0, v.head,
                 STATUS_VERSIONS, out, &next);
    buf_put(out, "}\n", 2);
}

void view_rounds(const struct hub *h, time_ns now, uint64_t from, uint32_t max, struct buf *out) {
    struct hub_view v;
    bool first = true;
    uint64_t next = from;
    hub_view(h, now, &v);
    buf_u8(out, '{');
    json_member_u64(out, &first, "head", v.head);
    json_key(out, &first, "rounds");
    put_versions(h, from, v.head, max, out, &next);
    json_member_u64(out, &first, "next", next);
    buf_put(out, "}\n", 2);
}
