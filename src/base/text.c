/* SPDX-License-Identifier: Apache-2.0 */
/* text.c - numbers from text. The whole string must be the number: no blanks, no rest, no wrapping
 * around, no locale. Outputs are untouched where the text is wrong. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/base.h"

/* Reads the digits at *s and moves it past them; false where there are none or they are too many. */
static bool digits(const char **s, uint64_t *out) {
    const char *p = *s;
    uint64_t v = 0;
    if (*p < '0' || *p > '9') return false;
    for (; *p >= '0' && *p <= '9'; p++) {
        uint64_t d = (uint64_t)(*p - '0');
        if (v > (UINT64_MAX - d) / 10) return false;
        v = v * 10 + d;
    }
    *s = p;
    *out = v;
    return true;
}

bool parse_u64(const char *s, uint64_t *out) {
    uint64_t v;
    if (!digits(&s, &v) || *s != '\0') return false;
    *out = v;
    return true;
}

bool parse_f64(const char *s, double *out) {
    /* strtod also takes blanks, hexadecimal, "inf" and "nan": none is wanted. */
    if (*s == '\0' || s[strspn(s, "0123456789+-.eE")] != '\0') return false;
    char *end;
    double v = strtod(s, &end);
    if (*end != '\0' || !isfinite(v)) return false;
    *out = v;
    return true;
}

struct unit {
    const char *name;
    uint64_t factor;
};

/* whole * factor + the decimal fraction at s, which must be exact: "1.5s" is 1500000000. */
static bool scaled(const char *s, const struct unit *units, size_t units_count, uint64_t max,
                   uint64_t *out) {
    uint64_t whole, fraction = 0, fraction_scale = 1;
    if (!digits(&s, &whole)) return false;
    if (*s == '.') {
        s++;
        const char *start = s;
        if (!digits(&s, &fraction) || s - start > 9) return false;
        for (const char *p = start; p < s; p++) fraction_scale *= 10;
    }
    for (size_t i = 0; i < units_count; i++) {
        if (strcmp(s, units[i].name) != 0) continue;
        uint64_t factor = units[i].factor, v, part;
        if (__builtin_mul_overflow(whole, factor, &v)) return false;
        if (__builtin_mul_overflow(fraction, factor, &part)) return false;
        if (part % fraction_scale != 0) return false;
        if (__builtin_add_overflow(v, part / fraction_scale, &v) || v > max) return false;
        *out = v;
        return true;
    }
    return false;
}

bool parse_duration(const char *s, time_ns *out) {
    static const struct unit units[] = {
        {"ns", 1},
        {"us", NS_PER_US},
        {"ms", NS_PER_MS},
        {"s", NS_PER_S},
        {"m", UINT64_C(60) * NS_PER_S},
        {"h", UINT64_C(3600) * NS_PER_S},
        {"d", UINT64_C(86400) * NS_PER_S},
    };
    uint64_t v;
    if (!scaled(s, units, ARRAY_COUNT(units), INT64_MAX, &v)) return false;
    *out = (time_ns)v;
    return true;
}

bool parse_bytes(const char *s, uint64_t *out) {
    static const struct unit units[] = {
        {"", 1},
        {"k", UINT64_C(1) << 10},
        {"K", UINT64_C(1) << 10},
        {"M", UINT64_C(1) << 20},
        {"G", UINT64_C(1) << 30},
        {"T", UINT64_C(1) << 40},
    };
    return scaled(s, units, ARRAY_COUNT(units), UINT64_MAX, out);
}
