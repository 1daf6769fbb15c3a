/* SPDX-License-Identifier: Apache-2.0 */
/* cmd_operator.c - beringia rollback, discard, quarantine, drain: what a person decides about a running
 * hub. Thin: the hub judges, and its sentence is what is printed. docs/operating.md tells when. */
#include <curl/curl.h>
#include <getopt.h>
#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>
#include <string.h>

#include "base/os.h"
#include "cli/ask.h"
#include "cli/cli.h"
#include "wire/json.h"

enum { ANSWER_MAX = 1 << 20 };

static const char ROLLBACK_HELP[] =
    "beringia rollback - go back to an older version\n"
    "\n"
    "  beringia rollback RUN|URL VERSION [--token FILE] [--ca FILE]\n"
    "\n" CLI_WHO_HELP "\n"
    "Head and ledger go back together; all leases end, what is "
    "staged is dropped, and what was merged\n"
    "after VERSION is trained again. VERSION is the head or one of "
    "its ancestors whose checkpoint is\n"
    "kept (RUN/versions). It also ends a hold (HUB_BEHIND): with "
    "the head's own number, the run goes\n"
    "on from what this hub knows. Where the hub does not start, "
    "use beringia hub RUN --rollback-to V.\n";
static const char DISCARD_HELP[] =
    "beringia discard - drop a contribution that is staged and not merged\n"
    "\n"
    "  beringia discard RUN|URL DID [--reason TEXT] [--token FILE] [--ca FILE]\n"
    "\n" CLI_WHO_HELP "\n"
    "Its positions are trained by somebody again. What is merged already goes by beringia "
    "rollback.\n";
static const char QUARANTINE_HELP[] =
    "beringia quarantine - positions whose leases ended by a crash too often\n"
    "\n"
    "  beringia quarantine RUN|URL [--list]\n"
    "  beringia quarantine RUN|URL --return RANGE\n"
    "  beringia quarantine RUN|URL --skip RANGE [--reason TEXT]\n"
    "\n"
    "  --list          which ranges, one a line, as EPOCH:START+COUNT\n"
    "  --return RANGE  give them out again: the sites were at fault, and are mended\n"
    "  --skip RANGE    leave them out of this epoch for good: the data are at fault; the audit "
    "shows it\n"
    "  --reason TEXT   at most 23 bytes, recorded with the skip (default: operator)\n" CLI_WHO_HELP;
static const char DRAIN_HELP[] =
    "beringia drain - ask all sites to hand in and leave\n"
    "\n"
    "  beringia drain RUN|URL [--off] [--token FILE] [--ca FILE]\n"
    "\n"
    "  --off         they may go on; a restart of the hub says so too\n" CLI_WHO_HELP;

/* ---- Asking ------------------------------------------------------------------------------------------- */
/* Sends; prints `done` and where the run stands. */
static int operate(const char *name, const struct hub_who *who, const char *json,
                   const char *done) {
    struct hub_address hub;
    char path[64];
    struct err e = {0};
    struct buf b;
    buf_init(&b, ANSWER_MAX);
    CHECK(curl_global_init(CURL_GLOBAL_DEFAULT) == 0);
    (void)snprintf(path, sizeof path, "/v1/operator/%s", name);
    enum brg_status s = cli_hub_find(who, &hub, &e);
    if (s == BRG_OK) s = cli_hub_post(&hub, path, json, &b, &e);
    if (s == BRG_OK) {
        json_t *o = json_loadb((const char *)b.data, b.bytes_count, 0, NULL);
        printf("%s; head %lld%s\n", done, (long long)json_integer_value(json_object_get(o, "head")),
               json_is_true(json_object_get(o, "held")) ? ", held" : "");
        json_decref(o);
    }
    buf_fini(&b);
    return s == BRG_OK ? 0 : cli_fail(name, &e);
}

