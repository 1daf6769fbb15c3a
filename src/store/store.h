/* SPDX-License-Identifier: Apache-2.0 */
/* store.h - what outlives the hub's process: the journal (SQLite beside the run, or a PostgreSQL
 * server), the blobs (a directory, named by SHA-256), and the safetensors form of checkpoints.
 *
 * Journal: append-only records (seq, kind, body, chain) with chain_i = SHA-256(chain_{i-1} | seq |
 * kind | body). One transaction takes all records that wait (group commit). A snapshot is a state
 * that replay may start from instead of record 1; records before it stay (the audit wants them).
 * Both kinds have the same tables and the same promises; journal_os.h is what a kind has to do.
 *   SQLite: WAL, synchronous=FULL, one connection. A failed fsync or SQLITE_IOERR/CORRUPT ends the
 *   process (the kernel's page state is unknown then); SQLITE_FULL rolls back and gives E_FULL.
 *   PostgreSQL: synchronous_commit=on, one connection. A lost connection gives E_NET, and leaves
 *   the outcome of a batch open until journal_again has looked it up.
 * Invariants
 *   (J1) a record is visible to readers whole or not at all, and seq has no gaps.
 *   (J2) nothing that journal_append returned OK for is ever lost.
 *   (J3) no transaction of a process follows one of a process that began to write after it.      */
#ifndef STORE_STORE_H
#define STORE_STORE_H

#include "base/base.h"

/* ---- Journal --------------------------------------------------------------------------------- */
struct journal;
struct record { /* body is borrowed */
    uint64_t seq;
    uint16_t kind;
    const uint8_t *body;
    size_t bytes;
};
enum { JOURNAL_BODY_MAX = 1 << 20 };
/* Where a run's journal is: the one line of RUN/journal.url, else RUN/journal.db. out has
 * OS_PATH_MAX bytes. E_CONFIG: the line is no name of a journal. */
enum { JOURNAL_NAME_MAX = 4096 };
enum brg_status journal_where(const char *run_dir, char out[JOURNAL_NAME_MAX], struct err *e)
    MUST_USE;
/* The other direction: journal.url with this name, or none for RUN/journal.db. Durable. */
enum brg_status journal_where_set(const char *run_dir, const char *name, struct err *e) MUST_USE;
/* A name of the second kind: postgresql://[USER@]HOST[:PORT]/DATABASE[?schema=NAME&...], everything
 * but schema (default: beringia) as libpq has it. A password in it is refused: PGPASSFILE,
 * ~/.pgpass or passfile=FILE have that. Any other name is a file. */
bool journal_name_is_url(const char *name);

/* Opens (create: makes) the journal for the one writer. E_BUSY: another process has it; E_NET: no
 * connection, or this program was built without PostgreSQL (E_CONFIG). */
enum brg_status journal_open(const char *name, bool create, struct journal **out, struct err *e)
    MUST_USE;
/* Opens it for reading beside a writer; E_CONFIG for a file, which a standby can not follow. */
enum journal_how { JOURNAL_WRITE, JOURNAL_CREATE, JOURNAL_READ };
enum brg_status journal_open_reader(const char *name, struct journal **out, struct err *e) MUST_USE;
void journal_close(struct journal *j);
uint64_t journal_last_seq(const struct journal *j);
struct hash journal_chain(const struct journal *j);
/* All records of one batch in one durable transaction, seq = last+1, last+2, ... (checked). E_FULL:
 * nothing was written, go on later; E_FENCED: another process writes this journal now, end this one;
 * E_NET: the connection is lost, and whether the batch is there is not known: journal_again. */
enum brg_status journal_append(struct journal *j, const struct record *records, size_t count,
                               struct err *e) MUST_USE;
enum brg_status journal_snapshot_put(struct journal *j, uint64_t seq, const void *data, size_t n,
                                     struct err *e) MUST_USE;
/* The newest snapshot into out (seq 0 and empty where there is none). */
enum brg_status journal_snapshot_get(struct journal *j, uint64_t *out_seq, struct buf *out,
                                     struct err *e) MUST_USE;
