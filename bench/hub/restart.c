/* SPDX-License-Identifier: Apache-2.0 */
/* restart.c - kill -9, then from exec to the first answered /v1/status, with a journal of 10^6 records. The
 * journal is made by the machine itself (grants, contributions, discards), by a process that ends in the
 * middle as a killed hub does: its log is not folded, and the newest snapshot is as old as it can be. */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "bench/hub/kit.h"
#include "bench/hub/process.h"
#include "hub/machine.h"
#include "store/store.h"

enum { BATCH = 512, TRIES = 5, MEMBERS = 32 };

struct maker {
    const struct run_dir *d;
    struct journal *j;
    struct hub *h;
    struct hub_out out;
    struct record batch[BATCH + 8];
    struct buf bytes;
    size_t count;
    uint64_t seq, snapshot_at, wanted;
    time_ns now;
    uint32_t inc[MEMBERS];
    uint64_t req;
};

static void flush(struct maker *m) {
    struct err e = {0};
    struct reader r = reader_of(m->bytes.data, m->bytes.bytes_count);
    for (size_t i = 0; i < m->count; i++) {
        struct record *x = &m->batch[i];
        x->seq = m->seq + i + 1;
        x->kind = get_u16(&r);
        x->bytes = get_u32(&r);
        x->body = get_bytes(&r, x->bytes);
    }
    if (journal_append(m->j, m->batch, m->count, &e) != BRG_OK) {
        fprintf(stderr, "%s\n", e.text);
        _exit(1);
    }
    m->seq += m->count;
    m->count = 0;
    buf_reset(&m->bytes);
}

static struct wire_answer step(struct maker *m, const struct hub_cmd *c) {
    struct err e = {0};
    m->now += NS_PER_MS / 100;
    hub_step(m->h, m->now, c, &m->out);
    buf_put(&m->bytes, m->out.records.data, m->out.records.bytes_count);
    m->count += m->out.records_count;
    if (m->count >= BATCH || m->out.snapshot_due) flush(m);
    /* The last one is left out, so that a restart has as much to replay as there can be. */
    if (m->out.snapshot_due && m->seq + m->d->settings.hub.records_per_snapshot < m->wanted) {
        AUTO_BUF struct buf b;
        buf_init(&b, (size_t)512 << 20);
        hub_snapshot(m->h, &b);
        if (journal_snapshot_put(m->j, m->seq, b.data, b.bytes_count, &e) != BRG_OK) _exit(1);
    }
    return m->out.answer;
}

static void name_of(uint32_t i, char out[WIRE_NAME_MAX]) {
    (void)snprintf(out, WIRE_NAME_MAX, "m%u", i);
}

static struct wire_answer send_as(struct maker *m, uint32_t i, struct wire_request *r) {
    struct hub_cmd c = {.kind = HUB_CMD_REQUEST, .wall = 1, .request = r};
    c.blob.complete = true;
    name_of(i, r->site);
    r->run = m->d->facts.run;
    r->inc = m->inc[i];
    r->req = r->kind == WIRE_JOIN ? 0 : ++m->req;
    return step(m, &c);
}

/* Three records: a grant, a contribution, its discard. */
static void turn(struct maker *m, uint32_t i) {
    char name[WIRE_NAME_MAX];
    struct wire_request r;
    memset(&r, 0, sizeof r);
    r.kind = WIRE_LEASE;
    r.u.lease.want = 1024;
    r.u.lease.base = m->h->versions[m->h->head].v.version;
    struct wire_answer a = send_as(m, i, &r);
    CHECK(a.u.lease.granted);
    name_of(i, name);
    r = kit_commit_request(m->d, name, &a.u.lease.lease, 0);
    struct hub_cmd c = {.kind = HUB_CMD_DISCARD, .wall = 1};
    c.u.discard.did = r.u.commit.did;
    a = send_as(m, i, &r);
    CHECK(a.u.commit.outcome == OUTCOME_STAGED);
    (void)step(m, &c);
}

static _Noreturn void make_and_die(const char *run, uint64_t records) {
    char path[OS_PATH_MAX];
    struct err e = {0};
    uint64_t replayed;
    struct maker *m = mem_alloc(1, sizeof *m);
    struct run_dir *d = mem_alloc(1, sizeof *d);
    struct hub_cmd c = {.kind = HUB_CMD_START, .wall = 1};
    if (run_dir_load(run, d, &e) != BRG_OK ||
        journal_open(os_path(path, run, "journal.db"), false, &m->j, &e) != BRG_OK ||
        hub_rebuild(m->j, &d->settings.hub, &m->h, &replayed, &e) != BRG_OK) {
        fprintf(stderr, "%s\n", e.text);
        _exit(1);
    }
    m->d = d;
    m->wanted = records;
    m->now = 1;
    m->seq = journal_last_seq(m->j);
    buf_init(&m->bytes, (size_t)64 << 20);
    hub_out_init(&m->out);
    (void)step(m, &c);
    for (uint32_t i = 0; i < MEMBERS; i++) {
        char name[WIRE_NAME_MAX];
        name_of(i, name);
        struct wire_request r = kit_join_request(d, name);
        m->inc[i] = send_as(m, i, &r).u.join.inc;
    }
    struct wire_request hold = {.kind = WIRE_LEASE}; /* it never hands in: no merge */
    hold.u.lease.want = 1;
    (void)send_as(m, 0, &hold);
    while (m->seq + m->count + 3 <= records) turn(m, 1 + (uint32_t)(m->req % (MEMBERS - 1)));
    flush(m);
    (void)kill(getpid(), SIGKILL);
    _exit(1);
}

static void make_journal(const char *run, uint64_t records) {
    int status = 0;
    pid_t pid = fork();
    CHECK(pid >= 0);
    if (pid == 0) make_and_die(run, records);
    CHECK(waitpid(pid, &status, 0) == pid);
    CHECK(WIFSIGNALED(status));
}

void part_restart(const char *dir, const char *program, uint64_t records) {
    static const char *const sets[] = {"lease.samples_min=1024", "lease.samples_max=1024",
                                       "lease.ttl=86400s", "outer.grace=24h", NULL};
    static const char ask[] = "GET /v1/status HTTP/1.1\r\nHost: hub\r\n\r\n";
    char run[OS_PATH_MAX], path[OS_PATH_MAX];
    double worst = 0, best = 1e9;
    AUTO_FREE struct run_dir *d = mem_alloc(1, sizeof *d);
    kit_run_make(dir, "restart", 1000 * 1000 * 1000, sets, d);
    os_path(run, dir, "restart");
    time_ns began = os_now();
    make_journal(run, records);
    kit_figure("journal_records", (double)records, 0);
    kit_figure("journal_made_s", (double)(os_now() - began) / 1e9, 1);
    kit_figure("journal_bytes", (double)os_file_bytes(os_path(path, run, "journal.db")), 0);
    for (int i = 0; i < TRIES; i++) {
        struct hub_process p;
        hub_process_start(&p, program, run);
        int fd = hub_process_connect(&p);
        CHECK(hub_process_ask(fd, ask, sizeof ask - 1) == 200);
        double s = (double)(os_now() - p.executed) / 1e9;
        worst = s > worst ? s : worst;
        best = s < best ? s : best;
        (void)close(fd);
        hub_process_end(&p, SIGKILL); /* so the next one starts after a kill too */
    }
    kit_figure("restart_best_s", best, 3);
    kit_promise("restart_s", worst, 3, true, 1);
}
