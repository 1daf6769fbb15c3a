/* SPDX-License-Identifier: Apache-2.0 */
/* memory_os.c - taking memory, and keeping generations in it. See memory.h.
 *
 * A generation, on each rank:
 *   keep        slot unsealed, books and shard copied in (the trainer waits for this pass over 1/N of its state)
 *               own slot -> thread: sum, seal          own data -> partner, partner's data -> copy's slot (net)
 *   busy, busy  ... received                           copy's slot -> thread: sum, seal
 *   whole       both sealed; all ranks hear of each other's with the next step's word
 *
 * A process that is killed leaves its stores behind in their order as the memory's other users see it; the
 * header is the last one. */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/vfs.h>
#include <unistd.h>

#include "base/fault.h"
#include "train/memory_os.h"

#define MIB (1024.0 * 1024.0)
enum { TMPFS = 0x01021994, RAMFS = (int)0x858458f6 };

/* ---- The directory -------------------------------------------------------------------------------- */

static enum brg_status dir_expand(struct memory *m, const char *dir, struct err *e) {
    char path[OS_PATH_MAX];
    size_t n = 0;
    for (const char *p = dir; *p && n + 16 < sizeof path - 64; p++) {
        if (p[0] == '%' && p[1] == 'r') {
            n += (size_t)snprintf(path + n, 16, "%u", m->rank);
            p++;
        } else {
            path[n++] = *p;
        }
    }
    path[n] = '\0';
    if (n + 128 >= sizeof path)
        return err_set(e, BRG_E_CONFIG, "--memory %.60s...: the path is too long", dir);
    TRY(os_mkdirs(path, e));
    os_path(m->dir, path, "beringia-%u", (unsigned)geteuid());
    return BRG_OK;
}

/* DIR may be everybody's (/dev/shm): what is in the directory below it must be this user's alone. */
static enum brg_status dir_own(struct memory *m, struct stat *st, struct err *e) {
    struct statfs fs;
    if (mkdir(m->dir, 0700) != 0 && errno != EEXIST) return os_errno(e, errno, "creating", m->dir);
    if (lstat(m->dir, st) != 0) return os_errno(e, errno, "looking at", m->dir);
    if (!S_ISDIR(st->st_mode) || st->st_uid != geteuid() || (st->st_mode & 077) != 0)
        return err_set(e, BRG_E_CONFIG,
                       "%s: is not a directory of this user alone (mode 0700): remove it, or give "
                       "--memory another directory",
                       m->dir);
    if (statfs(m->dir, &fs) == 0 && (int)fs.f_type != TMPFS && (int)fs.f_type != RAMFS)
        log_line(LOG_WARN, "site", "memory_on_disk",
                 "dir=\"%s\" text=\"not a file system in memory: each step waits for a disk\"",
                 m->dir);
    return BRG_OK;
}

/* Equal where two ranks see the same directory: the machine since its start, and the directory on it. */
static uint64_t place_of(const struct stat *st) {
    AUTO_BUF struct buf b = {.bytes_max = 4096};
    struct err e;
    if (os_read_file("/proc/sys/kernel/random/boot_id", 64, &b, &e) != BRG_OK) {
        char host[256] = "";
        (void)gethostname(host, sizeof host - 1);
        buf_reset(&b);
        buf_put(&b, host, strlen(host));
    }
    buf_u64(&b, (uint64_t)st->st_dev);
    buf_u64(&b, (uint64_t)st->st_ino);
    struct hash h = hash_of(b.data, b.bytes_count);
    return get_le64(h.v);
}

static void places_learn(struct memory *m, const struct stat *st) {
    uint64_t mine = place_of(st);
    m->places = mem_alloc(m->ranks, sizeof *m->places);
    m->partners = mem_alloc(m->ranks, sizeof *m->partners);
    if (m->net)
        m->net->allgather(m->net->self, &mine, m->places, sizeof mine);
    else
        m->places[0] = mine;
    memory_partners(m->places, m->ranks, m->partners);
    m->keeps = UINT32_MAX;
    for (uint32_t r = 0; r < m->ranks; r++) {
        if (m->partners[r] == m->rank) m->keeps = r;
        m->swaps = m->swaps || m->partners[r] != UINT32_MAX;
    }
}

