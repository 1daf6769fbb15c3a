/* SPDX-License-Identifier: Apache-2.0 */
/* place.c - names of classes and states. */
#include "place/place.h"

static const struct {
    const char *name, *sentence;
} classes[] = {
    [PLACE_FINE] = {"fine", "the scheduler takes it"},
    [PLACE_NEVER] = {"never", "this request will never run here; change the shape"},
    [PLACE_NOT_NOW] = {"not_now", "it cannot run now; asked again later"},
    [PLACE_DENIED] = {"denied", "this user may not; look at account, QOS, partition"},
    [PLACE_LIMIT] = {"limit", "a limit of this user is reached; asked again later"},
    [PLACE_BUSY] = {"busy", "the scheduler takes no more just now; asked again later"},
    [PLACE_AWAY] = {"away", "the scheduler does not answer; nothing is known"},
    [PLACE_OURS] = {"ours", "the command, its options or the job script is wrong"},
    [PLACE_ABSENT] = {"absent", "this facility does not have it"},
    [PLACE_STRANGE] = {"strange", "an answer that is not understood"},
};

const char *place_class_name(enum place_class c) {
    return (size_t)c < ARRAY_COUNT(classes) ? classes[c].name : "unknown";
}

const char *place_class_sentence(enum place_class c) {
    return (size_t)c < ARRAY_COUNT(classes) ? classes[c].sentence : "unknown";
}

const char *place_state_name(enum place_state s) {
    static const char *const names[] = {
        [PLACE_JOB_PENDING] = "pending",     [PLACE_JOB_RUNNING] = "running",
        [PLACE_JOB_SUSPENDED] = "suspended", [PLACE_JOB_DONE] = "done",
        [PLACE_JOB_FAILED] = "failed",       [PLACE_JOB_TIMEOUT] = "timeout",
        [PLACE_JOB_CANCELLED] = "cancelled", [PLACE_JOB_PREEMPTED] = "preempted",
    };
    return (size_t)s < ARRAY_COUNT(names) && names[s] ? names[s] : "unknown";
}
