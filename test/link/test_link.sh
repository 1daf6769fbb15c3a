#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The link against its own promises, on loopback: see test_link.py.
here=$(cd "$(dirname "$0")" && pwd)
"$here/build" || { echo "FAIL link_build"; exit 1; }
python=$(command -v /usr/bin/python3 || command -v python3) || { echo "skip link: no python3"; exit 0; }
exec "$python" "$here/test_link.py" "$here/../../build/tools/link"
