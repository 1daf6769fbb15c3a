# SPDX-License-Identifier: Apache-2.0
ROOMS_test/place = base object wire outer place
ROOMS_fuzz/slurm = base object wire place
ROOMS_fuzz/place = base object wire place
ROOMS_fuzz/plan = base object wire place
ROOMS_fuzz/topology = base object wire place
