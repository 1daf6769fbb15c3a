/* SPDX-License-Identifier: Apache-2.0 */
/* normal.c - normalization form C.
 *
 * A character is *plain* where it stays itself, is no mark, and never joins with what stands before
 * it. Between two plain characters nothing can happen, so form C is computed only for stretches that
 * hold others: from the last plain character before them (a mark may join with it) up to the next
 * plain one. Most texts are plain throughout, and are not even copied.
 *
 *   text --utf8proc: decompose--> characters --stable sort by class--> --utf8proc: compose--> text */
#include "data/normal.h"

#include <string.h>
#include <utf8proc.h>

#include "data/utf8.h"

enum { POINTS = 0x110000, PARTS_MAX = 32, SORT_SHORT = 32, CLASSES = 256 };

struct normal {
    uint8_t other[POINTS / 8]; /* bit set: not plain */
};

static bool is_other(const struct normal *n, uint32_t c) {
    return (n->other[c >> 3] >> (c & 7) & 1) != 0;
}

static void set_other(struct normal *n, uint32_t c) {
    n->other[c >> 3] |= (uint8_t)(1u << (c & 7));
}

/* Full canonical decomposition of c. */
static size_t decompose(int32_t c, int32_t parts[PARTS_MAX]) {
    int last = 0;
    utf8proc_ssize_t k =
        utf8proc_decompose_char(c, parts, PARTS_MAX, UTF8PROC_STABLE | UTF8PROC_DECOMPOSE, &last);
    CHECK(k >= 1 && k <= PARTS_MAX);
    return (size_t)k;
}

/* Has a decomposition or is a mark; that of Hangul syllables is computed, not in the table. */
static bool may_change(const utf8proc_property_t *p) {
    return p->combining_class != 0 || p->decomp_seqindex != UINT16_MAX;
}

static void look_at(struct normal *n, uint32_t c) {
    int32_t parts[PARTS_MAX];
    if (utf8proc_get_property((int32_t)c)->combining_class != 0) set_other(n, c);
    size_t k = decompose((int32_t)c, parts);
    if (k == 1 && parts[0] == (int32_t)c) return;
    for (size_t i = 1; i < k; i++) set_other(n, (uint32_t)parts[i]);
    utf8proc_ssize_t m =
        utf8proc_normalize_utf32(parts, (utf8proc_ssize_t)k, UTF8PROC_STABLE | UTF8PROC_COMPOSE);
    if (m != 1 || parts[0] != (int32_t)c) set_other(n, c);
}

/* Nothing of the planes from 3 on is touched by normalization; a test looks at every character. */
enum { TOUCHED = 0x30000 };

struct normal *normal_create(void) {
    struct normal *n = mem_alloc(1, sizeof *n);
    int32_t parts[PARTS_MAX];
    for (uint32_t c = 0x80; c < TOUCHED; c++)
        if (may_change(utf8proc_get_property((int32_t)c))) look_at(n, c);
    for (uint32_t c = 0x1161; c <= 0x1175; c++) set_other(n, c); /* vowels and finals join */
    for (uint32_t c = 0x11a8; c <= 0x11c2; c++) set_other(n, c);
    /* Whoever begins with a character that joins backwards does so, too. */
    for (uint32_t c = 0x80; c < TOUCHED; c++)
        if (may_change(utf8proc_get_property((int32_t)c)) && decompose((int32_t)c, parts) > 1 &&
            is_other(n, (uint32_t)parts[0]))
            set_other(n, c);
    return n;
}

void normal_destroy(struct normal *n) {
    mem_free(n);
}

/* Skips plain characters from `at`; *out_last is where the last of them begins, or `at`. */
static size_t skip_plain(const struct normal *n, const uint8_t *p, size_t at, size_t bytes,
                         size_t *out_last) {
    size_t i = at;
    *out_last = at;
    while (i < bytes) {
        if (p[i] < 0x80) {
            uint64_t eight;
            while (i + 8 <= bytes) {
                memcpy(&eight, p + i, 8);
                if (eight & UINT64_C(0x8080808080808080)) break;
                i += 8;
                *out_last = i - 1;
            }
            if (i == bytes || p[i] >= 0x80) continue;
            *out_last = i++;
            continue;
        }
        size_t k;
        uint32_t c = utf8_decode(p + i, &k);
        if (is_other(n, c)) return i;
        *out_last = i;
        i += k;
    }
    return i;
}

