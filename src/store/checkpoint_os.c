/* SPDX-License-Identifier: Apache-2.0 */
/* checkpoint_os.c - one immutable file that holds a version of the run: weights, outer state,
 * ledger.
 *
 *   +--------+-------------+------------------------+----------------+--------+
 *   | u64    | JSON header | theta: P f32           | outer.m: P f32 | ledger |
 *   +--------+-------------+------------------------+----------------+--------+
 *            8             ^ multiple of 64         ^ + 4P           ^ + 8P
 *
 * Between outer.m and the ledger stand, where a version has them, outer.ema (P f32), outer.v (P f32) and outer.e (P bf16):
 * they add 2, 4 and 1 to the format's number, which is 1 without.
 *
 * It is a plain safetensors file, so that any tool can read the weights. The parameters stand in
 * model order without a gap, so that theta is one vector, and a merge is one pass over two
 * streams. The ledger travels inside: whoever has the weights also has the list of what they were
 * trained on.
 *
 *   writer_open --> write_theta, write_m in any interleaving --> writer_finish | writer_abort
 *
 * theta_sha256 stands in the header, before the bytes it is taken from. The writer puts 64 zeros
 * in its place and fills them in when the last chunk has passed; then it reads the file once to
 * hash it, which also is the proof that what was written can be read.
 *
 * Invariants
 *   (K1) finish succeeds only after exactly P elements of theta and P of m, and of ema, v and e where there are.
 *   (K2) the data of theta, m, ema, v, e and ledger lie contiguous, in this order. */
#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "store/store_os.h"

static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__,
              "vectors are stored as they lie in memory");

#define FORMAT "beringia-checkpoint-"
#define NAME_M "outer.m"
#define NAME_EMA "outer.ema"
#define NAME_V "outer.v"
#define NAME_E "outer.e"
#define NAME_LEDGER "ledger"
#define KEY_THETA "theta_sha256"
#define HEX_ZERO "0000000000000000000000000000000000000000000000000000000000000000"
enum { HEADER_MAX = 100 * 1000 * 1000 };

/* ---- Reading --------------------------------------------------------------------------------- */
bool checkpoint_own_tensor(const char *name) {
    return strcmp(name, NAME_M) == 0 || strcmp(name, NAME_EMA) == 0 || strcmp(name, NAME_V) == 0 ||
           strcmp(name, NAME_E) == 0 || strcmp(name, NAME_LEDGER) == 0;
}

void checkpoint_fini(struct checkpoint *c) {
    tensors_fini(&c->table);
    *c = (struct checkpoint){0};
}

static enum brg_status bad_meta(const char *path, const char *key, struct err *e) {
    return err_set(e, BRG_E_CHECKPOINT,
                   "%s: metadata \"%s\" is missing or wrong; this is no checkpoint of a "
                   "run",
                   path, key);
}

static enum brg_status meta_number(const struct tensors *t, const char *path, const char *key,
                                   uint64_t *out, struct err *e) {
    char text[32];
    if (tensors_meta_get(t, key, text, sizeof text) && parse_u64(text, out)) return BRG_OK;
    return bad_meta(path, key, e);
}

static enum brg_status read_meta(const char *path, struct checkpoint *c, struct err *e) {
    char text[HASH_HEX_BYTES];
    const struct tensors *t = &c->table;
    if (!tensors_meta_get(t, "format", text, sizeof text)) return bad_meta(path, "format", e);
    size_t n = strlen(FORMAT);
    if (strncmp(text, FORMAT, n) != 0) return bad_meta(path, "format", e);
    if (text[n] < '1' || text[n] > '8' || text[n + 1] != '\0')
        return err_set(e, BRG_E_CHECKPOINT,
                       "%s: is of format %s, newer than this program knows (" FORMAT
                       "8); use the beringia that wrote it, or a newer one",
                       path, text);
    unsigned form = (unsigned)(text[n] - '1'); /* until the layout is read: which there are */
    c->e_offset = form & 1;
    c->ema_offset = form >> 1 & 1;
    c->v_offset = form >> 2;
    TRY(meta_number(t, path, "version", &c->version, e));
    TRY(meta_number(t, path, "parent", &c->parent, e));
    TRY(meta_number(t, path, "tokens", &c->tokens, e));
    if (!tensors_meta_get(t, KEY_THETA, text, sizeof text) ||
        !hex_decode(text, c->theta_hash.v, HASH_BYTES)) {
        return bad_meta(path, KEY_THETA, e);
    }
    if (!tensors_meta_get(t, "run", text, sizeof text) || !hex_decode(text, c->run.v, ID_BYTES)) {
        return bad_meta(path, "run", e);
    }
    return BRG_OK;
}

