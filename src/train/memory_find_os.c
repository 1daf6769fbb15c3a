/* SPDX-License-Identifier: Apache-2.0 */
/* memory_find_os.c - what is left in memory of an earlier job, and how it comes back. See memory.h.
 *
 * Ranks may have changed places: what a directory holds is offered to whoever needs it. All ranks know what
 * all of them can read, and choose alike. A slot is summed up while it is read; where the sum is another one,
 * the slot is struck and all ranks choose once more. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "train/memory_os.h"

/* ---- What is there -------------------------------------------------------------------------------- */

void memory_name(const struct memory *m, uint32_t shard, bool own, char out[OS_PATH_MAX]) {
    os_path(out, m->dir, "%s%u-of-%u.%s", m->prefix, shard, m->ranks, own ? "own" : "copy");
}

/* "SHARD-of-RANKS.own", after the prefix, of as many ranks as there are. */
static bool name_parse(const struct memory *m, const char *name, uint32_t *shard, bool *own) {
    size_t n = strlen(m->prefix);
    char number[16] = "", rest[64], want[64];
    uint64_t v;
    if (strncmp(name, m->prefix, n) != 0) return false;
    name += n;
    size_t digits = strspn(name, "0123456789");
    if (digits == 0 || digits >= sizeof number) return false;
    memcpy(number, name, digits);
    snprintf(rest, sizeof rest, "%.60s", name + digits);
    for (int i = 0; i < 2; i++) {
        snprintf(want, sizeof want, "-of-%u.%s", m->ranks, i == 0 ? "own" : "copy");
        if (strcmp(rest, want) != 0 || !parse_u64(number, &v) || v >= m->ranks) continue;
        *shard = (uint32_t)v;
        *own = i == 0;
        return true;
    }
    return false;
}

static void found_add(struct memory *m, const struct memory_found *f) {
    if (m->found_count % 16 == 0)
        m->found = mem_grow(m->found, m->found_count, m->found_count + 16, sizeof *m->found);
    m->found[m->found_count++] = *f;
}

static void look(struct memory *m, const char *name) {
    struct memory_found f = {0};
    char path[OS_PATH_MAX];
    struct stat st;
    uint8_t head[MEMORY_HEADER_BYTES];
    if (!name_parse(m, name, &f.mark.shard, &f.own)) return;
    uint32_t shard = f.mark.shard;
    uint64_t part = trainer_part(m->trainer, shard), bytes = memory_slot_bytes(part);
    snprintf(f.name, sizeof f.name, "%.190s", name);
    os_path(path, m->dir, "%s", f.name);
    AUTO_CLOSE int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
    if (fd < 0 || fstat(fd, &st) != 0 || !S_ISREG(st.st_mode) || st.st_uid != geteuid()) return;
    uint64_t slots = (uint64_t)st.st_size / bytes;
    if (slots * bytes != (uint64_t)st.st_size || slots > MEMORY_GENERATIONS_MAX) return;
    for (f.slot = 0; f.slot < slots; f.slot++) {
        struct err e;
        if (os_pread_all(fd, head, sizeof head, f.slot * bytes, path, &e) != BRG_OK) return;
        if (memory_mark_decode(head, &f.mark, &e) != BRG_OK) continue;
        if (memory_shape_equal(&f.mark.shape, &m->shape) && f.mark.shard == shard &&
            f.mark.own == part)
            found_add(m, &f);
    }
}

/* Whose process is gone: a living one has its files locked. */
static uint64_t abandoned(const struct memory *m, const char *name) {
    char path[OS_PATH_MAX];
    struct stat st;
    os_path(path, m->dir, "%.190s", name);
    AUTO_CLOSE int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
    if (fd < 0 || fstat(fd, &st) != 0 || flock(fd, LOCK_SH | LOCK_NB) != 0) return 0;
    return (uint64_t)st.st_size;
}

/* Names of other runs and sites are left alone; that they fill the memory should be known. */
static void foreign_say(const struct memory *m, uint64_t files, uint64_t bytes) {
    if (files > 0)
        log_line(LOG_WARN, "site", "memory_foreign",
                 "files=%" PRIu64 " bytes=%" PRIu64
                 " dir=\"%s\" remedy=\"of other runs or sites whose jobs are gone; remove them if "
                 "they are over\"",
                 files, bytes, m->dir);
}