/* Calls visit for each record with seq > after, in order; checks chain and gaps; stops at a
 * failure. */
typedef enum brg_status journal_visit(void *user, const struct record *r, struct err *e);
enum brg_status journal_replay(struct journal *j, uint64_t after, journal_visit *visit, void *user,
                               struct err *e) MUST_USE;

/* ---- A journal that is reached by a connection (the first kind gives BRG_OK to all) ---- */
/* How often journal_keep has to be called by a writer that has nothing to write; 0: never. A writer
 * that is silent for JOURNAL_SILENCE_MS is taken for dead by the server: its session ends. */
enum { JOURNAL_KEEP_MS = 700, JOURNAL_SILENCE_MS = 3000 };
time_ns journal_keep_ns(const struct journal *j);
enum brg_status journal_keep(struct journal *j, struct err *e) MUST_USE; /* E_NET, E_FENCED */
/* After E_NET: connects again, becomes the writer again, and finds out what became of the batch that
 * was under way; numbers and chain are those of the server then. The old session is gone before it
 * looks, so that what is not there will not come. E_NET, E_BUSY: not yet, try later; E_FENCED. */
enum journal_outcome { JOURNAL_NO_DOUBT = 0, JOURNAL_COMMITTED = 1, JOURNAL_ABSENT = 2 };
enum brg_status journal_again(struct journal *j, enum journal_outcome *out, struct err *e) MUST_USE;
/* A reader: hands on what was appended since, then becomes the writer if there is none. E_BUSY: there
 * is one. After BRG_OK journal_follow once more: it saw the journal before it had it. */
enum brg_status journal_follow(struct journal *j, journal_visit *visit, void *user, struct err *e)
    MUST_USE;
enum brg_status journal_lead(struct journal *j, struct err *e) MUST_USE;

/* ---- A journal that is made whole before it has its name: a rebuild, a migration ---- */
/* Makes one beside NAME; what an earlier try left there is removed. */
enum brg_status journal_make(const char *name, struct journal **out, struct err *e) MUST_USE;
/* Closes it and gives it its name, durably. E_EXISTS: there is a journal of that name. */
enum brg_status journal_publish(struct journal *j, const char *name, struct err *e) MUST_USE;
/* All records, up to where `from` stood when it was opened, and its snapshot, into an empty one. */
enum brg_status journal_copy_whole(struct journal *from, struct journal *to, struct err *e)
    MUST_USE;
/* Gives a journal that was moved elsewhere another name (".moved", "_moved"), as a copy to keep. */
enum brg_status journal_retire(const char *name, struct err *e) MUST_USE;

/* ---- Blobs: RUN/blobs/ab/abcdef... by SHA-256; RUN/incoming/<did>.part while arriving -------- */
struct blobs;
enum brg_status blobs_open(const char *run_dir, struct blobs **out, struct err *e) MUST_USE;
void blobs_close(struct blobs *b);
/* Path of a blob by hash (whether or not it exists). */
void blobs_path(const struct blobs *b, const struct hash *h, char out[4096]);
bool blobs_has(const struct blobs *b, const struct hash *h);
/* Makes the name of a blob that is there durable. Before anybody is told that it is there: an earlier
 * try, or one under way in another thread, may have renamed it and not synced its directory yet. */
enum brg_status blobs_sync_name(const struct blobs *b, const struct hash *h, struct err *e)
    MUST_USE;
/* A blob arriving in pieces under a key. offset must equal what is there already. */
enum brg_status blobs_part_bytes(struct blobs *b, const struct id128 *key, uint64_t *out_bytes)
    MUST_USE;
enum brg_status blobs_part_write(struct blobs *b, const struct id128 *key, uint64_t offset,
                                 const void *data, size_t n, struct err *e) MUST_USE;
/* fsync, hash, compare, rename into place, fsync of the directory. E_CORRUPT drops the part. */
enum brg_status blobs_part_finish(struct blobs *b, const struct id128 *key, uint64_t bytes,
                                  const struct hash *want, struct err *e) MUST_USE;
