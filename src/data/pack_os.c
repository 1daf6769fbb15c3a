/* SPDX-License-Identifier: Apache-2.0 */
/* pack_os.c - `beringia pack`: text files -> a data set directory.
 *
 *   map a file -> documents --pack_team_os.c--> half, ids + end of text -> samples -> shard files
 *
 * All is written into OUT.partial-XXXXXXXX beside the target, made durable, and renamed as the last
 * step; on any failure the partial directory is removed. Nothing in here depends on the clock, the
 * directory's order or the machine: the same texts and options give the same bytes everywhere,
 * whatever the number of threads. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <libgen.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/os.h"
#include "data/docs.h"
#include "data/manifest.h"
#include "data/map.h"
#include "data/pack.h"
#include "data/pack_team.h"
#include "data/tokenizer.h"

enum { WRITE_BYTES = 1 << 20, SHARD_BYTES_DEFAULT = 1 << 26 };

struct half_writer {
    struct cutter cutter;
    int fd; /* -1 where no shard is open */
    uint64_t samples;
    struct buf out; /* what is not written yet */
    char path[OS_PATH_MAX];
};

/* A text file; it stays mapped until the last job with a document of it is taken. */
struct input {
    struct map map;
    uint32_t jobs;
    bool open, read;
};

struct pack {
    const struct pack_options *options;
    uint64_t shard_samples_max;
    char out[OS_PATH_MAX], partial[OS_PATH_MAX + 32];
    struct tokenizer *tokenizer;
    struct team *team;
    struct input *inputs;
    struct manifest manifest;
    struct half_writer half[HALF_COUNT];
};

/* ---- Shards
 * -------------------------------------------------------------------------------------- */
static enum brg_status shard_flush(struct half_writer *h, struct err *e) {
    TRY(os_write_all(h->fd, h->out.data, h->out.bytes_count, h->path, e));
    buf_reset(&h->out);
    return BRG_OK;
}

