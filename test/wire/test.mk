# SPDX-License-Identifier: Apache-2.0
ROOMS_test/wire = base object wire
