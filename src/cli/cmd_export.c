/* SPDX-License-Identifier: Apache-2.0 */
/* cmd_export.c - beringia export: a version of a run, or a model directory, in the form of others. All is
 * made beside the target, which gets its name at the end: an export is there completely or not at all. */
#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "cli/cli.h"
#include "cli/source.h"
#include "train/export.h"
#include "train/model_os.h"

static const char HELP[] =
    "beringia export - write a model for other programs\n"
    "\n"
    "  beringia export RUN|DIR --out OUT [options]\n"
    "\n"
    "  RUN               directory of a run; its hub may be running\n"
    "  DIR               a model directory: of beringia train, or from Hugging Face (safetensors)\n"
    "  --version V       version of the run, or head (default)\n"
    "  --ema             the mean of its weights instead, in a run that keeps one (outer.ema)\n"
    "  --out OUT         directory to make; with gguf also a file, where OUT ends in .gguf\n"
    "  --format F        hf (default): safetensors, config.json, generation_config.json,\n"
    "                    tokenizer.json, as Hugging Face's transformers and others read them;\n"
    "                    gguf: one file for llama.cpp (OUT/model.gguf)\n"
    "  --dtype T         f32 (default), bf16 or f16; rounded to nearest, ties to even\n"
    "  --shard-size N    hf: begin a new file before one becomes larger (default 5G); k, M, G\n"
    "                    are powers of 1024\n"
    "\n"
    "Memory does not grow with the model. A run's weights are checked against the hash that their\n"
    "checkpoint names (not with --ema). OUT must be absent (or an empty directory); nothing is "
    "replaced. The "
    "tokenizer of\n"
    "plain bytes is written as a tokenizer.json without merges, which gives the same ids.\n"
    "\n"
    "examples\n"
    "  beringia export run --version head --out model --dtype bf16\n"
    "  beringia export run --version 12 --out model.gguf --format gguf\n"
    "  beringia export central --out shards --shard-size 1G\n";

enum { TOKENIZER_BYTES_MAX = 256 << 20, SMALL_BYTES_MAX = 16 << 20 };
struct args {
    const char *dir, *version, *out;
    bool gguf, ema;
    enum tensor_type type;
    uint64_t shard_bytes;
};
struct work {
    const struct args *args;
    struct model_source source;
    struct model_config model;
    bool own_model; /* of a trainer of somebody's own: only its tensors are known */
    struct tensor_set set;
    struct tensors table;
    struct export_words words;
    struct export x;
    char name[256], version[32];
    char partial[OS_PATH_MAX];
};

/* ---- What there is --------------------------------------------------------------------------- */
static enum brg_status read_json(const char *path, size_t bytes_max, enum brg_status status,
                                 json_t **out, struct err *e) {
    json_error_t why;
    AUTO_BUF struct buf text = {.bytes_max = bytes_max};
    TRY(os_read_file(path, bytes_max, &text, e));
    json_t *o = json_loadb((const char *)text.data, text.bytes_count, JSON_REJECT_DUPLICATES, &why);
    if (!json_is_object(o)) {
        json_decref(o);
        return err_set(e, status, "%s: line %d: %s; copy the file again", path, why.line,
                       o != NULL ? "is no JSON object" : why.text);
    }
    *out = o;
    return BRG_OK;
}

static enum brg_status load_config(struct work *w, struct err *e) {
    AUTO_BUF struct buf text = {.bytes_max = SMALL_BYTES_MAX};
    TRY(os_read_file(w->source.config, SMALL_BYTES_MAX, &text, e));
    w->own_model = w->source.run && strcmp(buf_cstr(&text), "{}") == 0;
    if (!w->own_model)
        return model_config_parse((const char *)text.data, text.bytes_count, w->source.config,
                                  &w->model, e);
    if (w->args->gguf)
        return err_set(e, BRG_E_MODEL,
                       "%s: describes no Qwen3 model, which GGUF needs: export with --format hf",
                       w->source.config);
    return BRG_OK;
}

static void table_of_own(struct work *w) {
    const struct tensors *t = &w->set.files[0].table;
    for (size_t i = 0; i < t->count; i++) {
        const struct tensor *v = &t->v[i];
        if (!checkpoint_own_tensor(v->name))
            tensors_add(&w->table, v->name, TENSOR_F32, v->dims, v->shape);
    }
}