static enum brg_status want_tensor(const char *path, const struct tensor *t, const char *name,
                                   enum tensor_type type, uint64_t elements, struct err *e) {
    if (strcmp(t->name, name) == 0 && t->type == type && t->elements == elements && elements > 0)
        return BRG_OK;
    return err_set(e, BRG_E_CHECKPOINT,
                   "%s: tensor \"%s\": expected \"%s\" with one %s for each parameter", path,
                   t->name, name, tensor_type_name(type));
}

/* Takes the run's own tensors off the table: what stays are the parameters. */
static enum brg_status read_layout(const char *path, struct checkpoint *c, struct err *e) {
    struct tensors *t = &c->table;
    bool has_e = c->e_offset > 0, has_ema = c->ema_offset > 0, has_v = c->v_offset > 0;
    size_t own = 2U + has_e + has_ema + has_v;
    if (t->count < own + 1)
        return err_set(e, BRG_E_CHECKPOINT, "%s: not parameters, outer state and ledger", path);
    const struct tensor *m = &t->v[t->count - own], *ledger = &t->v[t->count - 1];
    const struct tensor *v = m + 1 + has_ema;
    c->elements = 0;
    for (size_t i = 0; i + own < t->count; i++) {
        if (t->v[i].type != TENSOR_F32) {
            return err_set(e, BRG_E_CHECKPOINT, "%s: tensor \"%s\": not F32", path, t->v[i].name);
        }
        c->elements += t->v[i].elements; /* bounded by the size of the file */
    }
    TRY(want_tensor(path, m, NAME_M, TENSOR_F32, c->elements, e));
    if (has_ema) TRY(want_tensor(path, m + 1, NAME_EMA, TENSOR_F32, c->elements, e));
    if (has_v) TRY(want_tensor(path, v, NAME_V, TENSOR_F32, c->elements, e));
    if (has_e) TRY(want_tensor(path, ledger - 1, NAME_E, TENSOR_BF16, c->elements, e));
    if (strcmp(ledger->name, NAME_LEDGER) != 0 || ledger->type != TENSOR_U8) {
        return err_set(e, BRG_E_CHECKPOINT, "%s: tensor \"%s\": expected \"ledger\" as U8", path,
                       ledger->name);
    }
    c->theta_offset = t->data_offset;
    c->m_offset = m->offset;
    c->ledger_offset = ledger->offset;
    c->ledger_bytes = ledger->bytes;
    if (has_ema) c->ema_offset = m[1].offset;
    if (has_v) c->v_offset = v->offset;
    if (has_e) c->e_offset = ledger[-1].offset;
    t->count -= own;
    uint64_t end = c->m_offset + 4 * c->elements;
    CHECK(c->m_offset == c->theta_offset + 4 * c->elements); /* K2 */
    CHECK(!has_ema || c->ema_offset == end);                 /* K2 */
    if (has_ema) end += 4 * c->elements;
    CHECK(!has_v || c->v_offset == end); /* K2 */
    if (has_v) end += 4 * c->elements;
    CHECK(!has_e || c->e_offset == end); /* K2 */
    if (has_e) end += 2 * c->elements;
    CHECK(c->ledger_offset == end); /* K2 */
    return BRG_OK;
}

