#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# timeout: 200
# A short kill campaign each of the hub and of a site; test/campaign/kill says what must hold.
set -u
for of in hub site; do
    if "$ROOT/test/campaign/kill" --of $of --kills 12 --seed 5 --samples 2400 --build "$ROOT/$B" --out "$SCRATCH/$of"; then
        echo "ok kill_of_$of"
    else
        echo "FAIL kill_of_$of"
    fi
done
