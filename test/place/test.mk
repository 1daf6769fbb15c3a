# SPDX-License-Identifier: Apache-2.0
ROOMS_test/place = base place
