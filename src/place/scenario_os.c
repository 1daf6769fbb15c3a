/* SPDX-License-Identifier: Apache-2.0 */
/* scenario_os.c - a scenario and the traces it names, from files. */
#include <stdio.h>
#include <string.h>

#include "base/config_os.h"
#include "base/os.h"
#include "place/scenario.h"

enum { TRACE_BYTES_MAX = 1 << 30 };

static enum brg_status read_trace(const char *beside, const char *name, struct swf_trace *out,
                                  struct err *e) {
    char path[OS_PATH_MAX];
    const char *slash = strrchr(beside, '/');
    int dir = slash && name[0] != '/' ? (int)(slash - beside) + 1 : 0;
    if (snprintf(path, sizeof path, "%.*s%s", dir, beside, name) >= (int)sizeof path)
        return err_set(e, BRG_E_CONFIG, "%s: the path of trace %s is too long", beside, name);
    AUTO_BUF struct buf text;
    buf_init(&text, TRACE_BYTES_MAX);
    TRY(os_read_file(path, TRACE_BYTES_MAX, &text, e));
    return swf_parse(path, (const char *)text.data, text.bytes_count, out, e);
}

enum brg_status scenario_read(struct scenario *s, const char *path, const char *const *sets,
                              size_t sets_count, struct err *e) {
    TRY(config_read_file(s->config, path, e));
    for (size_t i = 0; i < sets_count; i++) TRY(config_set(s->config, sets[i], e));
    TRY(config_finish(s->config, e));
    TRY(scenario_take(s, e));
    for (uint32_t i = 0, k = 0; k < SCENARIO_SITES_MAX; k++) {
        char section[16];
        (void)snprintf(section, sizeof section, "site%u", k + 1);
        if (config_string(s->config, section, "name")[0] == 0) continue;
        struct world_site *w = &s->project.sites[i];
        const struct plan_site *f = &s->project.facility[i++];
        const char *trace = config_string(s->config, section, "trace");
        if (trace[0] == 0) continue;
        TRY(read_trace(path, trace, &s->traces[k], e));
        w->trace = &s->traces[k];
        double nodes = w->trace_nodes > 0 ? w->trace_nodes : w->trace->processors;
        for (uint32_t h = 0; h < f->shapes_count; h++)
            if (f->shapes[h].nodes > nodes)
                TRY(config_fail(s->config, section, "shapes", e,
                                "%s asks for more than the %.0f nodes of the replayed machine",
                                f->shapes[h].name, nodes));
    }
    return BRG_OK;
}