enum brg_status blobs_part_drop(struct blobs *b, const struct id128 *key) MUST_USE;
/* Takes a finished file (same filesystem) into the store: fsync, rename, fsync of the directory. */
enum brg_status blobs_adopt(struct blobs *b, const char *path, const struct hash *h, struct err *e)
    MUST_USE;
enum brg_status blobs_verify(const struct blobs *b, const struct hash *h, struct err *e) MUST_USE;
enum brg_status blobs_remove(struct blobs *b, const struct hash *h, struct err *e) MUST_USE;
/* Removes parts and temporary files that no live upload owns; called at start. */
enum brg_status blobs_sweep(struct blobs *b, struct err *e) MUST_USE;
/* SHA-256 of all bytes of an open file, wherever it stands, and how many there are. */
enum brg_status store_hash_fd(int fd, const char *path, struct hash *out, uint64_t *out_bytes,
                              struct err *e) MUST_USE;

/* ---- safetensors: u64 header bytes | JSON header | data. Reader is strict: overlaps, gaps, sizes
 * that do not follow from shape and type, duplicate names and trailing bytes are errors that name the
 * tensor. -------------------------------------------------------------------------------------- */
enum tensor_type {
    TENSOR_F32 = 1,
    TENSOR_BF16 = 2,
    TENSOR_F16 = 3,
    TENSOR_U8 = 4,
    TENSOR_I64 = 5,
    TENSOR_I32 = 6,
    TENSOR_F64 = 7
};
enum { TENSOR_NAME_MAX = 128, TENSOR_DIMS_MAX = 4, TENSORS_MAX = 65536 };
struct tensor {
    char name[TENSOR_NAME_MAX];
    enum tensor_type type;
    uint32_t dims;
    uint64_t shape[TENSOR_DIMS_MAX];
    uint64_t elements;
    uint64_t offset, bytes; /* within the file, counted from its first byte */
};
struct tensors { /* a zeroed struct is an empty table */
    struct tensor *v;
    size_t count;
    struct buf
        meta; /* JSON object text of __metadata__: string -> string; "{}" where there is none */
    uint64_t data_offset, file_bytes;
};
void tensors_fini(struct tensors *t);
size_t tensor_type_bytes(enum tensor_type type);
const struct tensor *tensors_find(const struct tensors *t, const char *name);
void tensors_add(struct tensors *t, const char *name, enum tensor_type type, uint32_t dims,
                 const uint64_t *shape); /* offsets are given out in order, contiguous */
void tensors_meta_set(struct tensors *t, const char *key, const char *value);
bool tensors_meta_get(const struct tensors *t, const char *key, char *out, size_t cap);
/* Lays the header out; sets data_offset, file_bytes and each tensor's offset. data starts
 * 64-aligned. */
enum brg_status tensors_header(struct tensors *t, struct buf *out, struct err *e) MUST_USE;
enum brg_status tensors_read(const char *path, struct tensors *out, struct err *e) MUST_USE;
/* The pure part, which is fuzzed: data are the first n bytes of a file of file_bytes. */
enum brg_status tensors_parse(const void *data, size_t n, uint64_t file_bytes, const char *path,
                              struct tensors *out, struct err *e) MUST_USE;
/* Hash over names, types and shapes in order: two trainers with equal hashes mean the same vector. */
struct hash tensors_hash(const struct tensors *t);

/* ---- Numbers as files hold them: f32 and its two halves. Pure; rounding is to nearest, ties to even - */
bool tensor_type_is_float(enum tensor_type type); /* F32, BF16 or F16: what weights may be */
const char *tensor_type_name(enum tensor_type type);
/* n numbers of a float type, little-endian, any alignment. */
void tensor_decode(enum tensor_type type, const uint8_t *in, size_t n, float *out);
/* Gives the index of the first finite number that the type cannot hold (it would become infinite), or n
 * where all fit; out is complete only then. */
size_t tensor_encode(enum tensor_type type, const float *in, size_t n, uint8_t *out);

/* ---- A set: the file or files that together hold a model's tensors. In a directory as Hugging Face
 * lays it out that is model.safetensors, or the files that model.safetensors.index.json names:
 *   {"metadata": {...}, "weight_map": {tensor name: file name}}
 * Strict in the same way: each tensor of each file stands in the index with that file, and the other
 * way round. ------------------------------------------------------------------------------------- */
