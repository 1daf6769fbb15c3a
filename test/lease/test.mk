# SPDX-License-Identifier: Apache-2.0
ROOMS_test/lease = base lease
ROOMS_fuzz/ledger = base lease
