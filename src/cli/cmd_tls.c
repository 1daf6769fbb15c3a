/* SPDX-License-Identifier: Apache-2.0 */
/* cmd_tls.c - beringia tls: a CA of the run's own, and the hub's certificate. */
#include <getopt.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "base/os.h"
#include "cli/cli.h"
#include "hub/tls_os.h"

static const char HELP[] =
    "beringia tls - the hub's certificate, and the CA that sites trust\n"
    "\n"
    "  beringia tls RUN create --name HOST [--name HOST ...] [--days N]\n"
    "  beringia tls RUN show\n"
    "\n"
    "  --name HOST  a host name or an address by which sites reach the hub; may come often.\n"
    "               localhost, 127.0.0.1 and ::1 are always added\n"
    "  --days N     how long the hub's certificate holds, 1 to 3650 (default 365)\n"
    "\n"
    "create makes RUN/tls/ca.pem where it is not there, and then RUN/tls/hub.pem: also the way to\n"
    "renew it, or to change its names; sites keep their ca.pem. Restart the hub afterwards. Give\n"
    "RUN/tls/ca.pem to every site (--ca FILE, site.ca, BERINGIA_CA): it is no secret.\n"
    "RUN/tls/ca-key.pem is: keep it away from the hub where you can; only this command needs it.\n"
    "A certificate from elsewhere: hub.tls_cert and hub.tls_key in RUN/run.yaml.\n"
    "\n"
    "Example: beringia tls myrun create --name hub.example.org\n";

static int show(const char *run) {
    char cert[OS_PATH_MAX], key[OS_PATH_MAX], day[32];
    struct tls_pair p;
    struct tm tm;
    struct err e = {0};
    os_path(cert, run, "tls/hub.pem");
    os_path(key, run, "tls/hub-key.pem");
    if (tls_pair_load(cert, key, &p, &e) != BRG_OK) return cli_fail("tls", &e);
    time_t expires = (time_t)p.expires;
    (void)gmtime_r(&expires, &tm);
    (void)strftime(day, sizeof day, "%Y-%m-%d", &tm);
    printf("certificate  %s\nname         %s\nuntil        %s (%lld days)\nsha256       %s\n", cert,
           p.name, day, (long long)((p.expires - (int64_t)time(NULL)) / 86400), p.fingerprint);
    printf("for sites    %s/tls/ca.pem\n", run);
    tls_pair_fini(&p);
    return 0;
}

static int create(const char *run, const char *const *names, size_t count, uint32_t days) {
    char path[OS_PATH_MAX];
    struct err e = {0};
    if (!os_exists(os_path(path, run, "run.json"))) {
        (void)err_set(&e, BRG_E_MISSING, "%s: is no run directory (there is no run.json)", run);
        return cli_fail("tls", &e);
    }
    if (count == 0) return cli_usage("tls", "create wants --name HOST, as sites will call it", "");
    if (tls_make(run, names, count, days, &e) != BRG_OK) return cli_fail("tls", &e);
    return show(run);
}

int cmd_tls(int argc, char **argv) {
    static const struct option options[] = {
        {"name", 1, NULL, 'n'}, {"days", 1, NULL, 'd'}, {"help", 0, NULL, 'h'}, {NULL, 0, NULL, 0}};
    const char *names[TLS_NAMES_MAX];
    size_t count = 0;
    uint64_t days = 365;
    int o;
    while ((o = getopt_long(argc, argv, "h", options, NULL)) != -1) {
        switch (o) {
        case 'n':
            if (count == TLS_NAMES_MAX) return cli_usage("tls", "too many names:", optarg);
            names[count++] = optarg;
            break;
        case 'd':
            if (!parse_u64(optarg, &days) || days == 0 || days > 3650)
                return cli_usage("tls", "--days wants 1 to 3650, not", optarg);
            break;
        case 'h': fputs(HELP, stdout); return 0;
        default: return cli_bad_option("tls", argv);
        }
    }
    if (optind + 2 != argc) return cli_usage("tls", "want RUN and create or show", "");
    if (strcmp(argv[optind + 1], "show") == 0) return show(argv[optind]);
    if (strcmp(argv[optind + 1], "create") != 0)
        return cli_usage("tls", "want create or show, not", argv[optind + 1]);
    return create(argv[optind], names, count, (uint32_t)days);
}
