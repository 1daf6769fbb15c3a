# SPDX-License-Identifier: Apache-2.0
"""Runs the scenarios of one test file with real processes, as the test runner reads them: `ok NAME`, `FAIL NAME: why`,
`skip NAME: reason`. A scenario is a function; every Cluster that it makes is ended after it, and its logs are shown if it fails."""
import glob
import os
import time
import traceback

from cluster import Cluster, Failure


def tsan_is_too_slow():
    """The reason to skip a scenario that trains, or None."""
    return "training is too slow with the thread sanitizer" if os.environ.get("VARIANT") == "tsan" else None


def show_logs(c):
    for log in sorted(glob.glob(os.path.join(c.out, "*.log"))):
        with open(log, encoding="utf-8", errors="replace") as f:
            tail = f.read().splitlines()[-12:]
        print(f"    | {log}", *(f"    |   {line}" for line in tail), sep="\n")


def run_one(scenario):
    """True if it ends without an exception."""
    name, began, clusters, create = scenario.__name__, time.monotonic(), [], Cluster.__init__

    def remember(self, *args, **kwargs):
        clusters.append(self)
        create(self, *args, **kwargs)

    Cluster.__init__ = remember
    try:
        scenario()
        print(f"ok {name} ({time.monotonic() - began:.1f} s)", flush=True)
        return True
    except Exception as e:  # every failure of a scenario is its result
        if not isinstance(e, Failure):
            traceback.print_exc()
        for c in clusters:
            show_logs(c)
        print(f"FAIL {name}: {e}", flush=True)
        return False
    finally:
        Cluster.__init__ = create
        for c in clusters:
            c.clean()


def run_scenarios(module, prefix, skip=None):
    """Each function of `module` (its globals()) whose name begins with `prefix`, in the order of the file; the environment's T
    chooses by a part of the name, or of the file's. skip: a reason to run none. Returns the exit status."""
    only, failed = os.environ.get("T", ""), 0
    for name, scenario in list(module.items()):
        if not name.startswith(prefix) or not callable(scenario):
            continue
        if only and only not in name and only not in os.path.basename(module["__file__"]):
            continue
        if skip:
            print(f"skip {name}: {skip}", flush=True)
        elif not run_one(scenario):
            failed += 1
    return 1 if failed else 0