static enum brg_status load_weights(struct work *w, struct err *e) {
    TRY(tensor_set_open(w->source.weights, &w->set, e));
    if (w->args->ema) TRY(cli_ema_set(&w->source, &w->set, e));
    if (w->own_model) {
        table_of_own(w);
        return BRG_OK;
    }
    model_tensors(&w->model, &w->table);
    return model_check_set(&w->set, &w->model, e);
}

/* The ids that a model's own config.json names, where it is one of somebody else's. */
static enum brg_status load_ids(struct work *w, struct err *e) {
    static const char *const keys[] = {"bos_token_id", "eos_token_id", "pad_token_id"};
    json_t *config = NULL;
    w->words.ids = json_object();
    if (w->source.run) return BRG_OK;
    TRY(read_json(w->source.config, SMALL_BYTES_MAX, BRG_E_MODEL, &config, e));
    for (size_t i = 0; i < ARRAY_COUNT(keys); i++) {
        json_t *id = json_object_get(config, keys[i]);
        if (json_is_integer(id) || json_is_array(id))
            (void)json_object_set(w->words.ids, keys[i], id);
    }
    json_decref(config);
    return BRG_OK;
}

static enum brg_status load_words(struct work *w, struct err *e) {
    char path[OS_PATH_MAX];
    TRY(load_ids(w, e));
    os_path(path, w->source.dir, "tokenizer.json");
    if (os_exists(path))
        TRY(read_json(path, TOKENIZER_BYTES_MAX, BRG_E_TOKENIZER, &w->words.tokenizer, e));
    else if (w->source.run && !w->own_model && w->model.vocab_size > 256)
        w->words.tokenizer = export_bytes_tokenizer(); /* the one that has no file */
    if (w->args->gguf && w->words.tokenizer == NULL)
        return err_set(
            e, BRG_E_MISSING,
            "%s: is not there; llama.cpp needs the tokenizer: copy it beside the weights", path);
    export_words_complete(&w->words);
    return BRG_OK;
}

static void choose_name(struct work *w) {
    char path[OS_PATH_MAX];
    (void)snprintf(path, sizeof path, "%s", w->args->dir);
    size_t n = strlen(path);
    while (n > 0 && path[n - 1] == '/') path[--n] = '\0';
    const char *slash = strrchr(path, '/'), *base = slash != NULL ? slash + 1 : path;
    bool named = base[0] != '\0' && strcmp(base, ".") != 0 && strcmp(base, "..") != 0;
    (void)snprintf(w->name, sizeof w->name, "%.200s", named ? base : "model");
    (void)snprintf(w->version, sizeof w->version, "%llu", (unsigned long long)w->source.version);
}

static enum brg_status load(struct work *w, struct err *e) {
    const struct args *a = w->args;
    TRY(cli_model_source(a->dir, a->version, &w->source, e));
    TRY(load_config(w, e));
    TRY(load_weights(w, e));
    TRY(load_words(w, e));
    choose_name(w);
    w->x = (struct export){.set = &w->set,
                           .model = w->own_model ? NULL : &w->model,
                           .table = &w->table,
                           .words = &w->words,
                           .type = a->type,
                           .shard_bytes = a->shard_bytes,
                           .name = w->name,
                           .version = w->source.run ? w->version : NULL};
    return BRG_OK;
}

/* ---- What is made ---------------------------------------------------------------------------- */
static enum brg_status copy_file(const struct work *w, const char *name, struct err *e) {
    char from[OS_PATH_MAX], to[OS_PATH_MAX];
    AUTO_BUF struct buf b = {.bytes_max = TOKENIZER_BYTES_MAX};
    os_path(from, w->source.dir, "%s", name);
    if (!os_exists(from)) return BRG_OK;
    TRY(os_read_file(from, b.bytes_max, &b, e));
    return os_write_file_atomic(os_path(to, w->partial, "%s", name), b.data, b.bytes_count, e);
}