bool checkpoint_about_get(const struct checkpoint *c, struct checkpoint_about *out) {
    char text[32];
    uint64_t term = 0;
    memset(out, 0, sizeof *out);
    bool all = tensors_meta_get(&c->table, "facts", out->facts, sizeof out->facts) &&
               tensors_meta_get(&c->table, "settings", out->settings, sizeof out->settings) &&
               tensors_meta_get(&c->table, "term", text, sizeof text) && parse_u64(text, &term) &&
               term <= UINT32_MAX;
    out->term = (uint32_t)term;
    return all;
}

enum brg_status checkpoint_open(const char *path, struct checkpoint *out, struct err *e) {
    struct checkpoint c = {0};
    TRY(tensors_read(path, &c.table, e));
    enum brg_status s = read_meta(path, &c, e);
    if (s == BRG_OK) s = read_layout(path, &c, e);
    if (s != BRG_OK) {
        checkpoint_fini(&c);
        return s;
    }
    *out = c;
    return BRG_OK;
}

/* ---- Writing --------------------------------------------------------------------------------- */
struct checkpoint_writer {
    int fd;
    uint64_t elements, ema_elements, v_elements, e_elements, theta_count;
    _Atomic uint64_t m_count, ema_count, v_count, e_count;
    uint64_t theta_offset, m_offset, ema_offset, v_offset, e_offset, theta_hex_offset, file_bytes;
    struct hasher theta;
    char path[OS_PATH_MAX];
};

static enum brg_status lay_out(const struct checkpoint_head *head, struct tensors *t,
                               uint64_t *out_elements, struct err *e) {
    uint64_t elements = 0;
    for (size_t i = 0; i < head->table->count; i++) {
        const struct tensor *x = &head->table->v[i];
        CHECK(x->type == TENSOR_F32);
        if (checkpoint_own_tensor(x->name)) {
            return err_set(e, BRG_E_MODEL,
                           "tensor \"%s\": the name is taken by the run's own state", x->name);
        }
        tensors_add(t, x->name, x->type, x->dims, x->shape);
        elements += x->elements;
    }
    CHECK(elements > 0);
    tensors_add(t, NAME_M, TENSOR_F32, 1, &elements);
    if (head->has_ema) tensors_add(t, NAME_EMA, TENSOR_F32, 1, &elements);
    if (head->has_v) tensors_add(t, NAME_V, TENSOR_F32, 1, &elements);
    if (head->has_e) tensors_add(t, NAME_E, TENSOR_BF16, 1, &elements);
    tensors_add(t, NAME_LEDGER, TENSOR_U8, 1, &(uint64_t){head->ledger_bytes});
    *out_elements = elements;
    return BRG_OK;
}

static void set_number(struct tensors *t, const char *key, uint64_t value) {
    char text[32];
    snprintf(text, sizeof text, "%llu", (unsigned long long)value);
    tensors_meta_set(t, key, text);
}

static void set_meta(const struct checkpoint_head *head, struct tensors *t) {
    char run[ID_HEX_BYTES], format[sizeof FORMAT + 1];
    id_hex(&head->run, run);
    (void)snprintf(format, sizeof format, FORMAT "%c",
                   '1' + head->has_e + 2 * head->has_ema + 4 * head->has_v);
    tensors_meta_set(t, "format", format);
    tensors_meta_set(t, "run", run);
    set_number(t, "version", head->version);
    set_number(t, "parent", head->parent);
    set_number(t, "tokens", head->tokens);
    tensors_meta_set(t, KEY_THETA, HEX_ZERO);
    tensors_meta_set(t, "model", head->model_json);
    if (head->about == NULL) return;
    tensors_meta_set(t, "facts", head->about->facts);
    tensors_meta_set(t, "settings", head->about->settings);
    set_number(t, "term", head->about->term);
}

/* Where the 64 digits stand. Inside any string a quotation mark is escaped, and a tensor's entry
 * is an object, so this text occurs once. */
