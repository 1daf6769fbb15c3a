#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# timeout: 240
# A short campaign of the black box: a hub and four counting sites as processes, hurt in a dozen ways while they
# train, then brought to the end; the model itself says whether each sample is in it once. The long one, and what
# each kind of fault is: test/chaos/README.md.
set -u
cd "${ROOT:-.}" || exit 2
out=${SCRATCH:-/tmp}/chaos
build=${B:-build/${VARIANT:-release}}
test/chaos/test_checks.py || exit 1
test/chaos/chaos --tests --minutes 0.62 --gap 1 --seed "${CHAOS_SEED:-7}" --build "$build" --out "$out"
status=$?
case $build in
*san) echo "skip chaos_powercut: no preloads under a sanitizer" ;;
*) test/chaos/powercut --build "$build" --out "$out-powercut" || status=1 ;;
esac
[ $status -eq 0 ] || tail -n 5 "$out"/*.log 2> /dev/null
exit $status
