/* SPDX-License-Identifier: Apache-2.0 */
/* local_inner.h - private to local*_os.c. */
#ifndef PLACE_LOCAL_INNER_H
#define PLACE_LOCAL_INNER_H

#include "place/place.h"

enum { /* numbers of NAME.job, in this order */
       LOCAL_ID,
       LOCAL_SUBMIT,
       LOCAL_TIME,
       LOCAL_NODES,
       LOCAL_DRAIN,
       LOCAL_AFTER,
       LOCAL_SLOTS,
       LOCAL_JOB_FIELDS
};
/* The first numbers of a small file. */
bool local_numbers(const char *path, uint64_t *out, int count);
bool local_lives(const char *dir, const char *name);
bool local_read(const char *dir, const char *name, struct place_job *out);

#endif
