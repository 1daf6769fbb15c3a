/* SPDX-License-Identifier: Apache-2.0 */
/* fuzz_audit.c - libFuzzer on the audit's walk: whatever the records say, it ends with findings or with
 * E_JOURNAL, never otherwise. Input: records, each u8 kind | u16 bytes | body. Records of a real run are
 * made by `sqlite3 journal.db` (see corpus() in test/fuzz/corpus_audit.py).
 *   clang -g -O1 -fsanitize=fuzzer,address,undefined -std=c17 -D_GNU_SOURCE -Isrc \
 *     test/fuzz/fuzz_audit.c src/cli/audit_{state,walk,rebuild,count,sync}.c \
 *     src/base/{base,hash,text,prng,log,log_os,mem_os}.c -lnettle -lm -o build/fuzz_audit
 */
#include "cli/audit.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    struct reader r = reader_of(data, size);
    struct err e;
    struct audit *a = mem_alloc(1, sizeof *a);
    enum brg_status s = BRG_OK;
    audit_init(a);
    for (uint64_t seq = 1; s == BRG_OK && r.p != r.end && r.ok; seq++) {
        uint16_t kind = get_u8(&r);
        size_t n = get_u16(&r);
        const void *body = get_bytes(&r, n);
        if (!r.ok) break;
        s = audit_record(a, seq, kind, body, n, &e);
    }
    if (s == BRG_OK && a->opened) audit_count(a);
    audit_fini(a);
    mem_free(a);
    return 0;
}
