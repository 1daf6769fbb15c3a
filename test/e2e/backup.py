#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# timeout: 400
"""A run is backed up while it runs, and comes back from the backup.

What can go wrong: the journal and the files it names are of different moments; the hub is killed while it is copied, or the
backup itself is; a file in the backup rots; somebody starts a hub in it; the sites have seen more than the backup when it comes
back. What must hold: each backup audits clean, at any moment; the restored run loses nothing that the backup had and gives
nothing twice; sites that are ahead make the hub hold, and the run goes on when the operator has said so."""
import json
import os
import shutil
import signal
import subprocess
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "scripts", "lib"))
from cluster import Cluster, Failure, pack_words, wait_for  # noqa: E402
from scenarios import run_scenarios, tsan_is_too_slow  # noqa: E402

BERINGIA, SCRATCH = os.environ["BERINGIA"], os.environ["SCRATCH"]
WORDS = ["--batch", "4", "--threads", "1", "--checkpoint-every", "500ms"]
SETTINGS = {"outer.steps": 4, "lease.samples_min": 4, "lease.samples_max": 16, "lease.ttl": "4s", "lease.heartbeat": "300ms",
            "outer.grace": "500ms", "hub.snapshot_every": 50, "hub.keep_checkpoints": 2, "hub.keep_every": 0, "run.epochs": 50}


def check(what, good, detail=""):
    if not good:
        raise Failure(f"{what}: {detail}")


