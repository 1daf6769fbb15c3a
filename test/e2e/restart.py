#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# release only
# timeout: 240
"""Restart from memory. What goes wrong: a rank of a site dies; and a node's memory with it; a site that is one process
dies; what it left in memory is of no use. What must hold: it goes on from the newest moment that all ranks can have,
with the same bits as without the interruption; the audit is clean; nothing stays in memory. At length: make test-restart."""
import os
import shutil
import sys

ROOT = os.environ.get("ROOT") or os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path.insert(0, os.path.join(ROOT, "test", "restart"))
import kit  # noqa: E402
from scenarios import run_scenarios  # noqa: E402

SCRATCH = os.environ.get("SCRATCH") or "/tmp/beringia-restart-e2e"
made = {}


def world():
    if "world" not in made:
        made["world"] = kit.World(SCRATCH)
    return made["world"]


def whole(ranks):
    if ranks not in made:
        made[ranks] = kit.uninterrupted(world(), f"whole{ranks}", ranks)[0]
    return made[ranks]


def restart_one_process_goes_on_from_memory():
    kit.interrupted(world(), "alone", (0,), lambda r: None, "memory", whole(1), ranks=1)


def restart_without_memory_the_disk_is_the_last_resort():
    kit.interrupted(world(), "disk", (0,), lambda r: r.wipe(0), "disk", whole(1), ranks=1)


def restart_a_lost_rank_goes_on_from_memory():
    need_mpi()
    kit.interrupted(world(), "rank", (1,), lambda r: None, "memory", whole(2))


def restart_a_lost_node_goes_on_from_its_partner():
    need_mpi()
    kit.interrupted(world(), "node", (0, 1), lambda r: r.wipe(1), "partner", whole(2))


def restart_what_does_not_fit_is_refused():
    small = os.path.join(SCRATCH, "small")
    os.makedirs(small)
    r = kit.Run(world(), "full", 1, more=("--memory", small), memory=False)
    if os.geteuid() == 0 and shutil.which("unshare"):  # a file system in memory that is too small
        r.c.launch = {"a": ["unshare", "-m", "sh", "-c", f'mount -t tmpfs -o size=256k none {small} && exec "$@"', "sh"]}
        r.start()
        status = r.c.sites.pop("a").wait(timeout=60)
        if "mount" not in r.log().splitlines()[0]:
            last = r.log().splitlines()[-1]
            kit.want(status == 6 and "MiB" in last and "--memory-generations" in last, f"it ended with {status}: {last}")
        r.c.launch = {}
    os.mkdir(os.path.join(small, f"beringia-{os.geteuid()}"), 0o755)  # others could look
    r.start()
    status = r.c.sites.pop("a").wait(timeout=60)
    last = r.log().splitlines()[-1]
    kit.want(status == 3 and small in last and "0700" in last, f"it ended with {status}: {last}")


def need_mpi():
    if kit.missing():
        raise kit.Failure(kit.missing())


if __name__ == "__main__":
    if kit.missing():
        for name in [n for n in list(globals()) if n.startswith("restart_a_lost")]:
            print(f"skip {name}: {kit.missing()}")
            del globals()[name]
    try:
        status = run_scenarios(globals(), "restart_")
    finally:
        if "world" in made:
            made["world"].close()
    sys.exit(status)