bool normal_is_plain(const struct normal *n, const char *text, size_t bytes) {
    size_t last;
    return skip_plain(n, (const uint8_t *)text, 0, bytes, &last) == bytes;
}

struct marks {
    int32_t *points, *spare;
    size_t count, cap;
};

static void marks_room(struct marks *m, size_t more) {
    if (m->count + more <= m->cap) return;
    size_t cap = 2 * (m->count + more) + 64;
    m->points = mem_grow(m->points, m->cap, cap, sizeof *m->points);
    mem_free(m->spare);
    m->spare = mem_alloc(cap, sizeof *m->spare);
    m->cap = cap;
}

static uint32_t class_of(int32_t c) {
    uint32_t k = (uint32_t)utf8proc_get_property(c)->combining_class;
    CHECK(k < CLASSES);
    return k;
}

/* Stable, by class; all classes in [from, to) are above 0. */
static void sort_run(struct marks *m, size_t from, size_t to) {
    int32_t *p = m->points + from;
    size_t n = to - from;
    if (n <= SORT_SHORT) {
        for (size_t i = 1; i < n; i++) {
            int32_t c = p[i];
            uint32_t k = class_of(c);
            size_t j = i;
            for (; j > 0 && class_of(p[j - 1]) > k; j--) p[j] = p[j - 1];
            p[j] = c;
        }
        return;
    }
    size_t start[CLASSES + 1] = {0};
    for (size_t i = 0; i < n; i++) start[class_of(p[i]) + 1]++;
    for (size_t k = 1; k <= CLASSES; k++) start[k] += start[k - 1];
    for (size_t i = 0; i < n; i++) m->spare[start[class_of(p[i])]++] = p[i];
    memcpy(p, m->spare, n * sizeof *p);
}

static void sort_marks(struct marks *m) {
    for (size_t i = 0; i < m->count;) {
        size_t j = i;
        while (j < m->count && class_of(m->points[j]) != 0) j++;
        if (j - i > 1) sort_run(m, i, j);
        i = j == i ? i + 1 : j;
    }
}

/* The stretch [from, to). */
static void put_stretch(const uint8_t *p, size_t from, size_t to, struct marks *m,
                        struct buf *out) {
    m->count = 0;
    for (size_t i = from, k; i < to; i += k) {
        uint32_t c = utf8_decode(p + i, &k);
        marks_room(m, PARTS_MAX);
        m->count += decompose((int32_t)c, m->points + m->count);
    }
    sort_marks(m);
    utf8proc_ssize_t n = utf8proc_normalize_utf32(m->points, (utf8proc_ssize_t)m->count,
                                                  UTF8PROC_STABLE | UTF8PROC_COMPOSE);
    CHECK(n >= 0);
    for (utf8proc_ssize_t i = 0; i < n; i++) {
        char bytes[4];
        buf_put(out, bytes, utf8_encode((uint32_t)m->points[i], bytes));
    }
}

void normal_put(const struct normal *n, const char *text, size_t bytes, struct buf *out) {
    const uint8_t *p = (const uint8_t *)text;
    struct marks m = {0};
    size_t at = 0, last;
    while (at < bytes) {
        size_t other = skip_plain(n, p, at, bytes, &last), end = other;
        if (other == bytes) last = bytes;
        buf_put(out, p + at, last - at);
        if (other == bytes) break;
        while (end < bytes) { /* to the next plain character */
            size_t k;
            if (!is_other(n, utf8_decode(p + end, &k))) break;
            end += k;
        }
        put_stretch(p, last, end, &m, out);
        at = end;
    }
    mem_free(m.points);
    mem_free(m.spare);
}
