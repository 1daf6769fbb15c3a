/* SPDX-License-Identifier: Apache-2.0 */
/* facilities.c - placement on the hub's side: what agents report of their facilities' queues, and the
 * orders that operators (and planners) give to them.
 *
 * A report is journaled item by item, each once: items have numbers that grow for ever at a facility. The
 * hub keeps the newest of each kind; a planner reads the whole from the journal. An order names a shape
 * that its facility has reported; the agent judges it again by its own file, and reports how it ended.
 *
 * Invariants
 *   (H20) an item of a facility is journaled at most once.
 *   (H21) an order's id is given once, to one facility, for one shape; it changes by CANCEL and by the
 *        facility's own word that it is over, and never opens again. */
#include <string.h>

#include "hub/machine.h"

static struct hub_facility *facility_named(const struct hub *h, const char *name) {
    for (uint32_t i = 0; i < h->facilities_count; i++)
        if (strcmp(h->facilities[i].name, name) == 0) return &h->facilities[i];
    return NULL;
}

static struct hub_order *order_of(const struct hub *h, uint64_t id) {
    for (uint32_t i = 0; i < h->orders_count; i++)
        if (h->orders[i].o.id == id) return &h->orders[i];
    return NULL;
}

/* The place of a shape; shapes_count where it is not there. */
static uint32_t shape_index(const struct hub_facility *f, const char *shape) {
    uint32_t i = 0;
    while (i < f->shapes_count && strcmp(f->shapes[i].shape, shape) != 0) i++;
    return i;
}

void hub_facilities_free(struct hub *h) {
    mem_free(h->facilities);
    mem_free(h->orders);
}

/* ---- Deciding ---------------------------------------------------------------------------------- */

void hub_report(struct hub *h, const struct wire_report *r) {
    h->out->has_answer = true;
    h->out->answer.term = h->term;
    if (!h->started) {
        hub_refuse(h, WIRE_RETRY, "the hub is starting");
        h->out->answer.retry_ms = 1000;
        return;
    }
    if (!id_equal(&r->run, &h->s.run)) {
        hub_refuse(h, WIRE_MISMATCH,
                   "this hub keeps another run: check the hub's address and the run's id");
        return;
    }
    struct hub_facility *f = facility_named(h, r->site);
    if (f == NULL && h->facilities_count == HUB_FACILITIES_MAX) {
        hub_refuse(h, WIRE_BAD, "this hub knows %d facilities, which is its limit",
                   HUB_FACILITIES_MAX);
        return;
    }
    struct hub_record *d = hub_draft(h, RECORD_REPORT);
    hub_text_copy(d->u.report.site, sizeof d->u.report.site, r->site);
    for (uint32_t i = 0; i < r->items_count; i++)
        if (f == NULL || r->items[i].n > f->n) /* H20 */
            d->u.report.items[d->u.report.items_count++] = r->items[i];
    if (d->u.report.items_count > 0 || f == NULL) hub_emit(h, d);
    f = facility_named(h, r->site);
    f->heard = h->now;
}

