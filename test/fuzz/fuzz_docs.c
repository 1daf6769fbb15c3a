/* SPDX-License-Identifier: Apache-2.0 */
/* fuzz_docs.c - libFuzzer on texts: plain ones, and lines of JSON. Every document lies in the text, comes once and has
 * bytes; what is wrong is one line that names the file and the line.
 *   make fuzz F=docs SECONDS=60 */
#include <string.h>

#include "data/docs.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    struct docs d;
    struct err e = {.text = ""};
    const char *out = NULL;
    size_t bytes = 0, sum = 0;
    if (size == 0) return 0;
    bool jsonl = data[0] & 1;
    const char *text = (const char *)data + 1;
    enum brg_status s = docs_init(&d, jsonl ? "fuzz.jsonl" : "fuzz.txt", text, size - 1, &e);
    if (s != BRG_OK) {
        CHECK(strncmp(e.text, "fuzz", 4) == 0);
        return 0;
    }
    while ((s = docs_next(&d, &out, &bytes, &e)) == BRG_OK && out != NULL) {
        CHECK(bytes > 0);
        if (!jsonl) CHECK(out >= text && out + bytes <= text + size - 1);
        sum += bytes;
    }
    if (!jsonl) CHECK(sum <= size - 1);
    if (s != BRG_OK) {
        CHECK(strncmp(e.text, "fuzz", 4) == 0);
        CHECK(strchr(e.text, '\n') == NULL);
    }
    docs_fini(&d);
    return 0;
}
