/* SPDX-License-Identifier: Apache-2.0 */
/* swf.h - job traces in the Standard Workload Format 2.2 (Feitelson, Parallel Workloads Archive): lines
 * of 18 numbers, `;` before header lines. Read here: submit (2), run time (4), processors (5, or the
 * requested 8), requested time (9). Fields after the 18th are passed over. */
#ifndef PLACE_SWF_H
#define PLACE_SWF_H

#include "base/base.h"

struct swf_job {
    double submit_s, run_s, limit_s, processors;
};

struct swf_trace {
    struct swf_job *jobs; /* in order of submission, the first at 0 */
    size_t count;
    size_t left_out;   /* jobs without a run time or a processor, as the format allows (-1) */
    double processors; /* MaxProcs or MaxNodes of the header; else the largest job */
    double span_s;     /* last submission */
};

/* name: of the file, for errors (E_CONFIG with the line). out is to be freed with swf_fini. */
enum brg_status swf_parse(const char *name, const char *text, size_t bytes, struct swf_trace *out,
                          struct err *e) MUST_USE;
void swf_fini(struct swf_trace *t);

#endif
