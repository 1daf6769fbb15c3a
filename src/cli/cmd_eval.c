/* SPDX-License-Identifier: Apache-2.0 */
/* cmd_eval.c - beringia eval: the held-out loss of a model, of a directory in Hugging Face's form or of
 * a run's version (RUN/model.json and RUN/versions/<v>.safetensors). */
#include <dirent.h>
#include <getopt.h>
#include <stdio.h>
#include <string.h>

#include <jansson.h>

#include "base/os.h"
#include "cli/cli.h"
#include "train/eval.h"
#include "train/model_os.h"

static const char HELP[] =
    "beringia eval - held-out perplexity of a model\n"
    "\n"
    "  beringia eval RUN|DIR --data DIR [options]\n"
    "\n"
    "  RUN             directory of a run; its newest version unless --version says which\n"
    "  DIR             directory with config.json and model.safetensors\n"
    "  --data DIR      data set with held-out samples (beringia pack)\n"
    "  --version V     version of the run\n"
    "  --batch N       samples at a time (default 8); more memory, not other numbers\n"
    "  --threads N     worker threads (default: the processors of this process)\n"
    "  --json          one JSON object instead of text\n"
    "\n"
    "Every held-out sample counts; the mean is over tokens, in nats. Bits per byte do not depend "
    "on the\n"
    "tokenizer, so they compare models with different ones.\n"
    "\n"
    "examples\n"
    "  beringia eval out/ --data data/bpe\n"
    "  beringia eval run1/ --version 12 --data data/bpe --json\n";

struct eval_args {
    const char *dir, *data;
    uint64_t version;
    bool has_version, json;
    uint32_t batch, threads;
};

struct source { /* what is evaluated */
    char config[OS_PATH_MAX], weights[OS_PATH_MAX];
    bool run;
    uint64_t version;
};

static enum brg_status newest_version(const char *versions, uint64_t *out, struct err *e) {
    DIR *d = opendir(versions);
    bool found = false;
    uint64_t best = 0;
    if (!d) return err_set(e, BRG_E_MISSING, "%s: the directory cannot be read", versions);
    for (const struct dirent *x; (x = readdir(d)) != NULL;) {
        char name[32];
        uint64_t v;
        const char *end = strstr(x->d_name, ".safetensors");
        if (!end || strcmp(end, ".safetensors") != 0) continue;
        size_t digits = (size_t)(end - x->d_name);
        if (digits == 0 || digits >= sizeof name) continue;
        memcpy(name, x->d_name, digits);
        name[digits] = '\0';
        if (!parse_u64(name, &v)) continue;
        if (!found || v > best) best = v;
        found = true;
    }
    closedir(d);
    if (!found) return err_set(e, BRG_E_MISSING, "%s: no version is there yet", versions);
    *out = best;
    return BRG_OK;
}

static enum brg_status find_source(const struct eval_args *a, struct source *s, struct err *e) {
    char versions[OS_PATH_MAX];
    os_path(versions, a->dir, "versions");
    s->run = os_exists(versions);
    if (!s->run) {
        if (a->has_version)
            return err_set(e, BRG_E_USAGE,
                           "%s is not a run (it has no versions/): leave --version out", a->dir);
        os_path(s->config, a->dir, "config.json");
        os_path(s->weights, a->dir, "model.safetensors");
        return BRG_OK;
    }
    s->version = a->version;
    if (!a->has_version) TRY(newest_version(versions, &s->version, e));
    os_path(s->config, a->dir, "model.json");
    os_path(s->weights, a->dir, "versions/%llu.safetensors", (unsigned long long)s->version);
    if (!os_exists(s->weights))
        return err_set(e, BRG_E_MISSING, "%s: this version is not there", s->weights);
    return BRG_OK;
}

static void show_json(const struct source *s, const struct eval_result *r, double seconds) {
    json_t *o = json_object();
    json_object_set_new(o, "model", json_string(s->weights));
    if (s->run) json_object_set_new(o, "version", json_integer((json_int_t)s->version));
    json_object_set_new(o, "samples", json_integer((json_int_t)r->samples));
    json_object_set_new(o, "tokens", json_integer((json_int_t)r->tokens));
    json_object_set_new(o, "nll", json_real(r->nll));
    json_object_set_new(o, "perplexity", json_real(r->perplexity));
    json_object_set_new(o, "bits_per_byte", json_real(r->bits_per_byte));
    json_object_set_new(o, "seconds", json_real(seconds));
    json_dumpf(o, stdout, JSON_COMPACT);
    putchar('\n');
    json_decref(o);
}

