/* SPDX-License-Identifier: Apache-2.0 */
/* script.h - the core of one site under a script that plays the hub, answer by answer.
 *
 * A function that answers fails the test when nothing was asked. Time moves only where a test moves it. */
#ifndef TEST_SITE_SCRIPT_H
#define TEST_SITE_SCRIPT_H

#include "../harness.h"
#include "site/core.h"

static const time_ns SECOND = NS_PER_S;

struct bench {
    struct site_core core;
    struct site_out out;
    time_ns now;
    struct wire_answer a;
    uint64_t head, tok;
    struct site_position taken[256];
};

void event(struct bench *b, const struct site_event *ev);
void tick(struct bench *b);
struct bench *bench_new(void);
void bench_free(struct bench *b);
/* An answer to the control request under way. */
struct wire_answer *answer(struct bench *b, enum wire_code code);
void deliver(struct bench *b);
/* What every round header of the script says; a test is a process of its own. */
extern uint64_t round_sync_tokens;
struct wire_round round_at(uint64_t head);
void expect(const struct bench *b, enum wire_kind kind);
void let_in(struct bench *b);
void join(struct bench *b);
void version_here(struct bench *b, uint64_t version);
void grant(struct bench *b, uint64_t start, uint64_t count);
void nothing_to_lease(struct bench *b);
/* An answer to the heartbeat under way; one verdict where tok is not 0. */
void beat(struct bench *b, uint64_t tok, enum lease_verdict verdict, uint64_t keep);
/* Joined, version 0 loaded, asking for a lease. */
struct bench *bench_loaded(void);
/* With two leases of 20 samples. */
struct bench *bench_ready(void);
uint64_t take(struct bench *b, uint64_t n);
void trained(struct bench *b, uint64_t n);
void steps(struct bench *b, int count);
struct site_delta *cut(struct bench *b);
struct wire_commit_answer *outcome(struct bench *b, enum outcome o, uint64_t version);
/* The hub keeps the rest [start, start + count) under a new name. */
void staged_with_rest(struct bench *b, uint64_t start, uint64_t count);
void beat_answer(struct bench *b, enum wire_code code);

#endif
