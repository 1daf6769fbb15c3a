/* SPDX-License-Identifier: Apache-2.0 */
/* cmd_tokenizer.c - beringia tokenizer: train one, or look at what it does. */
#include <errno.h>
#include <getopt.h>
#include <jansson.h>
#include <stdio.h>
#include <string.h>

#include "base/os.h"
#include "cli/cli.h"
#include "data/data.h"

static const char HELP[] =
    "beringia tokenizer - learn a byte-level BPE vocabulary, or look at what one makes of a text\n"
    "\n"
    "  beringia tokenizer train --vocab N --out tokenizer.json FILE...\n"
    "  beringia tokenizer encode [--tokenizer T] [FILE]    text to ids, standard input without "
    "FILE\n"
    "  beringia tokenizer decode [--tokenizer T] [FILE]    ids to text\n"
    "\n"
    "  --vocab N         ids in all: 256 bytes, merges, the end of text; 257..1048576\n"
    "  --out FILE        where the tokenizer goes, in the form of Hugging Face's tokenizers\n"
    "  --force           replace FILE\n"
    "  --tokenizer T     bytes (default), or a tokenizer.json of Hugging Face's form: byte-level "
    "BPE\n"
    "                    as Qwen3, GPT-2 and Llama 3 have it\n"
    "  --plain           encode: special tokens in the text are text, as pack takes them; without\n"
    "                    this they are their ids, as in Hugging Face's tokenizers\n"
    "  --template        encode: add the ids of the tokenizer's post-processor (Llama 3:\n"
    "                    <|begin_of_text|> before); without this none is added\n"
    "  --jsonl           encode: FILE holds a JSON object a line; the ids of each \"text\" are a "
    "line\n"
    "\n"
    "decode gives back the bytes of the text; where the tokenizer has a normalizer, those of the\n"
    "normalized text, and U+FFFD for what is no UTF-8.\n"
    "\n"
    "examples\n"
    "  beringia tokenizer train --vocab 4096 --out tokenizer.json corpus/*.txt\n"
    "  echo 'Call me Ishmael.' | beringia tokenizer encode --tokenizer tokenizer.json\n"
    "  echo 72 105 33 10 | beringia tokenizer decode\n";

enum { TEXT_BYTES_MAX = 1 << 30 };

static int fail(const struct err *e) {
    fprintf(stderr, "beringia tokenizer: %s\n", e->text);
    return (int)e->status;
}

static int usage(const char *what, const char *value) {
    struct err e;
    err_set(&e, BRG_E_USAGE, "%s%s%.200s; see beringia tokenizer --help", what,
            value[0] != 0 ? " " : "", value);
    return fail(&e);
}

struct arguments {
    const char *tokenizer, *out;
    uint64_t vocab;
    bool force, plain, template, jsonl;
    char **files;
    int files_count;
};

static int train(const struct arguments *a) {
    struct err e;
    struct tokenizer *t = NULL;
    if (a->out == NULL) return usage("--out FILE is missing", "");
    if (a->vocab == 0) return usage("--vocab N is missing", "");
    if (a->files_count == 0) return usage("no text file is named", "");
    if (os_exists(a->out) && !a->force) {
        err_set(&e, BRG_E_EXISTS,
                "%.300s: is there already; choose another --out, or replace it with "
                "--force",
                a->out);
        return fail(&e);
    }
    if (tokenizer_train_files((const char *const *)a->files, (size_t)a->files_count,
                              (uint32_t)a->vocab, &t, &e) != BRG_OK)
        return fail(&e);
    enum brg_status s = tokenizer_save(t, a->out, &e);
    char hex[HASH_HEX_BYTES];
    struct hash h = tokenizer_hash(t);
    hash_hex(&h, hex);
    if (s == BRG_OK)
        printf("trained   %s: vocabulary %u\nidentity  %s\n", a->out, tokenizer_vocab(t), hex);
    tokenizer_free(t);
    return s == BRG_OK ? BRG_OK : fail(&e);
}

static enum brg_status read_input(const struct arguments *a, struct buf *out, struct err *e) {
    if (a->files_count == 1) return os_read_file(a->files[0], TEXT_BYTES_MAX, out, e);
    char chunk[65536];
    size_t n;
    while ((n = fread(chunk, 1, sizeof chunk, stdin)) > 0) buf_put(out, chunk, n);
    if (ferror(stdin)) return os_errno(e, errno, "read", "standard input");
    if (out->overflow)
        return err_set(e, BRG_E_LIMIT, "standard input is longer than %d bytes; cut it",
                       TEXT_BYTES_MAX);
    return BRG_OK;
}

/* Ids are numbers between blanks or commas. */
static enum brg_status parse_ids(struct buf *text, struct buf *out, struct err *e) {
    buf_cstr(text);
    char *save = NULL;
    for (char *w = strtok_r((char *)text->data, " \t\r\n,[]", &save); w != NULL;
         w = strtok_r(NULL, " \t\r\n,[]", &save)) {
        uint64_t id;
        if (!parse_u64(w, &id) || id > UINT32_MAX)
            return err_set(e, BRG_E_USAGE, "\"%.40s\" is no id; give numbers between blanks", w);
        buf_u32(out, (uint32_t)id);
    }
    return BRG_OK;
}

static enum brg_status encode(const struct arguments *a, const struct tokenizer *t,
                              const char *text, size_t bytes, struct buf *ids, struct err *e) {
    const uint32_t *before, *behind;
    uint32_t before_count, behind_count;
    tokenizer_around(t, &before, &before_count, &behind, &behind_count);
    buf_reset(ids);
    for (uint32_t i = 0; a->template && i < before_count; i++) buf_u32(ids, before[i]);
    TRY(tokenizer_encode(t, text, bytes, a->plain ? SPECIAL_AS_TEXT : SPECIAL_AS_IDS, ids, e));
    for (uint32_t i = 0; a->template && i < behind_count; i++) buf_u32(ids, behind[i]);
    for (size_t i = 0; i < ids->bytes_count; i += 4)
        printf("%s%u", i == 0 ? "" : " ", get_le32(ids->data + i));
    printf("\n");
    return BRG_OK;
}