static enum brg_status write_tokenizer(const struct work *w, struct err *e) {
    char from[OS_PATH_MAX], to[OS_PATH_MAX];
    if (w->words.tokenizer == NULL) return BRG_OK;
    if (os_exists(os_path(from, w->source.dir, "tokenizer.json")))
        return copy_file(w, "tokenizer.json", e); /* its bytes as they are */
    char *text = json_dumps(w->words.tokenizer, JSON_INDENT(2));
    CHECK(text != NULL);
    enum brg_status s =
        os_write_file_atomic(os_path(to, w->partial, "tokenizer.json"), text, strlen(text), e);
    free(text);
    return s;
}

static enum brg_status fill_hf(struct work *w, struct err *e) {
    static const char *const others[] = {"generation_config.json",
                                         "tokenizer_config.json",
                                         "special_tokens_map.json",
                                         "added_tokens.json",
                                         "vocab.json",
                                         "merges.txt",
                                         "chat_template.jinja"};
    TRY(export_hf(&w->x, w->partial, e));
    TRY(write_tokenizer(w, e));
    for (size_t i = 0; !w->source.run && i < ARRAY_COUNT(others); i++)
        TRY(copy_file(w, others[i], e));
    return BRG_OK;
}

static bool is_gguf_file(const struct args *a) {
    size_t n = strlen(a->out);
    return a->gguf && n > 5 && strcmp(a->out + n - 5, ".gguf") == 0;
}

static enum brg_status exists(const char *out, struct err *e) {
    return err_set(e, BRG_E_EXISTS, "%s: is there already; choose another name or remove it", out);
}

static enum brg_status export_file(struct work *w, struct err *e) {
    const char *out = w->args->out;
    if (os_exists(out)) return exists(out, e);
    enum brg_status s = export_gguf(&w->x, w->partial, e);
    if (s == BRG_OK && renameat2(AT_FDCWD, w->partial, AT_FDCWD, out, RENAME_NOREPLACE) != 0) {
        if (errno == EEXIST)
            s = exists(out, e);
        else /* a file system without it */
            s = os_rename_durable(w->partial, out, e);
    }
    if (s != BRG_OK) (void)unlink(w->partial);
    return s;
}

static enum brg_status export_dir(struct work *w, struct err *e) {
    char path[OS_PATH_MAX];
    const char *out = w->args->out;
    /* rename() takes the place of an empty directory, and of nothing else; that is asked early. */
    if (os_exists(out) && rmdir(out) != 0) return exists(out, e);
    TRY(os_mkdirs(w->partial, e));
    enum brg_status s = w->args->gguf
                            ? export_gguf(&w->x, os_path(path, w->partial, "model.gguf"), e)
                            : fill_hf(w, e);
    if (s == BRG_OK) s = os_fsync_dir(w->partial, e);
    if (s == BRG_OK && rename(w->partial, out) != 0)
        s = errno == EEXIST || errno == ENOTEMPTY || errno == ENOTDIR
                ? exists(out, e)
                : os_errno(e, errno, "rename to", out);
    if (s != BRG_OK) cli_remove_tree(w->partial);
    return s;
}

static enum brg_status sync_parent(const char *out, struct err *e) {
    char path[OS_PATH_MAX];
    (void)snprintf(path, sizeof path, "%s", out);
    char *slash = strrchr(path, '/');
    if (slash == NULL) return os_fsync_dir(".", e);
    slash[slash == path] = '\0'; /* "/" stays */
    return os_fsync_dir(path, e);
}

static void tell(const struct work *w) {
    uint64_t parameters = 0;
    for (size_t i = 0; i < w->table.count; i++) parameters += w->table.v[i].elements;
    printf("model      %s%s%s%s, %llu parameters as %s\n", w->name,
           w->source.run ? ", version " : "", w->source.run ? w->version : "",
           w->args->ema ? ", mean of its weights" : "", (unsigned long long)parameters,
           tensor_type_name(w->args->type));
    printf("weights    %llu file(s), %llu bytes%s\n", (unsigned long long)w->x.files_count,
           (unsigned long long)w->x.data_bytes,
           w->x.verified ? ", equal to the checkpoint's hash" : "");
    if (w->words.tokenizer == NULL) printf("tokenizer  none: there is no tokenizer.json\n");
    printf("written    %s\n", w->args->out);
}

