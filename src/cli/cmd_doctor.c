/* SPDX-License-Identifier: Apache-2.0 */
/* cmd_doctor.c - beringia doctor: looks at everything that a site or an agent will need, before a night is lost. */
#include <curl/curl.h>
#include <getopt.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/os.h"
#include "cli/cli.h"
#include "cli/doctor.h"

static const char HELP[] =
    "beringia doctor - will a site work here? what will hurt, and how to mend it\n"
    "\n"
    "  beringia doctor --hub URL [--token FILE] [--ca FILE] [--data DIR] [--state DIR] "
    "[--no-upload]\n"
    "  beringia doctor --site site.yaml [--data DIR]\n"
    "  beringia doctor --links --hub URL --name NAME [--fabric LABEL] [--as-hub]\n"
    "\n"
    "  --hub URL      the hub; the way there, proxies (https_proxy, no_proxy), the certificate, "
    "the\n"
    "                 token, the clocks, delay and MB/s are looked at\n"
    "  --data DIR     is it the run's data set?\n"
    "  --state DIR    room and speed of the disk for a site's state; 32 MB are written and "
    "removed\n"
    "  --site FILE    hub, token, CA, state and scheduler of a facility's agent (docs/agent.md)\n"
    "  --no-upload    do not send the 4 MB that measure the line to the hub, which drops them\n"
    "  --links        measure this line more thoroughly (some seconds, up to 700 MB) and tell the "
    "hub,\n"
    "                 which keeps it for beringia status --json and beringia plan --topology\n"
    "  --name NAME    with --links: the site's name (default: that of --site)\n"
    "  --fabric LABEL with --links: where it stands, as in europe/alder (default: that of --site,\n"
    "                 $BERINGIA_FABRIC)\n"
    "  --as-hub       with --links: it is the way of a region's hub that stands in this fabric\n"
    "\n"
    "A line a finding: ok, warn or FAIL, what it is about, and the remedy. The status is 0, or "
    "that of\n"
    "the first FAIL (docs/exit-status.md). Run it where the site will run: in a job, on a compute "
    "node.\n";

void doctor_say(struct doctor *d, enum finding f, enum brg_status status, const char *about,
                const char *remedy, const char *fmt, ...) {
    static const char *const words[] = {"ok", "warn", "FAIL"};
    char text[500];
    va_list ap;
    va_start(ap, fmt);
    (void)vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    printf("%-5s %-12s %s%s%s\n", words[f], about, text,
           *remedy != '\0' ? "\n                     -> " : "", remedy);
    (void)fflush(stdout);
    d->counts[f]++;
    if (f == FINDING_WRONG && d->status == BRG_OK) d->status = status;
}

/* Beside the file, as the agent takes them. */
static const char *beside(const char *file, const char *path, char out[4200]) {
    const char *slash = strrchr(file, '/');
    if (path[0] == '\0' || path[0] == '/' || slash == NULL) return path;
    (void)snprintf(out, 4200, "%.*s/%s", (int)(slash - file), file, path);
    return out;
}

static bool site_read(struct doctor *d) {
    AUTO_BUF struct buf b;
    struct err e = {0};
    buf_init(&b, 1 << 20);
    enum brg_status s = os_read_file(d->site_file, 1 << 20, &b, &e);
    if (s == BRG_OK) s = sitefile_parse(d->site_file, buf_cstr(&b), b.bytes_count, &d->site, &e);
    if (s != BRG_OK) {
        doctor_say(d, FINDING_WRONG, s, "site file", "", "%.400s", e.text);
        return false;
    }
    d->site_there = true;
    doctor_say(d, FINDING_FINE, BRG_OK, "site file", "", "%s, facility %s", d->site_file,
               d->site.name);
    if (d->hub[0] == '\0') d->hub = d->site.hub;
    if (d->token[0] == '\0') d->token = beside(d->site_file, d->site.token, d->paths[0]);
    if (d->ca[0] == '\0') d->ca = beside(d->site_file, d->site.ca, d->paths[1]);
    if (d->state[0] == '\0') d->state = beside(d->site_file, d->site.state, d->paths[2]);
    if (d->name[0] == '\0') d->name = d->site.name;
    if (d->fabric[0] == '\0') d->fabric = d->site.fabric;
    return true;
}

