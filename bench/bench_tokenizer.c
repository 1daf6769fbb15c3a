/* SPDX-License-Identifier: Apache-2.0 */
/* bench_tokenizer.c - what a published tokenizer costs: its loading, and MB of English a second on one
 * core, beside Hugging Face's own library in the same run.
 *
 *   build/release/bench/tokenizer TOKENIZER TEXT [PEER_COMMAND]     `make bench-tokenizer` gives all three
 *
 * TEXT is cut into documents of 20 kB, which go through one encoder, one after the other, as pack does
 * it. The text is read ROUNDS times from a cold cache of words (a new encoder); the best and the worst
 * round are told. PEER_COMMAND prints the CPU seconds that the peer takes for some of these documents,
 * and their bytes; it runs between the rounds. All speeds are in MB a second of CPU time, so that other
 * work on the machine distorts them less. Exit status 1: below MB_PER_S_MIN in the best round. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/os.h"
#include "data/tokenizer.h"

enum { ROUNDS = 5, DOCUMENT_BYTES = 20000 };
#define MB_PER_S_MIN 10.0

static int fail(const struct err *e) {
    fprintf(stderr, "bench tokenizer: %s\n", e->text);
    return 2;
}

static double cpu_seconds(void) {
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* End of the document that begins at `at`: behind a newline, where there is one. */
static size_t document_end(const struct buf *text, size_t at) {
    size_t end = at + DOCUMENT_BYTES;
    if (end >= text->bytes_count) return text->bytes_count;
    const uint8_t *p = memchr(text->data + end, '\n', text->bytes_count - end);
    return p == NULL ? text->bytes_count : (size_t)(p - text->data) + 1;
}

static double encode_all(const struct tokenizer *t, const struct buf *text, struct buf *ids,
                         uint64_t *out_ids, struct err *e) {
    double began = cpu_seconds();
    struct encoder *n = encoder_create(t, SIZE_MAX);
    *out_ids = 0;
    for (size_t at = 0, end; at < text->bytes_count; at = end) {
        end = document_end(text, at);
        buf_reset(ids);
        if (encoder_run(n, (const char *)text->data + at, end - at, SPECIAL_AS_TEXT, ids, e) !=
            BRG_OK)
            return -1;
        *out_ids += ids->bytes_count / 4;
    }
    encoder_destroy(n);
    return cpu_seconds() - began;
}

/* MB/s; 0 where there is no peer. */
static double peer_speed(const char *command) {
    double seconds = 0, bytes = 0;
    FILE *f = popen(command, "r");
    if (f == NULL) return 0;
    bool good = fscanf(f, "%lf %lf", &seconds, &bytes) == 2 && seconds > 0;
    return pclose(f) == 0 && good ? bytes / 1e6 / seconds : 0;
}

int main(int argc, char **argv) {
    struct err e = {.text = ""};
    struct tokenizer *t = NULL;
    struct buf text, ids;
    if (argc < 3) {
        fprintf(stderr,
                "usage: tokenizer TOKENIZER TEXT [PEER_COMMAND]; see make bench-tokenizer\n");
        return 2;
    }
    buf_init(&text, 1 << 30);
    buf_init(&ids, 1 << 30);
    double load = 1e9, best = 1e9, worst = 0, peer = 0;
    for (int i = 0; i < 3; i++) {
        tokenizer_free(t);
        double began = cpu_seconds();
        if (tokenizer_load(argv[1], &t, &e) != BRG_OK) return fail(&e);
        double s = cpu_seconds() - began;
        if (s < load) load = s;
    }
    if (os_read_file(argv[2], 1 << 30, &text, &e) != BRG_OK) return fail(&e);
    uint64_t count = 0;
    for (int i = 0; i < ROUNDS; i++) {
        double s = encode_all(t, &text, &ids, &count, &e);
        if (s < 0) return fail(&e);
        if (s < best) best = s;
        if (s > worst) worst = s;
        double p = argc > 3 && i % 2 == 1 ? peer_speed(argv[3]) : 0;
        if (p > peer) peer = p;
    }
    double mb = (double)text.bytes_count / 1e6;
    printf("bench=tokenizer vocab=%u text_mb=%.2f ids=%llu mb_per_s=%.1f mb_per_s_worst=%.1f "
           "mb_per_s_min=%.0f load_s=%.3f",
           tokenizer_vocab(t), mb, (unsigned long long)count, mb / best, mb / worst, MB_PER_S_MIN,
           load);
    if (peer > 0)
        printf(" peer_mb_per_s=%.2f times=%.1f", peer, mb / best / peer);
    else
        printf(" peer=unavailable");
    printf("\n");
    tokenizer_free(t);
    buf_fini(&text);
    buf_fini(&ids);
    return mb / best >= MB_PER_S_MIN ? 0 : 1;
}