/* ---- Opening -------------------------------------------------------------------------------------- */

static void candidates_learn(struct memory *m) {
    size_t most = MEMORY_CANDIDATES, n = m->found_count > most ? m->found_count : most;
    AUTO_FREE struct memory_id *mine = mem_alloc(n, sizeof *mine);
    for (size_t i = 0; i < m->found_count; i++) mine[i] = m->found[i].mark.id;
    size_t have = memory_candidates_merge(mine, m->found_count, most);
    for (size_t i = have; i < most; i++) mine[i] = (struct memory_id){0}; /* none */
    AUTO_FREE struct memory_id *all = mem_alloc(most * m->ranks, sizeof *all);
    if (m->net)
        m->net->allgather(m->net->self, mine, all, most * sizeof *mine);
    else
        memcpy(all, mine, most * sizeof *mine);
    size_t count = memory_candidates_merge(all, most * m->ranks, most);
    for (size_t i = 0; i < count; i++)
        if (!hash_is_zero(&all[i].hash)) m->candidates[m->candidates_count++] = all[i];
}

enum brg_status memory_open(const struct memory_options *o, struct trainer *t,
                            const struct dp_net *net, struct memory **out, struct err *e) {
    struct memory *m = mem_alloc(1, sizeof *m);
    char run[ID_HEX_BYTES];
    struct stat st = {0};
    CHECK(o->generations >= MEMORY_GENERATIONS_MIN && o->generations <= MEMORY_GENERATIONS_MAX);
    m->trainer = t;
    m->net = dp_ranks(net) > 1 ? net : NULL;
    m->rank = dp_rank(net);
    m->ranks = dp_ranks(net);
    m->generations = o->generations;
    m->own.fd = m->copy.fd = -1;
    m->shape = (struct memory_shape){.run = o->run,
                                     .elements = trainer_parameters(t),
                                     .bucket = trainer_bucket(t),
                                     .ranks = m->ranks,
                                     .optimizer = o->optimizer};
    snprintf(m->shape.site, sizeof m->shape.site, "%s", o->site);
    id_hex(&o->run, run);
    snprintf(m->prefix, sizeof m->prefix, "%s.%s.", run, m->shape.site);
    CHECK(pthread_mutex_init(&m->lock, NULL) == 0);
    CHECK(pthread_cond_init(&m->changed, NULL) == 0);
    enum brg_status s = dir_expand(m, o->dir, e);
    if (s == BRG_OK) s = dir_own(m, &st, e);
    if (s == BRG_OK) s = memory_scan(m, e);
    s = dp_agree(m->net, s, e);
    if (s != BRG_OK) {
        memory_close(m, false);
        return s;
    }
    places_learn(m, &st);
    candidates_learn(m);
    *out = m;
    return BRG_OK;
}

uint32_t memory_candidates(const struct memory *m) {
    return m->candidates_count;
}

/* ---- Taking memory -------------------------------------------------------------------------------- */

/* Of the machine, without what others may give back; UINT64_MAX: not known. */
static uint64_t memory_free(void) {
    AUTO_BUF struct buf b = {.bytes_max = 64 * 1024};
    struct err e;
    unsigned long long kib;
    if (os_read_file("/proc/meminfo", 60 * 1024, &b, &e) != BRG_OK) return UINT64_MAX;
    const char *line = strstr(buf_cstr(&b), "MemAvailable:");
    return line && sscanf(line, "MemAvailable: %llu", &kib) == 1 ? kib * 1024 : UINT64_MAX;
}

static enum brg_status does_not_fit(const struct memory *m, const struct memory_file *f,
                                    struct err *e) {
    struct statvfs fs = {0};
    (void)statvfs(m->dir, &fs);
    double there = (double)fs.f_bavail * (double)fs.f_frsize, ram = (double)memory_free();
    return err_set(e, BRG_E_FULL,
                   "%s: %u generations of rank %u's state take %.1f MiB, %.1f MiB are left: give "
                   "--memory a larger file system, fewer --memory-generations, or the site more "
                   "nodes",
                   m->dir, m->generations, f->shard, (double)f->bytes / MIB,
                   (there < ram ? there : ram) / MIB);
}

