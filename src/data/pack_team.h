/* SPDX-License-Identifier: Apache-2.0 */
/* pack_team.h - documents -> ids on several threads, given back in the order of the documents. Inside
 * of the data room.
 *
 *   team_put: spans of one file --jobs--> workers: decode, choose the half, encode --team_take--> ids
 *
 * Which thread does what decides nothing but the time: a job's outcome depends on its documents alone,
 * and jobs are taken in the order in which they were put. */
#ifndef DATA_PACK_TEAM_H
#define DATA_PACK_TEAM_H

#include "data/docs.h"
#include "data/manifest.h"
#include "data/tokenizer.h"

enum { JOB_DOCUMENTS_MAX = 256, JOB_BYTES = 1 << 18, PACK_THREADS_MAX = 1024 };

struct team_document {
    struct docs_span span;
    enum half half;
    size_t ids_count; /* the end of text included; 0: left out */
};
struct job {
    struct docs docs; /* name and kind of the file, for docs_decode */
    uint32_t input;   /* the caller's number of the file */
    struct team_document documents[JOB_DOCUMENTS_MAX];
    uint32_t count; /* of documents; up to where it failed, once it is done */
    size_t bytes;
    struct buf ids; /* of all its documents, one behind the other */
    enum brg_status status;
    struct err e;
    bool done;
};
struct team_options {
    const struct tokenizer *tokenizer;
    double heldout_share;
    enum tokenizer_special special;
    bool around;      /* put the post-processor's ids around each document */
    unsigned threads; /* 1: all in the calling thread */
};
struct team;
enum brg_status team_create(const struct team_options *o, struct team **out, struct err *e)
    MUST_USE;
void team_destroy(struct team *t); /* drops what is not taken */
/* A free job to fill (zero count); NULL where as many are under way as may be: take one first. */
struct job *team_free(struct team *t);
void team_put(struct team *t); /* the job that team_free gave */
/* The oldest job, when it is done; NULL where none is under way. Lives until team_drop. */
struct job *team_take(struct team *t);
void team_drop(struct team *t);

#endif