enum brg_status memory_scan(struct memory *m, struct err *e) {
    uint64_t files = 0, bytes = 0;
    DIR *d = opendir(m->dir);
    if (!d) return os_errno(e, errno, "opening", m->dir);
    for (struct dirent *f = readdir(d); f; f = readdir(d)) {
        if (f->d_name[0] == '.') continue;
        if (strncmp(f->d_name, m->prefix, strlen(m->prefix)) == 0) {
            look(m, f->d_name);
        } else {
            uint64_t n = abandoned(m, f->d_name);
            files += n > 0;
            bytes += n;
        }
    }
    closedir(d);
    foreign_say(m, files, bytes);
    return BRG_OK;
}

void memory_sweep(const struct memory *m) {
    for (uint32_t r = 0; r < m->rank; r++)
        if (m->places[r] == m->places[m->rank]) return; /* one rank of a place does it */
    DIR *d = opendir(m->dir);
    if (!d) return;
    for (struct dirent *f = readdir(d); f; f = readdir(d)) {
        uint32_t shard;
        bool own, needed = false;
        if (strncmp(f->d_name, m->prefix, strlen(m->prefix)) != 0) continue;
        if (name_parse(m, f->d_name, &shard, &own)) {
            uint32_t keeper = own ? shard : m->partners[shard];
            needed = keeper != UINT32_MAX && m->places[keeper] == m->places[m->rank];
        }
        if (!needed) (void)unlinkat(dirfd(d), f->d_name, 0);
    }
    closedir(d);
}

/* ---- Reading a slot ------------------------------------------------------------------------------- */

enum { PIECE_BYTES = 1 << 22 };

enum brg_status memory_load(const struct memory *m, const struct memory_found *f, uint8_t *books,
                            float *data, struct err *e) {
    const struct memory_mark *k = &f->mark;
    char path[OS_PATH_MAX];
    struct checksum sum;
    os_path(path, m->dir, "%s", f->name);
    AUTO_CLOSE int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
    if (fd < 0) return os_errno(e, errno, "opening", path);
    uint64_t at = f->slot * memory_slot_bytes(k->own) + MEMORY_PAGE_BYTES;
    TRY(os_pread_all(fd, books, k->books_bytes, at, path, e));
    checksum_init(&sum);
    checksum_update(&sum, books, k->books_bytes);
    at += MEMORY_BOOKS_MAX;
    for (uint64_t done = 0, all = 3 * k->own * sizeof(float); done < all;) {
        size_t n = all - done < PIECE_BYTES ? (size_t)(all - done) : PIECE_BYTES;
        TRY(os_pread_all(fd, (uint8_t *)data + done, n, at + done, path, e));
        checksum_update(&sum, (uint8_t *)data + done, n); /* while it is in the cache */
        done += n;
    }
    if (checksum_final(&sum) == k->sum) return BRG_OK; /* M2 */
    return err_set(e, BRG_E_CORRUPT, "%s: slot %u does not have its sum", path, f->slot);
}

/* ---- Bringing back -------------------------------------------------------------------------------- */

static struct memory_found *pick(const struct memory *m, const struct memory_id *id,
                                 uint32_t shard) {
    struct memory_found *best = NULL;
    for (size_t i = 0; i < m->found_count; i++) {
        struct memory_found *f = &m->found[i];
        bool fits = !f->struck && f->mark.shard == shard && /* M3 */
                    hash_equal(&f->mark.id.hash, &id->hash);
        if (fits && (!best || (f->own && !best->own))) best = f;
    }
    return best;
}

/* have[ranks * ranks], the same on all: 1 the own file of a shard, 2 a copy. */
static void have_all(const struct memory *m, const struct memory_id *id, uint8_t *have) {
    AUTO_FREE uint8_t *mine = mem_alloc(m->ranks, 1);
    for (uint32_t s = 0; s < m->ranks; s++) {
        const struct memory_found *f = pick(m, id, s);
        mine[s] = !f ? 0 : f->own ? 1 : 2;
    }
    if (m->net)
        m->net->allgather(m->net->self, mine, have, m->ranks);
    else
        memcpy(have, mine, m->ranks);
}

struct shard { /* one that is read or received */
    struct memory_mark mark;
    uint8_t *books; /* [MEMORY_BOOKS_MAX] */
    float *data;
    bool good;
};

static void shard_read(struct memory *m, const struct memory_id *id, uint32_t s,
                       struct shard *out) {
    struct err e = {0};
    struct memory_found *f = pick(m, id, s);
    CHECK(f);
    out->mark = f->mark;
    out->good = memory_load(m, f, out->books, out->data, &e) == BRG_OK;
    if (out->good) return;
    f->struck = true;
    log_line(LOG_WARN, "site", "memory_bad",
             "shard=%u steps=%" PRIu64 " text=\"%s\" remedy=\"another copy, or an older moment\"",
             s, f->mark.id.moment.steps, e.text);
}

