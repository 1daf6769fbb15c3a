/* SPDX-License-Identifier: Apache-2.0 */
/* cmd_pack.c - beringia pack: text files -> a data set. */
#include <getopt.h>
#include <stdio.h>

#include "cli/cli.h"
#include "data/data.h"

static const char HELP[] =
    "beringia pack - turn text into the token shards that a run trains on\n"
    "\n"
    "  beringia pack --out DIR [options] FILE...\n"
    "\n"
    "  --out DIR           where the data set goes; must be absent or empty\n"
    "  --tokenizer T       bytes (default), or a tokenizer.json\n"
    "                      of Hugging Face's form: byte-level BPE as Qwen3, GPT-2, Llama 3 have "
    "it\n"
    "  --special-tokens    special tokens that stand in the texts (<|im_start|>) become their "
    "ids;\n"
    "                      without this they are text like any other, and end no document\n"
    "  --template          put the tokens of the tokenizer's post-processor around each document\n"
    "                      (Llama 3: <|begin_of_text|> before); without this none is added\n"
    "  --threads N         threads that encode (default: as many as processors); the result is\n"
    "                      the same for every N\n"
    "  --seq-len N         tokens of a training sample (default 512)\n"
    "  --heldout SHARE     share of documents kept for evaluation (default 0.02)\n"
    "  --seed N            seed of the order of samples (default 1)\n"
    "  --shard-samples N   samples in a shard file (default: as many as fill 64 MiB)\n"
    "  --max-samples N     take no further training document once there are N samples\n"
    "  --force             replace the data set that is at DIR\n"
    "\n"
    "FILE is plain text, cut into documents at lines that hold only <|endoftext|> or a form feed,\n"
    "or NAME.jsonl with the text in the field \"text\" of each line.\n"
    "\n"
    "examples\n"
    "  beringia pack --out data/bytes book.txt\n"
    "  beringia tokenizer train --vocab 4096 --out tokenizer.json corpus/*.txt\n"
    "  beringia pack --out data/bpe --tokenizer tokenizer.json --seq-len 1024 corpus/*.txt\n";

static int fail(const struct err *e) {
    fprintf(stderr, "beringia pack: %s\n", e->text);
    return (int)e->status;
}

static int usage(const char *what, const char *value) {
    struct err e;
    err_set(&e, BRG_E_USAGE, "%s%s%.200s; see beringia pack --help", what, value[0] != 0 ? " " : "",
            value);
    return fail(&e);
}

static void show_half(const char *name, const struct data_counts *c) {
    printf("%-9s %llu documents, %llu samples, %llu tokens in %llu shards, %llu tokens dropped\n",
           name, (unsigned long long)c->documents, (unsigned long long)c->samples,
           (unsigned long long)c->tokens, (unsigned long long)c->shards,
           (unsigned long long)c->tokens_dropped);
}

static int show(const char *dir) {
    struct err e;
    struct dataset *d = NULL;
    struct data_counts train, heldout;
    char hex[HASH_HEX_BYTES];
    if (data_open(dir, false, &d, &e) != BRG_OK) return fail(&e);
    data_counts(d, &train, &heldout);
    struct hash h = data_fingerprint(d);
    hash_hex(&h, hex);
    printf("packed    %s: %s tokenizer, vocabulary %u, sequences of %u\n", dir,
           tokenizer_kind(data_tokenizer(d)), data_vocab(d), data_seq_len(d));
    show_half("train", &train);
    show_half("held out", &heldout);
    printf("identity  %s\n", hex);
    if (train.samples == 0)
        fprintf(stderr, "beringia pack: warning: no training sample; give more text or a smaller "
                        "--seq-len\n");
    if (heldout.samples == 0)
        fprintf(stderr,
                "beringia pack: warning: no held-out sample, so nothing to evaluate on; give "
                "more text or a larger --heldout\n");
    data_close(d);
    return BRG_OK;
}

enum {
    OPT_OUT = 1,
    OPT_TOKENIZER,
    OPT_SEQ_LEN,
    OPT_HELDOUT,
    OPT_SEED,
    OPT_SHARD_SAMPLES,
    OPT_MAX_SAMPLES,
    OPT_FORCE,
    OPT_SPECIAL,
    OPT_TEMPLATE,
    OPT_THREADS,
    OPT_HELP
};
static const struct option OPTIONS[] = {
    {"out", required_argument, NULL, OPT_OUT},
    {"tokenizer", required_argument, NULL, OPT_TOKENIZER},
    {"seq-len", required_argument, NULL, OPT_SEQ_LEN},
    {"heldout", required_argument, NULL, OPT_HELDOUT},
    {"seed", required_argument, NULL, OPT_SEED},
    {"shard-samples", required_argument, NULL, OPT_SHARD_SAMPLES},
    {"max-samples", required_argument, NULL, OPT_MAX_SAMPLES},
    {"force", no_argument, NULL, OPT_FORCE},
    {"special-tokens", no_argument, NULL, OPT_SPECIAL},
    {"template", no_argument, NULL, OPT_TEMPLATE},
    {"threads", required_argument, NULL, OPT_THREADS},
    {"help", no_argument, NULL, OPT_HELP},
    {NULL, 0, NULL, 0},
};

int cmd_pack(int argc, char **argv) {
    struct pack_options o = {
        .tokenizer = "bytes", .seq_len = 512, .heldout_share = 0.02, .seed = 1};
    uint64_t n;
    opterr = 0;
    optind = 1;
    for (int c; (c = getopt_long(argc, argv, ":h", OPTIONS, NULL)) != -1;) {
        switch (c) {
        case OPT_OUT: o.out_dir = optarg; break;
        case OPT_TOKENIZER: o.tokenizer = optarg; break;
        case OPT_SEQ_LEN:
            if (!parse_u64(optarg, &n) || n == 0 || n > SEQ_LEN_MAX)
                return usage("--seq-len: no length in 1..1048576:", optarg);
            o.seq_len = (uint32_t)n;
            break;
        case OPT_HELDOUT:
            if (!parse_f64(optarg, &o.heldout_share)) return usage("--heldout: no number:", optarg);
            break;
        case OPT_SEED:
            if (!parse_u64(optarg, &o.seed)) return usage("--seed: no number:", optarg);
            break;
        case OPT_SHARD_SAMPLES:
            if (!parse_u64(optarg, &o.shard_samples_max) || o.shard_samples_max == 0)
                return usage("--shard-samples: no positive number:", optarg);
            break;
        case OPT_MAX_SAMPLES:
            if (!parse_u64(optarg, &o.train_samples_max) || o.train_samples_max == 0)
                return usage("--max-samples: no positive number:", optarg);
            break;
        case OPT_FORCE: o.force = true; break;
        case OPT_SPECIAL: o.special_ids = true; break;
        case OPT_TEMPLATE: o.around = true; break;
        case OPT_THREADS:
            if (!parse_u64(optarg, &n) || n == 0 || n > 1024)
                return usage("--threads: no number in 1..1024:", optarg);
            o.threads = (unsigned)n;
            break;
        case 'h':
        case OPT_HELP: fputs(HELP, stdout); return BRG_OK;
        case ':': return usage("a value is missing after", argv[optind - 1]);
        default: return usage("unknown option", argv[optind - 1]);
        }
    }
    if (o.out_dir == NULL) return usage("--out DIR is missing", "");
    if (optind == argc) return usage("no text file is named", "");
    o.inputs = (const char *const *)(argv + optind);
    o.inputs_count = (size_t)(argc - optind);
    struct err e;
    if (data_pack(&o, &e) != BRG_OK) return fail(&e);
    return show(o.out_dir);
}