static enum brg_status run(struct work *w, struct err *e) {
    const char *out = w->args->out;
    if ((size_t)snprintf(w->partial, sizeof w->partial, "%s.partial-%ld", out, (long)getpid()) >=
        sizeof w->partial - 256)
        return err_set(e, BRG_E_USAGE, "--out: the path is too long");
    TRY(load(w, e));
    TRY(is_gguf_file(w->args) ? export_file(w, e) : export_dir(w, e));
    return sync_parent(out, e);
}

/* ---- The command line ------------------------------------------------------------------------ */
enum { OPT_VERSION = 1, OPT_EMA, OPT_OUT, OPT_FORMAT, OPT_DTYPE, OPT_SHARD_SIZE, OPT_HELP };
static const struct option options[] = {
    {"version", 1, NULL, OPT_VERSION}, {"ema", 0, NULL, OPT_EMA},
    {"out", 1, NULL, OPT_OUT},         {"format", 1, NULL, OPT_FORMAT},
    {"dtype", 1, NULL, OPT_DTYPE},     {"shard-size", 1, NULL, OPT_SHARD_SIZE},
    {"help", 0, NULL, OPT_HELP},       {NULL, 0, NULL, 0}};

static bool take_type(const char *s, enum tensor_type *out) {
    if (strcmp(s, "f32") == 0)
        *out = TENSOR_F32;
    else if (strcmp(s, "bf16") == 0)
        *out = TENSOR_BF16;
    else if (strcmp(s, "f16") == 0)
        *out = TENSOR_F16;
    else
        return false;
    return true;
}

/* 0: go on; else an exit status + 1. */
static int read_options(int argc, char **argv, struct args *a) {
    int o;
    while ((o = getopt_long(argc, argv, "h", options, NULL)) != -1) {
        switch (o) {
        case OPT_VERSION: a->version = optarg; break;
        case OPT_EMA: a->ema = true; break;
        case OPT_OUT: a->out = optarg; break;
        case OPT_FORMAT:
            a->gguf = strcmp(optarg, "gguf") == 0;
            if (!a->gguf && strcmp(optarg, "hf") != 0)
                return cli_usage("export", "--format wants hf or gguf, not", optarg) + 1;
            break;
        case OPT_DTYPE:
            if (!take_type(optarg, &a->type))
                return cli_usage("export", "--dtype wants f32, bf16 or f16, not", optarg) + 1;
            break;
        case OPT_SHARD_SIZE:
            if (!parse_bytes(optarg, &a->shard_bytes) || a->shard_bytes == 0)
                return cli_usage("export", "--shard-size wants a size such as 2G, not", optarg) + 1;
            break;
        case 'h':
        case OPT_HELP: fputs(HELP, stdout); return 1;
        default: return cli_bad_option("export", argv) + 1;
        }
    }
    if (optind + 1 != argc) return cli_usage("export", "want one run or model directory", "") + 1;
    if (a->out == NULL) return cli_usage("export", "--out is missing", "") + 1;
    a->dir = argv[optind];
    return 0;
}

/* "out/" and "out" are one. */
static void strip_slashes(const char *from, char out[OS_PATH_MAX]) {
    (void)snprintf(out, OS_PATH_MAX, "%s", from);
    for (size_t n = strlen(out); n > 1 && out[n - 1] == '/'; n--) out[n - 1] = '\0';
}

int cmd_export(int argc, char **argv) {
    struct err e = {0};
    struct args a = {.type = TENSOR_F32, .shard_bytes = UINT64_C(5) << 30};
    char out[OS_PATH_MAX];
    int done = read_options(argc, argv, &a);
    if (done != 0) return done - 1;
    strip_slashes(a.out, out);
    a.out = out;
    struct work *w = mem_alloc(1, sizeof *w);
    w->args = &a;
    enum brg_status s = run(w, &e);
    if (s == BRG_OK) tell(w);
    export_words_fini(&w->words);
    tensor_set_fini(&w->set);
    tensors_fini(&w->table);
    mem_free(w);
    return s == BRG_OK ? 0 : cli_fail("export", &e);
}
