/* SPDX-License-Identifier: Apache-2.0 */
/* cmd_token.c - beringia token: RUN/tokens.json, changed under a lock by a rename; a running hub sees it at
 * the next request. Every change stands in RUN/access.jsonl. */
#include <fcntl.h>
#include <getopt.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <time.h>
#include <unistd.h>

#include "base/os.h"
#include "cli/cli.h"
#include "hub/gate_os.h"
#include "wire/json.h"

static const char HELP[] =
    "beringia token - who may ask the hub for what\n"
    "\n"
    "  beringia token RUN create --scope SCOPE [--name NAME] [--days N] --out FILE\n"
    "  beringia token RUN list [--json]\n"
    "  beringia token RUN revoke ID\n"
    "  beringia token RUN rotate ID [--grace DURATION] --out FILE\n"
    "\n"
    "  --scope SCOPE  site      trains under NAME, uploads, reads versions\n"
    "                 agent     the same, and the agent's reports of facility NAME\n"
    "                 viewer    reads figures (status, rounds), no weights\n"
    "                 operator  drain, order, rollback, discard, quarantine; reads everything\n"
    "  --name NAME    of the site or facility: needed for site and agent, a remark for the others\n"
    "  --days N       it ends by itself then\n"
    "  --out FILE     where the token goes, mode 0600; it is shown nowhere else, and the hub "
    "keeps\n"
    "                 only its hash. FILE must not be there, except for rotate\n"
    "  --grace D      rotate: how long the old token still holds (default 10m)\n"
    "\n"
    "The hub need not be stopped. From the first token on it serves nobody without one; commands "
    "with\n"
    "RUN on the hub's machine have RUN/hub.token of their own. Copy FILE to the site by a safe "
    "way\n"
    "(scp), then: beringia site --token FILE, or site.token in site.yaml, or "
    "$BERINGIA_TOKEN_FILE.\n"
    "A token is never given on a command line: others can see those.\n"
    "\n"
    "Example: beringia token myrun create --scope site --name lumi --out lumi.token\n";

struct args {
    const char *run, *name, *out, *id;
    enum token_scope scope;
    uint64_t days;
    time_ns grace;
    bool json;
};

/* ---- The file ------------------------------------------------------------------------------------- */
struct change { /* the file, locked */
    const char *run;
    int lock;
    struct tokens *tokens;
};

static void change_end(struct change *c) {
    if (c->lock >= 0) (void)close(c->lock);
    mem_free(c->tokens);
}

static enum brg_status tokens_load(const char *run, struct tokens *out, struct err *e) {
    char path[OS_PATH_MAX];
    AUTO_BUF struct buf b;
    buf_init(&b, TOKENS_FILE_MAX);
    if (!os_exists(os_path(path, run, "tokens.json"))) return BRG_OK; /* none yet */
    TRY(os_read_file(path, TOKENS_FILE_MAX, &b, e));
    if (tokens_decode(b.data, b.bytes_count, out, e) == BRG_OK) return BRG_OK;
    return err_prefix(e, "%s", path);
}

/* Waits for another command that changes it: that takes no time. */
static enum brg_status change_begin(struct change *c, const char *run, struct err *e) {
    char path[OS_PATH_MAX];
    *c = (struct change){.run = run, .lock = -1, .tokens = mem_alloc(1, sizeof *c->tokens)};
    if (!os_exists(os_path(path, run, "run.json")))
        return err_set(e, BRG_E_MISSING, "%s: is no run directory (there is no run.json)", run);
    os_path(path, run, "tokens.lock");
    c->lock = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (c->lock < 0 || flock(c->lock, LOCK_EX) != 0)
        return err_set(e, BRG_E_IO, "%s: cannot be locked", path);
    return tokens_load(run, c->tokens, e);
}

static enum brg_status change_save(struct change *c, struct err *e) {
    char path[OS_PATH_MAX];
    AUTO_BUF struct buf b;
    buf_init(&b, TOKENS_FILE_MAX);
    tokens_encode(c->tokens, &b);
    CHECK(!b.overflow);
    return os_write_secret_atomic(os_path(path, c->run, "tokens.json"), b.data, b.bytes_count, e);
}

static enum brg_status written_down(const char *run, const char *what, const struct token *t,
                                    struct err *e) {
    AUTO_BUF struct buf args;
    struct caller me = {.scope = 0};
    struct access_entry x = {.who = "cli", .what = what};
    bool first = true;
    buf_init(&args, 2048);
    buf_u8(&args, '{');
    json_member_text(&args, &first, "id", t->id);
    json_member_text(&args, &first, "scope", token_scope_name(t->scope));
    json_member_text(&args, &first, "name", t->name);
    json_member_u64(&args, &first, "expires", t->expires);
    json_member_u64(&args, &first, "uid", (uint64_t)getuid());
    buf_u8(&args, '}');
    x.args = buf_cstr(&args);
    return access_append(run, &me, &x, e);
}

