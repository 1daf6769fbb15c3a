/* SPDX-License-Identifier: Apache-2.0 */
/* journal_thread_os.c - the one thread that writes the journal: group commit, and what happens where it
 * cannot write.
 *
 * FULL: the journal has no space. The machine is ahead of the disk: it is thrown away and rebuilt from the
 * journal; all who wait are told to come again, and nobody was told anything that is not on disk. Nothing
 * may change, reads go on, and each second a file of a few MB is tried: when it fits, the machine starts
 * as after a restart (a new term, full lease times).
 *
 * AWAY: the journal's server is not reached (it restarts, a cable). What was under way is there or not;
 * all who wait are told to come again, and the machine, which may be ahead, answers nobody but readers of
 * what is durable. With a growing pause the server is tried; once reached, the journal looks up what
 * became of the batch, the machine is rebuilt from what is there, and starts as after a restart. Who comes
 * again is answered from that: every request of a site may be repeated.
 * (S1, S2: server_os.c.) */
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/fault.h"
#include "hub/server_os.h"

enum { PROBE_BYTES = 4 << 20, AWAY_FIRST_MS = 50, AWAY_MOST_MS = 2000, AWAY_TELL = 10 };

struct batch {
    struct buf bytes;
    struct record *records;
    size_t count, cap;
};

/* Cuts the queue's frames (u16 kind | u32 bytes | body) into records with their numbers. */
static void batch_cut(struct batch *b, size_t count, uint64_t first_seq) {
    struct reader r = reader_of(b->bytes.data, b->bytes.bytes_count);
    if (count > b->cap) {
        b->records = mem_grow(b->records, b->cap, count, sizeof *b->records);
        b->cap = count;
    }
    for (size_t i = 0; i < count; i++) {
        struct record *x = &b->records[i];
        x->seq = first_seq + i;
        x->kind = get_u16(&r);
        x->bytes = get_u32(&r);
        x->body = get_bytes(&r, x->bytes);
        CHECK(r.ok);
    }
    CHECK(r.p == r.end);
    b->count = count;
}

/* Under the lock: the machine is replaced by what the journal gives. */
static void take_fresh(struct hub_server *s, struct hub *fresh) {
    if (s->hub != NULL) hub_destroy(s->hub);
    s->hub = fresh;
    s->generation++;
    buf_reset(&s->queue);
    s->queue_count = 0;
    s->seq_queued = s->seq_durable = journal_last_seq(s->journal);
    s->snapshot_ready = false;
    s->merge_ready = false;
    server_wake(server_take_waiters(s, true),
                s->mode == SERVER_STOPPING ? STEP_STOPPING : STEP_FULL);
}

static _Noreturn void unreadable(const struct err *e) {
    log_line(LOG_ERROR, "hub", "rebuild_failed", "cause=\"%s\"", e->text);
    abort(); /* what is on disk cannot be read: the next start says so to a person */
}

static _Noreturn void fenced(const struct err *e) {
    log_line(LOG_ERROR, "hub", "fenced",
             "cause=\"%s\" remedy=\"none here: the newer hub has the run\"", e->text);
    _exit(BRG_E_FENCED); /* who waits was told nothing, and asks the newer hub */
}

/* Under the lock. Nothing is rebuilt before the server can be asked. */
static void enter_away(struct hub_server *s, const struct err *e) {
    log_line(LOG_WARN, "hub", "journal_away",
             "cause=\"%s\" remedy=\"look at the server; it is tried again, nothing is lost\"",
             e->text);
    s->away = true;
    s->away_tries = 0;
    s->times.away_times++;
    if (s->mode != SERVER_STOPPING) s->mode = SERVER_AWAY;
    server_wake(server_take_waiters(s, true), STEP_AWAY);
}