/* Files that are mapped and too small would end the process when they are written to: so all of it now (M4). */
static enum brg_status file_size(const struct memory *m, struct memory_file *f, struct err *e) {
    struct stat st;
    if (fstat(f->fd, &st) != 0) return os_errno(e, errno, "looking at", f->path);
    bool same = (uint64_t)st.st_size == f->bytes;
    if (!same && ftruncate(f->fd, 0) != 0) return os_errno(e, errno, "emptying", f->path);
    if (!same && memory_free() < f->bytes) return does_not_fit(m, f, e);
    int rc = posix_fallocate(f->fd, 0, (off_t)f->bytes);
    if (rc == ENOSPC || rc == EFBIG || rc == EDQUOT || rc == ENOMEM) return does_not_fit(m, f, e);
    return rc == 0 ? BRG_OK : os_errno(e, rc, "allocating", f->path);
}

/* Where an older process still has it, this one takes a new file of the name. */
static enum brg_status file_open(struct memory_file *f, struct err *e) {
    struct stat st;
    for (int turn = 0; turn < 2; turn++) {
        f->fd = open(f->path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
        if (f->fd < 0) return os_errno(e, errno, "opening", f->path);
        bool mine = fstat(f->fd, &st) == 0 && S_ISREG(st.st_mode) && st.st_uid == geteuid() &&
                    fchmod(f->fd, 0600) == 0;
        if (mine && flock(f->fd, LOCK_EX | LOCK_NB) == 0) return BRG_OK;
        os_close_cleanup(&f->fd);
        f->fd = -1;
        if (unlink(f->path) != 0) return os_errno(e, errno, "removing", f->path);
    }
    return err_set(e, BRG_E_BUSY, "%s: is taken by another process again and again", f->path);
}

static void slots_learn(const struct memory *m, struct memory_file *f) {
    for (uint32_t i = 0; i < m->generations; i++) {
        struct memory_mark k;
        struct err e;
        f->whole[i] = memory_mark_decode(f->map + i * f->slot_bytes, &k, &e) == BRG_OK &&
                      memory_shape_equal(&k.shape, &m->shape) && k.shard == f->shard;
        if (f->whole[i]) f->ids[i] = k.id;
    }
}

static enum brg_status file_take(struct memory *m, struct memory_file *f, uint32_t shard, bool own,
                                 struct err *e) {
    f->shard = shard;
    f->own = trainer_part(m->trainer, shard);
    f->slot_bytes = memory_slot_bytes(f->own);
    f->bytes = f->slot_bytes * m->generations;
    memory_name(m, shard, own, f->path);
    TRY(file_open(f, e));
    enum brg_status s = file_size(m, f, e);
    if (s != BRG_OK) {
        (void)unlink(f->path);
        return s;
    }
    void *map = mmap(NULL, f->bytes, PROT_READ | PROT_WRITE, MAP_SHARED, f->fd, 0);
    if (map == MAP_FAILED) return os_errno(e, errno, "mapping", f->path);
    f->map = map;
    slots_learn(m, f);
    return BRG_OK;
}

static void *sum_main(void *arg);

static enum brg_status thread_start(struct memory *m, struct err *e) {
    sigset_t all, before; /* signals are the trainer's thread's */
    sigfillset(&all);
    CHECK(pthread_sigmask(SIG_BLOCK, &all, &before) == 0);
    int rc = pthread_create(&m->thread, NULL, sum_main, m);
    CHECK(pthread_sigmask(SIG_SETMASK, &before, NULL) == 0);
    m->thread_runs = rc == 0;
    if (rc == 0) return BRG_OK;
    return err_set(e, BRG_E_MEMORY, "a thread cannot be started: raise ulimit -u");
}

enum brg_status memory_take(struct memory *m, struct err *e) {
    enum brg_status s = file_take(m, &m->own, m->rank, true, e);
    if (s == BRG_OK && m->keeps != UINT32_MAX) s = file_take(m, &m->copy, m->keeps, false, e);
    if (s == BRG_OK) s = thread_start(m, e);
    return dp_agree(m->net, s, e);
}

void memory_figures(const struct memory *m, struct memory_figures *out) {
    *out = (struct memory_figures){.bytes = m->own.bytes + m->copy.bytes,
                                   .copy_bytes = m->copy.bytes,
                                   .partner = m->partners[m->rank],
                                   .kept = m->kept,
                                   .copy_s = (double)m->copy_ns / NS_PER_S};
    for (uint32_t r = 0; r < m->ranks; r++) {
        bool first = true;
        for (uint32_t k = 0; k < r; k++) first = first && m->places[k] != m->places[r];
        out->places += first;
    }
    snprintf(out->dir, sizeof out->dir, "%.500s", m->dir);
}

/* ---- The thread that sums up ---------------------------------------------------------------------- */

static uint8_t *slot_of(const struct memory_file *f) {
    return f->map + f->slot * f->slot_bytes;
}

static uint8_t *books_of(const struct memory_file *f) {
    return slot_of(f) + MEMORY_PAGE_BYTES;
}

static float *data_of(const struct memory_file *f) {
    return (float *)(void *)(books_of(f) + MEMORY_BOOKS_MAX);
}

static void seal(struct memory_file *f) {
    uint8_t head[MEMORY_HEADER_BYTES];
    struct checksum sum;
    checksum_init(&sum);
    checksum_update(&sum, books_of(f), f->mark.books_bytes);
    checksum_update(&sum, data_of(f), 3 * f->own * sizeof(float));
    f->mark.sum = checksum_final(&sum);
    memory_mark_encode(&f->mark, head);
    FAULT("memory.before_seal");
    atomic_thread_fence(memory_order_seq_cst);
    memcpy(slot_of(f), head, sizeof head);
}

static void *sum_main(void *arg) {
    struct memory *m = arg;
    CHECK(pthread_mutex_lock(&m->lock) == 0);
    for (;;) {
        while (m->todo_count == 0 && !m->stopping)
            CHECK(pthread_cond_wait(&m->changed, &m->lock) == 0);
        if (m->todo_count == 0) break;
        struct memory_file *f = m->todo[0];
        CHECK(pthread_mutex_unlock(&m->lock) == 0);
        seal(f);
        CHECK(pthread_mutex_lock(&m->lock) == 0);
        f->sealed = true;
        m->todo[0] = m->todo[1];
        m->todo_count--;
    }
    CHECK(pthread_mutex_unlock(&m->lock) == 0);
    return NULL;
}

static void queue(struct memory *m, struct memory_file *f) {
    CHECK(pthread_mutex_lock(&m->lock) == 0);
    CHECK(m->todo_count < ARRAY_COUNT(m->todo));
    m->todo[m->todo_count++] = f;
    CHECK(pthread_cond_signal(&m->changed) == 0);
    CHECK(pthread_mutex_unlock(&m->lock) == 0);
}

/* ---- Keeping -------------------------------------------------------------------------------------- */

/* The slot to fill: a broken one, else the oldest; never that of the generation all ranks have (M1). */
static void slot_begin(const struct memory *m, struct memory_file *f,
                       const struct memory_mark *mark, const void *books) {
    uint32_t best = UINT32_MAX;
    for (uint32_t i = 0; i < m->generations; i++) {
        bool good = f->whole[i] && m->has_good && hash_equal(&f->ids[i].hash, &m->good.hash);
        if (good) continue;
        if (best == UINT32_MAX || (f->whole[best] && !f->whole[i]) ||
            (f->whole[best] && memory_id_compare(&f->ids[i], &f->ids[best]) > 0))
            best = i;
    }
    CHECK(best != UINT32_MAX); /* M1: there are two slots at least */
    f->slot = best;
    f->whole[best] = false;
    f->sealed = false;
    f->mark = *mark;
    f->mark.shard = f->shard;
    f->mark.own = f->own;
    memset(slot_of(f), 0, MEMORY_HEADER_BYTES);
    atomic_thread_fence(memory_order_seq_cst);
    memcpy(books_of(f), books, mark->books_bytes);
}

void memory_keep(struct memory *m, const struct memory_moment *moment, uint64_t adamw_steps,
                 uint64_t salt, const void *books, size_t n) {
    CHECK(!m->filling);
    CHECK(n <= MEMORY_BOOKS_MAX);
    time_ns began = os_now();
    struct memory_mark mark = {
        .shape = m->shape, .id.moment = *moment, .adamw_steps = adamw_steps, .books_bytes = n};
    mark.id.hash = memory_hash(&m->shape, moment, adamw_steps, salt, books, n); /* M3 */
    if (m->kept == 1) memory_sweep(m); /* now all ranks have one of their own making */
    slot_begin(m, &m->own, &mark, books);
    if (m->copy.map) slot_begin(m, &m->copy, &mark, books);
    FAULT("memory.torn");
    trainer_part_get(m->trainer, data_of(&m->own));
    m->filling = true;
    queue(m, &m->own);
    if (m->swaps) {
        uint32_t to = m->partners[m->rank];
        m->swapping = true;
        m->net->swap(m->net->self, to, data_of(&m->own), to == UINT32_MAX ? 0 : 3 * m->own.own,
                     m->keeps, m->copy.map ? data_of(&m->copy) : NULL,
                     m->copy.map ? 3 * m->copy.own : 0);
    }
    m->copy_ns += os_now() - began;
}

static void received(struct memory *m) {
    m->swapping = false;
    if (m->copy.map) queue(m, &m->copy);
}

bool memory_busy(struct memory *m) {
    if (!m->filling) return false;
    if (m->swapping && m->net->done(m->net->self, DP_SLOT_SWAP)) received(m);
    CHECK(pthread_mutex_lock(&m->lock) == 0);
    bool whole = !m->swapping && m->own.sealed && (!m->copy.map || m->copy.sealed);
    CHECK(pthread_mutex_unlock(&m->lock) == 0);
    if (!whole) return true;
    m->filling = false;
    m->has_good = true;
    m->good = m->own.mark.id;
    m->kept++;
    m->own.whole[m->own.slot] = m->copy.whole[m->copy.slot] = true;
    m->own.ids[m->own.slot] = m->copy.ids[m->copy.slot] = m->good;
    if (m->rank == 0)
        log_line(LOG_DEBUG, "site", "kept", "steps=%" PRIu64 " version=%" PRIu64,
                 m->good.moment.steps, m->good.moment.version);
    return false;
}

/* ---- Closing -------------------------------------------------------------------------------------- */

static void file_close(struct memory_file *f, bool removes) {
    struct stat mine, there;
    if (f->map) (void)munmap(f->map, f->bytes);
    /* The name may be a newer process's file by now. */
    bool same = f->fd >= 0 && fstat(f->fd, &mine) == 0 && lstat(f->path, &there) == 0 &&
                mine.st_ino == there.st_ino && mine.st_dev == there.st_dev;
    if (removes && same) (void)unlink(f->path);
    if (f->fd >= 0) close(f->fd);
    f->fd = -1;
    f->map = NULL;
}

void memory_close(struct memory *m, bool removes) {
    if (!m) return;
    if (m->swapping) {
        m->net->wait(m->net->self, DP_SLOT_SWAP);
        received(m);
    }
    if (m->thread_runs) { /* it seals what it has; a generation is not thrown away for nothing */
        CHECK(pthread_mutex_lock(&m->lock) == 0);
        m->stopping = true;
        CHECK(pthread_cond_signal(&m->changed) == 0);
        CHECK(pthread_mutex_unlock(&m->lock) == 0);
        CHECK(pthread_join(m->thread, NULL) == 0);
    }
    if (removes) memory_sweep(m);
    file_close(&m->own, removes);
    file_close(&m->copy, removes);
    if (removes) (void)rmdir(m->dir); /* where it was the last one */
    pthread_mutex_destroy(&m->lock);
    pthread_cond_destroy(&m->changed);
    mem_free(m->places);
    mem_free(m->partners);
    mem_free(m->found);
    mem_free(m->books);
    mem_free(m);
}
