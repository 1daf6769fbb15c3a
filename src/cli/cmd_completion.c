/* SPDX-License-Identifier: Apache-2.0 */
/* cmd_completion.c - beringia completion: scripts for bash and zsh, made from the texts of --help.
 *
 * They are made once and installed, not asked for at each Tab: a login node's shell does not start a program
 * for it. bash's needs nothing but bash; zsh's is an autoloaded function of its own completion system. */
#include <getopt.h>
#include <stdio.h>
#include <string.h>

#include "cli/cli.h"
#include "cli/help_text.h"

static const char HELP[] =
    "beringia completion - what the Tab key offers, for bash and zsh\n"
    "\n"
    "  beringia completion bash\n"
    "  beringia completion zsh\n"
    "\n"
    "Prints a script. make install, the package and the tarball bring both; by hand:\n"
    "\n"
    "examples\n"
    "  beringia completion bash > ~/.local/share/bash-completion/completions/beringia\n"
    "  beringia completion zsh > ~/.zfunc/_beringia    # fpath+=~/.zfunc before compinit\n";

/* What an option takes, where that is a list of words; a test looks for each in the option's text. */
static const struct {
    const char *option, *words;
} choices[] = {
    {"log-level", "error warn info debug trace"},
    {"mpi", "auto yes no"},
    {"precision", "f32 bf16"},
    {"schedule", "cosine wsd constant"},
    {"optimizer", "adamw muon"},
    {"format", "hf gguf"},
    {"dtype", "f32 bf16 f16"},
    {"scope", "site agent viewer operator"},
    {"device", "cpu cpu-base cpu-avx2 cpu-avx512"},
};

static const char *choices_of(const struct help_option *o) {
    for (size_t i = 0; i < ARRAY_COUNT(choices); i++)
        if (strcmp(choices[i].option, o->name) == 0) return choices[i].words;
    return NULL;
}

static bool is_one_of(const char *word, const char *const *words) {
    for (; *words != NULL; words++)
        if (strcmp(word, *words) == 0) return true;
    return false;
}

static bool takes_directory(const struct help_option *o) {
    static const char *const words[] = {"DIR", "RUN", "OUT", "STATE", NULL};
    return is_one_of(o->value, words);
}

static bool takes_file(const struct help_option *o) {
    static const char *const words[] = {"FILE", "PATH", "MODEL", "T", "config.json", NULL};
    static const char *const numbers[] = {
        "take-over", "rank-timeout", "time-limit", "grace", "checkpoint-every",
        "timeout",   "every",        "join",       "prior", "silent",
        "seq-len",   "dtype",        NULL};
    return is_one_of(o->value, words) && !is_one_of(o->name, numbers);
}

struct texts { /* of one command */
    const struct cli_command *command;
    struct help_option options[HELP_OPTIONS_MAX];
    size_t options_count;
    struct help_verbs verbs;
};

static void texts_of(const struct cli_command *c, struct texts *out) {
    AUTO_BUF struct buf text;
    buf_init(&text, 1 << 16);
    cli_help_of(c, NULL, &text);
    out->command = c;
    out->options_count = help_options(buf_cstr(&text), out->options);
    help_verbs(buf_cstr(&text), &out->verbs);
    if (strcmp(c->name, "hub") != 0) return;
    buf_reset(
        &text); /* `hub replay` has a text of its own; what it adds is offered with the others */
    cli_help_of(c, "replay", &text);
    struct help_option more[HELP_OPTIONS_MAX];
    size_t n = help_options(buf_cstr(&text), more);
    for (size_t i = 0; i < n; i++) {
        bool known = false;
        for (size_t k = 0; k < out->options_count; k++)
            known = known || strcmp(out->options[k].name, more[i].name) == 0;
        if (known) continue;
        CHECK(out->options_count < HELP_OPTIONS_MAX);
        out->options[out->options_count++] = more[i];
    }
}