void hub_order(struct hub *h, const struct hub_cmd *c) {
    const struct hub_order *known = order_of(h, c->u.order.cancel);
    if (c->u.order.cancel != 0) {
        bool fine = known != NULL && known->open;
        hub_operator_answer(h, fine, "no open order has this number: see beringia order --list");
        if (!fine || known->o.cancel) return;
        struct hub_record *r = hub_draft(h, RECORD_ORDER);
        r->u.order =
            (struct record_order){.id = known->o.id, .jobs = known->o.jobs, .cancel = true};
        hub_text_copy(r->u.order.site, sizeof r->u.order.site, known->site);
        hub_text_copy(r->u.order.shape, sizeof r->u.order.shape, known->o.shape);
        hub_emit(h, r);
        return;
    }
    const struct hub_facility *f = facility_named(h, c->u.order.site);
    uint32_t open = 0;
    for (uint32_t i = 0; i < h->orders_count; i++)
        open += h->orders[i].open && strcmp(h->orders[i].site, c->u.order.site) == 0;
    const char *wrong =
        f == NULL ? "no agent of this name has reported yet: start beringia agent there"
        : shape_index(f, c->u.order.shape) == f->shapes_count
            ? "this facility does not offer that shape: see its site.yaml"
        : c->u.order.jobs == 0 || c->u.order.jobs > WIRE_ORDER_JOBS_MAX ? "jobs: want 1 to 1000"
        : open >= WIRE_ORDERS_MAX ? "this facility has 64 open orders, which is the limit"
                                  : NULL;
    hub_operator_answer(h, wrong == NULL, wrong);
    if (wrong != NULL) return;
    struct hub_record *r = hub_draft(h, RECORD_ORDER);
    r->u.order.id = h->order_last + 1;
    r->u.order.jobs = c->u.order.jobs;
    hub_text_copy(r->u.order.site, sizeof r->u.order.site, c->u.order.site);
    hub_text_copy(r->u.order.shape, sizeof r->u.order.shape, c->u.order.shape);
    hub_emit(h, r);
    h->out->answer.req = h->order_last; /* its number */
    hub_note(h, "lvl=info ev=ordered order=%llu site=%s shape=%s jobs=%u",
             (unsigned long long)h->order_last, c->u.order.site, c->u.order.shape, c->u.order.jobs);
}

/* ---- Applying ---------------------------------------------------------------------------------- */

/* The estimate that stood as the job was submitted stays with it. */
static void note_said(struct hub_facility *f, uint32_t job) {
    uint32_t at = shape_index(f, f->jobs[job].shape);
    struct hub_said *said = &f->said[job];
    memset(said, 0, sizeof *said);
    if (at == f->shapes_count || f->probes[at].n == 0) return;
    said->at = f->probes[at].at;
    said->start = f->probes[at].start;
    hub_text_copy(said->word, sizeof said->word, f->probes[at].word);
}

static void take_job(struct hub_facility *f, const struct wire_item *i) {
    for (uint32_t k = 0; k < f->jobs_count; k++) {
        if (f->jobs[k].order != i->order || f->jobs[k].job != i->job) continue;
        bool again = f->jobs[k].submit != i->submit && i->start == 0;
        f->jobs[k] = *i;
        if (again) note_said(f, k);
        return;
    }
    if (f->jobs_count == HUB_JOBS_KEPT) {
        memmove(&f->jobs[0], &f->jobs[1], (HUB_JOBS_KEPT - 1) * sizeof f->jobs[0]);
        memmove(&f->said[0], &f->said[1], (HUB_JOBS_KEPT - 1) * sizeof f->said[0]);
        f->jobs_count--;
    }
    f->jobs[f->jobs_count] = *i;
    note_said(f, f->jobs_count++);
}

static void take_item(struct hub *h, struct hub_facility *f, const struct wire_item *i) {
    uint32_t at = shape_index(f, i->shape);
    struct hub_order *o;
    switch (i->kind) {
    case ITEM_SHAPE:
        if (at == HUB_SHAPES_MAX) return;
        if (at == f->shapes_count) f->shapes_count++;
        f->shapes[at] = *i;
        return;
    case ITEM_PROBE:
        if (at < f->shapes_count) f->probes[at] = *i;
        return;
    case ITEM_QUEUE: f->queue = *i; return;
    case ITEM_BUDGET: f->budget = *i; return;
    case ITEM_JOB: take_job(f, i); return;
    case ITEM_ORDER:
        o = order_of(h, i->order);
        if (o == NULL || !o->open || strcmp(o->site, f->name) != 0) return; /* H21 */
        o->open = false;
        o->over = i->at;
        hub_text_copy(o->word, sizeof o->word, i->word);
        hub_text_copy(o->why, sizeof o->why, i->why);
        return;
    }
}

const char *hub_apply_report(struct hub *h, const struct record_report *r) {
    struct hub_facility *f = facility_named(h, r->site);
    if (!wire_name_valid(r->site)) return "a facility's name that is none";
    if (f == NULL) {
        if (h->facilities_count == HUB_FACILITIES_MAX) return "too many facilities";
        h->facilities = mem_grow(h->facilities, h->facilities_count, h->facilities_count + 1,
                                 sizeof *h->facilities);
        f = &h->facilities[h->facilities_count++];
        memset(f, 0, sizeof *f);
        hub_text_copy(f->name, sizeof f->name, r->site);
    }
    for (uint32_t i = 0; i < r->items_count; i++) {
        if (r->items[i].n <= f->n) return "an item that is known"; /* H20 */
        f->n = r->items[i].n;
        take_item(h, f, &r->items[i]);
    }
    return NULL;
}