/* Header, books, data; a header of zeros where there is nothing good to give. */
static void shard_send(const struct memory *m, const struct shard *x, uint32_t to) {
    const struct dp_net *net = m->net;
    float head[MEMORY_HEADER_BYTES / sizeof(float)] = {0};
    if (x->good) memory_mark_encode(&x->mark, (uint8_t *)head);
    net->send(net->self, to, head, ARRAY_COUNT(head));
    if (!x->good) return;
    net->send(net->self, to, (const float *)(const void *)x->books,
              (x->mark.books_bytes + 3) / sizeof(float));
    net->send(net->self, to, x->data, 3 * x->mark.own);
}

static void shard_receive(const struct memory *m, struct shard *x, uint32_t from) {
    const struct dp_net *net = m->net;
    struct err e;
    float head[MEMORY_HEADER_BYTES / sizeof(float)];
    net->recv(net->self, from, head, ARRAY_COUNT(head));
    x->good = memory_mark_decode((const uint8_t *)head, &x->mark, &e) == BRG_OK;
    if (!x->good) return;
    CHECK(x->mark.own == trainer_part(m->trainer, m->rank));
    net->recv(net->self, from, (float *)(void *)x->books,
              (x->mark.books_bytes + 3) / sizeof(float));
    net->recv(net->self, from, x->data, 3 * x->mark.own);
}

static uint64_t part_most(const struct memory *m) {
    uint64_t most = 0;
    for (uint32_t r = 0; r < m->ranks; r++) {
        uint64_t n = trainer_part(m->trainer, r);
        if (n > most) most = n;
    }
    return most;
}

/* All shards in their order, from those that have them to those whose they are: no two ranks wait for each
 * other. False, on all ranks: something was not good, and is struck. */
static bool pass(struct memory *m, const struct memory_id *id, const uint32_t *sources,
                 struct shard *mine) {
    bool serves = false, good = true;
    for (uint32_t s = 0; s < m->ranks; s++)
        serves = serves || (sources[s] == m->rank && s != m->rank);
    AUTO_FREE float *scratch = serves ? mem_alloc(3 * part_most(m), sizeof(float)) : NULL;
    AUTO_FREE uint8_t *books = serves ? mem_alloc(MEMORY_BOOKS_MAX, 1) : NULL;
    for (uint32_t s = 0; s < m->ranks; s++) {
        struct shard other = {.books = books, .data = scratch};
        struct shard *x = s == m->rank ? mine : &other;
        bool gives = sources[s] == m->rank;
        if (gives) shard_read(m, id, s, x);
        if (gives && s != m->rank) shard_send(m, x, s);
        if (!gives && s == m->rank) shard_receive(m, x, sources[s]);
        if (gives || s == m->rank) good = good && x->good;
    }
    return dp_or(m->net, !good) == 0;
}

enum brg_status memory_recall(struct memory *m, uint32_t i, struct memory_recalled *out,
                              struct err *e) {
    CHECK(i < m->candidates_count);
    const struct memory_id *id = &m->candidates[i];
    AUTO_FREE uint8_t *have = mem_alloc((size_t)m->ranks * m->ranks, 1);
    AUTO_FREE uint32_t *sources = mem_alloc(m->ranks, sizeof *sources);
    AUTO_FREE float *data = try_mem_alloc(3 * trainer_part(m->trainer, m->rank), sizeof *data);
    enum brg_status s = data ? BRG_OK : err_set(e, BRG_E_MEMORY, "no memory to read a shard into");
    TRY(dp_agree(m->net, s, e));
    if (!m->books) m->books = mem_alloc(MEMORY_BOOKS_MAX, 1);
    struct shard mine = {.books = m->books, .data = data};
    do { /* each turn strikes a slot, or is the last one */
        have_all(m, id, have);
        if (!memory_sources(have, m->ranks, sources))
            return err_set(e, BRG_E_MISSING,
                           "step %" PRIu64 " in memory is not whole any more: a node is gone",
                           id->moment.steps);
    } while (!pass(m, id, sources, &mine));
    trainer_part_put(m->trainer, data);
    m->good = *id;
    m->has_good = true;
    *out = (struct memory_recalled){.moment = id->moment,
                                    .adamw_steps = mine.mark.adamw_steps,
                                    .books = m->books,
                                    .books_bytes = (size_t)mine.mark.books_bytes};
    for (uint32_t r = 0; r < m->ranks; r++) out->foreign += have[(size_t)r * m->ranks + r] != 1;
    return BRG_OK;
}
