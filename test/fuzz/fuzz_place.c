/* SPDX-License-Identifier: Apache-2.0 */
/* Bytes from outside that placement reads: the first byte chooses between a spooled request (of files or of mail), a spooled answer, an
 * agent's report, a hub's answer to one, a site file, and an agent's state. What can be read is written and read
 * again to the same. */
#include <string.h>

#include "place/agent.h"
#include "wire/spool.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

static void spooled(const uint8_t *data, size_t n, bool request) {
    AUTO_BUF struct buf b = {.bytes_max = SPOOL_BYTES_MAX};
    AUTO_BUF struct buf again = {.bytes_max = SPOOL_BYTES_MAX};
    struct err e;
    if (request) {
        static struct spool_request r, s; /* large: paths */
        if (spool_request_decode(data, n, &r, &e) != BRG_OK) return;
        CHECK(strncmp(r.target, "/v1/operator", 12) != 0);
        CHECK(r.form == SPOOL_FILES || r.file[0] == '\0'); /* nothing of a disk by mail */
        CHECK(strpbrk(r.token, " \t\r\n") == NULL);        /* it stands in a header */
        spool_request_encode(&r, &b);
        CHECK(spool_request_decode(b.data, b.bytes_count, &s, &e) == BRG_OK);
        spool_request_encode(&s, &again);
    } else {
        struct spool_answer a, c;
        if (spool_answer_decode(data, n, &a, &e) != BRG_OK) return;
        spool_answer_encode(&a, &b);
        CHECK(spool_answer_decode(b.data, b.bytes_count, &c, &e) == BRG_OK);
        spool_answer_encode(&c, &again);
    }
    CHECK(b.bytes_count == again.bytes_count);
    CHECK(memcmp(b.data, again.data, b.bytes_count) == 0);
}

/* Large, and kept: what comes from outside is read over what was there. */
static struct place_site site, read;
static struct wire_agent_answer answer;
static struct wire_report report;
static struct agent agent;

static void answered(const uint8_t *data, size_t n) {
    struct agent_action x;
    struct err e;
    if (wire_agent_answer_decode(data, n, &answer, &e) != BRG_OK) return;
    agent_init(&agent, &site, 1);
    agent_start(&agent, 0, 1);
    agent_told(&agent, 0, 1, &answer);
    for (int i = 0; i < 20; i++) {
        agent_next(&agent, (time_ns)i * NS_PER_S, 1 + (uint64_t)i, &x);
        CHECK(x.kind != AGENT_SUBMIT); /* nothing before the queue was seen */
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n) {
    static const char text[] = "site: {name: a, hub: \"http://h\", state: s}\njob: {script: j}\n"
                               "budget: {node_hours: 1}\nshape_small: {time: 1h}\n";
    static bool ready;
    struct err e = {0};
    if (n == 0) return 0;
    if (!ready) CHECK(sitefile_parse("f", text, sizeof text - 1, &site, &e) == BRG_OK);
    ready = true;
    enum brg_status s = BRG_OK;
    switch (data[0] % 6) {
    case 0: spooled(data + 1, n - 1, true); break;
    case 1: spooled(data + 1, n - 1, false); break;
    case 2: s = wire_report_decode(data + 1, n - 1, &report, &e); break;
    case 3: answered(data + 1, n - 1); break;
    case 4: s = sitefile_parse("f", data + 1, n - 1, &read, &e); break;
    default:
        agent_init(&agent, &site, 1);
        s = agent_load(&agent, "f", data + 1, n - 1, &e);
        break;
    }
    CHECK(s == BRG_OK || e.text[0] != '\0');
    return 0;
}
