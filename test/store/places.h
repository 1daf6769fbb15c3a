/* SPDX-License-Identifier: Apache-2.0 */
/* places.h - where a journal of these tests can lie: a file of the test's directory, or a schema of the
 * server that BERINGIA_TEST_POSTGRES names (test/postgres/run starts one; without it those are skipped). */
#ifndef TEST_STORE_PLACES_H
#define TEST_STORE_PLACES_H

#include "../harness.h"

enum { PLACE_BYTES = 4096 };
enum place { PLACE_FILE, PLACE_SERVER };

/* A name that no journal has yet; tag tells several of one test apart. Skips the test where there is no
 * server. */
const char *place_name(enum place p, const char *tag, char out[PLACE_BYTES]);
/* Another program changes a journal that is closed. @ stands before each table's name. */
void place_tamper(enum place p, const char *name, const char *sql);
/* The first cell of what it asks, as a number. */
long place_count(enum place p, const char *name, const char *sql);

/* A relay between a client and the server: name is the same place through it. Once armed it closes the
 * connection at the next bytes that go in this direction, and does not hand them on. */
struct relay;
enum relay_cut { RELAY_WHOLE = 0, RELAY_CUT_ASKING = 1, RELAY_CUT_ANSWER = 2 };
struct relay *relay_start(const char *name, char out[PLACE_BYTES]);
void relay_arm(struct relay *r, enum relay_cut cut);
void relay_stop(struct relay *r);

/* One test for each kind of place. */
#define EACH_TIMEOUT(name_, seconds_)                                                              \
    static void each_##name_(enum place at);                                                       \
    TEST_TIMEOUT(name_, seconds_) {                                                                \
        each_##name_(PLACE_FILE);                                                                  \
    }                                                                                              \
    TEST_TIMEOUT(name_##_postgres, seconds_) {                                                     \
        each_##name_(PLACE_SERVER);                                                                \
    }                                                                                              \
    static void each_##name_(enum place at)
#define EACH(name_) EACH_TIMEOUT(name_, TEST_SECONDS_DEFAULT)

#endif
