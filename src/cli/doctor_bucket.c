/* SPDX-License-Identifier: Apache-2.0 */
/* doctor_bucket.c - the way to a hub that is met in a bucket: store, credentials, clock, token, and does the hub answer. */
#include <string.h>

#include "base/os.h"
#include "cli/doctor.h"
#include "wire/client.h"
#include "wire/mail.h"

static const char *remedy_of(enum brg_status s) {
    if (s == BRG_E_NET)
        return "is AWS_ENDPOINT_URL right, may this machine go there, does the hub run with "
               "blobs.mailbox, and is this the address that it prints? docs/s3.md";
    return s == BRG_E_REFUSED ? "the store or the hub says no: the account's rights (docs/s3.md), "
                                "the token"
                              : "";
}

void doctor_bucket(struct doctor *d) {
    struct err e = {0};
    struct client *c = NULL;
    struct client_options o = {.url = d->hub,
                               .token_file = d->token,
                               .ca_file = d->ca,
                               .timeout_ns = MAIL_PATIENCE_S * (time_ns)NS_PER_S};
    enum brg_status s = client_open(&o, &c, &e);
    time_ns began = os_now();
    if (s == BRG_OK) s = client_run(c, &d->run, &e);
    d->run_there = s == BRG_OK;
    double seconds = (double)(os_now() - began) / 1e9;
    client_close(c);
    if (s != BRG_OK) {
        doctor_say(d, FINDING_WRONG, s, "bucket", remedy_of(s), "%.400s", e.text);
        return;
    }
    doctor_say(d, FINDING_FINE, BRG_OK, "hub", "", "%.200s, version %llu, %llu parameters", d->hub,
               (unsigned long long)d->run.head, (unsigned long long)d->run.parameters);
    bool slow = seconds > (double)d->run.ttl_ms / 1e3 / 4;
    doctor_say(d, slow ? FINDING_WARN : FINDING_FINE, BRG_OK, "delay",
               slow ? "leases end without a heartbeat: lease.ttl at several times that" : "",
               "%.1f s from a request to its answer through the bucket; delay and MB/s to the "
               "store are not measured",
               seconds);
}