/* The oldest order that is over makes room; the count of open ones is bounded by the deciding side. */
static void order_forget(struct hub *h) {
    uint32_t i = 0;
    while (i < h->orders_count && h->orders[i].open) i++;
    if (h->orders_count < HUB_ORDERS_KEPT || i == h->orders_count) return;
    memmove(&h->orders[i], &h->orders[i + 1], (h->orders_count - i - 1) * sizeof h->orders[0]);
    h->orders_count--;
}

const char *hub_apply_order(struct hub *h, const struct record_order *r) {
    struct hub_order *o = order_of(h, r->id);
    if (r->cancel) {
        if (o == NULL || !o->open) return "an order that is not open";
        o->o.cancel = true;
        return NULL;
    }
    if (r->id != h->order_last + 1) return "a number of an order that is not the next"; /* H21 */
    order_forget(h);
    h->orders = mem_grow(h->orders, h->orders_count, h->orders_count + 1, sizeof *h->orders);
    o = &h->orders[h->orders_count++];
    memset(o, 0, sizeof *o);
    o->open = true;
    o->o.id = h->order_last = r->id;
    o->o.jobs = r->jobs;
    hub_text_copy(o->site, sizeof o->site, r->site);
    hub_text_copy(o->o.shape, sizeof o->o.shape, r->shape);
    return NULL;
}

/* ---- Reading ----------------------------------------------------------------------------------- */

uint32_t hub_facilities_count(const struct hub *h) {
    return h->facilities_count;
}

const struct hub_facility *hub_facility_at(const struct hub *h, uint32_t index) {
    CHECK(index < h->facilities_count);
    return &h->facilities[index];
}

uint32_t hub_orders_count(const struct hub *h) {
    return h->orders_count;
}

const struct hub_order *hub_order_at(const struct hub *h, uint32_t index) {
    CHECK(index < h->orders_count);
    return &h->orders[index];
}

void hub_agent_answer(const struct hub *h, const char *site, struct wire_agent_answer *out) {
    const struct hub_facility *f = facility_named(h, site);
    memset(out, 0, sizeof *out);
    out->code = WIRE_OK;
    out->term = h->term;
    out->n = f != NULL ? f->n : 0;
    out->complete = hub_complete(h);
    out->draining = h->draining;
    for (uint32_t i = 0; i < h->orders_count && out->orders_count < WIRE_ORDERS_MAX; i++)
        if (h->orders[i].open && strcmp(h->orders[i].site, site) == 0)
            out->orders[out->orders_count++] = h->orders[i].o;
}

/* ---- Snapshot ---------------------------------------------------------------------------------- */

static void item_put(const struct wire_item *i, struct buf *out) {
    buf_u8(out, (uint8_t)i->kind);
    const uint64_t words[] = {i->n,       i->at,   i->order,  i->job,   i->id,  i->nodes,
                              i->seconds, i->gpus, i->submit, i->start, i->end, i->took_ms};
    for (size_t k = 0; k < ARRAY_COUNT(words); k++) buf_u64(out, words[k]);
    buf_str(out, i->shape);
    buf_str(out, i->word);
    buf_str(out, i->why);
}

static void item_get(struct reader *r, struct wire_item *i) {
    i->kind = (enum wire_item_kind)get_u8(r);
    uint64_t *const words[] = {&i->n,       &i->at,   &i->order,  &i->job,   &i->id,  &i->nodes,
                               &i->seconds, &i->gpus, &i->submit, &i->start, &i->end, &i->took_ms};
    for (size_t k = 0; k < ARRAY_COUNT(words); k++) *words[k] = get_u64(r);
    (void)get_str(r, i->shape, sizeof i->shape);
    (void)get_str(r, i->word, sizeof i->word);
    (void)get_str(r, i->why, sizeof i->why);
}

