#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# timeout: 280
"""A hub as a site of another hub: two regions with a site each, whose model counts its samples. What goes wrong: a
region's hub is killed while it works, the parent is killed and away for a while, a region is another data set's. What
must hold: every parameter of the parent's last version is exactly 1, so each sample is merged once through both levels;
both regions end at the parent's weights; the audit of the tree is clean and says so of each region, the journal of a region
gives all of its versions again, byte for byte; and a journal that says something else of a region is found."""
import json
import os
import random
import signal
import struct
import subprocess
import sys
import time

ROOT = os.environ.get("ROOT") or os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path.insert(0, os.path.join(ROOT, "scripts", "lib"))
from cluster import Cluster, Failure, wait_for  # noqa: E402
from scenarios import run_scenarios  # noqa: E402

PROGRAM = os.environ.get("BERINGIA") or os.path.join(ROOT, "build", "release", "beringia")
COUNTING = os.path.join(os.path.dirname(PROGRAM), "chaos", "counting_site")
SCRATCH = os.environ.get("SCRATCH") or "/tmp/region-e2e"
SETTINGS = {"outer.average": "sum", "outer.codec": "fp32", "train.schedule": "constant", "train.lr": 10,
            "lease.ttl": "5s", "lease.heartbeat": "200ms", "outer.steps": 2, "outer.grace": "500ms",
            "lease.samples_min": 2, "lease.samples_max": 64, "run.epochs": 2}


def want(condition, text):
    if not condition:
        raise Failure(text)


def zeros(path, count):
    head = json.dumps({"counts": {"dtype": "F32", "shape": [count], "data_offsets": [0, 4 * count]}}).encode()
    head += b" " * (-len(head) % 8)
    with open(path, "wb") as f:
        f.write(struct.pack("<Q", len(head)) + head)
        f.truncate(8 + len(head) + 4 * count)


def counts(run, version):
    """The parameters of a published version."""
    with open(os.path.join(run, "versions", f"{version}.safetensors"), "rb") as f:
        size = struct.unpack("<Q", f.read(8))[0]
        at, end = json.loads(f.read(size))["counts"]["data_offsets"]
        f.seek(8 + size + at)
        return struct.unpack(f"<{(end - at) // 4}f", f.read(end - at))


def pack(name, seed):
    """A small data set: some 130 samples."""
    path, rng = os.path.join(SCRATCH, name), random.Random(seed)
    if not os.path.exists(path):
        os.makedirs(SCRATCH, exist_ok=True)
        with open(path + ".txt", "w", encoding="utf-8") as f:
            for _ in range(3):
                f.write("".join(rng.choice("etaoin shrdlu") for _ in range(700)) + "\n\f\n")
        subprocess.run([PROGRAM, "pack", "--out", path, "--tokenizer", "bytes", "--seq-len", "16", "--heldout", "0",
                        path + ".txt"], check=True, stdout=subprocess.DEVNULL)
    return path


class Hub(Cluster):
    """A hub whose sites count. parent: the Hub that it is a region of, or None."""

    def __init__(self, name, data, parent=None):
        super().__init__(PROGRAM, os.path.join(SCRATCH, name), data, {})
        self.name, self.parent = name, parent
        os.makedirs(self.out, exist_ok=True)

    def make(self, settings=None):
        with open(os.path.join(self.data, "manifest.json"), encoding="utf-8") as f:
            self.positions = json.load(f)["train"]["samples"]
        weights = os.path.join(self.out, "zeros.safetensors")
        zeros(weights, 2 * self.positions)
        sets = [w for k, v in {**SETTINGS, **(settings or {})}.items() for w in ("--set", f"{k}={v}")]
        self.call("init", self.run_dir, "--weights-file", weights, "--data", self.data, "--seed", 1, *sets)
        return self

    def start_hub(self, env=None, wait=True):
        path = os.path.join(self.run_dir, "hub.json")
        if os.path.exists(path):
            os.unlink(path)
        listen = self.url.split("//")[1] if self.url else "127.0.0.1:0"
        up = ["--parent", self.parent.url, "--region", self.name, "--parent-rounds", "8"] if self.parent else []
        with open(os.path.join(self.out, "hub.log"), "ab") as log:
            self.hub = subprocess.Popen([self.program, "hub", self.run_dir, "--listen", listen, *up],
                                        stdout=log, stderr=log, env=dict(self.env, **(env or {})))

        def answers():
            want(self.hub.poll() is None, f"{self.name} ended with {self.hub.returncode}")
            if not os.path.exists(path):
                return False
            with open(path, encoding="utf-8") as f:
                self.url = json.load(f)["url"]
            return self.status() is not None

        wait_for(f"{self.name} to answer", answers, 60)

    def start_counting(self, name, step_ms=1):
        with open(os.path.join(self.out, f"site-{name}.log"), "ab") as log:
            self.sites[name] = subprocess.Popen(
                [COUNTING, "--hub", self.url, "--name", name, "--data", self.data, "--state",
                 os.path.join(self.out, f"site-{name}"), "--batch", "2", "--step-ms", str(step_ms), "--timeout-ms", "5000"],
                stdout=log, stderr=log, env=self.env)

    def merged(self):
        s = self.status()
        return s["counts"]["merged"] if s else 0

    def own(self):
        """Samples of its site's in its head."""
        return {x["name"]: x["samples"] for x in self.audit()["sites"]}.get("s", 0)

    def live(self):
        s = self.status()
        return bool(s) and any(x["name"] == "s" and x["live"] for x in s["sites"])

    def proofs(self):
        a = self.audit(blobs=True)
        want(a["good"], f"{self.name}: the audit: {a['problems'][:3]}")
        return a


