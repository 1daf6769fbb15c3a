/* SPDX-License-Identifier: Apache-2.0 */
/* base.h - the ground every room stands on: status codes and their sentences, CHECK, errors with a
 * remedy, bounded buffers, little-endian put and get, SHA-256, a seeded generator, logfmt.
 *
 * Nothing in this header touches a clock, a file or a socket: those calls live in base/os.h, so that
 * the pure rooms (data's order, lease, outer, hub, wire) can include this header and stay pure.
 *
 * Threads: every function works on its arguments alone; log_line() may be called from any thread. */
#ifndef BASE_H
#define BASE_H

#include <assert.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* ---- Status ------------------------------------------------------------------------------------
 * One table: name, number (1..255, never used again for something else), class, sentence.
 * The number is also the exit status of the command that ends with it (docs/exit-status.md).
 * The class says who acts: RETRY the program itself, PEER the other side, CONFIG and DATA the
 * person who wrote the input, FULL whoever owns the disk or memory, CALLER whoever called. */
#define BRG_STATUS_TABLE(X)                                                                        \
    X(OK, 0, CALLER, "success")                                                                    \
    X(E_INTERNAL, 1, CALLER, "a fault of the program")                                             \
    X(E_USAGE, 2, CALLER, "the command line is not understood")                                    \
    X(E_CONFIG, 3, CONFIG, "a configuration key or value is wrong")                                \
    X(E_MISSING, 4, CONFIG, "a file or directory is missing")                                      \
    X(E_IO, 5, RETRY, "reading or writing failed")                                                 \
    X(E_FULL, 6, FULL, "no space is left")                                                         \
    X(E_BUSY, 7, CONFIG, "another process uses this directory")                                    \
    X(E_PORT, 8, CONFIG, "the address or port cannot be listened on")                              \
    X(E_MANIFEST, 9, DATA, "a data set does not match its manifest or the run")                    \
    X(E_SHARD, 10, DATA, "a token shard is truncated or altered")                                  \
    X(E_TOKENIZER, 11, DATA, "a tokenizer cannot be read or does not match")                       \
    X(E_CHECKPOINT, 12, DATA, "a checkpoint is damaged or of another model")                       \
    X(E_MESSAGE, 13, PEER, "a message cannot be decoded")                                          \
    X(E_NET, 14, RETRY, "the other side cannot be reached")                                        \
    X(E_REFUSED, 15, PEER, "the hub refused the request")                                          \
    X(E_FENCED, 16, PEER, "a newer incarnation of this site took over")                            \
    X(E_AUDIT, 17, DATA, "the audit found lost or doubled positions")                              \
    X(E_JOURNAL, 18, DATA, "the journal is damaged")                                               \
    X(E_NONFINITE, 19, DATA, "a number is not finite")                                             \
    X(E_LIMIT, 20, CALLER, "a limit would be exceeded")                                            \
    X(E_MEMORY, 21, FULL, "memory could not be had")                                               \
    X(E_HUB_BEHIND, 22, PEER, "the hub is older than this site's last version")                    \
    X(E_DRAINED, 23, RETRY, "stopped early on request; work is handed in, run again to go on")     \
    X(E_MODEL, 24, DATA, "a model description is wrong or of another model")                       \
    X(E_CORRUPT, 25, DATA, "stored bytes do not match their hash")                                 \
    X(E_TIMEOUT, 26, RETRY, "nothing happened within the time allowed")                            \
    X(E_EXISTS, 27, CONFIG, "the target exists already")                                           \
    X(E_RANK, 28, RETRY, "another rank of this MPI job is lost; start the job again")

enum brg_status {
#define X(name, number, class_, sentence) BRG_##name = number,
    BRG_STATUS_TABLE(X)
#undef X
};

enum brg_class {
    BRG_CLASS_RETRY,
    BRG_CLASS_PEER,
    BRG_CLASS_CONFIG,
    BRG_CLASS_DATA,
    BRG_CLASS_FULL,
    BRG_CLASS_CALLER
};

const char *status_name(enum brg_status s);     /* "E_CONFIG"; "E_UNKNOWN" for a foreign number */
const char *status_sentence(enum brg_status s); /* one sentence, static storage */
enum brg_class status_class(enum brg_status s);
enum brg_status status_from_name(const char *name); /* BRG_E_INTERNAL where unknown */