static uint64_t find_theta_hex(const struct buf *header) {
    static const char key[] = "\"" KEY_THETA "\":\"" HEX_ZERO "\"";
    const uint8_t *at = memmem(header->data, header->bytes_count, key, sizeof key - 1);
    CHECK(at != NULL);
    return (uint64_t)(at - header->data) + strlen("\"" KEY_THETA "\":\"");
}

static enum brg_status writer_start(struct checkpoint_writer *w, const struct checkpoint_head *head,
                                    struct tensors *t, struct buf *header, struct err *e) {
    TRY(lay_out(head, t, &w->elements, e));
    set_meta(head, t);
    TRY(tensors_header(t, header, e));
    w->theta_hex_offset = find_theta_hex(header);
    w->theta_offset = t->data_offset;
    w->m_offset = t->data_offset + 4 * w->elements;
    w->ema_elements = head->has_ema ? w->elements : 0;
    w->ema_offset = w->m_offset + 4 * w->elements;
    w->v_elements = head->has_v ? w->elements : 0;
    w->v_offset = w->ema_offset + 4 * w->ema_elements;
    w->e_offset = w->v_offset + 4 * w->v_elements;
    w->e_elements = head->has_e ? w->elements : 0;
    w->file_bytes = t->file_bytes;
    CHECK(t->v[t->count - 1].offset == w->e_offset + 2 * w->e_elements); /* K2 */
    w->fd = open(w->path, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    if (w->fd < 0) return os_errno(e, errno, "create", w->path);
    /* A full disk is better found now than after a minute of merging. Some file systems cannot
     * say. */
    if (fallocate(w->fd, 0, 0, (off_t)w->file_bytes) != 0 && errno != EOPNOTSUPP &&
        errno != ENOSYS && errno != EINTR) {
        return os_errno(e, errno, "reserve space for", w->path);
    }
    TRY(os_pwrite_all(w->fd, header->data, header->bytes_count, 0, w->path, e));
    return os_pwrite_all(w->fd, head->ledger, head->ledger_bytes, t->v[t->count - 1].offset,
                         w->path, e);
}

enum brg_status checkpoint_writer_open(const char *path, const struct checkpoint_head *head,
                                       struct checkpoint_writer **out, struct err *e) {
    struct checkpoint_writer *w = mem_alloc(1, sizeof *w);
    w->fd = -1;
    hasher_init(&w->theta);
    if ((size_t)snprintf(w->path, sizeof w->path, "%s", path) >= sizeof w->path) {
        mem_free(w);
        return err_set(e, BRG_E_CONFIG, "checkpoint path is too long");
    }
    struct tensors t = {0};
    struct buf header;
    buf_init(&header, HEADER_MAX);
    enum brg_status s = writer_start(w, head, &t, &header, e);
    tensors_fini(&t);
    buf_fini(&header);
    if (s != BRG_OK) {
        checkpoint_writer_abort(w);
        return s;
    }
    *out = w;
    return BRG_OK;
}

/* One piece to its place, and on its way to the disk: without the push all of it would wait in
 * memory for the fsync at the end, and reading, computing and writing would not overlap. */
static enum brg_status write_piece(struct checkpoint_writer *w, const void *x, size_t bytes,
                                   uint64_t at, struct err *e) {
    TRY(os_pwrite_all(w->fd, x, bytes, at, w->path, e));
    (void)sync_file_range(w->fd, (off_t)at, (off_t)bytes, SYNC_FILE_RANGE_WRITE);
    return BRG_OK;
}

enum brg_status checkpoint_write_theta(struct checkpoint_writer *w, const float *x, size_t n,
                                       struct err *e) {
    CHECK(n <= w->elements - w->theta_count); /* K1 */
    TRY(write_piece(w, x, 4 * n, w->theta_offset + 4 * w->theta_count, e));
    hasher_update(&w->theta, x, 4 * n);
    w->theta_count += n;
    return BRG_OK;
}

enum brg_status checkpoint_write_m(struct checkpoint_writer *w, const float *x, size_t n,
                                   struct err *e) {
    CHECK(n <= w->elements - w->m_count); /* K1 */
    TRY(write_piece(w, x, 4 * n, w->m_offset + 4 * w->m_count, e));
    w->m_count += n;
    return BRG_OK;
}

enum brg_status checkpoint_write_at(struct checkpoint_writer *w, uint64_t at, const float *theta,
                                    const float *m, const uint8_t *e_or_null, size_t n,
                                    struct err *e) {
    CHECK(at <= w->elements);
    CHECK(n <= w->elements - at);
    CHECK((e_or_null != NULL) == (w->e_elements > 0)); /* K1 */
    TRY(write_piece(w, theta, 4 * n, w->theta_offset + 4 * at, e));
    TRY(write_piece(w, m, 4 * n, w->m_offset + 4 * at, e));
    if (e_or_null != NULL) TRY(write_piece(w, e_or_null, 2 * n, w->e_offset + 2 * at, e));
    atomic_fetch_add(&w->m_count, n);
    if (e_or_null != NULL) atomic_fetch_add(&w->e_count, n);
    return BRG_OK;
}

enum brg_status checkpoint_write_ema_at(struct checkpoint_writer *w, uint64_t at, const float *ema,
                                        size_t n, struct err *e) {
    CHECK(at <= w->ema_elements);
    CHECK(n <= w->ema_elements - at); /* K1 */
    TRY(write_piece(w, ema, 4 * n, w->ema_offset + 4 * at, e));
    atomic_fetch_add(&w->ema_count, n);
    return BRG_OK;
}

enum brg_status checkpoint_write_v_at(struct checkpoint_writer *w, uint64_t at, const float *v,
                                      size_t n, struct err *e) {
    CHECK(at <= w->v_elements);
    CHECK(n <= w->v_elements - at); /* K1 */
    TRY(write_piece(w, v, 4 * n, w->v_offset + 4 * at, e));
    atomic_fetch_add(&w->v_count, n);
    return BRG_OK;
}

void checkpoint_hash_theta(struct checkpoint_writer *w, const float *x, size_t n) {
    hasher_update(&w->theta, x, 4 * n);
    w->theta_count += n;
}

static enum brg_status seal(struct checkpoint_writer *w, struct hash *out_file,
                            struct hash *out_theta, struct err *e) {
    char hex[HASH_HEX_BYTES];
    uint64_t bytes;
    *out_theta = hasher_final(&w->theta);
    hash_hex(out_theta, hex);
    TRY(os_pwrite_all(w->fd, hex, HASH_HEX_BYTES - 1, w->theta_hex_offset, w->path, e));
    TRY(store_fsync(w->fd, w->path, e));
    TRY(store_hash_fd(w->fd, w->path, out_file, &bytes, e));
    if (bytes == w->file_bytes) return BRG_OK;
    return err_set(e, BRG_E_IO, "%s: %llu bytes instead of %llu; another program wrote to it",
                   w->path, (unsigned long long)bytes, (unsigned long long)w->file_bytes);
}

enum brg_status checkpoint_writer_finish(struct checkpoint_writer *w, struct hash *out_file,
                                         uint64_t *out_bytes, struct hash *out_theta,
                                         struct err *e) {
    CHECK(w->theta_count == w->elements);   /* K1 */
    CHECK(w->m_count == w->elements);       /* K1 */
    CHECK(w->ema_count == w->ema_elements); /* K1 */
    CHECK(w->v_count == w->v_elements);     /* K1 */
    CHECK(w->e_count == w->e_elements);     /* K1 */
    struct hash file, theta;
    enum brg_status s = seal(w, &file, &theta, e);
    if (s != BRG_OK) {
        checkpoint_writer_abort(w);
        return s;
    }
    *out_file = file;
    *out_bytes = w->file_bytes;
    *out_theta = theta;
    os_close_cleanup(&w->fd);
    mem_free(w);
    return BRG_OK;
}

void checkpoint_writer_abort(struct checkpoint_writer *w) {
    if (w == NULL) return;
    if (w->fd >= 0) (void)unlink(w->path);
    os_close_cleanup(&w->fd);
    mem_free(w);
}