static void show_text(const struct source *s, const struct eval_result *r) {
    printf("model          %s\n", s->weights);
    printf("held out       %llu samples, %llu tokens\n", (unsigned long long)r->samples,
           (unsigned long long)r->tokens);
    printf("loss           %.6f nats a token\n", r->nll);
    printf("perplexity     %.4f\n", r->perplexity);
    printf("bits per byte  %.4f\n", r->bits_per_byte);
}

static enum brg_status evaluate(const struct eval_args *a, struct trainer **t, struct dataset **d,
                                struct err *e) {
    struct source s = {0};
    struct model_config c;
    struct eval_result r;
    TRY(find_source(a, &s, e));
    TRY(model_config_load(s.config, &c, e));
    TRY(data_open(a->data, false, d, e));
    struct trainer_options o = {
        .model = &c, .seq_len = data_seq_len(*d), .batch_max = a->batch, .threads = a->threads};
    TRY(trainer_create(&o, t, e));
    TRY(model_load_file(s.weights, &c, trainer_theta(*t), e));
    time_ns start = os_now();
    TRY(eval_heldout(*t, *d, &r, e));
    if (a->json)
        show_json(&s, &r, (double)(os_now() - start) / 1e9);
    else
        show_text(&s, &r);
    return BRG_OK;
}

static int fail(const struct err *e) {
    fprintf(stderr, "beringia eval: %s\n", e->text);
    return (int)e->status;
}

static int usage(const char *what, const char *value) {
    struct err e;
    err_set(&e, BRG_E_USAGE, "%s %.200s; see beringia eval --help", what, value);
    return fail(&e);
}

static bool parse_count(const char *s, uint32_t max, uint32_t *out) {
    uint64_t v;
    if (!parse_u64(s, &v) || v == 0 || v > max) return false;
    *out = (uint32_t)v;
    return true;
}

enum { OPT_DATA = 1, OPT_VERSION, OPT_BATCH, OPT_THREADS, OPT_JSON, OPT_HELP };
static const struct option OPTIONS[] = {
    {"data", required_argument, NULL, OPT_DATA},
    {"version", required_argument, NULL, OPT_VERSION},
    {"batch", required_argument, NULL, OPT_BATCH},
    {"threads", required_argument, NULL, OPT_THREADS},
    {"json", no_argument, NULL, OPT_JSON},
    {"help", no_argument, NULL, OPT_HELP},
    {NULL, 0, NULL, 0},
};

int cmd_eval(int argc, char **argv) {
    struct eval_args a = {.batch = 8};
    struct trainer *t = NULL;
    struct dataset *d = NULL;
    struct err e = {0};
    opterr = 0;
    optind = 1;
    for (int c; (c = getopt_long(argc, argv, ":", OPTIONS, NULL)) != -1;) {
        switch (c) {
        case OPT_DATA: a.data = optarg; break;
        case OPT_VERSION:
            if (!parse_u64(optarg, &a.version)) return usage("--version: no number:", optarg);
            a.has_version = true;
            break;
        case OPT_BATCH:
            if (!parse_count(optarg, 1 << 16, &a.batch))
                return usage("--batch: no number in 1..65536:", optarg);
            break;
        case OPT_THREADS:
            if (!parse_count(optarg, 512, &a.threads))
                return usage("--threads: no number in 1..512:", optarg);
            break;
        case OPT_JSON: a.json = true; break;
        case OPT_HELP: fputs(HELP, stdout); return BRG_OK;
        case ':': return usage("a value is missing after", argv[optind - 1]);
        default: return usage("unknown option", argv[optind - 1]);
        }
    }
    if (optind + 1 != argc) return usage("name one run or model directory", "");
    if (!a.data) return usage("--data DIR is missing", "");
    a.dir = argv[optind];
    enum brg_status s = evaluate(&a, &t, &d, &e);
    trainer_destroy(t);
    if (d) data_close(d);
    return s == BRG_OK ? BRG_OK : fail(&e);
}