#define MUST_USE __attribute__((warn_unused_result))
#define PRINTF_LIKE(f, a) __attribute__((format(printf, f, a)))

/* Passes a failure on to the caller. For functions that return enum brg_status. */
#define TRY(expr)                                                                                  \
    do {                                                                                           \
        enum brg_status try_status_ = (expr);                                                      \
        if (try_status_ != BRG_OK) return try_status_;                                             \
    } while (0)

/* One failure, told once: which file and field, and what to do. text is UTF-8 without newlines. */
struct err {
    enum brg_status status;
    char text[600];
};
/* Sets e (may be NULL) and returns status, so that `return err_set(e, BRG_E_CONFIG, ...)` reads well. */
enum brg_status err_set(struct err *e, enum brg_status status, const char *fmt, ...)
    PRINTF_LIKE(3, 4);
/* Puts "prefix: " before the text that is there already; returns e->status. */
enum brg_status err_prefix(struct err *e, const char *fmt, ...) PRINTF_LIKE(2, 3);

/* ---- CHECK: the program is wrong. On in every build; never tests undecoded bytes. ------------ */
#define CHECK(cond)                                                                                \
    do {                                                                                           \
        if (__builtin_expect(!(cond), 0)) check_failed(#cond, __FILE__, __LINE__);                 \
    } while (0)
_Noreturn void check_failed(const char *cond, const char *file, int line);
/* In a function that gives the broken condition as text, NULL where there is none: for what a test panics over and a
 * decoder refuses. */
#define HOLDS(cond)                                                                                \
    do {                                                                                           \
        if (!(cond)) return #cond;                                                                 \
    } while (0)

/* ---- Units ----------------------------------------------------------------------------------- */
typedef int64_t time_ns; /* nanoseconds on a monotonic clock, or a duration */
enum { NS_PER_US = 1000, NS_PER_MS = 1000000, NS_PER_S = 1000000000 };
#define TIME_NS_NEVER INT64_MAX

/* ---- Memory: checked, zeroed. A failed allocation ends the process with a clear line, except in
 * try_mem_alloc, which is for sizes that come from outside (model size, batch). ------------------ */
void *mem_alloc(size_t count, size_t size_bytes) MUST_USE;     /* gives (free with mem_free) */
void *try_mem_alloc(size_t count, size_t size_bytes) MUST_USE; /* NULL where not to be had */
void *mem_grow(void *p, size_t count_old, size_t count_new, size_t size_bytes) MUST_USE;
char *mem_strdup(const char *s) MUST_USE;
void mem_free(void *p);

void mem_free_cleanup(void *pp);
#define AUTO_FREE __attribute__((cleanup(mem_free_cleanup)))

/* ---- A growing byte buffer with a maximum. A zeroed struct with bytes_max set is ready. ------ */
struct buf {
    uint8_t *data;
    size_t bytes_count, bytes_cap, bytes_max;
    bool overflow; /* a put went past bytes_max: content is complete up to there, later puts lost */
};
void buf_init(struct buf *b, size_t bytes_max);
void buf_fini(struct buf *b); /* takes zeroed structs too */
void buf_reset(struct buf *b);
void buf_put(struct buf *b, const void *data, size_t n);
void buf_u8(struct buf *b, uint8_t v);
void buf_u16(struct buf *b, uint16_t v);
void buf_u32(struct buf *b, uint32_t v);
void buf_u64(struct buf *b, uint64_t v);
void buf_f32(struct buf *b, float v);
void buf_f64(struct buf *b, double v);
void buf_str(struct buf *b, const char *s); /* u16 length, then the bytes */
void buf_printf(struct buf *b, const char *fmt, ...) PRINTF_LIKE(2, 3);
const char *buf_cstr(struct buf *b); /* NUL after the content; borrows */
void buf_fini_cleanup(struct buf *b);
#define AUTO_BUF __attribute__((cleanup(buf_fini_cleanup)))

/* Reading side: every get checks the bounds; after one failure all gets give 0 and ok is false. */
struct reader {
    const uint8_t *p, *end;
    bool ok;
};
struct reader reader_of(const void *data, size_t n);
const void *get_bytes(struct reader *r, size_t n); /* NULL where there are fewer */
uint8_t get_u8(struct reader *r);
uint16_t get_u16(struct reader *r);
uint32_t get_u32(struct reader *r);
uint64_t get_u64(struct reader *r);
float get_f32(struct reader *r);
double get_f64(struct reader *r);
bool get_str(struct reader *r, char *out, size_t cap); /* as buf_str wrote; NUL-terminated */

/* Little-endian stores and loads at a place. */
void put_le32(uint8_t *p, uint32_t v);
void put_le64(uint8_t *p, uint64_t v);
uint32_t get_le32(const uint8_t *p);
uint64_t get_le64(const uint8_t *p);

/* ---- Hash and hex ---------------------------------------------------------------------------- */
enum { HASH_BYTES = 32, HASH_HEX_BYTES = 65, ID_BYTES = 16, ID_HEX_BYTES = 33 };
struct hash {
    uint8_t v[HASH_BYTES]; /* SHA-256 */
};
struct id128 {
    uint8_t v[ID_BYTES];
};
struct hasher { /* wraps nettle's context; may be copied to fork a hash */
    uint64_t opaque[16];
};
void hasher_init(struct hasher *h);
void hasher_update(struct hasher *h, const void *data, size_t n);
struct hash hasher_final(struct hasher *h);
struct hash hash_of(const void *data, size_t n);
/* HMAC-SHA256 (RFC 2104): what nobody can make who does not have the key. */
struct hash hash_keyed(const struct hash *key, const void *data, size_t n);
bool hash_equal(const struct hash *a, const struct hash *b);
bool hash_is_zero(const struct hash *a);
bool id_equal(const struct id128 *a, const struct id128 *b);
void hex_encode(const uint8_t *in, size_t n, char *out); /* writes 2n+1 bytes */
bool hex_decode(const char *in, uint8_t *out, size_t n); /* wants exactly 2n digits, then NUL */
void hash_hex(const struct hash *h, char out[HASH_HEX_BYTES]);
void id_hex(const struct id128 *id, char out[ID_HEX_BYTES]);

/* A fast 64-bit sum over memory against torn and rotten files; no defence against malice. Feed
 * pieces in any cut. */
struct checksum {
    uint64_t lane[4], bytes;
    uint8_t tail[32];
};
void checksum_init(struct checksum *k);
void checksum_update(struct checksum *k, const void *data, size_t n);
uint64_t checksum_final(const struct checksum *k);

/* ---- Random: xoshiro256** seeded through splitmix64 (Blackman, Vigna 2018). Not for secrets. --- */
struct prng {
    uint64_t s[4];
};
void prng_seed(struct prng *p, uint64_t seed);
uint64_t prng_u64(struct prng *p);
uint64_t prng_below(struct prng *p, uint64_t n); /* uniform in [0, n), n > 0 */
double prng_unit(struct prng *p);                /* uniform in [0, 1) */
double prng_normal(struct prng *p);              /* Box-Muller, mean 0, variance 1 */
uint64_t mix64(uint64_t x);                      /* splitmix64's finalizer */

/* ---- Numbers from text: the whole string must be the number. --------------------------------- */
bool parse_u64(const char *s, uint64_t *out);
bool parse_f64(const char *s, double *out);
bool parse_duration(const char *s, time_ns *out); /* "500ms" "30s" "10m" "2h"; a unit is required */
bool parse_bytes(const char *s, uint64_t *out);   /* "64", "10k" "2M" "1G" (powers of 1024) */

/* ---- Log: one line an event, logfmt, to standard error. fmt gives the key=value fields. -------
 *   log_line(LOG_INFO, "lease", "granted", "lease=%llu site=%u", tok, site);                      */
enum log_level { LOG_ERROR, LOG_WARN, LOG_INFO, LOG_DEBUG, LOG_TRACE };
void log_level_set(enum log_level level);
bool log_level_parse(const char *name, enum log_level *out);
void log_line(enum log_level level, const char *room, const char *event, const char *fmt, ...)
    PRINTF_LIKE(4, 5);
/* A value made safe for logfmt: quoted where it holds blanks, '=' or '"'. Borrows buf. */
const char *log_quote(const char *value, char *buf, size_t cap);

#define ARRAY_COUNT(a) (sizeof(a) / sizeof((a)[0]))

#endif
