/* SPDX-License-Identifier: Apache-2.0 */
/* bench_hub.c - grants and contributions a second through the hub's shore, each durable before its
 * answer, with many members at a time; and heartbeats, which write nothing.
 *
 *   build/release/bench/hub RUN [members] [rounds]
 *
 * RUN is a fresh run that nobody uses, for example
 *   beringia init RUN --model tiny --data DATA --set lease.samples_min=1 --set lease.samples_max=1 \
 *     --set outer.grace=3600s --set hub.sites_max=4096
 * Contributions come without files (the verdict is given), and one member that never hands in keeps the
 * round open, so that no merge is measured. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "hub/server_os.h"

enum { MEMBERS_MAX = 1024 };
struct member {
    struct hub_server *s;
    char name[WIRE_NAME_MAX];
    uint32_t inc, rounds;
    uint64_t req, grants, commits, beats, others;
    pthread_t thread;
    bool beat;
};

static struct wire_answer ask(struct member *m, struct wire_request *r, bool commit) {
    struct wire_answer a;
    struct hub_cmd c;
    memset(&c, 0, sizeof c);
    memcpy(r->site, m->name, sizeof r->site);
    r->run = m->s->dir.facts.run;
    r->inc = m->inc;
    r->req = ++m->req;
    c.kind = HUB_CMD_REQUEST;
    c.wall = os_wall();
    c.request = r;
    if (commit) c.blob = (struct hub_blob_verdict){.complete = true};
    CHECK(server_step(m->s, &c, &a) == STEP_DONE);
    return a;
}

static void join(struct member *m) {
    struct wire_request r;
    memset(&r, 0, sizeof r);
    r.kind = WIRE_JOIN;
    os_random(&r.u.join.boot, sizeof r.u.join.boot);
    r.u.join.protocol = WIRE_PROTOCOL;
    r.u.join.fingerprint = m->s->dir.facts.fingerprint;
    r.u.join.tensors = m->s->dir.facts.tensors;
    r.u.join.tokens_per_sample = m->s->dir.facts.seq_len;
    struct wire_answer a = ask(m, &r, false);
    CHECK(a.code == WIRE_OK);
    m->inc = a.u.join.inc;
}

static bool lease(struct member *m, struct wire_lease *out) {
    struct wire_request r;
    memset(&r, 0, sizeof r);
    r.kind = WIRE_LEASE;
    r.u.lease.want = 1;
    struct wire_answer a = ask(m, &r, false);
    *out = a.u.lease.lease;
    return a.code == WIRE_OK && a.u.lease.granted;
}

static bool commit(struct member *m, const struct wire_lease *l) {
    struct wire_request r;
    memset(&r, 0, sizeof r);
    struct wire_commit *c = &r.u.commit;
    r.kind = WIRE_COMMIT;
    os_random(&c->did, sizeof c->did);
    os_random(&c->blob, sizeof c->blob);
    c->tokens = l->count * m->s->dir.facts.seq_len;
    c->steps = 1;
    c->lr_sum = 1e-4;
    c->elements = m->s->dir.facts.parameters;
    c->codec = (uint32_t)m->s->dir.settings.hub.codec;
    c->bytes = DELTA_HEADER_BYTES + codec_bytes(m->s->dir.settings.hub.codec, c->elements);
    c->parts_count = 1;
    c->parts[0] = (struct wire_part){.tok = l->tok, .nonce = l->nonce, .done = l->count};
    struct wire_answer a = ask(m, &r, true);
    if (a.code == WIRE_OK && a.u.commit.outcome == OUTCOME_STAGED) return true;
    if (m->others++ == 0)
        fprintf(stderr, "%s: %s %s%s\n", m->name, wire_code_name(a.code), a.text,
                a.code == WIRE_OK ? a.u.commit.reason : "");
    return false;
}

static void *work(void *arg) {
    struct member *m = arg;
    for (uint32_t i = 0; i < m->rounds; i++) {
        struct wire_lease l;
        struct wire_request r;
        if (m->beat) {
            memset(&r, 0, sizeof r);
            r.kind = WIRE_HEARTBEAT;
            r.u.heartbeat.hb_seq = i + 1;
            r.u.heartbeat.phase = PHASE_TRAINING;
            m->beats += ask(m, &r, false).code == WIRE_OK;
        } else {
            if (!lease(m, &l)) break;
            m->grants++;
            m->commits += commit(m, &l);
        }
    }
    return NULL;
}

static double run_all(struct member *m, uint32_t count, uint32_t rounds, bool beat) {
    time_ns began = os_now();
    for (uint32_t i = 0; i < count; i++) {
        m[i].rounds = rounds;
        m[i].beat = beat;
        CHECK(pthread_create(&m[i].thread, NULL, work, &m[i]) == 0);
    }
    for (uint32_t i = 0; i < count; i++) pthread_join(m[i].thread, NULL);
    return (double)(os_now() - began) / 1e9;
}

int main(int argc, char **argv) {
    struct err e = {0};
    struct hub_server *s = NULL;
    uint64_t members = 256, rounds = 60, grants = 0, commits = 0, beats = 0;
    if (argc < 2 || (argc > 2 && !parse_u64(argv[2], &members)) ||
        (argc > 3 && !parse_u64(argv[3], &rounds)) || members == 0 || members > MEMBERS_MAX) {
        fprintf(stderr, "usage: bench/hub RUN [members] [rounds]\n");
        return BRG_E_USAGE;
    }
    log_level_set(LOG_ERROR);
    struct hub_server_options o = {.run_dir = argv[1], .listen = "127.0.0.1:0"};
    if (hub_server_open(&o, &s, &e) != BRG_OK) {
        fprintf(stderr, "%s\n", e.text);
        return (int)e.status;
    }
    struct member *m = mem_alloc(members + 1, sizeof *m);
    for (uint64_t i = 0; i <= members; i++) {
        struct wire_lease l;
        m[i].s = s;
        (void)snprintf(m[i].name, sizeof m[i].name, "m%llu", (unsigned long long)i);
        join(&m[i]);
        if (i == members) CHECK(lease(&m[i], &l)); /* ready, and hands nothing in */
    }
    double t = run_all(m, (uint32_t)members, (uint32_t)rounds, false);
    for (uint64_t i = 0; i < members; i++) {
        grants += m[i].grants;
        commits += m[i].commits;
    }
    printf("members %llu  grants %llu  contributions %llu  %.2f s  %.0f a second, each durable\n",
           (unsigned long long)members, (unsigned long long)grants, (unsigned long long)commits, t,
           (double)(grants + commits) / t);
    t = run_all(m, (uint32_t)members, 1000, true);
    for (uint64_t i = 0; i < members; i++) beats += m[i].beats;
    printf("heartbeats %llu  %.2f s  %.0f a second\n", (unsigned long long)beats, t,
           (double)beats / t);
    mem_free(m);
    hub_server_close(s);
    return 0;
}
