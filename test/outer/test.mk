# SPDX-License-Identifier: Apache-2.0
ROOMS_test/outer = base outer
ROOMS_fuzz/delta = base outer
ROOMS_fuzz/update = base outer
