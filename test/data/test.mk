# SPDX-License-Identifier: Apache-2.0
ROOMS_test/data = base data
ROOMS_fuzz/tokenizer = base data
ROOMS_fuzz/manifest = base data
ROOMS_fuzz/shard = base data
