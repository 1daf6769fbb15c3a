/* SPDX-License-Identifier: Apache-2.0 */
#include "base/os.h"
#include "data/docs.h"
#include "data/map.h"
#include "data/tokenizer.h"

enum brg_status tokenizer_load(const char *path, struct tokenizer **out, struct err *e) {
    AUTO_BUF struct buf text;
    buf_init(&text, TOKENIZER_JSON_BYTES_MAX);
    TRY(os_read_file(path, TOKENIZER_JSON_BYTES_MAX, &text, e));
    return tokenizer_parse(path, text.data, text.bytes_count, out, e);
}

enum brg_status tokenizer_save(const struct tokenizer *t, const char *path, struct err *e) {
    AUTO_BUF struct buf text;
    buf_init(&text, TOKENIZER_JSON_BYTES_MAX);
    TRY(tokenizer_write(t, &text, e));
    return os_write_file_atomic(path, text.data, text.bytes_count, e);
}

/* Documents as tokenizer_train wants them. Those of plain files point into the mapping; those of
 * jsonl are copied, since a decoded line lives only until the next. */
struct texts {
    const char **text;
    size_t *bytes;
    bool *owned;
    size_t count, cap;
};

static void texts_add(struct texts *t, const char *text, size_t bytes, bool copy) {
    if (t->count == t->cap) {
        size_t cap = t->cap == 0 ? 64 : 2 * t->cap;
        t->text = mem_grow(t->text, t->cap, cap, sizeof *t->text);
        t->bytes = mem_grow(t->bytes, t->cap, cap, sizeof *t->bytes);
        t->owned = mem_grow(t->owned, t->cap, cap, sizeof *t->owned);
        t->cap = cap;
    }
    if (copy) {
        char *own = mem_alloc(bytes, 1);
        memcpy(own, text, bytes);
        text = own;
    }
    t->text[t->count] = text;
    t->bytes[t->count] = bytes;
    t->owned[t->count++] = copy;
}

static void texts_fini(struct texts *t) {
    for (size_t i = 0; i < t->count; i++)
        if (t->owned[i]) mem_free((void *)(uintptr_t)t->text[i]);
    mem_free(t->text);
    mem_free(t->bytes);
    mem_free(t->owned);
}

static enum brg_status texts_read(struct texts *t, const char *path, const struct map *m,
                                  struct err *e) {
    struct docs d;
    const char *text = NULL;
    size_t bytes = 0;
    TRY(docs_init(&d, path, m->data, m->bytes, e));
    enum brg_status s;
    while ((s = docs_next(&d, &text, &bytes, e)) == BRG_OK && text != NULL)
        texts_add(t, text, bytes, d.jsonl);
    docs_fini(&d);
    return s;
}

enum brg_status tokenizer_train_files(const char *const *paths, size_t count, uint32_t vocab_size,
                                      struct tokenizer **out, struct err *e) {
    struct map *maps = mem_alloc(count, sizeof *maps);
    struct texts texts = {0};
    enum brg_status s = BRG_OK;
    for (size_t i = 0; i < count && s == BRG_OK; i++) {
        s = map_open(&maps[i], paths[i], e);
        if (s == BRG_OK) s = texts_read(&texts, paths[i], &maps[i], e);
    }
    if (s == BRG_OK) s = tokenizer_train(texts.text, texts.bytes, texts.count, vocab_size, out, e);
    texts_fini(&texts);
    for (size_t i = 0; i < count; i++) map_close(&maps[i]);
    mem_free(maps);
    return s;
}
