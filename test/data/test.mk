# SPDX-License-Identifier: Apache-2.0
ROOMS_test/data = base data