/* ---- bash ----------------------------------------------------------------------------------------- */
static void bash_list(const char *variable, const struct texts *t,
                      bool (*wanted)(const struct help_option *)) {
    bool any = false;
    for (size_t i = 0; i < t->options_count; i++) {
        if (wanted != NULL && !wanted(&t->options[i])) continue;
        printf("%s--%s", any ? " " : variable, t->options[i].name);
        any = true;
    }
    if (any) fputs("'\n", stdout);
}

static bool takes_value(const struct help_option *o) {
    return o->value[0] != '\0';
}

static void bash_command(const struct texts *t) {
    printf("    %s)\n", t->command->name);
    bash_list("        options='", t, NULL);
    bash_list("        valued='", t, takes_value);
    bash_list("        dirs='", t, takes_directory);
    if (t->verbs.count > 0) {
        printf("        place=%zu verbs='", t->verbs.place);
        for (size_t i = 0; i < t->verbs.count; i++)
            printf("%s%s", i > 0 ? " " : "", t->verbs.words[i]);
        fputs("'\n", stdout);
    }
    for (size_t i = 0; i < t->options_count; i++) {
        const char *words = choices_of(&t->options[i]);
        if (words == NULL || !takes_value(&t->options[i])) continue;
        printf("        [ \"$previous\" != --%s ] || choices='%s'\n", t->options[i].name, words);
    }
    fputs("        ;;\n", stdout);
}

static const char BASH_HEAD[] =
    "# bash completion of beringia; made by: beringia completion bash\n"
    "_beringia() {\n"
    "    local current=${COMP_WORDS[COMP_CWORD]} previous=${COMP_WORDS[COMP_CWORD - 1]}\n"
    "    local options= valued= dirs= verbs= choices= place=-1 seen=0 i word before\n"
    "    # bash cuts --option=value into three words\n"
    "    if [ \"$current\" = = ]; then current=\n"
    "    elif [ \"$previous\" = = ]; then previous=${COMP_WORDS[COMP_CWORD - 2]}\n"
    "    fi\n"
    "    COMPREPLY=()\n"
    "    if [ \"$COMP_CWORD\" -eq 1 ]; then\n"
    "        COMPREPLY=($(compgen -W '";
static const char BASH_MIDDLE[] = "--help --version' -- \"$current\"))\n"
                                  "        return\n"
                                  "    fi\n"
                                  "    case ${COMP_WORDS[1]} in\n";
static const char BASH_TAIL[] =
    "    *) return ;;\n"
    "    esac\n"
    "    if [ -n \"$choices\" ]; then\n"
    "        COMPREPLY=($(compgen -W \"$choices\" -- \"$current\"))\n"
    "        return\n"
    "    fi\n"
    "    case \" $dirs \" in *\" $previous \"*)\n"
    "        compopt -o filenames 2> /dev/null\n"
    "        mapfile -t COMPREPLY < <(compgen -d -- \"$current\")\n"
    "        return ;;\n"
    "    esac\n"
    "    case \" $valued \" in *\" $previous \"*) return ;; esac # readline offers files\n"
    "    case $current in -*)\n"
    "        COMPREPLY=($(compgen -W \"$options\" -- \"$current\"))\n"
    "        return ;;\n"
    "    esac\n"
    "    for ((i = 2; i < COMP_CWORD; i++)); do # which of the words that are no options is it?\n"
    "        word=${COMP_WORDS[i]} before=${COMP_WORDS[i - 1]}\n"
    "        case $word in -* | =) continue ;; esac\n"
    "        if [ \"$before\" = = ]; then continue; fi\n"
    "        case \" $valued \" in *\" $before \"*) continue ;; esac\n"
    "        seen=$((seen + 1))\n"
    "    done\n"
    "    if [ -n \"$verbs\" ] && [ \"$seen\" -eq \"$place\" ]; then\n"
    "        compopt -o filenames 2> /dev/null\n"
    "        mapfile -t COMPREPLY < <(compgen -W \"$verbs\" -- \"$current\"\n"
    "            compgen -f -- \"$current\")\n"
    "    fi\n"
    "}\n"
    "complete -o bashdefault -o default -F _beringia beringia\n";

