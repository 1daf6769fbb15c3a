#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# release only
# timeout: 600
# The models of the lease protocol, with small bounds: see test/model/README.md. It stands here so
# that `make test` runs it; whoever changes a rule of the protocol changes the model too.
cd "$(dirname "$0")/../model" && ./run --quick | sed 's/^ok  */ok model_/; s/^FAIL  */FAIL model_/'
exit "${PIPESTATUS[0]}"
