/* SPDX-License-Identifier: Apache-2.0 */
#include "../harness.h"

#include <string.h>

#include "base/guard.h"

static int careful(bool fails) {
    struct guard g;
    if (setjmp(g.at) != 0) return strstr(g.text, "fails == false") ? (int)g.status : -1;
    guard_enter(&g);
    CHECK(fails == false);
    guard_leave(&g);
    return 0;
}

TEST(guard_a_failed_check_comes_back) {
    assert_int_equal(careful(false), 0);
    assert_int_equal(careful(true), BRG_E_INTERNAL);
    assert_int_equal(careful(true), BRG_E_INTERNAL); /* and again */
}

TEST(guard_memory_that_cannot_be_had_comes_back) {
    struct guard g;
    void *volatile p = NULL;
    if (setjmp(g.at) == 0) {
        guard_enter(&g);
        p = mem_alloc(SIZE_MAX, 2);
        guard_leave(&g);
    }
    assert_null(p);
    assert_int_equal(g.status, BRG_E_MEMORY);
}

TEST(guard_the_inner_one_catches_and_the_outer_stays) {
    struct guard outer;
    volatile int inner = 0, passed = 0;
    if (setjmp(outer.at) == 0) {
        guard_enter(&outer);
        inner = careful(true);
        passed = 1;
        CHECK(inner == 0);
    }
    assert_int_equal(inner, BRG_E_INTERNAL);
    assert_int_equal(passed, 1);
    assert_int_equal(outer.status, BRG_E_INTERNAL);
}

TEST(guard_without_one_the_process_ends) {
    assert_check_fails(check_failed("nothing", "here", 1));
    guard_off();
    assert_check_fails((void)careful(true));
}
