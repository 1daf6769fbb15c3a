/* SPDX-License-Identifier: Apache-2.0 */
/* main.c - beringia COMMAND: finds the command, or says which one was meant. */
#include <getopt.h>
#include <locale.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>

#include "base/version.h"
#include "cli/cli.h"

static int cmd_completion(int argc, char **argv);
static int cmd_manual(int argc, char **argv);

static const struct cli_command commands[] = {
    {"tokenizer", "learn a tokenizer from text", cmd_tokenizer},
    {"pack", "turn text into the shards that a run trains on", cmd_pack},
    {"init", "make a run: settings, model, version 0", cmd_init},
    {"hub", "keep a run: serve its sites; `hub replay` proves what it kept", cmd_hub},
    {"site", "train for a run", cmd_site},
    {"status", "how a run is doing", cmd_status},
    {"audit", "prove from the journal that each position was merged exactly once", cmd_audit},
    {"drain", "ask all sites of a run to hand in and leave", cmd_drain},
    {"rollback", "go back to an older version, or end a hold", cmd_rollback},
    {"discard", "drop a contribution that is not merged yet", cmd_discard},
    {"quarantine", "positions whose leases crashed too often: list, return, skip", cmd_quarantine},
    {"backup", "a consistent copy of a run, beside its running hub", cmd_backup},
    {"restore", "make a run of a backup", cmd_restore},
    {"check", "look at settings, site files and scenarios: all errors at once", cmd_check},
    {"doctor", "will a site work here? route, proxy, TLS, clock, disk, scheduler", cmd_doctor},
    {"tls", "make the hub's certificate and the CA that sites trust", cmd_tls},
    {"token", "who may ask the hub for what: create, list, revoke, rotate", cmd_token},
    {"agent", "on a login node: probe the queue, submit what is ordered", cmd_agent},
    {"courier", "carry the messages of jobs without a network", cmd_courier},
    {"order", "have a facility's agent submit jobs, or cancel them", cmd_order},
    {"plan", "what to submit where and when, and why; gives the orders", cmd_plan},
    {"journal", "the journal's records as lines of JSON", cmd_journal},
    {"store", "move a run's journal between a file and PostgreSQL", cmd_store},
    {"train", "train alone, without a hub", cmd_train},
    {"eval", "held-out loss and perplexity of a checkpoint", cmd_eval},
    {"bench", "measure the native trainer on this machine", cmd_bench},
    {"export", "write a model for other programs: safetensors, GGUF", cmd_export},
    {"project", "time to target under policies of placement, in drawn queues", cmd_project},
    {"sim", "the protocol in virtual time, with faults", cmd_sim},
    {"completion", "for bash and zsh: what the Tab key offers", cmd_completion},
    {"manual", "these texts as pages for man", cmd_manual},
};

static int cmd_completion(int argc, char **argv) {
    return cli_completion(argc, argv, commands, ARRAY_COUNT(commands));
}

static int cmd_manual(int argc, char **argv) {
    return cli_manual(argc, argv, commands, ARRAY_COUNT(commands));
}

static void help(FILE *to) {
    fprintf(to, "beringia - one language model, trained on many machines that come and go\n"
                "\n"
                "  beringia COMMAND [options]\n"
                "\n");
    for (size_t i = 0; i < ARRAY_COUNT(commands); i++)
        fprintf(to, "  %-10s %s\n", commands[i].name, commands[i].help);
    fprintf(to, "\n"
                "  beringia COMMAND --help tells more; beringia --version\n"
                "  The exit status is 0, or the number of the failure: docs/exit-status.md\n");
}

/* Edit distance (Levenshtein) of two short words. */
static size_t distance(const char *a, const char *b) {
    size_t row[32], n = strlen(b);
    if (n >= ARRAY_COUNT(row)) return SIZE_MAX;
    for (size_t j = 0; j <= n; j++) row[j] = j;
    for (size_t i = 1; a[i - 1] != '\0'; i++) {
        size_t diagonal = row[0];
        row[0] = i;
        for (size_t j = 1; j <= n; j++) {
            size_t best = diagonal + (a[i - 1] != b[j - 1]);
            diagonal = row[j];
            if (row[j] + 1 < best) best = row[j] + 1;
            if (row[j - 1] + 1 < best) best = row[j - 1] + 1;
            row[j] = best;
        }
    }
    return row[n];
}

static int unknown(const char *name) {
    const char *near = NULL;
    size_t best = 3; /* two slips of the finger */
    for (size_t i = 0; i < ARRAY_COUNT(commands); i++) {
        size_t d = distance(name, commands[i].name);
        if (d < best) {
            best = d;
            near = commands[i].name;
        }
    }
    fprintf(stderr, "beringia: there is no command '%.60s'", name);
    if (near != NULL)
        fprintf(stderr, "; did you mean '%s'?\n", near);
    else
        fprintf(stderr, "; beringia --help lists all\n");
    return BRG_E_USAGE;
}

int main(int argc, char **argv) {
    (void)signal(SIGPIPE, SIG_IGN); /* a peer that goes away is a status, not a death */
    opterr = 0;                     /* each command says itself what is wrong, in one line */
    cli_bus_catch();
    if (argc < 2) {
        help(stderr);
        return BRG_E_USAGE;
    }
    if (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0 ||
        strcmp(argv[1], "help") == 0) {
        help(stdout);
        return 0;
    }
    if (strcmp(argv[1], "--version") == 0) {
        printf("beringia %s\n", BERINGIA_VERSION);
        return 0;
    }
    for (size_t i = 0; i < ARRAY_COUNT(commands); i++) {
        if (strcmp(commands[i].name, argv[1]) != 0) continue;
        return commands[i].run(argc - 1, argv + 1);
    }
    return unknown(argv[1]);
}