/* ---- A new token ----------------------------------------------------------------------------------- */
/* The file first: a token that nobody holds does no harm, one that nobody keeps would be lost. */
static enum brg_status token_give(const char *out, bool replace, const char *text, struct err *e) {
    char line[TOKEN_TEXT_BYTES + 1];
    if (!replace && os_exists(out))
        return err_set(e, BRG_E_EXISTS, "%s: is there already; choose another name", out);
    (void)snprintf(line, sizeof line, "%s\n", text);
    enum brg_status s = os_write_secret_atomic(out, line, TOKEN_TEXT_BYTES, e);
    explicit_bzero(line, sizeof line);
    return s;
}

static enum brg_status token_add(struct change *c, const struct token *like, const char *out,
                                 bool replace, struct token **out_token, struct err *e) {
    uint8_t random[TOKEN_RANDOM_BYTES];
    char text[TOKEN_TEXT_BYTES];
    if (c->tokens->tokens_count == TOKENS_MAX)
        return err_set(e, BRG_E_LIMIT, "%s: has %d tokens, which is the most", c->run, TOKENS_MAX);
    struct token t = *like;
    do {
        os_random(random, sizeof random);
        token_make(random, text, t.id, &t.hash);
    } while (tokens_by_id(c->tokens, t.id) != NULL || strcmp(t.id, "00000000") == 0);
    enum brg_status s = token_give(out, replace, text, e);
    explicit_bzero(text, sizeof text);
    explicit_bzero(random, sizeof random);
    if (s != BRG_OK) return s;
    c->tokens->tokens[c->tokens->tokens_count] = t;
    *out_token = &c->tokens->tokens[c->tokens->tokens_count++];
    return BRG_OK;
}

static enum brg_status create_one(struct change *c, const struct args *a, struct err *e) {
    struct token like = {.scope = a->scope, .created = (uint64_t)time(NULL)}, *t;
    if (a->days > 0) like.expires = like.created + a->days * 86400;
    (void)snprintf(like.name, sizeof like.name, "%s", a->name);
    TRY(token_add(c, &like, a->out, false, &t, e));
    TRY(written_down(c->run, "token/create", t, e));
    TRY(change_save(c, e));
    printf("token %s, scope %s%s%s, is in %s\n", t->id, token_scope_name(t->scope),
           t->name[0] != '\0' ? ", name " : "", t->name, a->out);
    return BRG_OK;
}

static enum brg_status by_id(struct change *c, const char *id, struct token **out, struct err *e) {
    *out = tokens_by_id(c->tokens, id);
    if (*out == NULL)
        return err_set(e, BRG_E_MISSING, "%s: has no token %.20s; beringia token %s list", c->run,
                       id, c->run);
    return BRG_OK;
}

static enum brg_status revoke_one(struct change *c, const struct args *a, struct err *e) {
    struct token *t;
    TRY(by_id(c, a->id, &t, e));
    if (t->revoked == 0) t->revoked = (uint64_t)time(NULL);
    TRY(change_save(c, e)); /* first: what was asked for is that it ends */
    TRY(written_down(c->run, "token/revoke", t, e));
    printf("token %s is revoked\n", t->id);
    return BRG_OK;
}

static enum brg_status rotate_one(struct change *c, const struct args *a, struct err *e) {
    struct token *old, *t, like;
    uint64_t now = (uint64_t)time(NULL);
    TRY(by_id(c, a->id, &old, e));
    if (old->revoked != 0 || (old->expires != 0 && old->expires <= now))
        return err_set(e, BRG_E_USAGE, "token %s is over; create a new one", old->id);
    like = *old;
    like.created = now;
    TRY(token_add(c, &like, a->out, true, &t, e));
    uint64_t until = now + (uint64_t)(a->grace / NS_PER_S);
    if (old->expires == 0 || old->expires > until) old->expires = until;
    TRY(written_down(c->run, "token/rotate", t, e));
    TRY(change_save(c, e));
    printf("token %s is in %s; %s holds for another %llu s\n", t->id, a->out, old->id,
           (unsigned long long)(old->expires - now));
    return BRG_OK;
}

/* ---- Listing --------------------------------------------------------------------------------------- */
static const char *day(uint64_t s, char out[24]) {
    time_t t = (time_t)s;
    struct tm tm;
    if (s == 0) return "-";
    (void)gmtime_r(&t, &tm);
    (void)strftime(out, 24, "%Y-%m-%d %H:%M", &tm);
    return out;
}

