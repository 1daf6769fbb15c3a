/* SPDX-License-Identifier: Apache-2.0 */
#include "data/added.h"

#include <string.h>
#include <utf8proc.h>

#include "data/utf8.h"

/* A node's children are a list, in the order they came: nearly all nodes have one child. */
struct node {
    uint32_t child, sibling; /* 0: none */
    const struct added_token *token;
    uint8_t byte;
};

struct added_set {
    struct node *nodes; /* [0] is the root */
    uint32_t count, cap;
    uint32_t first[256]; /* the root's children; 0 where no token begins so */
    uint8_t only;        /* the byte that all begin with */
    uint32_t firsts;     /* how many bytes they begin with */
};

struct added_set *added_set_create(void) {
    struct added_set *s = mem_alloc(1, sizeof *s);
    s->cap = 64;
    s->nodes = mem_alloc(s->cap, sizeof *s->nodes);
    s->count = 1;
    return s;
}

void added_set_destroy(struct added_set *s) {
    if (s == NULL) return;
    mem_free(s->nodes);
    mem_free(s);
}

bool added_set_empty(const struct added_set *s) {
    return s->count == 1;
}

static uint32_t child_find(const struct added_set *s, uint32_t node, uint8_t byte) {
    if (node == 0) return s->first[byte];
    uint32_t c = s->nodes[node].child;
    while (c != 0 && s->nodes[c].byte != byte) c = s->nodes[c].sibling;
    return c;
}

static uint32_t child_add(struct added_set *s, uint32_t node, uint8_t byte) {
    if (s->count == s->cap) {
        s->nodes = mem_grow(s->nodes, s->cap, 2 * (size_t)s->cap, sizeof *s->nodes);
        s->cap *= 2;
    }
    uint32_t c = s->count++;
    s->nodes[c] = (struct node){.byte = byte};
    if (node == 0) {
        s->first[byte] = c;
        s->only = byte;
        s->firsts++;
    } else {
        s->nodes[c].sibling = s->nodes[node].child;
        s->nodes[node].child = c;
    }
    return c;
}

void added_set_put(struct added_set *s, const char *text, size_t bytes,
                   const struct added_token *token) {
    CHECK(bytes > 0);
    uint32_t node = 0;
    for (size_t i = 0; i < bytes; i++) {
        uint32_t c = child_find(s, node, (uint8_t)text[i]);
        node = c != 0 ? c : child_add(s, node, (uint8_t)text[i]);
    }
    if (s->nodes[node].token == NULL) s->nodes[node].token = token;
}

/* The longest token that begins at p. */
static const struct added_token *longest(const struct added_set *s, const uint8_t *p, size_t n,
                                         size_t *out_bytes) {
    const struct added_token *best = NULL;
    uint32_t node = 0;
    for (size_t i = 0; i < n; i++) {
        node = child_find(s, node, p[i]);
        if (node == 0) break;
        if (s->nodes[node].token == NULL) continue;
        best = s->nodes[node].token;
        *out_bytes = i + 1;
    }
    return best;
}

/* The next place where a token could begin. */
static size_t candidate(const struct added_set *s, const uint8_t *p, size_t at, size_t n) {
    if (s->firsts == 1) {
        const uint8_t *found = memchr(p + at, s->only, n - at);
        return found == NULL ? n : (size_t)(found - p);
    }
    while (at < n && s->first[p[at]] == 0) at++;
    return at;
}

/* The character that ends at `end`; U+FFFD where the bytes there are none. */
static uint32_t before(const uint8_t *p, size_t end, size_t *out_bytes) {
    for (size_t k = 1; k <= 4 && k <= end; k++) {
        if ((p[end - k] & 0xc0) == 0x80) continue;
        if (utf8_char(p + end - k, k) != k) break;
        return utf8_decode(p + end - k, out_bytes);
    }
    *out_bytes = 1;
    return 0xfffd;
}

static uint32_t behind(const uint8_t *p, size_t n, size_t *out_bytes) {
    if (utf8_char(p, n) != 0) return utf8_decode(p, out_bytes);
    *out_bytes = 1;
    return 0xfffd;
}

/* \w of Rust's regex crate: Alphabetic, marks, decimal digits, connectors, joiners. */
static bool is_word(uint32_t c) {
    if (c == 0x200c || c == 0x200d) return true;
    if ((c >= 0x24b6 && c <= 0x24e9) || (c >= 0x1f130 && c <= 0x1f149) ||
        (c >= 0x1f150 && c <= 0x1f169) || (c >= 0x1f170 && c <= 0x1f189))
        return true; /* letters in circles and squares */
    utf8proc_category_t g = utf8proc_category((int32_t)c);
    return (g >= UTF8PROC_CATEGORY_LU && g <= UTF8PROC_CATEGORY_NL) || g == UTF8PROC_CATEGORY_PC;
}

static bool stands_alone(const struct added_walk *w, size_t begin, size_t end) {
    const uint8_t *p = (const uint8_t *)w->text;
    size_t n;
    if (begin > 0 && is_word(before(p, begin, &n))) return false;
    return end == w->bytes || !is_word(behind(p + end, w->bytes - end, &n));
}

static size_t strip_left(const struct added_walk *w, size_t begin) {
    size_t n;
    while (begin > w->from && utf8_is_space(before((const uint8_t *)w->text, begin, &n)))
        begin -= n;
    return begin < w->from ? w->from : begin;
}

static size_t strip_right(const struct added_walk *w, size_t end) {
    size_t n;
    while (end < w->bytes &&
           utf8_is_space(behind((const uint8_t *)w->text + end, w->bytes - end, &n)))
        end += n;
    return end;
}

bool added_next(const struct added_set *s, struct added_walk *w, const struct added_token **out,
                size_t *out_begin, size_t *out_end) {
    const uint8_t *p = (const uint8_t *)w->text;
    while (w->next < w->bytes && s->firsts > 0) {
        size_t begin = candidate(s, p, w->next, w->bytes), n = 0;
        if (begin == w->bytes) break;
        const struct added_token *t = longest(s, p + begin, w->bytes - begin, &n);
        w->next = t == NULL ? begin + 1 : begin + n;
        if (t == NULL || (t->special && !w->special)) continue;
        if (t->single_word && !stands_alone(w, begin, begin + n)) continue;
        *out = t;
        *out_begin = t->lstrip ? strip_left(w, begin) : begin;
        *out_end = t->rstrip ? strip_right(w, begin + n) : begin + n;
        w->from = *out_end;
        return true;
    }
    w->next = w->bytes;
    return false;
}
