/* SPDX-License-Identifier: Apache-2.0 */
/* page.c - the bytes of PAGE_FILE, which the Makefile names, between two labels. (An array in C would be a
 * generated source of a megabyte; the assembler reads the file as it is.) */
#include "hub/page.h"

#ifdef PAGE_FILE
__asm__(".pushsection .rodata\n"
        "hub_page_begin: .incbin \"" PAGE_FILE "\"\n"
        "hub_page_end: .byte 0\n"
        ".popsection\n");
extern const char hub_page_begin[], hub_page_end[];

const char *page_html(size_t *out_bytes) {
    *out_bytes = (size_t)(hub_page_end - hub_page_begin);
    return hub_page_begin;
}
#else /* where the rules are checked without the Makefile */
const char *page_html(size_t *out_bytes) {
    *out_bytes = 0;
    return "";
}
#endif
