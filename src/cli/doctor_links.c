/* SPDX-License-Identifier: Apache-2.0 */
/* doctor_links.c - what was measured of the way to the hub is told to the hub, which shows it to whoever plans. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/ask.h"
#include "cli/doctor.h"
#include "wire/link.h"

static bool link_make(struct doctor *d, struct wire_link *l) {
    const char *fabric = d->fabric, *there = getenv("BERINGIA_FABRIC");
    if (fabric[0] == '\0' && there != NULL) fabric = there;
    memset(l, 0, sizeof *l);
    if (!wire_name_valid(d->name)) {
        doctor_say(d, FINDING_WRONG, BRG_E_CONFIG, "links",
                   "give the site's name in the run: --name", "\"%.60s\" is no name of a site",
                   d->name);
        return false;
    }
    bool labelled = fabric[0] != '\0';
    if ((labelled && !wire_fabric_valid(fabric)) || (d->as_hub && !labelled)) {
        doctor_say(d, FINDING_WRONG, BRG_E_CONFIG, "links",
                   "up to three words of a-z 0-9 - _ with / between, as in europe/alder",
                   "\"%.80s\" is no label of a fabric", fabric);
        return false;
    }
    memcpy(l->site, d->name, strlen(d->name) + 1);
    memcpy(l->fabric, fabric, strlen(fabric) + 1);
    l->hub = d->as_hub;
    l->rtt_ms = d->delay_ms;
    l->up_mb_s = d->up_mb_s;
    l->down_mb_s = d->down_mb_s;
    return true;
}

void doctor_links(struct doctor *d) {
    struct hub_address hub = {.id = d->id}; /* borrows */
    struct wire_link l;
    struct err e = {0};
    AUTO_BUF struct buf body = {.bytes_max = 4096};
    AUTO_BUF struct buf answer = {.bytes_max = 1 << 16};
    if (!link_make(d, &l)) return;
    if (!(d->delay_ms > 0) || !(d->up_mb_s > 0) || !(d->down_mb_s > 0)) {
        doctor_say(d, FINDING_WRONG, BRG_E_NET, "links", "mend what is said above, then again",
                   "delay and both rates could not be measured; nothing is told to the hub");
        return;
    }
    (void)snprintf(hub.url, sizeof hub.url, "%.390s", d->hub);
    wire_link_encode(&l, &body);
    enum brg_status s = cli_hub_post(&hub, "/v1/links", buf_cstr(&body), &answer, &e);
    if (s != BRG_OK)
        doctor_say(d, FINDING_WRONG, s, "links",
                   "the token must be of this site (scope site); an older hub does not know it",
                   "%.300s", e.text);
    else
        doctor_say(d, FINDING_FINE, BRG_OK, "links", "",
                   "%s%s%s: %.1f ms, up %.1f MB/s, down %.1f MB/s; the hub has it", l.site,
                   l.fabric[0] != '\0' ? " in " : "", l.fabric, l.rtt_ms, l.up_mb_s, l.down_mb_s);
}