enum { TENSOR_FILES_MAX = 4096 };
struct tensor_index { /* a zeroed struct is empty */
    char (*files)[TENSOR_NAME_MAX];
    struct tensor_place {
        char name[TENSOR_NAME_MAX];
        uint32_t file;
    } * places; /* by name */
    size_t files_count, places_count;
};
void tensor_index_fini(struct tensor_index *x);
/* Pure, fuzzed. A file name with a slash in it is refused: the set lies in one directory. */
enum brg_status tensor_index_parse(const void *data, size_t n, const char *path,
                                   struct tensor_index *out, struct err *e) MUST_USE;
const struct tensor_place *tensor_index_find(const struct tensor_index *x, const char *name);
/* The index's text for a set that is to be written; bytes is the sum over all tensors. */
void tensor_index_print(const struct tensor_index *x, uint64_t bytes, struct buf *out);

struct tensor_file {
    char *path;
    struct tensors table;
};
struct tensor_set { /* a zeroed struct is empty */
    struct tensor_file *files;
    size_t files_count;
};
void tensor_set_fini(struct tensor_set *s);
/* path: a safetensors file, or a directory; model.safetensors comes first where both forms are there. */
enum brg_status tensor_set_open(const char *path, struct tensor_set *out, struct err *e) MUST_USE;
/* NULL where no file has it. */
const struct tensor *tensor_set_find(const struct tensor_set *s, const char *name,
                                     const struct tensor_file **out_file);

/* ---- GGUF version 3, the form of llama.cpp: what stands before the data, built up in memory. Pure.
 *   "GGUF" | u32 3 | u64 tensors | u64 pairs | pairs: key, u32 type, value |
 *   tensors: name, u32 dims, u64 sizes (the fastest first), u32 type, u64 offset | zeros to 32 | data
 * A string is u64 bytes and the bytes. Offsets count from the data's first byte; each tensor begins at a
 * multiple of 32, with zeros before it where need be. --------------------------------------------- */
enum { GGUF_ALIGN = 32 };
enum gguf_type { GGUF_U32 = 4, GGUF_I32 = 5, GGUF_F32 = 6, GGUF_BOOL = 7, GGUF_STRING = 8 };
struct gguf { /* buffers inside; gguf_init and gguf_fini */
    struct buf pairs, infos;
    uint64_t pairs_count, tensors_count, data_bytes;
};
void gguf_init(struct gguf *g);
void gguf_fini(struct gguf *g);
void gguf_put_u32(struct gguf *g, const char *key, uint32_t v);
void gguf_put_f32(struct gguf *g, const char *key, float v);
void gguf_put_bool(struct gguf *g, const char *key, bool v);
void gguf_put_string(struct gguf *g, const char *key, const char *text, size_t bytes);
/* The head of a list; exactly count elements must follow by gguf_element_*. */
void gguf_put_list(struct gguf *g, const char *key, enum gguf_type element, uint64_t count);
void gguf_element_string(struct gguf *g, const char *text, size_t bytes);
void gguf_element_i32(struct gguf *g, int32_t v);
/* type is a float type; shape as in struct tensor, the slowest first. */
void gguf_tensor(struct gguf *g, const char *name, enum tensor_type type, uint32_t dims,
                 const uint64_t *shape);
/* Zeros that follow so many bytes of data. */
size_t gguf_padding(uint64_t bytes);
/* Everything up to the data. E_LIMIT where the words are more than 1 GiB. */
enum brg_status gguf_header(const struct gguf *g, struct buf *out, struct err *e) MUST_USE;

/* ---- Checkpoint of the run: one immutable file = parameters + outer state + ledger --------------
 * safetensors, in this order: every parameter (F32, model order), "outer.m" (F32, [P]), in a run that keeps
 * the mean of its weights "outer.ema" (F32, [P]), after a synchronous round "outer.v" (F32, [P]), in a run that sends
 * updates "outer.e" (BF16, [P]), "ledger" (U8, [bytes], the hub room's ledger encoding). Metadata: format
 * "beringia-checkpoint-N", N = 1, +1 with outer.e, +2 with outer.ema, +4 with outer.v; run (uuid hex),
 * version, parent, tokens, theta_sha256 (of the parameters' bytes alone), model (config.json text).
 * Parameters lie contiguous, so theta is one vector of P floats at data_offset. */
