#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# release only
# The shims that give other tests their bad disks, power cuts and clocks: if they are wrong, those
# tests prove nothing. See test/shim/test_shim.sh.
exec "$(dirname "$0")/../shim/test_shim.sh"
