# SPDX-License-Identifier: Apache-2.0
ROOMS_test/data = base data
ROOMS_fuzz/tokenizer = base data
ROOMS_fuzz/manifest = base data
ROOMS_fuzz/shard = base data
ROOMS_fuzz/encode = base data
ROOMS_fuzz/docs = base data
ROOMS_fuzz/pattern = base data
FUZZ_ARGS_tokenizer = -max_len=6000
FUZZ_ARGS_encode = -max_len=256
FUZZ_ARGS_pattern = -max_len=48
FUZZ_ARGS_docs = -max_len=256
FUZZ_ARGS_shard = -max_len=512
FUZZ_ARGS_manifest = -max_len=2048
