/* SPDX-License-Identifier: Apache-2.0 */
/* fuzz_wire.c - libFuzzer on every decoder of the wire. The first byte chooses the decoder.
 *   clang -g -O1 -fsanitize=fuzzer,address,undefined -std=c17 -D_GNU_SOURCE -Isrc \
 *     test/fuzz/fuzz_wire.c src/wire/fields.c src/wire/messages.c src/wire/writer.c \
 *     src/base/{base,hash,text,prng,log,log_os,mem_os}.c -ljansson -lnettle -lm -o build/fuzz_wire
 *   build/fuzz_wire build/corpus test/golden/wire
 */
#include <string.h>

#include "wire/wire.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static struct wire_run run;
    struct wire_request r, r2;
    struct wire_answer a, a2;
    struct err e;
    struct buf b;
    if (size == 0) return 0;
    /* '{' is 123, so a golden file taken as it is goes to kind 4; other first bytes reach all. */
    enum wire_kind kind = (enum wire_kind)(1 + data[0] % 8);
    if (data[0] != '{') {
        data++;
        size--;
    }
    buf_init(&b, WIRE_BODY_MAX);
    if (wire_request_decode(kind, data, size, &r, &e) == BRG_OK) {
        wire_request_encode(&r, &b);
        CHECK(wire_request_decode(kind, b.data, b.bytes_count, &r2, &e) == BRG_OK);
        CHECK(memcmp(&r, &r2, sizeof r) == 0);
    }
    buf_reset(&b);
    if (wire_answer_decode(kind, data, size, &a, &e) == BRG_OK) {
        wire_answer_encode(&a, &b);
        CHECK(wire_answer_decode(kind, b.data, b.bytes_count, &a2, &e) == BRG_OK);
        CHECK(memcmp(&a, &a2, sizeof a) == 0);
    }
    if (wire_run_decode(data, size, &run, &e) == BRG_OK) {
        buf_reset(&b);
        wire_run_encode(&run, &b);
    }
    buf_fini(&b);
    return 0;
}
