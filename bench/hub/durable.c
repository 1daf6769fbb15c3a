/* SPDX-License-Identifier: Apache-2.0 */
/* durable.c - grants and contributions a second through the hub's shore, each on the disk before its
 * answer, with many members at a time; what one fsync costs on this disk stands beside it. The same
 * members' heartbeats, which write nothing, show what the machine alone can do. Contributions come
 * without files, and one member that never hands in keeps the round open: no merge is measured. */
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "bench/hub/kit.h"
#include "hub/server_os.h"

enum { MEMBERS = 512, ROUNDS = 60, BEATS = 800, FSYNC_S = 1 };
struct member {
    struct hub_server *s;
    char name[WIRE_NAME_MAX];
    uint32_t inc, rounds;
    uint64_t req, grants, commits, beats;
    pthread_t thread;
    bool beat;
};

static struct wire_answer ask(struct member *m, struct wire_request *r) {
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
    if (r->kind == WIRE_COMMIT) c.blob = (struct hub_blob_verdict){.complete = true};
    CHECK(server_step(m->s, &c, &a) == STEP_DONE);
    return a;
}

static bool lease(struct member *m, struct wire_lease *out) {
    struct wire_request r;
    memset(&r, 0, sizeof r);
    r.kind = WIRE_LEASE;
    r.u.lease.want = 1;
    struct wire_answer a = ask(m, &r);
    *out = a.u.lease.lease;
    return a.code == WIRE_OK && a.u.lease.granted;
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
            m->beats += ask(m, &r).code == WIRE_OK;
            continue;
        }
        if (!lease(m, &l)) break;
        m->grants++;
        r = kit_commit_request(&m->s->dir, m->name, &l, 0);
        struct wire_answer a = ask(m, &r);
        m->commits += a.code == WIRE_OK && a.u.commit.outcome == OUTCOME_STAGED;
    }
    return NULL;
}

static double run_all(struct member *m, uint32_t rounds, bool beat) {
    time_ns began = os_now();
    for (uint32_t i = 0; i < MEMBERS; i++) {
        m[i].rounds = rounds;
        m[i].beat = beat;
        CHECK(pthread_create(&m[i].thread, NULL, work, &m[i]) == 0);
    }
    for (uint32_t i = 0; i < MEMBERS; i++) pthread_join(m[i].thread, NULL);
    return (double)(os_now() - began) / 1e9;
}

static double fsyncs_a_second(const char *dir) {
    char path[OS_PATH_MAX], page[4096] = "";
    uint64_t n = 0;
    os_path(path, dir, "fsync.tmp");
    AUTO_CLOSE int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
    CHECK(fd >= 0);
    time_ns began = os_now();
    for (; os_now() - began < (time_ns)FSYNC_S * NS_PER_S; n++) {
        CHECK(pwrite(fd, page, sizeof page, (off_t)(n * sizeof page)) == sizeof page);
        CHECK(fdatasync(fd) == 0);
    }
    double s = (double)(os_now() - began) / 1e9;
    (void)unlink(path);
    return (double)n / s;
}

void part_durable(const char *dir) {
    static const char *const sets[] = {"lease.samples_min=1",      "lease.samples_max=1",
                                       "outer.grace=3600s",        "hub.sites_max=4096",
                                       "hub.snapshot_every=20000", NULL};
    struct err e = {0};
    struct hub_server *s = NULL;
    char run[OS_PATH_MAX];
    uint64_t grants = 0, commits = 0, beats = 0;
    AUTO_FREE struct run_dir *d = mem_alloc(1, sizeof *d);
    kit_run_make(dir, "durable", 1000 * 1000 * 1000, sets, d);
    kit_figure("fsync_per_s", fsyncs_a_second(dir), 0);
    struct hub_server_options o = {.run_dir = os_path(run, dir, "durable"),
                                   .listen = "127.0.0.1:0"};
    if (hub_server_open(&o, &s, &e) != BRG_OK) {
        fprintf(stderr, "%s\n", e.text);
        return;
    }
    AUTO_FREE struct member *m = mem_alloc(MEMBERS + 1, sizeof *m);
    for (uint32_t i = 0; i <= MEMBERS; i++) {
        struct wire_lease l;
        m[i].s = s;
        (void)snprintf(m[i].name, sizeof m[i].name, "m%u", i);
        struct wire_request r = kit_join_request(d, m[i].name);
        m[i].inc = ask(&m[i], &r).u.join.inc;
        if (i == MEMBERS) CHECK(lease(&m[i], &l)); /* ready, and hands nothing in */
    }
    uint64_t before = s->times.requests;
    double t = run_all(m, ROUNDS, false);
    (void)before;
    for (uint32_t i = 0; i < MEMBERS; i++) {
        grants += m[i].grants;
        commits += m[i].commits;
    }
    kit_figure("durable_members", MEMBERS, 0);
    kit_promise("grants_and_commits_per_s", (double)(grants + commits) / t, 0, false, 20000);
    CHECK(grants == (uint64_t)MEMBERS * ROUNDS);
    CHECK(commits == grants);
    t = run_all(m, BEATS, true);
    for (uint32_t i = 0; i < MEMBERS; i++) beats += m[i].beats;
    kit_figure("heartbeats_in_process_per_s", (double)beats / t, 0);
    hub_server_close(s);
}
