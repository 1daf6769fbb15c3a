/* SPDX-License-Identifier: Apache-2.0 */
/* live.c - see live.h: the hub's status, read as the words of a stranger. */
#include "place/live.h"

#include <math.h>
#include <string.h>

#include "wire/json.h"

enum { STATUS_BYTES_MAX = 64 << 20, ROUNDS_MEASURED = 4 };
#define TOKENS_MOST 1e24

#define OPT(s, m, t)                                                                               \
    { .name = #m, .type = (t), .optional = true, .offset = offsetof(struct s, m) }
#define OPT_TEXT(s, m, key)                                                                        \
    {                                                                                              \
        .name = (key), .type = JSON_TEXT, .optional = true, .offset = offsetof(struct s, m),       \
        .max = sizeof(((struct s *)0)->m)                                                          \
    }

static const struct field shape_fields[] = {
    FIELD_TEXT(live_shape, shape),      OPT(live_shape, at, JSON_U64),
    FIELD(live_shape, nodes, JSON_U64), FIELD(live_shape, seconds, JSON_U64),
    OPT(live_shape, gpus, JSON_U64),    FIELD_END};
static const struct field probe_fields[] = {
    FIELD_TEXT(live_probe, shape),    OPT_TEXT(live_probe, class_, "class"),
    OPT_TEXT(live_probe, why, "why"), FIELD(live_probe, at, JSON_U64),
    OPT(live_probe, start, JSON_U64), FIELD_END};
static const struct field job_fields[] = {FIELD_TEXT(live_job, shape),
                                          FIELD_TEXT(live_job, state),
                                          OPT(live_job, order, JSON_U64),
                                          OPT(live_job, job, JSON_U64),
                                          OPT(live_job, nodes, JSON_U64),
                                          OPT(live_job, seconds, JSON_U64),
                                          OPT(live_job, submit, JSON_U64),
                                          OPT(live_job, start, JSON_U64),
                                          OPT(live_job, end, JSON_U64),
                                          OPT(live_job, estimate_at, JSON_U64),
                                          OPT(live_job, estimate, JSON_U64),
                                          OPT_TEXT(live_job, estimate_class, "estimate_class"),
                                          FIELD_END};
static const struct field order_fields[] = {
    FIELD(live_order, id, JSON_U64),    FIELD_TEXT(live_order, site),
    FIELD_TEXT(live_order, shape),      FIELD(live_order, jobs, JSON_U32),
    FIELD(live_order, open, JSON_BOOL), FIELD(live_order, cancel, JSON_BOOL),
    OPT(live_order, over, JSON_U64),    OPT_TEXT(live_order, word, "word"),
    OPT_TEXT(live_order, why, "why"),   FIELD_END};
static const struct field member_fields[] = {FIELD_TEXT(live_member, name),
                                             FIELD(live_member, joined, JSON_BOOL),
                                             FIELD(live_member, live, JSON_BOOL),
                                             FIELD(live_member, tokens_per_s, JSON_F64),
                                             FIELD(live_member, tokens_merged, JSON_F64),
                                             FIELD_END};
static const struct field live_fields[] = {FIELD(live, tokens, JSON_F64),
                                           FIELD(live, tokens_total, JSON_F64),
                                           FIELD(live, complete, JSON_BOOL),
                                           FIELD(live, draining, JSON_BOOL),
                                           OPT(live, held, JSON_BOOL),
                                           OPT_TEXT(live, run, "run"),
                                           FIELD_END};

struct budget {
    uint64_t seconds, nodes;
};
static const struct field budget_fields[] = {FIELD(budget, seconds, JSON_U64),
                                             FIELD(budget, nodes, JSON_U64), FIELD_END};
struct named {
    char name[WIRE_NAME_MAX];
    double heard_ago_s;
};
static const struct field named_fields[] = {FIELD_TEXT(named, name),
                                            OPT(named, heard_ago_s, JSON_F64), FIELD_END};

/* Reads a list of objects into out, of `bytes` each; of more than `max` only the newest, the last. */
static enum brg_status list_read(const json_t *o, const char *key, const struct field *fields,
                                 void *out, size_t bytes, size_t max, uint32_t *out_count,
                                 struct err *e) {
    const json_t *list = json_object_get(o, key);
    size_t n = json_array_size(list), from = n > max ? n - max : 0;
    if (list != NULL && !json_is_array(list))
        return err_set(e, BRG_E_MESSAGE, "status.%s: expected a list", key);
    for (size_t i = from; i < n; i++)
        TRY(json_fields_get(json_array_get(list, i), fields, (uint8_t *)out + (i - from) * bytes,
                            key, e));
    *out_count = (uint32_t)(n - from);
    return BRG_OK;
}

static enum brg_status check_shapes(const struct live_facility *f, struct err *e) {
    for (uint32_t i = 0; i < f->shapes_count; i++) {
        const struct live_shape *s = &f->shapes[i];
        if (!wire_name_valid(s->shape) || s->nodes == 0 || s->seconds == 0)
            return err_set(e, BRG_E_MESSAGE,
                           "status.facilities.shapes: a shape of %s has no name, nodes or time",
                           f->name);
    }
    return BRG_OK;
}

static enum brg_status facility_read(const json_t *o, struct live_facility *f, struct err *e) {
    struct named named = {.heard_ago_s = -1};
    struct budget budget = {0};
    const json_t *budgets = json_object_get(o, "budget");
    TRY(json_fields_get(o, named_fields, &named, "facilities", e));
    memcpy(f->name, named.name, sizeof f->name);
    f->heard_ago_s = named.heard_ago_s;
    if (!wire_name_valid(f->name))
        return err_set(e, BRG_E_MESSAGE, "status.facilities.name: this is no name of a site");
    if (json_array_size(json_object_get(o, "shapes")) > PLAN_SHAPES_MAX)
        return err_set(e, BRG_E_LIMIT, "%s offers more than %d shapes, which a plan cannot take",
                       f->name, PLAN_SHAPES_MAX);
    TRY(list_read(o, "shapes", shape_fields, f->shapes, sizeof f->shapes[0], PLAN_SHAPES_MAX,
                  &f->shapes_count, e));
    TRY(list_read(o, "probes", probe_fields, f->probes, sizeof f->probes[0], PLAN_SHAPES_MAX,
                  &f->probes_count, e));
    TRY(list_read(o, "jobs", job_fields, f->jobs, sizeof f->jobs[0], LIVE_JOBS_MAX, &f->jobs_count,
                  e));
    if (json_array_size(budgets) > 0) {
        TRY(json_fields_get(json_array_get(budgets, 0), budget_fields, &budget, "budget", e));
        f->budget_told = true;
        f->budget_free_s = (double)budget.seconds;
        f->jobs_max = budget.nodes;
    }
    return check_shapes(f, e);
}

static struct live_facility *named_facility(struct live *l, const char *name) {
    for (uint32_t i = 0; i < l->facilities_count; i++)
        if (strcmp(l->facilities[i].name, name) == 0) return &l->facilities[i];
    return NULL;
}

/* Open orders are always kept; of those that are over the newest. */
static void order_keep(struct live_facility *f, const struct live_order *o) {
    if (f->orders_count == LIVE_ORDERS_MAX) {
        uint32_t i = 0;
        while (i < f->orders_count && f->orders[i].open) i++;
        if (i == f->orders_count) return;
        memmove(&f->orders[i], &f->orders[i + 1], (f->orders_count - i - 1) * sizeof f->orders[0]);
        f->orders_count--;
    }
    f->orders[f->orders_count++] = *o;
}

static enum brg_status orders_read(const json_t *o, struct live *l, struct err *e) {
    const json_t *list = json_object_get(o, "orders");
    for (size_t i = 0; i < json_array_size(list); i++) {
        struct live_order order;
        memset(&order, 0, sizeof order);
        TRY(json_fields_get(json_array_get(list, i), order_fields, &order, "orders", e));
        struct live_facility *f = named_facility(l, order.site);
        if (f != NULL) order_keep(f, &order);
    }
    return BRG_OK;
}

static enum brg_status members_read(const json_t *o, struct live *l, struct err *e) {
    const json_t *list = json_object_get(o, "sites");
    for (size_t i = 0; i < json_array_size(list); i++) {
        struct live_member m;
        memset(&m, 0, sizeof m);
        TRY(json_fields_get(json_array_get(list, i), member_fields, &m, "sites", e));
        struct live_facility *f = named_facility(l, m.name);
        if (f != NULL) f->member = m;
    }
    return BRG_OK;
}

/* What the newest rounds brought, of what the sites' speeds promise. Only where the same sites were there all the
 * time; else nothing is known. */
static double overhead_measured(const json_t *o) {
    const json_t *v = json_object_get(o, "versions");
    size_t n = json_array_size(v);
    double live = json_number_value(json_object_get(o, "sites_live"));
    double speed = json_number_value(json_object_get(o, "tokens_per_s"));
    if (n < ROUNDS_MEASURED + 1 || live <= 0 || speed <= 0) return -1;
    for (size_t i = n - ROUNDS_MEASURED; i < n; i++) {
        const json_t *row = json_array_get(v, i);
        if (json_number_value(json_object_get(row, "sites")) != live) return -1;
    }
    const json_t *old = json_array_get(v, n - ROUNDS_MEASURED - 1), *new = json_array_get(v, n - 1);
    double seconds = json_number_value(json_object_get(new, "wall")) -
                     json_number_value(json_object_get(old, "wall"));
    double tokens = json_number_value(json_object_get(new, "tokens")) -
                    json_number_value(json_object_get(old, "tokens"));
    if (!(seconds > 0) || !(tokens > 0)) return -1;
    return fmin(fmax(1.0 - tokens / (seconds * speed), 0.0), 0.9);
}

static enum brg_status read_all(const json_t *o, struct live *l, struct err *e) {
    const json_t *list = json_object_get(o, "facilities");
    TRY(json_fields_get(o, live_fields, l, "status", e));
    if (!json_is_array(list))
        return err_set(e, BRG_E_MESSAGE,
                       "status.facilities: missing; is this a hub of this version?");
    size_t n = json_array_size(list);
    if (n > PLAN_SITES_MAX)
        return err_set(e, BRG_E_LIMIT, "the run has %zu facilities; a plan takes %d", n,
                       PLAN_SITES_MAX);
    l->facilities = mem_alloc(n > 0 ? n : 1, sizeof *l->facilities);
    for (size_t i = 0; i < n; i++) {
        TRY(facility_read(json_array_get(list, i), &l->facilities[i], e));
        l->facilities_count++;
    }
    TRY(orders_read(o, l, e));
    TRY(members_read(o, l, e));
    l->overhead = overhead_measured(o);
    if (!(l->tokens >= 0 && l->tokens < TOKENS_MOST && l->tokens_total >= 0 &&
          l->tokens_total < TOKENS_MOST))
        return err_set(e, BRG_E_MESSAGE, "status.tokens, status.tokens_total: not believable");
    return BRG_OK;
}

enum brg_status live_read(const void *json, size_t n, struct live *out, struct err *e) {
    json_t *o = NULL;
    memset(out, 0, sizeof *out);
    TRY(json_object_parse(json, n, STATUS_BYTES_MAX, &o, e));
    enum brg_status s = read_all(o, out, e);
    json_decref(o);
    if (s != BRG_OK) live_free(out);
    return s;
}

void live_free(struct live *l) {
    mem_free(l->facilities);
    l->facilities = NULL;
    l->facilities_count = 0;
}