/* Under the lock: the machine is ahead of the disk; make it anew from the journal. */
static void enter_full(struct hub_server *s, const struct err *e) {
    struct err why = {0};
    struct hub *fresh;
    uint64_t replayed;
    log_line(LOG_ERROR, "hub", "journal_full",
             "cause=\"%s\" remedy=\"free space on the disk of %s\"", e->text, s->dir.path);
    s->times.full_times++;
    enum brg_status st = hub_rebuild(s->journal, &s->dir.settings.hub, &fresh, &replayed, &why);
    if (st == BRG_E_NET) {
        enter_away(s, &why);
        return;
    }
    if (st != BRG_OK) unreadable(&why);
    take_fresh(s, fresh);
    if (s->mode != SERVER_STOPPING) s->mode = SERVER_FULL;
}

/* Lock held on entry and on return, not while writing. */
static void append_queue(struct hub_server *s, struct batch *b) {
    struct err e = {0};
    struct buf taken = b->bytes;
    size_t count = s->queue_count;
    uint64_t first = s->seq_durable + 1;
    b->bytes = s->queue; /* the two buffers change places: no copy while locked */
    s->queue = taken;
    buf_reset(&s->queue);
    s->queue_count = 0;
    pthread_mutex_unlock(&s->lock);
    batch_cut(b, count, first);
    FAULT("hub.before_append");
    enum brg_status st = journal_append(s->journal, b->records, b->count, &e);
    FAULT("hub.after_append");
    CHECK(pthread_mutex_lock(&s->lock) == 0);
    if (st == BRG_OK) {
        s->seq_durable += count;
        CHECK(s->seq_durable == journal_last_seq(s->journal)); /* S2 */
        struct waiter *ready = server_take_waiters(s, false);
        pthread_mutex_unlock(&s->lock);
        server_wake(ready, STEP_DONE);
        CHECK(pthread_mutex_lock(&s->lock) == 0);
    } else if (status_class(st) == BRG_CLASS_FULL) {
        enter_full(s, &e);
    } else if (st == BRG_E_NET) {
        enter_away(s, &e);
    } else if (st == BRG_E_FENCED) {
        fenced(&e);
    } else {
        log_line(LOG_ERROR, "hub", "journal_failed", "cause=\"%s\"", e.text);
        abort(); /* unknown what is on disk: read it afresh */
    }
}

static void store_snapshot(struct hub_server *s) {
    struct err e = {0};
    struct buf data = s->snapshot;
    uint64_t seq = s->snapshot_seq;
    buf_init(&s->snapshot, SNAPSHOT_BYTES_MAX);
    s->snapshot_ready = false;
    pthread_mutex_unlock(&s->lock);
    enum brg_status st = journal_snapshot_put(s->journal, seq, data.data, data.bytes_count, &e);
    if (st != BRG_OK) /* a snapshot only saves time: the next one will do */
        log_line(LOG_WARN, "hub", "snapshot_failed", "cause=\"%s\"", e.text);
    else
        log_line(LOG_DEBUG, "hub", "snapshot", "seq=%llu bytes=%zu", (unsigned long long)seq,
                 data.bytes_count);
    buf_fini(&data);
    CHECK(pthread_mutex_lock(&s->lock) == 0);
}

