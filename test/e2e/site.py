#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# timeout: 600
"""Sites as real processes with a real hub and a tiny model. What goes wrong: a site is killed between its
hand-ins, told to stop, loses its hub for a while or never had one, gets a twin, finds its checkpoint damaged, or
holds other data. What must hold each time: training goes on or ends with the right exit status and a sentence, and
the audit finds no position lost or doubled. Without faults, one site with eta 1, mu 0 and fp32 must end with the
weights of uninterrupted training."""
import array
import glob
import json
import math
import os
import re
import signal
import struct
import subprocess
import sys
import time

ROOT = os.environ.get("ROOT") or os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path.insert(0, os.path.join(ROOT, "scripts", "lib"))
from cluster import Cluster, Failure, pack_words, wait_for  # noqa: E402
from scenarios import run_scenarios, tsan_is_too_slow  # noqa: E402

PROGRAM = os.environ.get("BERINGIA") or os.path.join(ROOT, "build", "release", "beringia")
SCRATCH = os.environ.get("SCRATCH") or "/tmp/beringia-site-e2e"
MODEL = os.path.join(ROOT, "share", "models", "tiny.json")
FAST = {"lease.ttl": "3s", "lease.heartbeat": "500ms", "outer.steps": 10, "outer.grace": "2s",
        "lease.samples_min": 16, "lease.samples_max": 128}
WORDS = ["--batch", 8, "--threads", 1, "--checkpoint-every", "200ms", "--timeout", "5s", "--grace", "20s"]
# Time for the faults to happen in; sanitizers give enough of it by themselves.
SLOW = WORDS + ["--throttle", 0.6 if os.environ.get("VARIANT") in ("asan", "tsan", "debug") else 0.1]


def begin(name, sites, settings=None):
    out = os.path.join(SCRATCH, name)
    os.makedirs(out)
    c = Cluster(PROGRAM, out, pack_words(PROGRAM, os.path.join(SCRATCH, "data"), 1), sites)
    c.init(MODEL, {**FAST, **(settings or {})}, seed=1)
    return c


def log_of(c, site):
    with open(os.path.join(c.out, f"site-{site}.log"), encoding="utf-8") as f:
        return f.read()


def want(condition, text):
    if not condition:
        raise Failure(text)


def finish(c):
    """The run completes, sites end with 0, the audit is clean."""
    wait_for("the run to complete", c.complete, 90)
    c.wait_sites()
    c.stop_hub()
    a = c.json("audit", c.run_dir, "--json")
    want(a.get("lost", 1) == 0 and a.get("doubled", 1) == 0, f"the audit says {a}")
    return a


def merged(c, share):
    wait_for(f"{100 * share:.0f} % merged", lambda: c.merged_share() >= share, 90, each=c.check_processes)


# ---- scenarios -----------------------------------------------------------------------------------------------
def site_e2e_two_sites_train_an_epoch():
    # A machine that stands still for three seconds lets a lease lapse, and one that is slow for two rounds makes a
    # contribution too old: both reset weights, and rightly. Here neither has a time limit that a busy machine reaches.
    c = begin("two", {"a": WORDS, "b": WORDS + ["--throttle", 0.4]}, {"lease.ttl": "2m", "outer.grace": "2m"})
    c.start_hub()
    c.start_site("a")
    c.start_site("b")
    finish(c)
    want("weights_reset" not in log_of(c, "a") + log_of(c, "b"), "weights were reset without a fault")
    return c


def floats(path):
    with open(path, "rb") as f:
        b = f.read()
    n = struct.unpack("<Q", b[:8])[0]
    out = {}
    for k, v in json.loads(b[8:8 + n]).items():
        if k != "__metadata__" and v["dtype"] == "F32":
            lo, hi = v["data_offsets"]
            out[k] = array.array("f", b[8 + n + lo:8 + n + hi])
    return out


def versions(c):
    files = glob.glob(os.path.join(c.run_dir, "versions", "*.safetensors"))
    return sorted(files, key=lambda p: int(os.path.basename(p).split(".")[0]))


def uninterrupted(name, optimizer, most):
    # Heartbeats that never come within the run: a wish to shorten a lease would change the order of samples.
    c = begin(name, {"a": WORDS}, {"train.optimizer": optimizer, "outer.eta": 1, "outer.mu": 0, "outer.m_ref": 1, "outer.codec": "fp32",
                                    "train.schedule": "constant", "train.lr": 0.001, "lease.heartbeat": "5m",
                                    "lease.ttl": "1h"})
    c.start_hub()
    c.start_site("a")
    finish(c)
    central = os.path.join(c.out, "central")
    c.call("train", "--central", "--data", c.data, "--model", MODEL, "--out", central, "--batch", 8, "--threads", 1,
           "--schedule", "constant", "--warmup-tokens", 0, "--lr", 0.001, "--seed", 1, "--optimizer", optimizer)
    files = versions(c)
    want(len(files) > 3, "too few rounds for the comparison to mean anything")
    first, last, alone = floats(files[0]), floats(files[-1]), floats(os.path.join(central, "model.safetensors"))
    gap = way = 0.0
    for k, v in alone.items():
        for x, y, z in zip(last[k], v, first[k]):
            gap += (x - y) ** 2
            way += (y - z) ** 2
    ratio = math.sqrt(gap / way)
    print(f"  gap / way of training: {ratio:.2e}")
    want(ratio <= most, f"the weights differ by {ratio:.2e} of the way they went")
    return c


