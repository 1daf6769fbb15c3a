/* SPDX-License-Identifier: Apache-2.0 */
#include "data/docs.h"

#include <jansson.h>
#include <string.h>

static bool ends_with(const char *s, const char *end) {
    size_t n = strlen(s), m = strlen(end);
    return n >= m && strcmp(s + n - m, end) == 0;
}

enum brg_status docs_init(struct docs *d, const char *name, const char *text, size_t bytes,
                          struct err *e) {
    static const char *const PACKED[] = {".gz", ".zst", ".xz", ".bz2"};
    for (size_t i = 0; i < ARRAY_COUNT(PACKED); i++)
        if (ends_with(name, PACKED[i]))
            return err_set(e, BRG_E_USAGE, "%.300s: compressed text is not read; unpack it first",
                           name);
    *d = (struct docs){
        .name = name, .text = text, .bytes = bytes, .jsonl = ends_with(name, ".jsonl")};
    return BRG_OK;
}

void docs_fini(struct docs *d) {
    if (d->json != NULL) json_decref(d->json);
    *d = (struct docs){0};
}

/* End of the line at `at`, behind its newline. */
static size_t line_end(const struct docs *d, size_t at) {
    const char *p = memchr(d->text + at, '\n', d->bytes - at);
    return p == NULL ? d->bytes : (size_t)(p - d->text) + 1;
}

static bool is_separator(const char *line, size_t n) {
    static const char EOT[] = "<|endoftext|>";
    if (n > 0 && line[n - 1] == '\n') n--;
    if (n > 0 && line[n - 1] == '\r') n--;
    return (n == 1 && line[0] == '\f') || (n == sizeof EOT - 1 && memcmp(line, EOT, n) == 0);
}

static bool is_blank(const char *line, size_t n) {
    for (size_t i = 0; i < n; i++)
        if (line[i] != ' ' && line[i] != '\t' && line[i] != '\r' && line[i] != '\n') return false;
    return true;
}

static enum brg_status next_jsonl(struct docs *d, const char **out, size_t *out_bytes,
                                  struct err *e) {
    while (d->at < d->bytes) {
        const char *line = d->text + d->at;
        size_t end = line_end(d, d->at), n = end - d->at;
        d->at = end;
        d->line++;
        if (is_blank(line, n)) continue;
        json_error_t error;
        if (d->json != NULL) json_decref(d->json);
        json_t *root = d->json = json_loadb(line, n, JSON_ALLOW_NUL, &error);
        const json_t *text = json_object_get(root, "text");
        if (!json_is_string(text))
            return err_set(e, BRG_E_USAGE,
                           "%.300s: line %llu: %.100s; each line must be an object "
                           "with a string \"text\"",
                           d->name, (unsigned long long)d->line,
                           root == NULL ? error.text : "no string in field \"text\"");
        *out = json_string_value(text);
        *out_bytes = json_string_length(text);
        if (*out_bytes > 0) return BRG_OK;
    }
    *out = NULL;
    return BRG_OK;
}

enum brg_status docs_next(struct docs *d, const char **out, size_t *out_bytes, struct err *e) {
    if (d->jsonl) return next_jsonl(d, out, out_bytes, e);
    while (d->at < d->bytes) {
        size_t start = d->at, stop = start;
        while (stop < d->bytes) {
            size_t end = line_end(d, stop);
            bool cut = is_separator(d->text + stop, end - stop);
            d->at = end;
            if (cut) break;
            stop = end;
        }
        if (stop == start) continue;
        *out = d->text + start;
        *out_bytes = stop - start;
        return BRG_OK;
    }
    *out = NULL;
    return BRG_OK;
}