struct checkpoint {
    struct tensors table; /* parameters only, offsets as in the file */
    uint64_t elements;    /* P */
    uint64_t theta_offset, m_offset, ledger_offset, ledger_bytes;
    uint64_t e_offset, ema_offset, v_offset; /* 0: there is none */
    uint64_t version, parent, tokens;
    struct hash theta_hash;
    struct id128 run;
};
/* A tensor of the run's own in such a file, and no parameter of the model. */
bool checkpoint_own_tensor(const char *name);
void checkpoint_fini(struct checkpoint *c);
enum brg_status checkpoint_open(const char *path, struct checkpoint *out, struct err *e) MUST_USE;

/* What a checkpoint tells of its run, so that the run can go on from it alone. Texts as they stand in the
 * run's directory; every version carries on what version 0 began with. */
enum { CHECKPOINT_FACTS_MAX = 4096, CHECKPOINT_SETTINGS_MAX = 65536 };
struct checkpoint_about {
    char facts[CHECKPOINT_FACTS_MAX];       /* run.json */
    char settings[CHECKPOINT_SETTINGS_MAX]; /* run.yaml, as the run was made */
    uint32_t term;                          /* of the hub that made this version */
};
/* false where it tells nothing: made by a version of the program that did not write this. */
bool checkpoint_about_get(const struct checkpoint *c, struct checkpoint_about *out);

struct checkpoint_writer; /* streams: theta and m chunks in any interleaving of two cursors */
struct checkpoint_head {
    const struct tensors *table; /* parameters: names, shapes; borrowed */
    const char *model_json;
    struct id128 run;
    uint64_t version, parent, tokens;
    const void *ledger;
    size_t ledger_bytes;
    const struct checkpoint_about *about; /* NULL: nothing is told */
    bool has_e, has_ema, has_v;           /* outer.e, outer.ema, outer.v will be written too */
};
/* Writes to path (a temporary name chosen by the caller). theta_sha256 is not known before the
 * end, so its place in the header is reserved and filled by finish. */
enum brg_status checkpoint_writer_open(const char *path, const struct checkpoint_head *head,
                                       struct checkpoint_writer **out, struct err *e) MUST_USE;
enum brg_status checkpoint_write_theta(struct checkpoint_writer *w, const float *x, size_t n,
                                       struct err *e) MUST_USE;
enum brg_status checkpoint_write_m(struct checkpoint_writer *w, const float *x, size_t n,
                                   struct err *e) MUST_USE;
/* The same for several threads: n elements from element `at` on, each element once, in any order; e: bf16,
 * NULL where there is none. Theta's hash wants the elements in order: checkpoint_hash_theta, by one thread
 * at a time. */
enum brg_status checkpoint_write_at(struct checkpoint_writer *w, uint64_t at, const float *theta,
                                    const float *m, const uint8_t *e_or_null, size_t n,
                                    struct err *e) MUST_USE;
/* outer.ema likewise: n elements from `at` on, in any order, each once. */
enum brg_status checkpoint_write_ema_at(struct checkpoint_writer *w, uint64_t at, const float *ema,
                                        size_t n, struct err *e) MUST_USE;
/* outer.v likewise. */
enum brg_status checkpoint_write_v_at(struct checkpoint_writer *w, uint64_t at, const float *v,
                                      size_t n, struct err *e) MUST_USE;
void checkpoint_hash_theta(struct checkpoint_writer *w, const float *x, size_t n);
/* fsync; gives the file's hash, its size and theta's hash. Frees w in every case. */
enum brg_status checkpoint_writer_finish(struct checkpoint_writer *w, struct hash *out_file,
                                         uint64_t *out_bytes, struct hash *out_theta, struct err *e)
    MUST_USE;
void checkpoint_writer_abort(struct checkpoint_writer *w);

#endif