void hub_facilities_put(const struct hub *h, struct buf *out) {
    buf_u32(out, h->facilities_count);
    for (uint32_t i = 0; i < h->facilities_count; i++) {
        const struct hub_facility *f = &h->facilities[i];
        buf_str(out, f->name);
        buf_u64(out, f->n);
        buf_u32(out, f->shapes_count);
        buf_u32(out, f->jobs_count);
        item_put(&f->queue, out);
        item_put(&f->budget, out);
        for (uint32_t k = 0; k < f->shapes_count; k++) item_put(&f->shapes[k], out);
        for (uint32_t k = 0; k < f->shapes_count; k++) item_put(&f->probes[k], out);
        for (uint32_t k = 0; k < f->jobs_count; k++) {
            item_put(&f->jobs[k], out);
            buf_u64(out, f->said[k].at);
            buf_u64(out, f->said[k].start);
            buf_str(out, f->said[k].word);
        }
    }
    buf_u64(out, h->order_last);
    buf_u32(out, h->orders_count);
    for (uint32_t i = 0; i < h->orders_count; i++) {
        const struct hub_order *o = &h->orders[i];
        buf_u64(out, o->o.id);
        buf_u32(out, o->o.jobs);
        buf_u8(out, o->o.cancel);
        buf_u8(out, o->open);
        buf_u64(out, o->over);
        buf_str(out, o->site);
        buf_str(out, o->o.shape);
        buf_str(out, o->word);
        buf_str(out, o->why);
    }
}

static bool facility_get(struct hub_facility *f, struct reader *r) {
    (void)get_str(r, f->name, sizeof f->name);
    f->n = get_u64(r);
    f->shapes_count = get_u32(r);
    f->jobs_count = get_u32(r);
    if (!r->ok || !wire_name_valid(f->name) || f->shapes_count > HUB_SHAPES_MAX ||
        f->jobs_count > HUB_JOBS_KEPT)
        return false;
    item_get(r, &f->queue);
    item_get(r, &f->budget);
    for (uint32_t k = 0; k < f->shapes_count; k++) item_get(r, &f->shapes[k]);
    for (uint32_t k = 0; k < f->shapes_count; k++) item_get(r, &f->probes[k]);
    for (uint32_t k = 0; k < f->jobs_count; k++) {
        item_get(r, &f->jobs[k]);
        f->said[k].at = get_u64(r);
        f->said[k].start = get_u64(r);
        (void)get_str(r, f->said[k].word, sizeof f->said[k].word);
    }
    return r->ok;
}

static bool orders_get(struct hub *h, struct reader *r) {
    h->order_last = get_u64(r);
    uint32_t orders = get_u32(r);
    if (!r->ok || orders > HUB_ORDERS_KEPT + HUB_FACILITIES_MAX * WIRE_ORDERS_MAX) return false;
    h->orders = mem_alloc(orders > 0 ? orders : 1, sizeof *h->orders);
    h->orders_count = orders;
    for (uint32_t i = 0; i < orders; i++) {
        struct hub_order *o = &h->orders[i];
        o->o.id = get_u64(r);
        o->o.jobs = get_u32(r);
        uint8_t cancel = get_u8(r), open = get_u8(r);
        o->o.cancel = cancel == 1;
        o->open = open == 1;
        o->over = get_u64(r);
        (void)get_str(r, o->site, sizeof o->site);
        (void)get_str(r, o->o.shape, sizeof o->o.shape);
        (void)get_str(r, o->word, sizeof o->word);
        (void)get_str(r, o->why, sizeof o->why);
        if (!r->ok || cancel > 1 || open > 1 || o->o.id > h->order_last) return false;
    }
    return true;
}

bool hub_facilities_get(struct hub *h, struct reader *r) {
    uint32_t count = get_u32(r);
    if (!r->ok || count > HUB_FACILITIES_MAX) return false;
    h->facilities = mem_alloc(count > 0 ? count : 1, sizeof *h->facilities);
    h->facilities_count = count;
    for (uint32_t i = 0; i < count; i++)
        if (!facility_get(&h->facilities[i], r)) return false;
    return orders_get(h, r);
}
