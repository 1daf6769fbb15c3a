/* SPDX-License-Identifier: Apache-2.0 */
/* base.c - status codes, errors with a remedy, bounded buffers and readers, little-endian places.
 *
 * Invariants
 *   (B1) A buffer never holds more than bytes_max bytes: a put that does not fit is lost whole, and
 *        so is every later one, so that what is there is always a prefix of what was put.
 *   (B2) A reader never reads past its end: after the first short get every get gives zeros. */
#include "base/base.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>

/* ---- Status ---------------------------------------------------------------------------------- */

struct status_row {
    const char *name;
    const char *sentence;
    enum brg_status status;
    enum brg_class class_;
};

static const struct status_row status_rows[] = {
#define X(name, number, class_, sentence) {#name, sentence, BRG_##name, BRG_CLASS_##class_},
    BRG_STATUS_TABLE(X)
#undef X
};

static const struct status_row *row_of(enum brg_status s) {
    for (size_t i = 0; i < ARRAY_COUNT(status_rows); i++)
        if (status_rows[i].status == s) return &status_rows[i];
    return NULL;
}

const char *status_name(enum brg_status s) {
    const struct status_row *row = row_of(s);
    return row ? row->name : "E_UNKNOWN";
}

const char *status_sentence(enum brg_status s) {
    const struct status_row *row = row_of(s);
    return row ? row->sentence : "a status this version does not know";
}

enum brg_class status_class(enum brg_status s) {
    const struct status_row *row = row_of(s);
    return row ? row->class_ : BRG_CLASS_CALLER;
}

enum brg_status status_from_name(const char *name) {
    for (size_t i = 0; i < ARRAY_COUNT(status_rows); i++)
        if (strcmp(status_rows[i].name, name) == 0) return status_rows[i].status;
    return BRG_E_INTERNAL;
}

/* ---- Errors ---------------------------------------------------------------------------------- */

/* One line, whole UTF-8 characters: control characters become blanks, and a character that was cut
 * by the end of the buffer goes. */
static void text_tidy(char *text, bool was_cut) {
    size_t n = strlen(text);
    if (was_cut && n > 0) {
        size_t start = n - 1;
        while (start > 0 && ((unsigned char)text[start] & 0xC0) == 0x80) start--;
        unsigned char lead = (unsigned char)text[start];
        size_t want = lead < 0x80 ? 1 : lead >= 0xF0 ? 4 : lead >= 0xE0 ? 3 : 2;
        if (start + want > n) text[start] = '\0';
    }
    for (char *p = text; *p; p++)
        if ((unsigned char)*p < 0x20 || *p == 0x7F) *p = ' ';
}

enum brg_status err_set(struct err *e, enum brg_status status, const char *fmt, ...) {
    if (!e) return status;
    /* Through a copy: the arguments may point into e->text. */
    char text[sizeof e->text];
    va_list args;
    va_start(args, fmt);
    int n = vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    if (n < 0) text[0] = '\0';
    text_tidy(text, n >= (int)sizeof text);
    e->status = status;
    memcpy(e->text, text, sizeof text);
    return status;
}

enum brg_status err_prefix(struct err *e, const char *fmt, ...) {
    CHECK(e != NULL);
    char text[sizeof e->text];
    va_list args;
    va_start(args, fmt);
    int n = vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    if (n < 0) n = 0;
    bool was_cut = n >= (int)sizeof text;
    if (!was_cut) {
        size_t room = sizeof text - (size_t)n;
        was_cut = snprintf(text + n, room, ": %s", e->text) >= (int)room;
    }
    text_tidy(text, was_cut);
    memcpy(e->text, text, sizeof text);
    return e->status;
}

/* ---- Buffer ---------------------------------------------------------------------------------- */

void buf_init(struct buf *b, size_t bytes_max) {
    *b = (struct buf){.bytes_max = bytes_max};
}

void buf_fini(struct buf *b) {
    mem_free(b->data);
    *b = (struct buf){0};
}

void buf_fini_cleanup(struct buf *b) {
    buf_fini(b);
}

void buf_reset(struct buf *b) {
    b->bytes_count = 0;
    b->overflow = false;
}

/* Makes room for n more bytes and the NUL of buf_cstr, which does not count against the maximum. */
static bool buf_room(struct buf *b, size_t n) {
    CHECK(b->bytes_count <= b->bytes_max); /* B1 */
    if (b->overflow || n > b->bytes_max - b->bytes_count) {
        b->overflow = true;
        return false;
    }
    CHECK(b->bytes_max < SIZE_MAX);
    size_t need = b->bytes_count + n + 1;
    if (need <= b->bytes_cap) return true;
    size_t cap = b->bytes_cap < 64 ? 64 : b->bytes_cap;
    while (cap < need) cap = cap > SIZE_MAX / 2 ? need : cap * 2;
    if (cap > b->bytes_max + 1) cap = b->bytes_max + 1;
    b->data = mem_grow(b->data, b->bytes_cap, cap, 1);
    b->bytes_cap = cap;
    return true;
}

void buf_put(struct buf *b, const void *data, size_t n) {
    if (!buf_room(b, n)) return;
    if (n > 0) memcpy(b->data + b->bytes_count, data, n);
    b->bytes_count += n;
}

