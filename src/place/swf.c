/* SPDX-License-Identifier: Apache-2.0 */
/* swf.c - see swf.h. */
#include "place/swf.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { FIELDS = 18, LINE_MAX_BYTES = 1024, JOBS_MAX = 1 << 24 };

static int by_submit(const void *a, const void *b) {
    double x = ((const struct swf_job *)a)->submit_s, y = ((const struct swf_job *)b)->submit_s;
    return (x > y) - (x < y);
}

/* "; MaxProcs: 240" */
static void header(const char *line, struct swf_trace *out) {
    static const char *const names[] = {"MaxProcs:", "MaxNodes:"};
    for (size_t i = 0; i < ARRAY_COUNT(names); i++) {
        const char *at = strstr(line, names[i]);
        double v;
        char word[32];
        if (!at) continue;
        at += strlen(names[i]) + strspn(at + strlen(names[i]), " \t");
        size_t n = strcspn(at, " \t");
        if (n == 0 || n >= sizeof word) continue;
        memcpy(word, at, n);
        word[n] = 0;
        if (parse_f64(word, &v) && v > out->processors) out->processors = v;
    }
}

static enum brg_status fields(const char *name, size_t number, char *line, double v[FIELDS],
                              struct err *e) {
    char *save = NULL;
    size_t n = 0;
    for (char *w = strtok_r(line, " \t", &save); w && n < FIELDS;
         w = strtok_r(NULL, " \t", &save)) {
        if (!parse_f64(w, &v[n]) || !isfinite(v[n]))
            return err_set(e, BRG_E_CONFIG,
                           "%s:%zu: field %zu: \"%.20s\" is no number; a trace in the Standard "
                           "Workload Format has 18 numbers a line",
                           name, number, n + 1, w);
        n++;
    }
    if (n < FIELDS)
        return err_set(e, BRG_E_CONFIG,
                       "%s:%zu: %zu fields; a trace in the Standard Workload Format has 18 numbers "
                       "a line",
                       name, number, n);
    return BRG_OK;
}

static void add(struct swf_trace *out, size_t *cap, const double v[FIELDS]) {
    double processors = v[4] > 0 ? v[4] : v[7];
    if (v[3] < 0 || processors < 1 || v[1] < 0) { /* so the machine has one processor at least */
        out->left_out++;
        return;
    }
    if (out->count == *cap) {
        size_t more = *cap ? *cap * 2 : 1024;
        out->jobs = mem_grow(out->jobs, *cap, more, sizeof *out->jobs);
        *cap = more;
    }
    double limit = v[8] > 0 ? fmax(v[8], v[3]) : fmax(v[3], 60.0);
    out->jobs[out->count++] = (struct swf_job){v[1], v[3], limit, processors};
}

enum brg_status swf_parse(const char *name, const char *text, size_t bytes, struct swf_trace *out,
                          struct err *e) {
    size_t cap = 0, number = 0;
    *out = (struct swf_trace){0};
    for (size_t at = 0; at < bytes;) {
        const char *end = memchr(text + at, '\n', bytes - at);
        size_t n = end ? (size_t)(end - text) - at : bytes - at;
        char line[LINE_MAX_BYTES];
        double v[FIELDS];
        number++;
        enum brg_status s = BRG_OK;
        size_t kept = n < sizeof line ? n : sizeof line - 1;
        memcpy(line, text + at, kept);
        line[kept] = 0;
        line[strcspn(line, "\r")] = 0;
        at += n + 1;
        const char *first = line + strspn(line, " \t");
        if (*first == ';') {
            header(first, out);
        } else if (*first != 0) {
            if (n >= sizeof line || strlen(line) + 1 < kept || out->count == JOBS_MAX)
                s = err_set(e, BRG_E_CONFIG, "%s:%zu: the line is too long or holds a NUL", name,
                            number);
            if (s == BRG_OK) s = fields(name, number, line, v, e);
            if (s == BRG_OK) add(out, &cap, v);
        }
        if (s != BRG_OK) {
            swf_fini(out);
            return s;
        }
    }
    if (out->count == 0)
        return err_set(e, BRG_E_CONFIG,
                       "%s: holds no job; give a trace in the Standard Workload Format", name);
    qsort(out->jobs, out->count, sizeof *out->jobs, by_submit);
    double first = out->jobs[0].submit_s;
    for (size_t i = 0; i < out->count; i++) {
        out->jobs[i].submit_s -= first;
        out->processors = fmax(out->processors, out->jobs[i].processors);
    }
    out->span_s = fmax(out->jobs[out->count - 1].submit_s, 1.0);
    return BRG_OK;
}

void swf_fini(struct swf_trace *t) {
    mem_free(t->jobs);
    *t = (struct swf_trace){0};
}