def site_W1_e2e_one_site_is_uninterrupted_training():
    return uninterrupted("one", "adamw", 1e-5)


def site_W1_e2e_one_site_with_muon_is_uninterrupted_training():
    return uninterrupted("one-muon", "muon", 1e-5)


def site_S2_e2e_killed_within_a_segment_it_ends_with_the_same_bits():
    # One segment as long as the epoch: no rebase comes between, whose moment would be left to chance.
    rest = {"outer.steps": 100000, "outer.eta": 1, "outer.mu": 0, "outer.m_ref": 1, "outer.codec": "fp32",
            "train.schedule": "constant", "lease.heartbeat": "5m", "lease.ttl": "1h", "lease.samples_min": 256,
            "lease.samples_max": 256}
    heads = []
    for kills in (0, 3):
        words = WORDS[:-6] + ["--checkpoint-every", "1ms", "--timeout", "5s", "--grace", "20s"]
        c = begin(f"bits{kills}", {"a": words + ["--throttle", 0.2] if kills else words}, rest)
        c.start_hub()
        c.start_site("a")
        path = os.path.join(c.out, "site-a", "checkpoint.safetensors")
        for n in range(kills):
            steps = 12 * (n + 1)
            wait_for(f"a checkpoint of step {steps}", lambda: os.path.exists(path) and checkpoint_steps(path) >= steps,
                     90, each=c.check_processes)
            c.stop_site("a", signal.SIGKILL)
            c.start_site("a")
        finish(c)
        want(log_of(c, "a").count("ev=restored") == kills, "it did not go on from its checkpoints")
        want("weights_reset" not in log_of(c, "a"), "local work was thrown away")
        heads.append(floats(versions(c)[-1]))
        want(len(versions(c)) == 2, "the epoch was not one segment")
    want(all(heads[0][k] == heads[1][k] for k in heads[0]), "the weights have other bits than without the kills")
    return c


def checkpoint_steps(path):
    with open(path, "rb") as f:
        n = struct.unpack("<Q", f.read(8))[0]
        return int(json.loads(f.read(n))["__metadata__"]["steps"])


def site_S2_e2e_killed_again_and_again():
    c = begin("kill", {"a": SLOW, "b": SLOW})
    c.start_hub()
    c.start_site("a")
    c.start_site("b")
    for i in range(4):
        merged(c, 0.1 + 0.15 * i)
        time.sleep(0.3)
        c.stop_site("a", signal.SIGKILL)
        c.start_site("a")
    finish(c)
    want(log_of(c, "a").count("ev=restored") >= 3, "the site did not go on from its local checkpoint")
    return c


def site_S7_e2e_told_to_stop_and_started_again():
    c = begin("stop", {"a": SLOW, "b": SLOW})
    c.start_hub()
    c.start_site("a")
    merged(c, 0.2)
    code = c.stop_site("a", signal.SIGTERM)
    want(code == 0, f"SIGTERM ended the site with {code}")
    s = c.status()
    a = next(site for site in s["sites"] if site["name"] == "a")
    want(not a["joined"], "the site is a member after a clean stop")
    # Its leases wait for its next process, and go to others when they need them: at the end of the test.
    want(s["counts"]["leased"] == a["samples_leased"], f"leased {s['counts']['leased']}, a's {a['samples_leased']}")
    want("result=OK" in log_of(c, "a"), "the close was not clean")
    c.start_site("a")
    merged(c, 0.5)
    want(c.stop_site("a", signal.SIGUSR1) == 0, "SIGUSR1 is no clean stop")
    c.start_site("a")
    merged(c, 0.7)
    want(c.stop_site("a", signal.SIGTERM) == 0, "the third stop was not clean")
    c.start_site("b")
    finish(c)
    steps = [int(m) for m in re.findall(r"ev=restored from=disk steps=(\d+)", log_of(c, "a"))]
    want(len(steps) == 2 and 0 < steps[0] < steps[1], f"restored at steps {steps}")
    return c


def site_e2e_hub_away_and_back():
    c = begin("away", {"a": SLOW, "b": SLOW})
    c.start_hub()
    c.start_site("a")
    c.start_site("b")
    merged(c, 0.2)
    c.kill_hub()
    time.sleep(2)
    want(all(p.poll() is None for p in c.sites.values()), "a site ended because the hub was away")
    c.start_hub()
    merged(c, 0.5)
    c.kill_hub()
    time.sleep(5)  # longer than the leases' time
    c.start_hub()
    finish(c)
    log = log_of(c, "a")
    want("ev=hub_unreachable" in log and "ev=hub_back" in log, "the log does not tell that the hub was away")
    want(log.count("ev=hub_unreachable") <= 6, "the log tells it too often")
    return c


