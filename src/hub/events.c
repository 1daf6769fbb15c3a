/* SPDX-License-Identifier: Apache-2.0 */
/* events.c - has a status changed, its clocks apart? See events_os.h. Pure. */
#include <string.h>

#include "hub/events.h"

/* Members that move by themselves, or with each question that is asked. All are numbers. */
static const char *const moving[] = {"heard_ago_s", "uptime_s", "since_s", "requests", "wall"};

static bool is_moving(const char *key, size_t n) {
    for (size_t i = 0; i < ARRAY_COUNT(moving); i++)
        if (strlen(moving[i]) == n && memcmp(moving[i], key, n) == 0) return true;
    return false;
}

static uint64_t fold(uint64_t h, const char *p, size_t n) {
    for (size_t i = 0; i < n; i++) h = (h ^ (uint8_t)p[i]) * UINT64_C(1099511628211); /* FNV-1a */
    return h;
}

/* What is new in the status counts as changed without being named here; only the moving ones are left out. */
uint64_t events_digest(const char *json, size_t n) {
    uint64_t h = UINT64_C(14695981039346656037);
    size_t at = 0;
    while (at < n) {
        size_t begin = at;
        if (json[at] != '"') {
            while (at < n && json[at] != '"') at++;
            h = fold(h, json + begin, at - begin);
            continue;
        }
        for (at++; at < n && json[at] != '"'; at++)
            if (json[at] == '\\') at++;
        if (at < n) at++; /* behind the closing quote */
        if (at > n) at = n;
        h = fold(h, json + begin, at - begin);
        if (at >= n || json[at] != ':' || !is_moving(json + begin + 1, at - begin - 2)) continue;
        while (at < n && json[at] != ',' && json[at] != '}' && json[at] != ']') at++;
    }
    return h;
}