def tree(scenario, settings=None):
    data = pack("data", 1)
    parent = Hub(f"{scenario}-parent", data).make()
    parent.start_hub()
    regions = [Hub(f"{scenario}-{n}", data, parent).make(settings) for n in ("east", "west")]
    for r in regions:
        r.start_hub()
    return parent, regions


def recursive(parent, regions, ok=(0,)):
    return parent.json("audit", parent.run_dir, "--json", "--recursive", *[r.run_dir for r in regions], ok=ok)


def finish(parent, regions):
    """To the end of the run, and what must hold there."""
    for h in [parent, *regions]:
        wait_for(f"{h.name} to be complete", h.complete, 120, h.check_processes)
    head = parent.status()["head"]
    for r in regions:
        r.wait_sites()
        r.stop_hub()
    parent.stop_hub()
    bad = [x for x in counts(parent.run_dir, head) if x != 1]
    want(not bad, f"{len(bad)} positions are not merged once, the first counts {bad[:1]}")
    want(parent.proofs()["merged"] == 2 * parent.positions, "the parent has not merged everything")
    for r in regions:
        a = r.proofs()
        want(counts(r.run_dir, a["head"]) == counts(parent.run_dir, head), f"{r.name} ends with other weights")
        want(r.replay()["equal"], f"{r.name}: its journal gives other versions")
        shares = {s["name"]: s["samples"] for s in a["sites"]}
        want(shares.get("s", 0) > 0 and shares.get("_parent", 0) > 0, f"{r.name}: {shares}")
    a = recursive(parent, regions)
    want(a["good"], f"the audit of the tree: {a['problems'][:3]}")
    for r in a["regions"]:
        want(r["good"] and r["ahead"] == r["unheard"] == 0 and r["taken"] == head and r["contributions"] > 0, str(r))
    want(sum(r["samples"] for r in a["regions"]) == 2 * parent.positions, "the regions' samples are not all there are")


def region_e2e_each_sample_once_through_two_levels():
    parent, regions = tree("plain")
    parent.hub.send_signal(signal.SIGSTOP)  # so that neither has the run to itself
    for r in regions:
        r.start_counting("s")
    wait_for("both sites to be members", lambda: all(r.live() for r in regions), 60)
    parent.hub.send_signal(signal.SIGCONT)
    wait_for("both regions to work", lambda: all(r.own() > 0 for r in regions), 60)
    a = recursive(parent, regions)  # beside hubs that run
    want(a["good"], f"the audit of the tree, in the middle: {a['problems'][:3]}")
    finish(parent, regions)
    # A region's note that says the other's name: what it did is not what the parent has of it.
    east, west = regions
    state = os.path.join(east.run_dir, "uplink", "state")
    with open(state, "rb") as f:
        old = f.read()
    with open(state, "wb") as f:
        f.write(old.replace(b"plain-east", b"plain-west", 1))
    a = recursive(parent, [east], ok=(17,))
    want(not a["good"] and any("no site of it has done" in p for p in a["problems"]), f"another region's name: {a['problems'][:3]}")
    with open(state, "wb") as f:
        f.write(old)
    done = subprocess.run([PROGRAM, "audit", east.run_dir, "--recursive", west.run_dir], capture_output=True, text=True, check=False)
    want(done.returncode == 3 and "none of those before it" in done.stderr, f"a tree that is none: {done.returncode} {done.stderr}")


def region_e2e_hubs_are_killed():
    """West works alone at first, slowly and in small leases: so its site can be killed while a set is open, and nobody ends the run."""
    parent, (east, west) = tree("kill", {"lease.samples_max": 4})
    west.start_counting("s", step_ms=20)
    while True:
        wait_for("a set of west's to be open", lambda: (west.status() or {"counts": {}})["counts"].get("available", 0) >= 8, 60,
                 west.check_processes)
        west.stop_site("s", signal.SIGKILL)
        if west.status()["counts"]["available"] > 0:
            break
        west.start_counting("s", step_ms=20)
    parent.kill_hub()
    before = west.merged()
    west.start_counting("s")
    wait_for("west to go on alone", lambda: west.merged() > before, 60, west.check_processes)
    west.kill_hub()
    west.start_hub()
    west.sites["s"].send_signal(signal.SIGSTOP)  # until east has something too
    parent.start_hub()
    east.start_counting("s")
    wait_for("east to work", lambda: east.own() > 0, 60, east.check_processes)
    west.sites["s"].send_signal(signal.SIGCONT)
    for _ in range(2):
        before = east.merged()
        wait_for("east to go on", lambda: east.merged() > before or east.complete(), 90, east.check_processes)
        east.kill_hub()
        east.start_hub()
    finish(parent, [east, west])


def region_e2e_only_its_own_run():
    data = pack("data", 1)
    other = pack("other", 2)
    parent = Hub("own-parent", data).make()
    parent.start_hub()
    region = Hub("own-region", other, parent).make()
    with open(os.path.join(region.out, "said"), "wb") as said:
        done = subprocess.run([PROGRAM, "hub", region.run_dir, "--listen", "127.0.0.1:0", "--parent", parent.url,
                               "--region", "r"], stdout=said, stderr=said, timeout=60)
    with open(os.path.join(region.out, "said"), encoding="utf-8") as f:
        text = f.read()
    want(done.returncode == 3 and "differ in" in text, f"{done.returncode}: {text[-300:]}")
    parent.stop_hub()


if __name__ == "__main__":
    sys.exit(run_scenarios(globals(), "region_e2e_"))