void buf_u8(struct buf *b, uint8_t v) {
    buf_put(b, &v, 1);
}

void buf_u16(struct buf *b, uint16_t v) {
    uint8_t p[2] = {(uint8_t)v, (uint8_t)(v >> 8)};
    buf_put(b, p, sizeof p);
}

void buf_u32(struct buf *b, uint32_t v) {
    uint8_t p[4];
    put_le32(p, v);
    buf_put(b, p, sizeof p);
}

void buf_u64(struct buf *b, uint64_t v) {
    uint8_t p[8];
    put_le64(p, v);
    buf_put(b, p, sizeof p);
}

void buf_f32(struct buf *b, float v) {
    uint32_t bits;
    static_assert(sizeof bits == sizeof v, "float is 32 bits");
    memcpy(&bits, &v, sizeof bits);
    buf_u32(b, bits);
}

void buf_f64(struct buf *b, double v) {
    uint64_t bits;
    static_assert(sizeof bits == sizeof v, "double is 64 bits");
    memcpy(&bits, &v, sizeof bits);
    buf_u64(b, bits);
}

void buf_str(struct buf *b, const char *s) {
    size_t n = strlen(s);
    /* Length and bytes go together or not at all. */
    if (n > UINT16_MAX || !buf_room(b, n + 2)) {
        b->overflow = true;
        return;
    }
    buf_u16(b, (uint16_t)n);
    buf_put(b, s, n);
}

void buf_printf(struct buf *b, const char *fmt, ...) {
    va_list args, again;
    va_start(args, fmt);
    va_copy(again, args);
    int n = vsnprintf(NULL, 0, fmt, args);
    va_end(args);
    if (n < 0) b->overflow = true;
    if (n >= 0 && buf_room(b, (size_t)n)) {
        (void)vsnprintf((char *)b->data + b->bytes_count, (size_t)n + 1, fmt, again);
        b->bytes_count += (size_t)n;
    }
    va_end(again);
}

const char *buf_cstr(struct buf *b) {
    if (!b->data) {
        b->data = mem_grow(NULL, 0, 1, 1);
        b->bytes_cap = 1;
    }
    CHECK(b->bytes_count < b->bytes_cap);
    b->data[b->bytes_count] = '\0';
    return (const char *)b->data;
}

/* ---- Reader ---------------------------------------------------------------------------------- */

struct reader reader_of(const void *data, size_t n) {
    const uint8_t *p = data;
    /* NULL + 0 is not defined in C, and an empty buffer has NULL data. */
    return (struct reader){.p = p, .end = n > 0 ? p + n : p, .ok = true};
}

const void *get_bytes(struct reader *r, size_t n) {
    static const uint8_t nothing[1] = {0};
    if (!r->ok || n > (size_t)(r->end - r->p)) {
        r->ok = false;
        return NULL;
    }
    if (n == 0) return r->p ? r->p : nothing;
    CHECK(r->p < r->end); /* B2 */
    const void *p = r->p;
    r->p += n;
    return p;
}

uint8_t get_u8(struct reader *r) {
    const uint8_t *p = get_bytes(r, 1);
    return p ? p[0] : 0;
}

uint16_t get_u16(struct reader *r) {
    const uint8_t *p = get_bytes(r, 2);
    return p ? (uint16_t)((unsigned)p[0] | (unsigned)p[1] << 8) : 0;
}

uint32_t get_u32(struct reader *r) {
    const uint8_t *p = get_bytes(r, 4);
    return p ? get_le32(p) : 0;
}

uint64_t get_u64(struct reader *r) {
    const uint8_t *p = get_bytes(r, 8);
    return p ? get_le64(p) : 0;
}

float get_f32(struct reader *r) {
    uint32_t bits = get_u32(r);
    float v;
    memcpy(&v, &bits, sizeof v);
    return v;
}

double get_f64(struct reader *r) {
    uint64_t bits = get_u64(r);
    double v;
    memcpy(&v, &bits, sizeof v);
    return v;
}

bool get_str(struct reader *r, char *out, size_t cap) {
    CHECK(cap > 0);
    /* The empty string on failure, not an untouched array: callers look at r->ok only at the end. */
    out[0] = '\0';
    size_t n = get_u16(r);
    const char *p = get_bytes(r, n);
    if (!p) return false;
    /* A NUL inside would make two different encodings look like the same string. */
    if (n >= cap || memchr(p, 0, n) != NULL) {
        r->ok = false;
        return false;
    }
    memcpy(out, p, n);
    out[n] = '\0';
    return true;
}

/* ---- Places ---------------------------------------------------------------------------------- */

void put_le32(uint8_t *p, uint32_t v) {
    for (int i = 0; i < 4; i++) p[i] = (uint8_t)(v >> (8 * i));
}

void put_le64(uint8_t *p, uint64_t v) {
    for (int i = 0; i < 8; i++) p[i] = (uint8_t)(v >> (8 * i));
}

uint32_t get_le32(const uint8_t *p) {
    uint32_t v = 0;
    for (int i = 0; i < 4; i++) v |= (uint32_t)p[i] << (8 * i);
    return v;
}

uint64_t get_le64(const uint8_t *p) {
    uint64_t v = 0;
    for (int i = 0; i < 8; i++) v |= (uint64_t)p[i] << (8 * i);
    return v;
}