def call(*words, env=None):
    return subprocess.run([BERINGIA, *map(str, words)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=100, check=False,
                          env={**os.environ, **(env or {})})


def fails(what, status, says, *words):
    done = call(*words)
    lines = [x for x in done.stderr.splitlines() if x and not x.startswith("ts=")]
    check(what, done.returncode == status and len(lines) == 1 and says in lines[0], (done.returncode, done.stderr))


def clean(path):
    done = call("audit", path, "--blobs", "--json")
    a = json.loads(done.stdout or "{}")
    check(f"{path}: the audit", done.returncode == 0 and a["good"] and a["findings"] == 0 and a["blobs_bad"] == 0, (done.stdout, done.stderr))
    return a


def training(name, **settings):
    out = os.path.join(SCRATCH, name)
    os.makedirs(out)
    c = Cluster(BERINGIA, out, pack_words(BERINGIA, os.path.join(SCRATCH, "data")), {"a": WORDS, "b": WORDS})
    c.init("tiny", {**SETTINGS, **settings})
    c.start_hub()
    c.start_site("a")
    c.start_site("b")
    return c


def head(c):
    s = c.status()
    return s["head"] if s else -1


def backup(c, to, *words, env=None):
    done = call("backup", c.run_dir, "--out", to, *words, env=env)
    check("backup", done.returncode == 0, done.stderr)
    return done.stdout


def backup_of_a_run_under_load():
    """Backups one after another while two sites train and the hub is killed and started: each is whole."""
    c = training("load")
    one = os.path.join(c.out, "one")
    versions = []
    for k in range(3):
        before = head(c)
        wait_for("two more rounds", lambda b=before: head(c) >= b + 2, 60, each=c.check_processes)
        other = os.path.join(c.out, f"copy-{k}")
        backup(c, other, "--copy")
        versions.append(clean(other)["head"])
        backup(c, one)  # becomes the new one, again and again
        clean(one)
        if k == 1:
            c.kill_hub()
            backup(c, os.path.join(c.out, "dead"))  # as the kill left it, with SQLite's log beside
            clean(os.path.join(c.out, "dead"))
            c.start_hub()
    check("they grow", versions == sorted(versions) and versions[0] < versions[-1], versions)
    kept = sum(len(f) for _, _, f in os.walk(os.path.join(one, "blobs")))
    check("what the run dropped is dropped", "0 removed" not in backup(c, one) or kept <= 3 * versions[-1] + 20, kept)
    mode = os.stat(one).st_mode & 0o777
    check("nobody else reads it", mode == 0o700, oct(mode))
    check("no address or token of the running hub in it", not {"hub.json", "hub.token", "lock"} & set(os.listdir(one)), os.listdir(one))
    fails("no hub starts in it", 3, "beringia restore", "hub", one, "--listen", "127.0.0.1:0")


def backup_that_is_killed_leaves_the_earlier_one():
    c = training("killed")
    one = os.path.join(c.out, "one")
    wait_for("two rounds", lambda: head(c) >= 2, 60, each=c.check_processes)
    backup(c, one)
    first = clean(one)
    for point in ("backup.before_journal:1", "backup.after_journal:1"):
        before = head(c)
        wait_for("two more rounds", lambda b=before: head(c) >= b + 2, 60, each=c.check_processes)
        done = call("backup", c.run_dir, "--out", one, env={"BERINGIA_FAULT": point})
        check("it dies there", done.returncode == -signal.SIGKILL, (done.returncode, done.stderr))
        check("the earlier one is whole", clean(one)["head"] == first["head"])
    backup(c, one)
    check("and the next one is newer", clean(one)["head"] > first["head"])


def backup_comes_back_to_sites_that_are_ahead():
    """The disk is lost after the backup: sites have seen newer versions, the hub holds, the operator says from where."""
    c = training("ahead", **{"run.epochs": 2})
    saved = os.path.join(c.out, "saved")
    wait_for("two rounds", lambda: head(c) >= 2, 60, each=c.check_processes)
    backup(c, saved, "--copy")
    version = clean(saved)["head"]
    wait_for("the sites to see more", lambda: head(c) >= version + 3, 60, each=c.check_processes)
    c.kill_hub()
    shutil.rmtree(c.run_dir)
    done = call("restore", saved, "--run", c.run_dir)
    check("restore", done.returncode == 0 and f"version {version}" in done.stdout, (done.stdout, done.stderr))
    check("it is a run again", clean(c.run_dir)["head"] == version)
    c.start_hub()
    wait_for("the hub to hold", lambda: (c.status() or {}).get("held"), 60, each=c.check_processes)
    with open(os.path.join(c.out, "hub.log"), encoding="utf-8") as f:
        check("and to say so", "ev=hub_behind" in f.read())
    stands = head(c)  # what was staged in the backup may have been merged before a site came
    for _ in range(20):
        check("nothing moves", head(c) == stands and c.last_status["held"], c.last_status)

    def decide():
        """Each site that comes and has seen more makes it hold again: the operator goes on from the head."""
        c.check_processes()
        if c.last_status["held"]:
            done = call("rollback", c.run_dir, c.last_status["head"])
            check("the operator goes on from here", done.returncode == 0, done.stderr)

    wait_for("the run to be complete", c.complete, 240, each=decide)
    c.wait_sites()
    c.stop_hub()
    a = clean(c.run_dir)
    check("each position once", a["merged"] == a["counted"] == a["positions"] and a["doubled"] == a["lost"] == 0, a)
    check("numbers that the lost one gave are not given again", a["head"] > version + 3, (a["head"], version))


def backup_refuses_what_it_must():
    c = training("refused")
    wait_for("two rounds", lambda: head(c) >= 2, 60, each=c.check_processes)
    one, again = os.path.join(c.out, "one"), os.path.join(c.out, "again")
    backup(c, one, "--copy")
    fails("no run", 4, "no journal", "backup", os.path.join(c.out, "none"), "--out", again)
    fails("no place for it", 27, "no backup", "backup", c.run_dir, "--out", c.data)
    fails("not over a run", 27, "not empty", "restore", one, "--run", c.run_dir)
    fails("not of anything", 4, "backup.json", "restore", c.data, "--run", again)
    fails("no option", 2, "--out DIR", "backup", c.run_dir)
    other = training("other")
    fails("another run's", 27, "another run", "backup", other.run_dir, "--out", one)
    blobs = [os.path.join(d, f) for d, _, files in os.walk(os.path.join(one, "blobs")) for f in files]
    with open(max(blobs, key=os.path.getsize), "r+b") as f:  # a checkpoint
        f.seek(-100, os.SEEK_END)
        byte = f.read(1)
        f.seek(-100, os.SEEK_END)
        f.write(bytes([byte[0] ^ 1]))
    fails("a flipped bit", 25, "hash", "restore", one, "--run", again)
    check("nothing is made of it", not os.path.exists(again))


if __name__ == "__main__":
    sys.exit(run_scenarios(globals(), "backup_", tsan_is_too_slow()))