static void print_bash(const struct cli_command *all, size_t count) {
    struct texts *t = mem_alloc(1, sizeof *t);
    fputs(BASH_HEAD, stdout);
    for (size_t i = 0; i < count; i++) printf("%s ", all[i].name);
    fputs(BASH_MIDDLE, stdout);
    for (size_t i = 0; i < count; i++) {
        texts_of(&all[i], t);
        bash_command(t);
    }
    fputs(BASH_TAIL, stdout);
    mem_free(t);
}

/* ---- zsh ------------------------------------------------------------------------------------------ */
/* Within single quotes, in a description that _arguments reads. */
static void zsh_text(const char *s) {
    for (; *s != '\0'; s++) {
        if (*s == '\'')
            fputs("'\\''", stdout);
        else if (strchr("[]:\\", *s) != NULL)
            printf("\\%c", *s);
        else
            putchar(*s);
    }
}

static void zsh_option(const struct help_option *o) {
    const char *words = choices_of(o);
    printf(" \\\n            '%s--%s%s[", o->many ? "*" : "", o->name, takes_value(o) ? "=" : "");
    zsh_text(o->text);
    fputs("]", stdout);
    if (takes_value(o)) {
        fputs(":", stdout);
        zsh_text(o->value);
        if (words != NULL)
            printf(":(%s)", words);
        else
            fputs(takes_directory(o) ? ":_files -/" : takes_file(o) ? ":_files" : ":", stdout);
    }
    fputs("'", stdout);
}

static void zsh_command(const struct texts *t) {
    printf("    %s)\n        _arguments", t->command->name);
    for (size_t i = 0; i < t->options_count; i++) zsh_option(&t->options[i]);
    if (t->verbs.count > 0) {
        for (size_t i = 0; i < t->verbs.place; i++)
            printf(" \\\n            '%zu:RUN:_files'", i + 1);
        printf(" \\\n            '%zu:what:_alternative \"verbs:what:(", t->verbs.place + 1);
        for (size_t i = 0; i < t->verbs.count; i++)
            printf("%s%s", i > 0 ? " " : "", t->verbs.words[i]);
        fputs(")\" \"files:file:_files\"'", stdout);
    }
    fputs(" \\\n            '*:file:_files'\n        ;;\n", stdout);
}

static void print_zsh(const struct cli_command *all, size_t count) {
    struct texts *t = mem_alloc(1, sizeof *t);
    fputs("#compdef beringia\n"
          "# zsh completion of beringia; made by: beringia completion zsh\n"
          "_beringia() {\n"
          "    local -a commands\n"
          "    if ((CURRENT == 2)); then\n"
          "        commands=(",
          stdout);
    for (size_t i = 0; i < count; i++) {
        printf("\n            '%s:", all[i].name);
        zsh_text(all[i].help);
        fputs("'", stdout);
    }
    fputs(")\n"
          "        _describe -t commands command commands -- '(--help --version)'\n"
          "        return\n"
          "    fi\n"
          "    local command=$words[2]\n"
          "    shift words\n"
          "    ((CURRENT--))\n"
          "    case $command in\n",
          stdout);
    for (size_t i = 0; i < count; i++) {
        texts_of(&all[i], t);
        zsh_command(t);
    }
    mem_free(t);
    fputs("    *) _files ;;\n"
          "    esac\n"
          "}\n"
          "if [ \"$funcstack[1]\" = _beringia ]; then _beringia \"$@\"; else compdef _beringia "
          "beringia; "
          "fi\n",
          stdout);
}

int cli_completion(int argc, char **argv, const struct cli_command *all, size_t count) {
    static const struct option options[] = {{"help", 0, NULL, 'h'}, {NULL, 0, NULL, 0}};
    for (int o; (o = getopt_long(argc, argv, "h", options, NULL)) != -1;) {
        if (o != 'h') return cli_bad_option("completion", argv);
        fputs(HELP, stdout);
        return 0;
    }
    const char *shell = optind + 1 == argc ? argv[optind] : "";
    if (strcmp(shell, "bash") == 0)
        print_bash(all, count);
    else if (strcmp(shell, "zsh") == 0)
        print_zsh(all, count);
    else
        return cli_usage("completion", "want bash or zsh, not", shell);
    return 0;
}