static enum brg_status list(const struct args *a, struct err *e) {
    struct tokens *t = mem_alloc(1, sizeof *t);
    AUTO_BUF struct buf b;
    uint64_t now = (uint64_t)time(NULL);
    buf_init(&b, TOKENS_FILE_MAX);
    enum brg_status s = tokens_load(a->run, t, e);
    if (s == BRG_OK && a->json) {
        for (uint32_t i = 0; i < t->tokens_count; i++) memset(&t->tokens[i].hash, 0, HASH_BYTES);
        tokens_encode(t, &b);
        printf("%s", buf_cstr(&b));
    } else if (s == BRG_OK) {
        printf("%-8s  %-8s  %-20s  %-16s  %-16s  %s\n", "id", "scope", "name", "created", "ends",
               "state");
        for (uint32_t i = 0; i < t->tokens_count; i++) {
            const struct token *k = &t->tokens[i];
            char made[24], ends[24];
            bool over = k->expires != 0 && k->expires <= now;
            printf("%-8s  %-8s  %-20s  %-16s  %-16s  %s\n", k->id, token_scope_name(k->scope),
                   k->name[0] != '\0' ? k->name : "-", day(k->created, made), day(k->expires, ends),
                   k->revoked != 0 ? "revoked"
                   : over          ? "over"
                                   : "good");
        }
    }
    mem_free(t);
    return s;
}

/* ---- The command ----------------------------------------------------------------------------------- */
enum { OPT_SCOPE = 1, OPT_NAME, OPT_DAYS, OPT_OUT, OPT_GRACE, OPT_JSON };

static bool take_option(struct args *a, int option, const char *value) {
    switch (option) {
    case OPT_SCOPE: return token_scope_parse(value, &a->scope);
    case OPT_NAME: a->name = value; return wire_name_valid(value);
    case OPT_DAYS: return parse_u64(value, &a->days) && a->days > 0 && a->days <= 36500;
    case OPT_OUT: a->out = value; return *value != '\0';
    case OPT_GRACE: return parse_duration(value, &a->grace) && a->grace >= 0;
    case OPT_JSON: a->json = true; return true;
    default: return false;
    }
}

static int run_change(const struct args *a,
                      enum brg_status (*f)(struct change *, const struct args *, struct err *)) {
    struct change c;
    struct err e = {0};
    enum brg_status s = change_begin(&c, a->run, &e);
    if (s == BRG_OK) s = f(&c, a, &e);
    change_end(&c);
    return s == BRG_OK ? 0 : cli_fail("token", &e);
}

static int decide(struct args *a, const char *verb, int words) {
    bool named = a->scope == TOKEN_SITE || a->scope == TOKEN_AGENT;
    if (strcmp(verb, "list") == 0 && words == 0) {
        struct err e = {0};
        return list(a, &e) == BRG_OK ? 0 : cli_fail("token", &e);
    }
    if (strcmp(verb, "create") == 0 && words == 0) {
        if (a->scope == 0) return cli_usage("token", "create wants --scope", "");
        if (named && a->name[0] == '\0')
            return cli_usage("token", "want --name, the site's or facility's, for scope",
                             token_scope_name(a->scope));
        if (a->out == NULL) return cli_usage("token", "create wants --out FILE", "");
        return run_change(a, create_one);
    }
    if (strcmp(verb, "revoke") == 0 && words == 1) return run_change(a, revoke_one);
    if (strcmp(verb, "rotate") == 0 && words == 1) {
        if (a->out == NULL) return cli_usage("token", "rotate wants --out FILE", "");
        return run_change(a, rotate_one);
    }
    return cli_usage("token", "want create, list, revoke ID or rotate ID, not", verb);
}

int cmd_token(int argc, char **argv) {
    static const struct option options[] = {
        {"scope", 1, NULL, OPT_SCOPE}, {"name", 1, NULL, OPT_NAME},
        {"days", 1, NULL, OPT_DAYS},   {"out", 1, NULL, OPT_OUT},
        {"grace", 1, NULL, OPT_GRACE}, {"json", 0, NULL, OPT_JSON},
        {"help", 0, NULL, 'h'},        {NULL, 0, NULL, 0}};
    struct args a = {.name = "", .grace = 600 * (time_ns)NS_PER_S};
    int o;
    while ((o = getopt_long(argc, argv, "h", options, NULL)) != -1) {
        if (o == 'h') {
            fputs(HELP, stdout);
            return 0;
        }
        if (o == '?') return cli_bad_option("token", argv);
        if (!take_option(&a, o, optarg))
            return cli_usage("token", "that cannot be:", optarg != NULL ? optarg : "");
    }
    if (optind + 2 > argc || optind + 3 < argc)
        return cli_usage("token", "want RUN and create, list, revoke or rotate", "");
    a.run = argv[optind];
    a.id = optind + 3 == argc ? argv[optind + 2] : "";
    return decide(&a, argv[optind + 1], argc - optind - 2);
}