/* Is there room again? Tried with a real file: quotas do not show in statvfs. */
static bool probe_space(struct hub_server *s) {
    char path[OS_PATH_MAX];
    os_path(path, s->dir.path, "probe.tmp");
    AUTO_CLOSE int fd = open(path, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    if (fd < 0) return false;
    bool good = posix_fallocate(fd, 0, PROBE_BYTES) == 0;
    (void)unlink(path);
    return good;
}

void server_start_cmd(struct hub_cmd *c) {
    memset(c, 0, sizeof *c);
    c->kind = HUB_CMD_START;
    c->wall = os_wall();
}

/* The START record is the proof that the journal takes records again. False: it does not. */
static bool begin_again(struct hub_server *s, struct batch *b) {
    struct hub_cmd cmd;
    uint64_t generation = s->generation;
    server_start_cmd(&cmd);
    hub_step(s->hub, server_now(s), &cmd, &s->out);
    server_take_out(s);
    if (s->queue_count > 0) append_queue(s, b);
    if (s->away || s->generation != generation || s->mode == SERVER_STOPPING) return false;
    s->mode = SERVER_SERVING;
    pthread_cond_signal(&s->tick);
    return true;
}

static void try_leave_full(struct hub_server *s, struct batch *b) {
    server_cond_wait(&s->work, &s->lock, os_now() + NS_PER_S);
    if (s->mode != SERVER_FULL) return;
    pthread_mutex_unlock(&s->lock);
    bool space = probe_space(s);
    CHECK(pthread_mutex_lock(&s->lock) == 0);
    if (!space || s->mode != SERVER_FULL) return;
    if (begin_again(s, b)) log_line(LOG_INFO, "hub", "journal_space", "term started again");
}

/* Without the lock: nobody else asks the journal, and the machine stands still. */
static enum brg_status reach_journal(struct hub_server *s, struct hub **fresh, struct err *e) {
    enum journal_outcome outcome;
    uint64_t replayed;
    TRY(journal_again(s->journal, &outcome, e));
    return hub_rebuild(s->journal, &s->dir.settings.hub, fresh, &replayed, e);
}

static void try_leave_away(struct hub_server *s, struct batch *b) {
    struct err e = {0};
    struct hub *fresh = NULL;
    uint32_t n = s->away_tries++;
    time_ns pause = n < 6 ? (time_ns)AWAY_FIRST_MS << n : AWAY_MOST_MS;
    if (pause > AWAY_MOST_MS) pause = AWAY_MOST_MS;
    server_cond_wait(&s->work, &s->lock, os_now() + pause * NS_PER_MS);
    if (s->mode == SERVER_STOPPING) return;
    pthread_mutex_unlock(&s->lock);
    enum brg_status st = reach_journal(s, &fresh, &e);
    if (st == BRG_E_FENCED) fenced(&e);
    if (st == BRG_E_JOURNAL || st == BRG_E_IO) unreadable(&e);
    if (st != BRG_OK && n % AWAY_TELL == AWAY_TELL - 1)
        log_line(LOG_WARN, "hub", "journal_still_away", "tries=%u cause=\"%s\"", n + 1, e.text);
    CHECK(pthread_mutex_lock(&s->lock) == 0);
    if (st != BRG_OK) return;
    take_fresh(s, fresh);
    s->away = false;
    if (s->mode == SERVER_AWAY && begin_again(s, b))
        log_line(LOG_INFO, "hub", "journal_back", "term started again");
}

/* An idle writer shows its server that it lives. */
static void wait_for_work(struct hub_server *s) {
    time_ns every = journal_keep_ns(s->journal);
    struct err e = {0};
    if (every == 0) {
        pthread_cond_wait(&s->work, &s->lock);
        return;
    }
    time_ns until = os_now() + every;
    server_cond_wait(&s->work, &s->lock, until);
    if (os_now() < until) return;
    pthread_mutex_unlock(&s->lock);
    enum brg_status st = journal_keep(s->journal, &e);
    if (st == BRG_E_FENCED) fenced(&e);
    CHECK(pthread_mutex_lock(&s->lock) == 0);
    if (st != BRG_OK) enter_away(s, &e);
}

void *server_journal_main(void *arg) {
    struct hub_server *s = arg;
    struct batch b = {0};
    buf_init(&b.bytes, RECORDS_BYTES_MAX);
    CHECK(pthread_mutex_lock(&s->lock) == 0);
    for (;;) {
        /* A due snapshot goes before more records: a busy hub's queue is never empty. */
        bool due = s->snapshot_ready && s->seq_durable >= s->snapshot_seq;
        if (s->away && s->mode == SERVER_STOPPING)
            break; /* who waited was told that it is not known */
        else if (s->away)
            try_leave_away(s, &b);
        else if (due && s->mode != SERVER_FULL)
            store_snapshot(s);
        else if (s->queue_count > 0)
            append_queue(s, &b);
        else if (s->mode == SERVER_STOPPING)
            break;
        else if (s->mode == SERVER_FULL)
            try_leave_full(s, &b);
        else
            wait_for_work(s);
    }
    pthread_mutex_unlock(&s->lock);
    buf_fini(&b.bytes);
    mem_free(b.records);
    return NULL;
}
