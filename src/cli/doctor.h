/* SPDX-License-Identifier: Apache-2.0 */
/* doctor.h - what beringia doctor looks at, in parts. Each finding is one line: what it is about, what was
 * seen, and, where something is wrong, what to do. */
#ifndef CLI_DOCTOR_H
#define CLI_DOCTOR_H

#include "place/sitefile.h"
#include "wire/net_os.h"
#include "wire/wire.h"

enum finding { FINDING_FINE = 0, FINDING_WARN = 1, FINDING_WRONG = 2 };

struct doctor {
    const char *hub, *token, *ca, *data, *state, *site_file; /* "": not given */
    bool upload;
    bool links, as_hub;        /* measure the line thoroughly, and tell the hub */
    const char *name, *fabric; /* under which name, where it stands; "": not given */
    struct place_site site;    /* of site_file */
    bool site_there;
    char paths[3][4200]; /* of the site file, made whole */
    struct net_identity id;
    struct wire_run run; /* where run_there */
    bool run_there;
    double delay_ms, down_mb_s, up_mb_s; /* 0: not measured */
    uint32_t counts[3];
    enum brg_status status; /* of the first finding that is wrong */
};
/* remedy: "" where the text says it all. */
void doctor_say(struct doctor *d, enum finding f, enum brg_status status, const char *about,
                const char *remedy, const char *fmt, ...) PRINTF_LIKE(6, 7);

void doctor_net(struct doctor *d);     /* proxy, route, TLS, token, clock, speed */
void doctor_bucket(struct doctor *d);  /* instead of it, where the hub is met in a bucket */
void doctor_machine(struct doctor *d); /* disk, data, processors, memory, MPI */
void doctor_links(struct doctor *d);   /* tells the hub what doctor_net measured */
void doctor_queue(struct doctor *d);   /* the scheduler's commands */

#endif