static int examine(struct doctor *d) {
    CHECK(curl_global_init(CURL_GLOBAL_DEFAULT) == 0);
    if (d->site_file[0] == '\0' || site_read(d)) {
        doctor_net(d);
        if (d->links) doctor_links(d);
        doctor_machine(d);
        doctor_queue(d);
    }
    printf("fine=%u warnings=%u wrong=%u\n", d->counts[0], d->counts[1], d->counts[2]);
    return (int)d->status;
}

/* -1: fine. */
static int links_usage(const struct doctor *d) {
    if (!d->links && (d->name[0] != '\0' || d->fabric[0] != '\0' || d->as_hub))
        return cli_usage("doctor", "--name, --fabric, --as-hub: of --links", "");
    if (!d->links) return -1;
    if (!d->upload)
        return cli_usage("doctor", "--links measures both ways: without --no-upload", "");
    if (d->name[0] == '\0' && d->site_file[0] == '\0')
        return cli_usage("doctor", "--links wants --name NAME, or --site FILE", "");
    return -1;
}

int cmd_doctor(int argc, char **argv) {
    enum {
        OPT_HUB = 1,
        OPT_TOKEN,
        OPT_CA,
        OPT_DATA,
        OPT_STATE,
        OPT_SITE,
        OPT_NO_UPLOAD,
        OPT_LINKS,
        OPT_NAME,
        OPT_FABRIC,
        OPT_AS_HUB
    };
    static const struct option options[] = {{"hub", 1, NULL, OPT_HUB},
                                            {"token", 1, NULL, OPT_TOKEN},
                                            {"ca", 1, NULL, OPT_CA},
                                            {"data", 1, NULL, OPT_DATA},
                                            {"state", 1, NULL, OPT_STATE},
                                            {"site", 1, NULL, OPT_SITE},
                                            {"no-upload", 0, NULL, OPT_NO_UPLOAD},
                                            {"links", 0, NULL, OPT_LINKS},
                                            {"name", 1, NULL, OPT_NAME},
                                            {"fabric", 1, NULL, OPT_FABRIC},
                                            {"as-hub", 0, NULL, OPT_AS_HUB},
                                            {"help", 0, NULL, 'h'},
                                            {NULL, 0, NULL, 0}};
    struct doctor *d = mem_alloc(1, sizeof *d);
    int o, status = -1;
    d->hub = d->token = d->ca = d->data = d->state = d->site_file = d->name = d->fabric = "";
    d->upload = true;
    while (status < 0 && (o = getopt_long(argc, argv, "h", options, NULL)) != -1) {
        switch (o) {
        case OPT_HUB: d->hub = optarg; break;
        case OPT_TOKEN: d->token = optarg; break;
        case OPT_CA: d->ca = optarg; break;
        case OPT_DATA: d->data = optarg; break;
        case OPT_STATE: d->state = optarg; break;
        case OPT_SITE: d->site_file = optarg; break;
        case OPT_NO_UPLOAD: d->upload = false; break;
        case OPT_LINKS: d->links = true; break;
        case OPT_NAME: d->name = optarg; break;
        case OPT_FABRIC: d->fabric = optarg; break;
        case OPT_AS_HUB: d->as_hub = true; break;
        case 'h':
            fputs(HELP, stdout);
            status = 0;
            break;
        default: status = cli_bad_option("doctor", argv);
        }
    }
    if (status < 0 && optind < argc) status = cli_usage("doctor", "not understood:", argv[optind]);
    if (status < 0 && d->hub[0] == '\0' && d->site_file[0] == '\0')
        status = cli_usage("doctor", "want --hub URL or --site FILE", "");
    if (status < 0) status = links_usage(d);
    if (status < 0) status = examine(d);
    net_identity_fini(&d->id);
    mem_free(d);
    return status;
}
