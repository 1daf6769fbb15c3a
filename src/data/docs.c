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
    docs_release(&d->json);
    *d = (struct docs){0};
}

void docs_release(void **json) {
    if (*json != NULL) json_decref(*json);
    *json = NULL;
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

static bool next_line(struct docs *d, struct docs_span *out) {
    while (d->at < d->bytes) {
        const char *line = d->text + d->at;
        size_t end = line_end(d, d->at), n = end - d->at;
        d->at = end;
        d->line++;
        if (is_blank(line, n)) continue;
        *out = (struct docs_span){.at = line, .bytes = n, .line = d->line};
        return true;
    }
    return false;
}

bool docs_next_span(struct docs *d, struct docs_span *out) {
    if (d->jsonl) return next_line(d, out);
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
        *out = (struct docs_span){.at = d->text + start, .bytes = stop - start};
        return true;
    }
    return false;
}

enum brg_status docs_decode(const struct docs *d, const struct docs_span *span, void **json,
                            const char **out, size_t *out_bytes, struct err *e) {
    if (!d->jsonl) {
        *out = span->at;
        *out_bytes = span->bytes;
        return BRG_OK;
    }
    json_error_t error;
    docs_release(json);
    json_t *root = *json = json_loadb(span->at, span->bytes, JSON_ALLOW_NUL, &error);
    const json_t *text = json_object_get(root, "text");
    if (!json_is_string(text))
        return err_set(e, BRG_E_USAGE,
                       "%.300s: line %llu: %.100s; each line must be an object "
                       "with a string \"text\"",
                       d->name, (unsigned long long)span->line,
                       root == NULL ? error.text : "no string in field \"text\"");
    *out = json_string_value(text);
    *out_bytes = json_string_length(text);
    return BRG_OK;
}

enum brg_status docs_next(struct docs *d, const char **out, size_t *out_bytes, struct err *e) {
    struct docs_span span;
    while (docs_next_span(d, &span)) {
        TRY(docs_decode(d, &span, &d->json, out, out_bytes, e));
        if (*out_bytes > 0) return BRG_OK;
    }
    *out = NULL;
    return BRG_OK;
}
