/* SPDX-License-Identifier: Apache-2.0 */
/* cli.h - the subcommands, one file each. argv[0] is the subcommand's name; what they return is the exit
 * status, a number of the table in base/base.h. */
#ifndef CLI_CLI_H
#define CLI_CLI_H

int cmd_pack(int argc, char **argv);
int cmd_tokenizer(int argc, char **argv);
int cmd_train(int argc, char **argv);
int cmd_eval(int argc, char **argv);

#endif
