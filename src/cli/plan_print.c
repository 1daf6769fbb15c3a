/* SPDX-License-Identifier: Apache-2.0 */
/* plan_print.c - see plan_print.h. */
#include <math.h>
#include <stdio.h>

#include "cli/plan_print.h"
#include "wire/json.h"

struct span_text {
    char v[24];
};

static struct span_text span(double seconds) {
    struct span_text t;
    if (seconds < 60)
        (void)snprintf(t.v, sizeof t.v, "%.0f s", seconds);
    else if (seconds < 5400)
        (void)snprintf(t.v, sizeof t.v, "%.0f min", seconds / 60);
    else if (seconds < 172800)
        (void)snprintf(t.v, sizeof t.v, "%.1f h", seconds / 3600);
    else
        (void)snprintf(t.v, sizeof t.v, "%.1f d", seconds / 86400);
    return t;
}

/* ---- Text ------------------------------------------------------------------------------------------ */

static void text_starts(const struct plan_look *k, struct buf *out) {
    const struct plan_result *r = k->result;
    if (k->state->sites_count < 2) return;
    buf_printf(out, "  who is up trains, others join later; nobody training before");
    for (uint32_t i = 1; i < k->state->sites_count; i++)
        buf_printf(out, "%s %u sites are up would make it %s", i > 1 ? "," : "", i + 1,
                   span(r->start_mean_s[i]).v);
    buf_printf(out, "\n");
}

static void text_head(const struct plan_look *k, struct buf *out) {
    const struct plan_result *r = k->result;
    buf_printf(out, "run %.8s: %.4g of %.4g tokens are merged\n", k->live->run, k->live->tokens,
               k->live->tokens_total);
    buf_printf(out, "the target comes in %s (80 %%: %s to %s)", span(r->mean_s).v, span(r->low_s).v,
               span(r->high_s).v);
    if (r->unreached > 0)
        buf_printf(out, "; in %u of %u drawn futures not within %s", r->unreached,
                   k->options->draws, span(k->options->horizon_s).v);
    buf_printf(out, "\n");
    text_starts(k, out);
}

static void text_job(const struct plan_look *k, const struct plan_site *s, const struct plan_job *j,
                     struct buf *out) {
    double since = k->state->now_s - j->since_s, limit = s->shapes[j->shape].limit_s;
    buf_printf(out, "  order %llu, %s: ", (unsigned long long)j->id, s->shapes[j->shape].name);
    if (j->running)
        buf_printf(out, "runs since %s, %s to its limit\n", span(since).v,
                   span(fmax(0.0, limit - since)).v);
    else
        buf_printf(out, "waits since %s, about %s more (80 %%: %s to %s)\n", span(since).v,
                   span(wait_table_at(&j->left, 0.5)).v, span(wait_table_at(&j->left, 0.1)).v,
                   span(wait_table_at(&j->left, 0.9)).v);
}

static void text_shape(const struct plan_look *k, uint32_t site, uint32_t shape, struct buf *out) {
    const struct plan_site *s = &k->state->sites[site];
    const struct live_site_view *v = &k->views[site];
    const struct plan_shape *h = &s->shapes[shape];
    const struct wait_table *w = &s->waits[shape];
    const struct wait_request *q = &v->requests[shape];
    buf_printf(out, "  %s (%.0f nodes, %s): ", h->name, h->nodes, span(h->limit_s).v);
    if (!s->offered[shape]) {
        buf_printf(out, "not ordered: %s\n", v->not_offered[shape]);
        return;
    }
    buf_printf(out, "would wait %s (80 %%: %s to %s), ", span(wait_table_at(w, 0.5)).v,
               span(wait_table_at(w, 0.1)).v, span(wait_table_at(w, 0.9)).v);
    if (q->refused)
        buf_printf(out, "the scheduler says not now; ");
    else if (q->estimate_s < 0)
        buf_printf(out, "the scheduler gave no estimate; ");
    else
        buf_printf(out, "the scheduler says %s; ", span(q->estimate_s).v);
    buf_printf(out, "%.3g tokens/s (%s)\n", h->tokens_per_s,
               live_speed_name(v->speed_source[shape]));
}

