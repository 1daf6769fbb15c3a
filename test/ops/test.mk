# SPDX-License-Identifier: Apache-2.0
# Operations need no hub, site or network.
ROOMS_test/ops = base data store outer train