int cmd_rollback(int argc, char **argv) {
    static const struct option options[] = {
        CLI_WHO_OPTIONS, {"help", 0, NULL, 'h'}, {NULL, 0, NULL, 0}};
    struct hub_who who = {0};
    uint64_t version;
    char json[64];
    int o;
    while ((o = getopt_long(argc, argv, "h", options, NULL)) != -1) {
        if (cli_who_option(&who, o, optarg)) continue;
        if (o != 'h') return cli_bad_option("rollback", argv);
        fputs(ROLLBACK_HELP, stdout);
        return 0;
    }
    if (optind + 2 != argc) return cli_usage("rollback", "want RUN and a version", "");
    if (!parse_u64(argv[optind + 1], &version))
        return cli_usage("rollback", "want a version, not", argv[optind + 1]);
    (void)snprintf(json, sizeof json, "{\"version\":%" PRIu64 "}", version);
    who.run = argv[optind];
    return operate("rollback", &who, json, "rolled back: what was merged later is trained again");
}

int cmd_discard(int argc, char **argv) {
    static const struct option options[] = {
        CLI_WHO_OPTIONS, {"reason", 1, NULL, 'r'}, {"help", 0, NULL, 'h'}, {NULL, 0, NULL, 0}};
    const char *reason = "an operator discarded it";
    struct hub_who who = {0};
    struct id128 did;
    struct buf json;
    bool first = true;
    int o;
    while ((o = getopt_long(argc, argv, "h", options, NULL)) != -1) {
        switch (o) {
        case 'r': reason = optarg; break;
        case 'h': fputs(DISCARD_HELP, stdout); return 0;
        default:
            if (!cli_who_option(&who, o, optarg)) return cli_bad_option("discard", argv);
        }
    }
    if (optind + 2 != argc)
        return cli_usage("discard", "want RUN and the id of a contribution", "");
    if (strlen(argv[optind + 1]) != 2 * ID_BYTES || !hex_decode(argv[optind + 1], did.v, ID_BYTES))
        return cli_usage("discard", "an id has 32 hexadecimal digits, not", argv[optind + 1]);
    buf_init(&json, 4096);
    buf_u8(&json, '{');
    json_member_id(&json, &first, "did", &did);
    json_member_text(&json, &first, "reason", reason);
    buf_u8(&json, '}');
    who.run = argv[optind];
    int status = operate("discard", &who, buf_cstr(&json), "discarded");
    buf_fini(&json);
    return status;
}

int cmd_drain(int argc, char **argv) {
    static const struct option options[] = {
        CLI_WHO_OPTIONS, {"off", 0, NULL, 'o'}, {"help", 0, NULL, 'h'}, {NULL, 0, NULL, 0}};
    struct hub_who who = {0};
    bool on = true;
    int o;
    while ((o = getopt_long(argc, argv, "h", options, NULL)) != -1) {
        switch (o) {
        case 'o': on = false; break;
        case 'h': fputs(DRAIN_HELP, stdout); return 0;
        default:
            if (!cli_who_option(&who, o, optarg)) return cli_bad_option("drain", argv);
        }
    }
    if (optind + 1 != argc) return cli_usage("drain", "want one RUN directory or URL", "");
    who.run = argv[optind];
    return operate("drain", &who, on ? "{\"on\":true}" : "{\"on\":false}",
                   on ? "draining: sites hand in and leave" : "not draining any more");
}

