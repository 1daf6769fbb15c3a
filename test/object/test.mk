# SPDX-License-Identifier: Apache-2.0
ROOMS_test/object = base object
ROOMS_fuzz/object = base object wire