static void text_action(const struct plan_look *k, uint32_t at, struct buf *out) {
    const struct plan_action *a = &k->result->v[at];
    const struct plan_sent *sent = k->sent != NULL ? &k->sent[at] : NULL;
    if (a->kind == PLAN_SUBMIT)
        buf_printf(out, "  => submit %s: %s\n", k->state->sites[a->site].shapes[a->shape].name,
                   a->why);
    else
        buf_printf(out, "  => cancel order %llu: %s\n", (unsigned long long)a->id, a->why);
    if (sent == NULL) return;
    if (!sent->sent)
        buf_printf(out, "     not sent: %s\n", sent->problem);
    else
        buf_printf(out, "     order %llu is %s\n", (unsigned long long)sent->order,
                   a->kind == PLAN_SUBMIT ? "given" : "being cancelled");
}

static void text_site(const struct plan_look *k, uint32_t i, struct buf *out) {
    const struct plan_site *s = &k->state->sites[i];
    const struct live_site_view *v = &k->views[i];
    const struct live_facility *f = &k->live->facilities[i];
    buf_printf(out, "%s: ", s->name);
    if (f->budget_told)
        buf_printf(out, "%.1f node-hours are free, %llu jobs at a time; ", f->budget_free_s / 3600,
                   (unsigned long long)f->jobs_max);
    else
        buf_printf(out, "its budget is not reported; ");
    buf_printf(out, "waits learned from %llu jobs", (unsigned long long)v->predictor.seen);
    if (v->predictor.asked > 0)
        buf_printf(out, " (80 %% intervals held %.0f %%)", 100 * predictor_coverage(&v->predictor));
    buf_printf(out, "\n");
    for (uint32_t j = 0; j < s->jobs_count; j++) text_job(k, s, &s->jobs[j], out);
    if (v->jobs_left_out > 0)
        buf_printf(out, "  and %u jobs more than a plan looks at\n", v->jobs_left_out);
    for (uint32_t h = 0; h < s->shapes_count; h++) text_shape(k, i, h, out);
    for (uint32_t a = 0; a < k->result->count; a++)
        if (k->result->v[a].site == i) text_action(k, a, out);
    if (k->result->none[i][0] != '\0') buf_printf(out, "  => nothing: %s\n", k->result->none[i]);
}

void plan_print_text(const struct plan_look *k, struct buf *out) {
    if (k->idle != NULL) {
        buf_printf(out, "run %.8s: %s\n", k->live->run, k->idle);
        return;
    }
    text_head(k, out);
    for (uint32_t i = 0; i < k->state->sites_count; i++) text_site(k, i, out);
}

/* ---- JSON ------------------------------------------------------------------------------------------ */

static void json_wait(const char *key, const struct wait_table *w, struct buf *out, bool *first) {
    bool inner = true;
    json_key(out, first, key);
    buf_u8(out, '{');
    json_member_f64(out, &inner, "p10", wait_table_at(w, 0.1));
    json_member_f64(out, &inner, "p50", wait_table_at(w, 0.5));
    json_member_f64(out, &inner, "p90", wait_table_at(w, 0.9));
    buf_u8(out, '}');
}

static void json_shape(const struct plan_look *k, uint32_t site, uint32_t shape, struct buf *out) {
    const struct plan_site *s = &k->state->sites[site];
    const struct live_site_view *v = &k->views[site];
    bool first = true;
    buf_printf(out, shape > 0 ? ",{" : "{");
    json_member_text(out, &first, "shape", s->shapes[shape].name);
    json_member_f64(out, &first, "nodes", s->shapes[shape].nodes);
    json_member_f64(out, &first, "limit_s", s->shapes[shape].limit_s);
    json_member_f64(out, &first, "tokens_per_s", s->shapes[shape].tokens_per_s);
    json_member_text(out, &first, "speed_from", live_speed_name(v->speed_source[shape]));
    json_member_bool(out, &first, "offered", s->offered[shape]);
    json_member_text(out, &first, "why", v->not_offered[shape]);
    json_member_f64(out, &first, "estimate_s",
                    v->requests[shape].estimate_s < 0 ? (double)NAN
                                                      : v->requests[shape].estimate_s);
    json_member_bool(out, &first, "refused", v->requests[shape].refused);
    json_wait("wait_s", &s->waits[shape], out, &first);
    buf_u8(out, '}');
}

static void json_job(const struct plan_site *s, uint32_t at, struct buf *out) {
    const struct plan_job *j = &s->jobs[at];
    bool first = true;
    buf_printf(out, at > 0 ? ",{" : "{");
    json_member_u64(out, &first, "order", j->id);
    json_member_text(out, &first, "shape", s->shapes[j->shape].name);
    json_member_bool(out, &first, "running", j->running);
    json_member_f64(out, &first, "since", j->since_s);
    if (!j->running) json_wait("left_s", &j->left, out, &first);
    buf_u8(out, '}');
}

