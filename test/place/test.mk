# SPDX-License-Identifier: Apache-2.0
ROOMS_test/place = base wire outer place
ROOMS_fuzz/slurm = base wire place
ROOMS_fuzz/place = base wire place
ROOMS_fuzz/plan = base wire place
ROOMS_fuzz/topology = base wire place
