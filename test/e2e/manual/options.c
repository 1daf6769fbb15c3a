/* SPDX-License-Identifier: Apache-2.0 */
/* options.c - loaded before the C library (LD_PRELOAD): says what a command hands to getopt_long, a line an option,
 * and ends. So a test knows which options there are without reading the command's own text about them. */
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>

int getopt_long(int argc, char *const *argv, const char *shorts, const struct option *longs,
                int *index) {
    (void)argc, (void)argv, (void)shorts, (void)index;
    for (; longs->name != NULL; longs++) printf("%s %d\n", longs->name, longs->has_arg);
    fflush(stdout);
    _Exit(0);
}
