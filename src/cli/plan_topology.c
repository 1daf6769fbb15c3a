/* SPDX-License-Identifier: Apache-2.0 */
/* plan_topology.c - beringia plan --topology: figures from a file, or from the hubs that have them, into a proposal. */
#include <curl/curl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "base/os.h"
#include "cli/cli.h"
#include "cli/plan_topology.h"

enum { FILE_MAX = 1 << 20, STATUS_MAX = 64 << 20, TEXT_MAX = 16 << 20 };

static bool is_file(const char *path) {
    struct stat st;
    return stat(path, &st) == 0 && S_ISREG(st.st_mode);
}

static enum brg_status file_read(const char *path, struct topology *t, struct err *e) {
    AUTO_BUF struct buf b;
    buf_init(&b, FILE_MAX);
    TRY(os_read_file(path, FILE_MAX, &b, e));
    return topofile_parse(path, buf_cstr(&b), b.bytes_count, t, e);
}

/* label: NULL for the top hub. */
static enum brg_status hub_read(const struct hub_who *who, const char *what, const char *label,
                                struct topology *t, struct err *e) {
    struct hub_who asked = *who;
    struct hub_address hub;
    AUTO_BUF struct buf b;
    buf_init(&b, STATUS_MAX);
    asked.run = what;
    TRY(cli_hub_find(&asked, &hub, e));
    enum brg_status s = cli_hub_get(&hub, "/v1/status", &b, e);
    net_identity_fini(&hub.id);
    TRY(s);
    s = label == NULL ? topo_live_read(b.data, b.bytes_count, t, e)
                      : topo_live_region(t, label, b.data, b.bytes_count, e);
    return s == BRG_OK ? s : err_prefix(e, "%s/v1/status", hub.url);
}

/* The first is the top hub; LABEL=RUN|URL are those of regions. */
static enum brg_status hubs_read(const struct hub_who *who, char *const *names, int count,
                                 struct topology *t, struct err *e) {
    TRY(hub_read(who, names[0], NULL, t, e));
    for (int i = 1; i < count; i++) {
        char label[TOPO_LABEL_MAX];
        const char *equal = strchr(names[i], '=');
        if (equal == NULL || equal == names[i] || (size_t)(equal - names[i]) >= sizeof label)
            return err_set(e, BRG_E_USAGE, "%.200s: want LABEL=RUN|URL for a region's hub",
                           names[i]);
        memcpy(label, names[i], (size_t)(equal - names[i]));
        label[equal - names[i]] = '\0';
        TRY(hub_read(who, equal + 1, label, t, e));
    }
    return topo_check(t, e);
}

int plan_topology(const struct hub_who *who, double hub_line, bool json, char *const *names,
                  int names_count) {
    struct topology t;
    struct topo_proposal p;
    struct err e = {0};
    AUTO_BUF struct buf b;
    buf_init(&b, TEXT_MAX);
    memset(&t, 0, sizeof t);
    CHECK(curl_global_init(CURL_GLOBAL_DEFAULT) == 0);
    enum brg_status s = names_count == 1 && is_file(names[0])
                            ? file_read(names[0], &t, &e)
                            : hubs_read(who, names, names_count, &t, &e);
    if (s == BRG_OK) {
        if (hub_line > 0) t.hub_in = t.hub_out = hub_line * 1e6;
        topo_propose(&t, &p);
        if (json)
            plan_topology_json(&t, &p, &b);
        else
            plan_topology_text(&t, &p, &b);
        fputs(buf_cstr(&b), stdout);
        topo_proposal_free(&p);
    }
    topology_free(&t);
    return s == BRG_OK ? BRG_OK : cli_fail("plan", &e);
}
