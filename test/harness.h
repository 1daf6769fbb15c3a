/* SPDX-License-Identifier: Apache-2.0 */
/* harness.h - how a test is written.
 *
 *   #include "../harness.h"
 *
 *   TEST(lease_L3_an_old_fence_does_not_count) {
 *       assert_int_equal(lease_hand_in(&l, 1), BRG_E_FENCED);
 *   }
 *
 * Every test registers itself and runs in its own process, in its own process group, with a time
 * limit; inside it cmocka runs the body, so that cmocka's assert_* macros work. What a test prints
 * is shown only where it fails. All *.c files of one directory make one binary:
 *
 *   build/release/test/lease [part of a name]   TEST_JOBS=4 sets how many run at a time
 */
#ifndef TEST_HARNESS_H
#define TEST_HARNESS_H

#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

enum { TEST_SECONDS_DEFAULT = 60 };

struct test_case {
    const char *name;
    void (*body)(void **state);
    int seconds_max;
    struct test_case *next;
};

void test_register(struct test_case *t); /* borrows t for the life of the process */

#define TEST_TIMEOUT(name_, seconds_)                                                              \
    static void test_body_##name_(void **state);                                                   \
    static struct test_case test_case_##name_ = {                                                  \
        .name = #name_, .body = test_body_##name_, .seconds_max = (seconds_)};                     \
    __attribute__((constructor)) static void test_register_##name_(void) {                         \
        test_register(&test_case_##name_);                                                         \
    }                                                                                              \
    static void test_body_##name_(__attribute__((unused)) void **state)

#define TEST(name_) TEST_TIMEOUT(name_, TEST_SECONDS_DEFAULT)

/* Ends the test: it can not run here, for this reason. */
_Noreturn void test_skip(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
#define SKIP(...) test_skip(__VA_ARGS__)

/* A fresh directory of this test, removed after success and kept after failure. The same one at
 * every call within a test. */
const char *test_dir(void);

/* The expression must end the process by a failed CHECK (SIGABRT). Runs in a child. */
#define assert_check_fails(expr_)                                                                  \
    do {                                                                                           \
        if (test_fork_quiet()) {                                                                   \
            (void)(expr_);                                                                         \
            test_child_survived();                                                                 \
        }                                                                                          \
        test_expect_abort(#expr_, __FILE__, __LINE__);                                             \
    } while (0)
bool test_fork_quiet(void); /* true in the child, whose output goes nowhere */
_Noreturn void test_child_survived(void);
void test_expect_abort(const char *expr, const char *file, int line);

#endif
