/* SPDX-License-Identifier: Apache-2.0 */
/* main.c - the simulator as a program of its own; `beringia sim` is the same. */
#include "cli/cli.h"

int main(int argc, char **argv) {
    return cmd_sim(argc, argv);
}
