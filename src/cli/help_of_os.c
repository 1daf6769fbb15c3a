/* SPDX-License-Identifier: Apache-2.0 */
/* help_of_os.c - a command's --help, caught where it is printed: the text is kept once, in the command's own file,
 * and a command that is added to the table is completed and has its page without a further line. */
#include <getopt.h>
#include <stdio.h>
#include <sys/mman.h>
#include <unistd.h>

#include "cli/cli.h"

void cli_help_of(const struct cli_command *c, const char *word, struct buf *out) {
    char name[64], first[64] = "", help[] = "--help";
    char *argv[4] = {name, first, help, NULL};
    int argc = 3;
    (void)snprintf(name, sizeof name, "%s", c->name);
    if (word != NULL) {
        (void)snprintf(first, sizeof first, "%s", word);
    } else {
        argv[1] = help;
        argv[2] = NULL;
        argc = 2;
    }
    (void)fflush(stdout);
    int file = memfd_create("help", MFD_CLOEXEC), old = dup(STDOUT_FILENO);
    CHECK(file >= 0);
    CHECK(old >= 0);
    CHECK(dup2(file, STDOUT_FILENO) == STDOUT_FILENO);
    optind = 0; /* glibc: begin anew, with another argv */
    CHECK(c->run(argc, argv) == BRG_OK);
    CHECK(fflush(stdout) == 0);
    CHECK(dup2(old, STDOUT_FILENO) == STDOUT_FILENO);
    (void)close(old);
    char bytes[4096];
    ssize_t n;
    CHECK(lseek(file, 0, SEEK_SET) == 0);
    while ((n = read(file, bytes, sizeof bytes)) > 0) buf_put(out, bytes, (size_t)n);
    CHECK(n == 0);
    CHECK(!out->overflow);
    (void)close(file);
}
