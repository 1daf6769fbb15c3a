/* SPDX-License-Identifier: Apache-2.0 */
/* fuzz_pattern.c - libFuzzer on the patterns of a tokenizer.json alone, which fuzz_tokenizer seldom gets to: translated for
 * PCRE2, and one in some compiled and used to split a text. No byte is lost where nothing is removed.
 *   make fuzz F=pattern SECONDS=60
 * The first byte: quoted, inverted, how matches are kept, and whether it is compiled. */
#include <string.h>

#include "data/pattern.h"
#include "data/split.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

static const char TEXT[] = "the cat's caf\xc3\xa9 12345 \xff\n\n  x\xe4\xb8\xad_A\xcc\x81!?";

static void count(const char *word, size_t bytes, void *user) {
    size_t *sum = user;
    CHECK(word >= TEXT && word + bytes <= TEXT + sizeof TEXT - 1);
    CHECK(bytes > 0);
    *sum += bytes;
}

static void split(const char *pattern, size_t n, uint8_t how) {
    char why[160] = "";
    struct words w;
    size_t sum = 0;
    struct splitter *s = splitter_create();
    bool quoted = how & 1, invert = how & 2;
    if (splitter_add(s, pattern, n, quoted, (enum split_behavior)(how / 4 % 5), invert, why)) {
        words_init(&w, s);
        bool done = words_each(&w, TEXT, sizeof TEXT - 1, count, &sum);
        CHECK(sum <= sizeof TEXT - 1);
        if (done && splitter_is_whole(s)) CHECK(sum == sizeof TEXT - 1);
        words_fini(&w);
    } else {
        CHECK(why[0] != '\0');
    }
    splitter_destroy(s);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n) {
    char why[120] = "";
    struct buf b;
    if (n == 0 || n > PATTERN_BYTES_MAX) return 0;
    const char *pattern = (const char *)data + 1;
    buf_init(&b, 1 << 20);
    bool good = pattern_translate(pattern, n - 1, &b, why);
    CHECK(good || why[0] != '\0');
    buf_fini(&b);
    if (good && data[0] >= 0xc0) split(pattern, n - 1, data[0]);
    return 0;
}
