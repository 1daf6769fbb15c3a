# SPDX-License-Identifier: Apache-2.0
ROOMS_test/store = base store
ROOMS_fuzz/safetensors = base store
ROOMS_fuzz/index = base store
