/* SPDX-License-Identifier: Apache-2.0 */
/* What a scheduler's command may print: the first byte chooses the answer's kind, the second its exit status, the
 * rest is both streams. Whatever it is, a text stands where the class is not fine, and no text has a line end. */
#include "place/slurm.h"

#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

static void check(const struct place_said *said) {
    size_t length = strnlen(said->text, sizeof said->text);
    CHECK(length < sizeof said->text);
    CHECK(memchr(said->text, '\n', length) == NULL);
    CHECK(said->class_ == PLACE_FINE || length > 0);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n) {
    if (n < 2) return 0;
    const char *text = (const char *)data + 2;
    size_t half = (n - 2) / 2;
    struct place_reply r = {.rc = data[1] & 1 ? 1 : 0,
                            .out = text,
                            .err = data[1] & 2 ? text + half : text,
                            .out_bytes = data[1] & 2 ? half : n - 2,
                            .err_bytes = data[1] & 2 ? n - 2 - half : n - 2};
    struct place_estimate e;
    struct place_submitted s;
    struct place_said said;
    struct slurm_config c;
    struct place_jobs jobs = {.jobs = mem_alloc(PLACE_JOBS_MAX, sizeof *jobs.jobs)};
    switch (data[0] % 7) {
    case 0:
        slurm_probe_parse(&r, &e);
        check(&e.said);
        CHECK(e.said.class_ != PLACE_FINE || e.start_s > 0);
        break;
    case 1:
        slurm_submit_parse(&r, &s);
        check(&s.said);
        CHECK((s.job > 0) == (s.said.class_ == PLACE_FINE));
        break;
    case 2: slurm_queue_parse(&r, &jobs); break;
    case 3: slurm_history_parse(&r, &jobs); break;
    case 4: slurm_job_parse(&r, &jobs); break;
    case 5: slurm_cancel_parse(&r, &said); break;
    default: slurm_config_parse(&r, &c); break;
    }
    CHECK(jobs.count <= PLACE_JOBS_MAX);
    check(&jobs.said);
    mem_free(jobs.jobs);
    return 0;
}