static enum brg_status encode_lines(const struct arguments *a, const struct tokenizer *t,
                                    char *text, struct buf *ids, struct err *e) {
    uint64_t line = 1;
    char *save = NULL;
    for (char *p = strtok_r(text, "\n", &save); p != NULL;
         p = strtok_r(NULL, "\n", &save), line++) {
        json_error_t error;
        json_t *o = json_loads(p, JSON_ALLOW_NUL, &error);
        const json_t *v = json_object_get(o, "text");
        enum brg_status s =
            json_is_string(v)
                ? encode(a, t, json_string_value(v), json_string_length(v), ids, e)
                : err_set(e, BRG_E_USAGE,
                          "line %llu: no object with a string \"text\"; --jsonl wants one a line",
                          (unsigned long long)line);
        json_decref(o);
        TRY(s);
    }
    return BRG_OK;
}

static enum brg_status decode(struct buf *in, const struct tokenizer *t, struct buf *out,
                              struct err *e) {
    AUTO_BUF struct buf ids;
    buf_init(&ids, (size_t)TEXT_BYTES_MAX * 4);
    TRY(parse_ids(in, &ids, e));
    size_t count = ids.bytes_count / 4;
    AUTO_FREE uint32_t *list = mem_alloc(count, sizeof *list);
    for (size_t i = 0; i < count; i++) list[i] = get_le32(ids.data + 4 * i);
    TRY(tokenizer_decode(t, list, count, out, e));
    fwrite(out->data, 1, out->bytes_count, stdout);
    return BRG_OK;
}

static enum brg_status convert(const struct arguments *a, bool decoding, const struct tokenizer *t,
                               struct err *e) {
    AUTO_BUF struct buf in, out;
    buf_init(&in, TEXT_BYTES_MAX);
    buf_init(&out, (size_t)TEXT_BYTES_MAX * 4);
    TRY(read_input(a, &in, e));
    if (decoding)
        TRY(decode(&in, t, &out, e));
    else if (a->jsonl) {
        buf_cstr(&in);
        TRY(encode_lines(a, t, (char *)in.data, &out, e));
    } else
        TRY(encode(a, t, (const char *)in.data, in.bytes_count, &out, e));
    if (fflush(stdout) != 0) return os_errno(e, errno, "write", "standard output");
    return BRG_OK;
}

static int encode_or_decode(const struct arguments *a, bool decoding) {
    struct err e;
    struct tokenizer *t = NULL;
    if (a->files_count > 1) return usage("one FILE at most, not also", a->files[1]);
    if (strcmp(a->tokenizer, "bytes") == 0)
        t = tokenizer_bytes();
    else if (tokenizer_load(a->tokenizer, &t, &e) != BRG_OK)
        return fail(&e);
    enum brg_status s = convert(a, decoding, t, &e);
    tokenizer_free(t);
    return s == BRG_OK ? BRG_OK : fail(&e);
}

enum {
    OPT_VOCAB = 1,
    OPT_OUT,
    OPT_FORCE,
    OPT_TOKENIZER,
    OPT_PLAIN,
    OPT_TEMPLATE,
    OPT_JSONL,
    OPT_HELP
};
static const struct option OPTIONS[] = {
    {"vocab", required_argument, NULL, OPT_VOCAB},
    {"out", required_argument, NULL, OPT_OUT},
    {"force", no_argument, NULL, OPT_FORCE},
    {"tokenizer", required_argument, NULL, OPT_TOKENIZER},
    {"plain", no_argument, NULL, OPT_PLAIN},
    {"template", no_argument, NULL, OPT_TEMPLATE},
    {"jsonl", no_argument, NULL, OPT_JSONL},
    {"help", no_argument, NULL, OPT_HELP},
    {NULL, 0, NULL, 0},
};

int cmd_tokenizer(int argc, char **argv) {
    struct arguments a = {.tokenizer = "bytes"};
    opterr = 0;
    optind = 1;
    for (int c; (c = getopt_long(argc, argv, ":h", OPTIONS, NULL)) != -1;) {
        switch (c) {
        case OPT_VOCAB:
            if (!parse_u64(optarg, &a.vocab) || a.vocab < TOKENIZER_BYTES_VOCAB ||
                a.vocab > 1 << 20)
                return usage("--vocab: no size in 257..1048576:", optarg);
            break;
        case OPT_OUT: a.out = optarg; break;
        case OPT_FORCE: a.force = true; break;
        case OPT_TOKENIZER: a.tokenizer = optarg; break;
        case OPT_PLAIN: a.plain = true; break;
        case OPT_TEMPLATE: a.template = true; break;
        case OPT_JSONL: a.jsonl = true; break;
        case 'h':
        case OPT_HELP: fputs(HELP, stdout); return BRG_OK;
        case ':': return usage("a value is missing after", argv[optind - 1]);
        default: return usage("unknown option", argv[optind - 1]);
        }
    }
    if (optind == argc) return usage("train, encode or decode is missing", "");
    const char *verb = argv[optind++];
    a.files = argv + optind;
    a.files_count = argc - optind;
    if (strcmp(verb, "train") == 0) return train(&a);
    if (strcmp(verb, "encode") == 0) return encode_or_decode(&a, false);
    if (strcmp(verb, "decode") == 0) return encode_or_decode(&a, true);
    return usage("train, encode or decode is wanted, not", verb);
}