static enum brg_status shard_open(struct pack *p, enum half half, struct err *e) {
    struct half_writer *h = &p->half[half];
    uint32_t index = p->manifest.half[half].shards_count;
    char name[SHARD_NAME_BYTES];
    if (index == SHARDS_MAX)
        return err_set(e, BRG_E_LIMIT, "%.300s: more than %d shards; pack with larger shards",
                       p->out, SHARDS_MAX);
    manifest_shard_add(&p->manifest, half);
    os_path(h->path, p->partial, "%s", shard_name(name, half, index));
    h->fd = open(h->path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (h->fd < 0) return os_errno(e, errno, "create", h->path);
    h->samples = 0;
    static const uint8_t later[SHARD_HEAD_BYTES]; /* the head is written when it is known */
    buf_put(&h->out, later, sizeof later);
    return BRG_OK;
}

static enum brg_status shard_close(struct pack *p, enum half half, struct err *e) {
    struct half_writer *h = &p->half[half];
    struct half_entry *m = &p->manifest.half[half];
    struct shard_entry *entry = &m->shards[m->shards_count - 1];
    uint8_t head[SHARD_HEAD_BYTES];
    shard_head_encode(p->manifest.token_bytes, h->samples,
                      shard_tokens(h->samples, p->manifest.seq_len), head);
    TRY(shard_flush(h, e));
    TRY(os_pwrite_all(h->fd, head, sizeof head, 0, h->path, e));
    if (fsync(h->fd) != 0) return os_errno(e, errno, "sync", h->path);
    /* The hash is of what the file system gives back, and the check is the reader's. */
    struct map map;
    TRY(map_fd(&map, h->fd, h->path, e));
    entry->samples = h->samples;
    entry->hash = hash_of(map.data, map.bytes);
    enum brg_status s = shard_check(h->path, map.data, map.bytes, &p->manifest, h->samples, e);
    map_close(&map);
    os_close_cleanup(&h->fd);
    h->fd = -1;
    return s;
}

static void token_put(struct pack *p, struct half_writer *h, uint32_t id) {
    if (p->manifest.token_bytes == 2)
        buf_u16(&h->out, (uint16_t)id);
    else
        buf_u32(&h->out, id);
}

static enum brg_status sample_write(struct pack *p, enum half half, struct err *e) {
    struct half_writer *h = &p->half[half];
    const uint32_t *ids = h->cutter.ids;
    if (h->fd < 0) {
        TRY(shard_open(p, half, e));
        token_put(p, h, ids[0]);
    }
    for (uint32_t i = 1; i <= p->manifest.seq_len; i++) {
        token_put(p, h, ids[i]);
        p->manifest.half[half].text_bytes += tokenizer_text_bytes(p->tokenizer, ids[i]);
        if (h->out.bytes_count >= WRITE_BYTES) TRY(shard_flush(h, e));
    }
    h->samples++;
    cutter_next(&h->cutter);
    return h->samples == p->shard_samples_max ? shard_close(p, half, e) : BRG_OK;
}

/* ---- Texts
 * --------------------------------------------------------------------------------------- */
static enum brg_status take_document(struct pack *p, const struct team_document *d,
                                     const uint8_t *ids, struct err *e) {
    if (d->half == HALF_TRAIN && p->options->train_samples_max > 0 &&
        p->half[d->half].cutter.samples >= p->options->train_samples_max)
        return BRG_OK;
    p->manifest.half[d->half].documents++;
    size_t at = 0;
    while (cutter_put(&p->half[d->half].cutter, ids, d->ids_count, &at))
        TRY(sample_write(p, d->half, e));
    return BRG_OK;
}

static void input_close(struct input *in) {
    if (!in->open || !in->read || in->jobs > 0) return;
    map_close(&in->map);
    in->open = false;
}

/* The oldest job's documents; *out_any is false where no job is under way. */
static enum brg_status take_job(struct pack *p, bool *out_any, struct err *e) {
    struct job *j = team_take(p->team);
    *out_any = j != NULL;
    if (j == NULL) return BRG_OK;
    const uint8_t *ids = j->ids.data;
    for (uint32_t i = 0; i < j->count; i++) {
        const struct team_document *d = &j->documents[i];
        if (d->ids_count > 0) TRY(take_document(p, d, ids, e));
        if (d->ids_count > 0) ids += 4 * d->ids_count;
    }
    if (j->status != BRG_OK) {
        *e = j->e;
        return j->status;
    }
    struct input *in = &p->inputs[j->input];
    in->jobs--;
    team_drop(p->team);
    input_close(in);
    return BRG_OK;
}

static enum brg_status put_input(struct pack *p, uint32_t index, struct err *e) {
    const char *path = p->options->inputs[index];
    struct input *in = &p->inputs[index];
    struct docs docs;
    struct docs_span span;
    struct job *j = NULL;
    char copy[OS_PATH_MAX];
    bool any;
    TRY(map_open(&in->map, path, e));
    in->open = true;
    snprintf(copy, sizeof copy, "%s", path);
    struct source_entry *source = manifest_source_add(&p->manifest, basename(copy));
    source->bytes = in->map.bytes;
    source->hash = hash_of(in->map.data, in->map.bytes);
    TRY(docs_init(&docs, path, in->map.data, in->map.bytes, e));
    bool more = docs_next_span(&docs, &span);
    while (more) {
        while ((j = team_free(p->team)) == NULL) TRY(take_job(p, &any, e));
        j->docs = (struct docs){.name = docs.name, .jsonl = docs.jsonl};
        j->input = index;
        do {
            j->documents[j->count++].span = span;
            j->bytes += span.bytes;
            more = docs_next_span(&docs, &span);
        } while (more && j->count < JOB_DOCUMENTS_MAX && j->bytes < JOB_BYTES);
        in->jobs++;
        team_put(p->team);
    }
    in->read = true;
    input_close(in);
    return BRG_OK;
}

static enum brg_status pack_inputs(struct pack *p, struct err *e) {
    bool any = true;
    for (size_t i = 0; i < p->options->inputs_count; i++) TRY(put_input(p, (uint32_t)i, e));
    while (any) TRY(take_job(p, &any, e));
    for (int h = 0; h < HALF_COUNT; h++) {
        struct half_entry *m = &p->manifest.half[h];
        /* A half without samples still has a shard, so that readers need no special case. */
        if (m->shards_count == 0) TRY(shard_open(p, h, e));
        if (p->half[h].fd >= 0) TRY(shard_close(p, h, e));
        m->samples = p->half[h].cutter.samples;
        m->tokens = shard_tokens(m->samples, p->manifest.seq_len);
        m->tokens_dropped = p->half[h].cutter.tokens_seen - m->tokens;
    }
    return BRG_OK;
}

static enum brg_status pack_descriptions(struct pack *p, struct err *e) {
    char path[OS_PATH_MAX];
    AUTO_BUF struct buf text;
    buf_init(&text, MANIFEST_BYTES_MAX);
    if (!p->manifest.tokenizer_bytes)
        TRY(tokenizer_save(p->tokenizer, os_path(path, p->partial, "tokenizer.json"), e));
    manifest_write(&p->manifest, &text);
    return os_write_file_atomic(os_path(path, p->partial, "manifest.json"), text.data,
                                text.bytes_count, e);
}

/* ---- The target
 * ---------------------------------------------------------------------------------- */
static bool is_dataset_file(const char *name) {
    size_t n = strlen(name);
    return strcmp(name, "manifest.json") == 0 || strcmp(name, "tokenizer.json") == 0 ||
           (n > 4 && strcmp(name + n - 4, ".tok") == 0);
}

/* Removes the directory and the files of a data set in it; nothing else, so that a mistaken path
 * can never cost somebody's files. */
static void dataset_remove(const char *dir) {
    DIR *d = opendir(dir);
    if (d == NULL) return;
    for (struct dirent *x; (x = readdir(d)) != NULL;)
        if (is_dataset_file(x->d_name) || strstr(x->d_name, ".json.") != NULL)
            (void)unlinkat(dirfd(d), x->d_name, 0);
    closedir(d);
    (void)rmdir(dir);
}

/* *out_full: there is a data set that may be replaced. */
static enum brg_status target_check(const struct pack *p, bool *out_full, struct err *e) {
    struct stat st;
    *out_full = false;
    if (lstat(p->out, &st) != 0)
        return errno == ENOENT ? BRG_OK : os_errno(e, errno, "look at", p->out);
    DIR *d = S_ISDIR(st.st_mode) ? opendir(p->out) : NULL;
    if (d == NULL)
        return err_set(e, BRG_E_EXISTS,
                       "%.300s: is there and no directory that can be read; choose "
                       "another --out",
                       p->out);
    bool manifest = false, files = false;
    char foreign[64] = "";
    for (struct dirent *x; (x = readdir(d)) != NULL;) {
        if (strcmp(x->d_name, ".") == 0 || strcmp(x->d_name, "..") == 0) continue;
        files = true;
        if (strcmp(x->d_name, "manifest.json") == 0) manifest = true;
        if (!is_dataset_file(x->d_name)) snprintf(foreign, sizeof foreign, "%.60s", x->d_name);
    }
    closedir(d);
    if (!files) return BRG_OK;
    if (!manifest || foreign[0] != 0)
        return err_set(e, BRG_E_EXISTS,
                       "%.300s: holds files that are no data set (%s); choose "
                       "another --out",
                       p->out, foreign[0] != 0 ? foreign : "no manifest.json");
    if (!p->options->force)
        return err_set(e, BRG_E_EXISTS,
                       "%.300s: holds a data set; choose another --out, or replace "
                       "it with --force",
                       p->out);
    *out_full = true;
    return BRG_OK;
}

static enum brg_status partial_create(struct pack *p, struct err *e) {
    char copy[OS_PATH_MAX], id[ID_HEX_BYTES];
    memcpy(copy, p->out, sizeof copy);
    TRY(os_mkdirs(dirname(copy), e));
    struct id128 random;
    os_random(random.v, ID_BYTES);
    id_hex(&random, id);
    int n = snprintf(p->partial, sizeof p->partial, "%s.partial-%.8s", p->out, id);
    if (n >= OS_PATH_MAX - 64)
        return err_set(e, BRG_E_USAGE, "%.300s...: the path is too long; choose a shorter --out",
                       p->out);
    if (mkdir(p->partial, 0777) != 0) {
        enum brg_status s = os_errno(e, errno, "create", p->partial);
        p->partial[0] = 0;
        return s;
    }
    return BRG_OK;
}

/* The last step. Afterwards p->partial is what is to be removed: nothing, or the old data set. */
static enum brg_status target_replace(struct pack *p, struct err *e) {
    char copy[OS_PATH_MAX];
    bool full;
    TRY(os_fsync_dir(p->partial, e));
    TRY(target_check(p, &full, e)); /* again: packing may have taken an hour */
    if (!full) {
        if (rename(p->partial, p->out) != 0) return os_errno(e, errno, "rename to", p->out);
        p->partial[0] = 0;
    } else if (renameat2(AT_FDCWD, p->partial, AT_FDCWD, p->out, RENAME_EXCHANGE) != 0) {
        /* A file system that cannot exchange: the target is missing for a moment. */
        char old[sizeof p->partial];
        CHECK(snprintf(old, sizeof old, "%s-old", p->partial) < (int)sizeof old);
        if (rename(p->out, old) != 0) return os_errno(e, errno, "move away", p->out);
        if (rename(p->partial, p->out) != 0) {
            enum brg_status s = os_errno(e, errno, "rename to", p->out);
            (void)rename(old, p->out);
            return s;
        }
        memcpy(p->partial, old, sizeof old);
    }
    memcpy(copy, p->out, sizeof copy);
    return os_fsync_dir(dirname(copy), e);
}

/* ---- All of it
 * ----------------------------------------------------------------------------------- */
static enum brg_status options_check(const struct pack_options *o, struct err *e) {
    if (o->out_dir == NULL || o->out_dir[0] == 0)
        return err_set(e, BRG_E_USAGE, "no target directory; name one with --out");
    if (strlen(o->out_dir) >= OS_PATH_MAX - 128)
        return err_set(e, BRG_E_USAGE, "the target's path is too long; choose a shorter --out");
    if (o->inputs_count == 0) return err_set(e, BRG_E_USAGE, "no text files are named");
    if (o->inputs_count > SOURCES_MAX)
        return err_set(e, BRG_E_USAGE, "more than %d text files; join some", SOURCES_MAX);
    if (o->seq_len == 0 || o->seq_len > SEQ_LEN_MAX)
        return err_set(e, BRG_E_USAGE, "a sequence length of %u is outside 1..%d; change --seq-len",
                       o->seq_len, SEQ_LEN_MAX);
    if (!(o->heldout_share >= 0 && o->heldout_share < 1))
        return err_set(e, BRG_E_USAGE, "a held-out share of %g is outside [0, 1); change --heldout",
                       o->heldout_share);
    if (o->threads > PACK_THREADS_MAX)
        return err_set(e, BRG_E_USAGE, "%u threads are more than %d; change --threads", o->threads,
                       PACK_THREADS_MAX);
    if (o->seed > DATA_SEED_MAX)
        return err_set(e, BRG_E_USAGE, "a seed beyond %llu is not kept exactly; change --seed",
                       (unsigned long long)DATA_SEED_MAX);
    return BRG_OK;
}

/* That this process may use. */
static unsigned processors(void) {
    cpu_set_t set;
    int n = sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : 1;
    return n < 1 ? 1 : n > PACK_THREADS_MAX ? PACK_THREADS_MAX : (unsigned)n;
}

static enum brg_status pack_init(struct pack *p, struct err *e) {
    const struct pack_options *o = p->options;
    for (int h = 0; h < HALF_COUNT; h++) {
        p->half[h].fd = -1;
        buf_init(&p->half[h].out, WRITE_BYTES + 16 + SHARD_HEAD_BYTES);
    }
    TRY(options_check(o, e));
    p->inputs = mem_alloc(o->inputs_count, sizeof *p->inputs);
    for (int h = 0; h < HALF_COUNT; h++) cutter_init(&p->half[h].cutter, o->seq_len);
    snprintf(p->out, sizeof p->out, "%s", o->out_dir);
    for (size_t n = strlen(p->out); n > 1 && p->out[n - 1] == '/'; n--) p->out[n - 1] = 0;
    bool bytes = o->tokenizer == NULL || strcmp(o->tokenizer, "bytes") == 0;
    if (bytes)
        p->tokenizer = tokenizer_bytes();
    else
        TRY(tokenizer_load(o->tokenizer, &p->tokenizer, e));
    if (tokenizer_eot(p->tokenizer) == TOKEN_NONE)
        return err_set(
            e, BRG_E_TOKENIZER,
            "%.300s: field added_tokens: no special token that is known to end a text, to "
            "put between documents; add " TOKENIZER_EOT_TEXT,
            o->tokenizer);
    TRY(team_create(
        &(struct team_options){.tokenizer = p->tokenizer,
                               .heldout_share = o->heldout_share,
                               .special = o->special_ids ? SPECIAL_AS_IDS : SPECIAL_AS_TEXT,
                               .around = o->around,
                               .threads = o->threads > 0 ? o->threads : processors()},
        &p->team, e));
    uint32_t vocab = tokenizer_vocab(p->tokenizer);
    p->manifest = (struct manifest){.seq_len = o->seq_len,
                                    .vocab = vocab,
                                    .token_bytes = shard_token_bytes(vocab),
                                    .tokenizer_bytes = bytes,
                                    .tokenizer_hash = tokenizer_hash(p->tokenizer),
                                    .order_seed = o->seed,
                                    .heldout_share = o->heldout_share};
    uint64_t sample_bytes = (uint64_t)o->seq_len * p->manifest.token_bytes;
    p->shard_samples_max = o->shard_samples_max > 0 ? o->shard_samples_max
                                                    : (SHARD_BYTES_DEFAULT - 1) / sample_bytes + 1;
    return BRG_OK;
}

static void pack_fini(struct pack *p) {
    for (int h = 0; h < HALF_COUNT; h++) {
        os_close_cleanup(&p->half[h].fd);
        buf_fini(&p->half[h].out);
        cutter_fini(&p->half[h].cutter);
    }
    if (p->partial[0] != 0) dataset_remove(p->partial);
    team_destroy(p->team);
    for (size_t i = 0; p->inputs != NULL && i < p->options->inputs_count; i++)
        if (p->inputs[i].open) map_close(&p->inputs[i].map);
    mem_free(p->inputs);
    tokenizer_free(p->tokenizer);
    manifest_fini(&p->manifest);
    mem_free(p);
}

static enum brg_status pack_run(struct pack *p, struct err *e) {
    bool full;
    TRY(pack_init(p, e));
    TRY(target_check(p, &full, e));
    TRY(partial_create(p, e));
    TRY(pack_inputs(p, e));
    TRY(pack_descriptions(p, e));
    return target_replace(p, e);
}

enum brg_status data_pack(const struct pack_options *o, struct err *e) {
    struct pack *p = mem_alloc(1, sizeof *p);
    p->options = o;
    enum brg_status s = pack_run(p, e);
    pack_fini(p);
    return s;
}
