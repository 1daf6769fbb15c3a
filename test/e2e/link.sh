#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# release only
# The relay that gives other tests their wide-area links: what it promises about delay, rate, cuts
# and resets is measured first. See test/link/test_link.py.
exec "$(dirname "$0")/../link/test_link.sh"