static void json_site(const struct plan_look *k, uint32_t i, struct buf *out) {
    const struct plan_site *s = &k->state->sites[i];
    const struct live_facility *f = &k->live->facilities[i];
    const struct predictor *p = &k->views[i].predictor;
    bool first = true;
    buf_printf(out, i > 0 ? ",{" : "{");
    json_member_text(out, &first, "name", s->name);
    json_member_f64(out, &first, "heard_ago_s", f->heard_ago_s);
    json_member_f64(out, &first, "budget_free_node_s",
                    f->budget_told ? f->budget_free_s : (double)NAN);
    json_member_u64(out, &first, "outcomes", p->seen);
    json_member_f64(out, &first, "coverage80", predictor_coverage(p));
    json_key(out, &first, "shapes");
    buf_u8(out, '[');
    for (uint32_t h = 0; h < s->shapes_count; h++) json_shape(k, i, h, out);
    buf_u8(out, ']');
    json_key(out, &first, "jobs");
    buf_u8(out, '[');
    for (uint32_t j = 0; j < s->jobs_count; j++) json_job(s, j, out);
    buf_u8(out, ']');
    json_member_text(out, &first, "nothing", k->result->none[i]);
    buf_u8(out, '}');
}

static void json_action(const struct plan_look *k, uint32_t at, struct buf *out) {
    const struct plan_action *a = &k->result->v[at];
    const struct plan_site *s = &k->state->sites[a->site];
    bool first = true;
    buf_printf(out, at > 0 ? ",{" : "{");
    json_member_text(out, &first, "do", a->kind == PLAN_SUBMIT ? "submit" : "cancel");
    json_member_text(out, &first, "site", s->name);
    if (a->kind == PLAN_SUBMIT)
        json_member_text(out, &first, "shape", s->shapes[a->shape].name);
    else
        json_member_u64(out, &first, "cancels", a->id);
    json_member_text(out, &first, "why", a->why);
    json_member_bool(out, &first, "sent", k->sent != NULL && k->sent[at].sent);
    if (k->sent != NULL) {
        json_member_u64(out, &first, "order", k->sent[at].order);
        json_member_text(out, &first, "problem", k->sent[at].problem);
    }
    buf_u8(out, '}');
}

static void json_plan(const struct plan_look *k, struct buf *out, bool *first) {
    const struct plan_result *r = k->result;
    bool inner = true;
    json_member_f64(out, first, "now", k->state->now_s);
    json_key(out, first, "target_s");
    buf_u8(out, '{');
    json_member_f64(out, &inner, "mean", r->mean_s);
    json_member_f64(out, &inner, "p10", r->low_s);
    json_member_f64(out, &inner, "p90", r->high_s);
    buf_u8(out, '}');
    json_member_u64(out, first, "draws", k->options->draws);
    json_member_u64(out, first, "unreached", r->unreached);
    json_member_f64(out, first, "overhead", k->options->overhead);
    json_key(out, first, "start_with_s");
    buf_u8(out, '[');
    for (uint32_t i = 0; i < k->state->sites_count; i++) {
        if (i > 0) buf_u8(out, ',');
        json_put_f64(out, r->start_mean_s[i]);
    }
    buf_u8(out, ']');
    json_key(out, first, "sites");
    buf_u8(out, '[');
    for (uint32_t i = 0; i < k->state->sites_count; i++) json_site(k, i, out);
    buf_u8(out, ']');
    json_key(out, first, "actions");
    buf_u8(out, '[');
    for (uint32_t a = 0; a < r->count; a++) json_action(k, a, out);
    buf_u8(out, ']');
}

void plan_print_json(const struct plan_look *k, struct buf *out) {
    bool first = true;
    buf_u8(out, '{');
    json_member_text(out, &first, "run", k->live->run);
    json_member_f64(out, &first, "tokens", k->live->tokens);
    json_member_f64(out, &first, "tokens_total", k->live->tokens_total);
    json_member_bool(out, &first, "complete", k->live->complete);
    json_member_text(out, &first, "idle", k->idle != NULL ? k->idle : "");
    if (k->idle == NULL) json_plan(k, out, &first);
    buf_put(out, "}\n", 2);
}
