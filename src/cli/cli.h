/* SPDX-License-Identifier: Apache-2.0 */
/* cli.h - the subcommands, one file each. argv[0] is the subcommand's name; what they return is the exit
 * status, a number of the table in base/base.h. */
#ifndef CLI_CLI_H
#define CLI_CLI_H

#include "base/base.h"

int cmd_init(int argc, char **argv);
int cmd_hub(int argc, char **argv); /* and `hub replay` */
int cmd_site(int argc, char **argv);
int cmd_status(int argc, char **argv);
int cmd_audit(int argc, char **argv);
int cmd_rollback(int argc, char **argv); /* with the next three: cmd_operator.c */
int cmd_discard(int argc, char **argv);
int cmd_quarantine(int argc, char **argv);
int cmd_drain(int argc, char **argv);
int cmd_backup(int argc, char **argv);
int cmd_restore(int argc, char **argv); /* cmd_backup.c too */
int cmd_check(int argc, char **argv);
int cmd_token(int argc, char **argv);
int cmd_tls(int argc, char **argv);
int cmd_doctor(int argc, char **argv);
int cmd_agent(int argc, char **argv);
int cmd_courier(int argc, char **argv); /* cmd_agent.c too */
int cmd_order(int argc, char **argv);
int cmd_plan(int argc, char **argv);
int cmd_journal(int argc, char **argv);
int cmd_store(int argc, char **argv);
int cmd_pack(int argc, char **argv);
int cmd_tokenizer(int argc, char **argv);
int cmd_train(int argc, char **argv);
int cmd_eval(int argc, char **argv);
int cmd_bench(int argc, char **argv);
int cmd_export(int argc, char **argv);
int cmd_project(int argc, char **argv);
int cmd_sim(int argc, char **argv); /* sim/cmd_sim.c */

struct cli_command {
    const char *name, *help; /* half a sentence */
    int (*run)(int argc, char **argv);
};
/* Those that speak of all commands are given the table of main.c. */
int cli_completion(int argc, char **argv, const struct cli_command *all, size_t count);
int cli_manual(int argc, char **argv, const struct cli_command *all, size_t count);
/* What `beringia NAME [WORD] --help` prints; word may be NULL. Moves standard output while it looks. */
void cli_help_of(const struct cli_command *c, const char *word, struct buf *out);

/* "beringia NAME: text" to standard error; gives the exit status. */
int cli_fail(const char *name, const struct err *e);
/* E_USAGE: "beringia NAME: what value; see beringia NAME --help". */
int cli_usage(const char *name, const char *what, const char *value);
/* getopt_long's '?' or ':' for options of `argv`. */
int cli_bad_option(const char *name, char **argv);

/* What --model names, into out, which it gives: a path, or a name without slash and ".json" in share/models. */
const char *cli_model_path(const char *model, char out[4096]);
/* From now on a mapped file that becomes shorter ends the process with a line and E_IO: bus_os.c. */
void cli_bus_catch(void);

/* Removes a directory that the command began and did not finish, as far as that goes. */
void cli_remove_tree(const char *path);

/* `hub replay`, in a file of its own. */
int cmd_hub_replay(int argc, char **argv);

#endif
