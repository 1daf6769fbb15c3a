/* SPDX-License-Identifier: Apache-2.0 */
/* cmd_order.c - beringia order: an operator tells a facility's agent which of its shapes to submit. The
 * hub keeps the order, the agent fetches it and judges it by its own site.yaml. */
#include <curl/curl.h>
#include <getopt.h>
#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>
#include <string.h>

#include "cli/ask.h"
#include "cli/cli.h"
#include "wire/agent.h"
#include "wire/json.h"

enum { ANSWER_MAX = 64 << 20 };

static const char HELP[] =
    "beringia order - have a facility's agent submit jobs, or cancel them\n"
    "\n"
    "  beringia order RUN|URL SITE SHAPE [--jobs N]   N jobs of this shape, one after another\n"
    "  beringia order RUN|URL --cancel ID             what waits is cancelled, what runs drains\n"
    "  beringia order RUN|URL --list                  orders, jobs, and what may be ordered\n"
    "\n" CLI_WHO_HELP "\n"
    "SITE is the name in a facility's site.yaml, SHAPE one of the shapes there. The agent "
    "(beringia\n"
    "agent) takes the order when it next asks, and never does what its file does not offer. The "
    "jobs\n"
    "of one order form a chain: each is queued while the one before it runs.\n"
    "The commands go to the hub's own machine only (loopback).\n";

static void list_jobs(const json_t *facility, double order) {
    const json_t *jobs = json_object_get(facility, "jobs");
    for (size_t i = 0; i < json_array_size(jobs); i++) {
        const json_t *j = json_array_get(jobs, i);
        if (json_number_value(json_object_get(j, "order")) != order) continue;
        printf("    job %.0f  id %.0f  %s  %s\n", json_number_value(json_object_get(j, "job")),
               json_number_value(json_object_get(j, "id")),
               json_string_value(json_object_get(j, "state")),
               json_string_value(json_object_get(j, "why")));
    }
}

static void list(const json_t *o) {
    const json_t *facilities = json_object_get(o, "facilities"),
                 *orders = json_object_get(o, "orders");
    if (json_array_size(facilities) == 0)
        printf("no facility has reported yet: start beringia agent there\n");
    for (size_t i = 0; i < json_array_size(facilities); i++) {
        const json_t *f = json_array_get(facilities, i), *shapes = json_object_get(f, "shapes");
        printf("%s offers", cli_word(f, "name"));
        for (size_t k = 0; k < json_array_size(shapes); k++) {
            const json_t *s = json_array_get(shapes, k);
            printf("%s %s (%.0f nodes, %.0f s)", k > 0 ? "," : "", cli_word(s, "shape"),
                   json_number_value(json_object_get(s, "nodes")),
                   json_number_value(json_object_get(s, "seconds")));
        }
        printf("\n");
        for (size_t k = 0; k < json_array_size(orders); k++) {
            const json_t *r = json_array_get(orders, k);
            if (strcmp(cli_word(r, "site"), cli_word(f, "name")) != 0) continue;
            printf("  order %.0f: %s, %.0f jobs, %s%s%s\n",
                   json_number_value(json_object_get(r, "id")), cli_word(r, "shape"),
                   json_number_value(json_object_get(r, "jobs")),
                   json_is_true(json_object_get(r, "open"))
                       ? json_is_true(json_object_get(r, "cancel")) ? "being cancelled" : "open"
                       : cli_word(r, "word"),
                   cli_word(r, "why")[0] != '\0' ? ": " : "", cli_word(r, "why"));
            list_jobs(f, json_number_value(json_object_get(r, "id")));
        }
    }
}

/* json NULL: only list. */
static int ask(const struct hub_who *who, const char *json) {
    struct hub_address hub;
    struct err e = {0};
    AUTO_BUF struct buf b;
    buf_init(&b, ANSWER_MAX);
    CHECK(curl_global_init(CURL_GLOBAL_DEFAULT) == 0);
    enum brg_status s = cli_hub_find(who, &hub, &e);
    if (s == BRG_OK)
        s = json != NULL ? cli_hub_post(&hub, "/v1/operator/order", json, &b, &e)
                         : cli_hub_get(&hub, "/v1/status", &b, &e);
    if (s != BRG_OK) return cli_fail("order", &e);
    json_t *o = json_loadb((const char *)b.data, b.bytes_count, 0, NULL);
    if (json == NULL)
        list(o);
    else if (json_object_get(o, "order") != NULL)
        printf("order %.0f is given\n", json_number_value(json_object_get(o, "order")));
    else
        printf("the order is being cancelled\n");
    json_decref(o);
    return 0;
}

int cmd_order(int argc, char **argv) {
    enum { OPT_JOBS = 1, OPT_CANCEL, OPT_LIST, OPT_HELP };
    static const struct option options[] = {CLI_WHO_OPTIONS,
                                            {"jobs", 1, NULL, OPT_JOBS},
                                            {"cancel", 1, NULL, OPT_CANCEL},
                                            {"list", 0, NULL, OPT_LIST},
                                            {"help", 0, NULL, OPT_HELP},
                                            {NULL, 0, NULL, 0}};
    struct hub_who who = {0};
    uint64_t jobs = 1, cancel = 0;
    bool listing = false;
    char json[512];
    int o;
    while ((o = getopt_long(argc, argv, "h", options, NULL)) != -1) {
        switch (o) {
        case OPT_JOBS:
            if (!parse_u64(optarg, &jobs) || jobs == 0 || jobs > WIRE_ORDER_JOBS_MAX)
                return cli_usage("order", "--jobs wants 1 to 1000, not", optarg);
            break;
        case OPT_CANCEL:
            if (!parse_u64(optarg, &cancel) || cancel == 0 || cancel > UINT32_MAX)
                return cli_usage("order", "--cancel wants the number of an order, not", optarg);
            break;
        case OPT_LIST: listing = true; break;
        case 'h':
        case OPT_HELP: fputs(HELP, stdout); return 0;
        default:
            if (!cli_who_option(&who, o, optarg)) return cli_bad_option("order", argv);
        }
    }
    if (optind + (cancel > 0 || listing ? 1 : 3) != argc)
        return cli_usage("order", "want RUN, and SITE and SHAPE or --cancel or --list", "");
    who.run = argv[optind];
    if (listing) return ask(&who, NULL);
    if (cancel > 0) {
        (void)snprintf(json, sizeof json, "{\"cancel\":%" PRIu64 "}", cancel);
        return ask(&who, json);
    }
    for (int i = 1; i <= 2; i++)
        if (!wire_name_valid(argv[optind + i]))
            return cli_usage("order", "this is no name of a site or shape:", argv[optind + i]);
    (void)snprintf(json, sizeof json, "{\"site\":\"%s\",\"shape\":\"%s\",\"jobs\":%" PRIu64 "}",
                   argv[optind + 1], argv[optind + 2], jobs);
    return ask(&who, json);
}
