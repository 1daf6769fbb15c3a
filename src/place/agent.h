/* SPDX-License-Identifier: Apache-2.0 */
/* agent.h - what a facility's agent does next. Pure: time and chance come in, one action comes out.
 *
 *   agent_next -> action -> (shore: make the state durable, do it) -> agent_* told -> agent_next ...
 *
 *   a job:  INTENDED --submit: id--> KNOWN --queue, history--> OVER
 *              |  --submit: refused for now--> (attempt + 1 later)
 *              '--submit: no answer--> UNSURE --queue shows its name--> KNOWN
 *                                             --settle time passed, two looks without it,
 *                                               no mark of a run--> (attempt + 1)
 *
 * Invariants
 *   (G1) before a submission its intention, with a name that was never used, is durable.
 *   (G2) no second submission of a job while a first one may still exist: an UNSURE one is settled by the
 *        scheduler's own list, and by time, never by a guess.
 *   (G3) what has been promised (time limits of jobs that are not over) and what was used together
 *        never exceed the budget.
 *   (G4) every word of a command comes from site.yaml; an order only names a shape.
 *   (G5) no more commands than the etiquette allows, in any hour. */
#ifndef PLACE_AGENT_H
#define PLACE_AGENT_H

#include "base/base.h"
#include "place/sitefile.h"
#include "wire/agent.h"

enum {
    AGENT_ORDERS_MAX = 128,
    AGENT_JOBS_MAX = 256,
    AGENT_ITEMS_MAX = 256,
    AGENT_FAILS_MAX = 3, /* jobs in a row that fail: the order ends */
    AGENT_COMMANDS_MAX = 1024,
};

enum agent_phase {
    AGENT_INTENDED = 1, /* a submission is about to be made, or was when we died */
    AGENT_UNSURE = 2,   /* it was made and nothing is known */
    AGENT_KNOWN = 3,    /* the scheduler has it: `id` */
    AGENT_OVER = 4,
};

struct agent_job {
    uint64_t order, job, attempt; /* job: from 1; attempt: from 1 */
    char shape[PLACE_NAME_MAX], name[PLACE_JOBNAME_MAX];
    enum agent_phase phase;
    uint32_t state; /* enum place_state; 0: not seen yet */
    uint64_t id, intended_s, submit_s, start_s, end_s, time_s, nodes;
    uint32_t missing; /* looks in a row without it */
    bool drained, cancelled, lost;
    char why[96];
};
struct agent_order {
    uint64_t id;
    char shape[PLACE_NAME_MAX];
    uint32_t jobs;
    uint64_t begun;   /* jobs of it that were begun */
    uint64_t retry_s; /* no submission before; volatile in meaning, harmless if kept */
    uint32_t retries, fails;
    bool cancel, over;
};

struct agent {
    /* durable: agent_save */
    char run[ID_HEX_BYTES];
    uint64_t item_next;
    double hours_used; /* node-hours of jobs that were dropped from the list */
    bool complete;
    uint32_t orders_count, jobs_count, items_count;
    struct agent_order orders[AGENT_ORDERS_MAX];
    struct agent_job jobs[AGENT_JOBS_MAX];
    struct wire_item items[AGENT_ITEMS_MAX]; /* not acknowledged yet, oldest first */
    /* volatile */
    const struct place_site *site;
    struct prng prng;
    time_ns look_at, hub_at, back_off_until, probe_at[SITE_SHAPES_MAX];
    uint32_t away; /* answers in a row that were none: back-off */
    bool looked;   /* the queue was seen since the start */
    bool told;     /* so was the hub */
    bool history_absent, history_due;
    bool dirty; /* durable state changed since agent_saved */
    double
        budget_told_s; /* free node-seconds in the newest report of them; -1: none since the start */
    bool orphan;       /* a submission of an earlier process may still be under way */
    time_ns commands[AGENT_COMMANDS_MAX]; /* when the last ones ran: a ring */
    uint32_t commands_next, commands_count;
    uint64_t commands_total, refused_total;
};

enum agent_action_kind {
    AGENT_WAIT = 0, /* until `until` */
    AGENT_HUB,      /* send `items`, take orders */
    AGENT_LOOK,     /* queue */
    AGENT_HISTORY,  /* of job names that the queue no longer has */
    AGENT_SUBMIT,   /* job */
    AGENT_CANCEL,   /* job */
    AGENT_DRAIN,    /* job: send it the drain signal */
    AGENT_PROBE,    /* shape */
};
struct agent_action {
    enum agent_action_kind kind;
    time_ns until;
    uint32_t job;    /* index in jobs */
    uint64_t after;  /* SUBMIT: id of the job it depends on; 0: none */
    uint64_t cancel; /* CANCEL: id (also of a duplicate that is no job of the list) */
    const struct place_shape *shape;
};

void agent_init(struct agent *a, const struct place_site *site, uint64_t seed);
/* Once the state was read: what the file offers is reported anew; intentions become UNSURE. */
void agent_start(struct agent *a, time_ns now, uint64_t wall_s);
/* One action. `wall_s` is the wall clock: for records and for the ages of submissions. */
void agent_next(struct agent *a, time_ns now, uint64_t wall_s, struct agent_action *out);

void agent_submitted(struct agent *a, time_ns now, uint64_t wall_s, uint32_t job,
                     const struct place_submitted *s);
void agent_looked(struct agent *a, time_ns now, uint64_t wall_s, const struct place_jobs *q,
                  const bool *ran, uint64_t took_ms);
void agent_recalled(struct agent *a, time_ns now, uint64_t wall_s, const struct place_jobs *q,
                    const bool *ran);
void agent_cancelled(struct agent *a, time_ns now, uint64_t wall_s, uint32_t job,
                     const struct place_said *said, bool drain);
void agent_probed(struct agent *a, time_ns now, uint64_t wall_s, const struct place_shape *shape,
                  const struct place_estimate *e, uint64_t took_ms);
/* Orders of the hub, each looked at as what it is: words of a stranger. */
void agent_told(struct agent *a, time_ns now, uint64_t wall_s, const struct wire_agent_answer *w);
/* The first contact of a state that is new, or was lost: items are numbered behind what the hub knows. */
void agent_renumber(struct agent *a, uint64_t n);
void agent_hub_away(struct agent *a, time_ns now, uint32_t retry_ms);

/* "brg-RUN8-SITE-oORDER-jJOB-aATTEMPT" and back; false where it is none of this run and site. */
void agent_job_name(const struct agent *a, const struct agent_job *j, char out[PLACE_JOBNAME_MAX]);
bool agent_job_named(const struct agent *a, const char *name, uint64_t *order, uint64_t *job,
                     uint64_t *attempt);
double agent_hours(const struct agent *a, uint64_t wall_s); /* used and promised */
bool agent_idle(const struct agent *a); /* nothing to do until the hub says so */

/* agent_save.c: the durable part as JSON and back. E_CORRUPT names the field. */
void agent_save(const struct agent *a, struct buf *out);
enum brg_status agent_load(struct agent *a, const char *file, const void *json, size_t n,
                           struct err *e) MUST_USE;

#endif