def site_T7_e2e_started_again_while_the_hub_is_away():
    # The lease of a site that is killed with its hub away is its own still, and time to train it is there. A long TTL: what
    # must be kept is not to hang on how fast this machine is.
    c = begin("alone", {"a": SLOW + ["--grace", "4s"]}, {"lease.ttl": "2m"})
    c.start_hub()
    c.start_site("a")
    merged(c, 0.2)
    time.sleep(0.5)
    c.kill_hub()
    c.stop_site("a", signal.SIGKILL)
    before = log_of(c, "a")
    c.start_site("a")
    wait_for("the site to train alone", lambda: "ev=alone" in log_of(c, "a")[len(before):], 30)
    log = log_of(c, "a")[len(before):]
    left = int(re.search(r"ev=alone .*samples_left=(\d+)", log)[1])
    want(left > 0, "it had no samples left: nothing is shown")
    had = int(re.search(r"ev=restored .*segment_steps=(\d+)", log)[1])
    time.sleep(1)
    want(c.stop_site("a", signal.SIGTERM) in (0, 26), "a stop while the hub is away is no failure")  # saves first
    c.start_site("a")
    wait_for("it to go on", lambda: log_of(c, "a").count("ev=restored") >= 2, 30)
    now = int(re.findall(r"ev=restored .*segment_steps=(\d+)", log_of(c, "a"))[-1])
    want(now > had, f"alone it got from {had} to {now} steps")
    c.start_hub()
    finish(c)
    want("weights_reset" not in log_of(c, "a"), "what was trained alone was thrown away")
    return c


def site_e2e_waits_for_a_hub_that_is_not_there_yet():
    c = begin("late", {"a": WORDS})
    c.start_hub()
    c.kill_hub()
    c.start_site("a")
    wait_for("the site to say that it waits", lambda: "hub_unreachable" in log_of(c, "a"), 20)
    time.sleep(1)
    want(c.sites["a"].poll() is None, "the site did not wait")
    c.start_hub()
    finish(c)
    want(log_of(c, "a").count("ev=hub_unreachable") == 1, "the log tells it more than once")
    return c


def site_e2e_stops_while_it_waits_for_a_hub():
    c = begin("never", {"a": WORDS})
    c.url = "http://127.0.0.1:9"
    c.start_site("a")
    wait_for("the site to say that it waits", lambda: "hub_unreachable" in log_of(c, "a"), 20)
    want(c.stop_site("a", signal.SIGTERM) == 0, "a stop while waiting is no failure")
    return c


def site_S9_e2e_a_twin_fences_the_first():
    c = begin("twin", {"a": SLOW})
    c.start_hub()
    c.start_site("a")
    merged(c, 0.1)
    first = c.sites.pop("a")
    twin = subprocess.run([PROGRAM, "site", "--hub", c.url, "--name", "a", "--data", c.data, "--state",
                           os.path.join(c.out, "site-a"), *map(str, SLOW)], capture_output=True, text=True, check=False)
    want(twin.returncode == 7, f"a second process in one state directory ended with {twin.returncode}, not BUSY")
    want("Traceback" not in twin.stderr and "lock" in twin.stderr, f"it does not say why: {twin.stderr}")
    c.site_words["a"] = SLOW + ["--state", os.path.join(c.out, "elsewhere")]
    c.start_site("a")
    wait_for("the first to stop", lambda: first.poll() is not None, 30)
    want(first.returncode == 16, f"the first ended with {first.returncode}, not FENCED")
    c.site_words["a"] = SLOW
    finish(c)
    return c


def site_S2_e2e_a_damaged_checkpoint_is_told_and_survived():
    c = begin("damage", {"a": SLOW})
    c.start_hub()
    c.start_site("a")
    merged(c, 0.3)
    c.stop_site("a", signal.SIGKILL)
    path = os.path.join(c.out, "site-a", "checkpoint.safetensors")
    with open(path, "r+b") as f:
        f.seek(os.path.getsize(path) // 2)
        f.write(b"\xff" * 64)
    c.start_site("a")
    finish(c)
    want("ev=checkpoint_unusable" in log_of(c, "a"), "the damage is not told")
    return c


def site_e2e_other_data_is_refused():
    c = begin("foreign", {"a": WORDS})
    c.start_hub()
    c.data = pack_words(PROGRAM, os.path.join(SCRATCH, "other"), 2)
    c.start_site("a")
    wait_for("the site to end", lambda: c.sites["a"].poll() is not None, 20)
    want(c.sites.pop("a").returncode == 9, "other data than the run's is not refused with 9")
    want("other data than the run" in log_of(c, "a"), "it does not say why")
    return c


if __name__ == "__main__":
    sys.exit(run_scenarios(globals(), "site_", tsan_is_too_slow()))