/* ---- Quarantine --------------------------------------------------------------------------------------- */
static int list_quarantined(const struct hub_who *who) {
    struct hub_address hub;
    struct err e = {0};
    struct buf b;
    size_t i;
    json_t *x;
    buf_init(&b, ANSWER_MAX);
    CHECK(curl_global_init(CURL_GLOBAL_DEFAULT) == 0);
    enum brg_status s = cli_hub_find(who, &hub, &e);
    if (s == BRG_OK) s = cli_hub_get(&hub, "/v1/quarantine", &b, &e);
    json_t *o = s == BRG_OK ? json_loadb((const char *)b.data, b.bytes_count, 0, NULL) : NULL;
    const json_t *ranges = json_object_get(o, "ranges");
    if (s == BRG_OK && !json_is_array(ranges))
        s = err_set(&e, BRG_E_MESSAGE, "%s: this is no answer of a hub", hub.url);
    if (s == BRG_OK && json_array_size(ranges) == 0) printf("nothing is quarantined\n");
    json_array_foreach(ranges, i, x) {
        printf("%lld:%lld+%lld  crashes %lld\n",
               (long long)json_integer_value(json_object_get(x, "epoch")),
               (long long)json_integer_value(json_object_get(x, "start")),
               (long long)json_integer_value(json_object_get(x, "count")),
               (long long)json_integer_value(json_object_get(x, "crashes")));
    }
    json_decref(o);
    buf_fini(&b);
    return s == BRG_OK ? 0 : cli_fail("quarantine", &e);
}

/* EPOCH:START+COUNT */
static bool range_parse(const char *text, uint64_t out[3]) {
    char copy[80];
    if (strlen(text) >= sizeof copy) return false;
    (void)snprintf(copy, sizeof copy, "%s", text);
    char *colon = strchr(copy, ':'), *plus = strchr(copy, '+');
    if (colon == NULL || plus == NULL || plus < colon) return false;
    *colon = *plus = '\0';
    return parse_u64(copy, &out[0]) && parse_u64(colon + 1, &out[1]) &&
           parse_u64(plus + 1, &out[2]) && out[0] <= UINT32_MAX && out[2] > 0;
}

static int decide(const struct hub_who *who, const char *range, bool skip, const char *reason) {
    uint64_t v[3];
    struct buf json;
    bool first = true;
    if (!range_parse(range, v))
        return cli_usage("quarantine", "want EPOCH:START+COUNT as --list prints it, not", range);
    if (strlen(reason) > 23)
        return cli_usage("quarantine", "--reason: at most 23 bytes, not", reason);
    buf_init(&json, 4096);
    buf_u8(&json, '{');
    json_member_u64(&json, &first, "epoch", v[0]);
    json_member_u64(&json, &first, "start", v[1]);
    json_member_u64(&json, &first, "count", v[2]);
    json_member_bool(&json, &first, "skip", skip);
    json_member_text(&json, &first, "reason", reason);
    buf_u8(&json, '}');
    int status = operate("quarantine", who, buf_cstr(&json),
                         skip ? "skipped for good" : "returned: they are given out again");
    buf_fini(&json);
    return status;
}

int cmd_quarantine(int argc, char **argv) {
    static const struct option options[] = {CLI_WHO_OPTIONS,          {"list", 0, NULL, 'l'},
                                            {"return", 1, NULL, 'b'}, {"skip", 1, NULL, 's'},
                                            {"reason", 1, NULL, 'r'}, {"help", 0, NULL, 'h'},
                                            {NULL, 0, NULL, 0}};
    struct hub_who who = {0};
    const char *back = NULL, *skip = NULL, *reason = "operator";
    int o;
    while ((o = getopt_long(argc, argv, "h", options, NULL)) != -1) {
        switch (o) {
        case 'l': break; /* also what is done without any option */
        case 'b': back = optarg; break;
        case 's': skip = optarg; break;
        case 'r': reason = optarg; break;
        case 'h': fputs(QUARANTINE_HELP, stdout); return 0;
        default:
            if (!cli_who_option(&who, o, optarg)) return cli_bad_option("quarantine", argv);
        }
    }
    if (optind + 1 != argc) return cli_usage("quarantine", "want one RUN directory or URL", "");
    if (back != NULL && skip != NULL)
        return cli_usage("quarantine", "--return and --skip exclude each other", "");
    who.run = argv[optind];
    if (back == NULL && skip == NULL) return list_quarantined(&who);
    return decide(&who, skip != NULL ? skip : back, skip != NULL, reason);
}
