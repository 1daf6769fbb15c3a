#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# timeout: 600
"""Synchronous rounds with a real hub and real sites. What goes wrong: gradients that are lost, counted twice or taken at other
weights, a step that is not the central trainer's, the hub killed between rounds, a site killed within one, a phase that ends
otherwise in the replay than in the run. What must hold: three sites are a central run with the triple batch; every position is
merged once; the journal alone gives every version again, byte for byte, across the switch to rounds of many steps.

`make test-sync` (LONG=1): 100 steps of three sites, with a site killed among them; `make test`: fewer, and a part of the warm start."""
import csv
import json
import os
import signal
import subprocess
import sys

ROOT = os.environ.get("ROOT") or os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path.insert(0, os.path.join(ROOT, "scripts", "lib"))
from cluster import Cluster, Failure, pack_words, wait_for  # noqa: E402
from scenarios import run_scenarios, tsan_is_too_slow  # noqa: E402

PROGRAM = os.environ.get("BERINGIA") or os.path.join(ROOT, "build", "release", "beringia")
SCRATCH = os.environ.get("SCRATCH") or "/tmp/beringia-sync-e2e"
MODEL = os.path.join(ROOT, "share", "models", "tiny.json")
LONG = bool(os.environ.get("LONG"))
SAMPLES, STEPS, SEED = 2, 100 if LONG else 24, 7
FAST = {"lease.ttl": "3s", "lease.heartbeat": "300ms", "lease.samples_min": SAMPLES, "lease.samples_max": 16 * SAMPLES,
        "outer.steps": 4, "outer.codec": "fp32", "train.lr": 2e-3}
WORDS = ["--batch", SAMPLES, "--threads", 1, "--checkpoint-every", "300ms", "--timeout", "5s", "--grace", "20s"]
SLACK = 1e-5  # nats: sums of gradients in another order


FIGURES = {}


def told(**figures):
    """For people, and for the last line of the long form."""
    FIGURES.update(figures)
    print("   ", *(f"{k}={v}" for k, v in figures.items()))


def want(condition, text):
    if not condition:
        raise Failure(text)


def begin(name, settings, words=WORDS, sites=("a", "b", "c")):
    out = os.path.join(SCRATCH, name)
    data = pack_words(PROGRAM, os.path.join(SCRATCH, "data"))
    os.makedirs(out)
    c = Cluster(PROGRAM, out, data, {s: list(words) for s in sites})
    c.init(MODEL, {**FAST, **settings}, seed=SEED)
    return c


def records(c):
    return [json.loads(line) for line in c.call("journal", c.run_dir).splitlines()]


def first_of(ranges, n):
    """The first n positions of a lease, and the ranges behind them."""
    taken, rest = [], []
    for start, count in ranges:
        k = min(count, n - len(taken))
        taken += range(start, start + k)
        if k < count:
            rest.append((start + k, count - k))
    return taken, rest


def versions_of(c, positions):
    """version -> (positions, mean loss, parts), from the records alone."""
    leases, deltas, versions = {}, {}, {}
    for r in records(c):
        if r["kind"] == "grant":
            leases[r["tok"]] = (r["epoch"], [tuple(x) for x in r["ranges"]])
        elif r["kind"] == "reclaim" and r.get("keep"):
            epoch, ranges = leases[r["tok"]]
            kept, _ = first_of(ranges, r["keep"])
            leases[r["tok"]] = (epoch, [(p, 1) for p in kept])
        elif r["kind"] == "stage":
            got = []
            for part in r["parts"]:
                epoch, ranges = leases[part["tok"]]
                taken, rest = first_of(ranges, part["done"])
                got += [epoch * positions + p for p in taken]
            if "rest" in r:
                leases[r["rest"]] = (epoch, rest)
            deltas[r["did"]] = (got, r["loss"], r["tokens"])
        elif r["kind"] == "merge":
            parts = [deltas[p["did"]] for p in r["parts"]]
            tokens = sum(p[2] for p in parts)
            versions[r["version"]] = ([x for p in parts for x in p[0]], sum(p[1] * p[2] for p in parts) / tokens, len(parts))
    return versions


def proofs(c):
    audit = c.audit(blobs=True)
    want(audit["findings"] == 0, f"the audit finds {audit}")
    replay = c.replay()
    want(replay["equal"] and replay["versions"] > 0, f"a replay gives other versions: {replay}")


def central(c, versions, last):
    """The losses of a central run over the same samples, step by step."""
    lines, out = os.path.join(c.out, "positions"), os.path.join(c.out, "central")
    with open(lines, "w", encoding="utf-8") as f:
        for v in range(1, last + 1):
            f.write(" ".join(map(str, versions[v][0])) + "\n")
    c.call("train", "--central", "--data", c.data, "--model", MODEL, "--out", out, "--seed", SEED, "--threads", 1,
           "--batch", max(len(versions[v][0]) for v in range(1, last + 1)), "--positions", lines, "--lr", 2e-3,
           "--lr-min-ratio", 0.1, "--warmup-tokens", 0, "--log", os.path.join(c.out, "central.csv"))
    with open(os.path.join(c.out, "central.csv"), encoding="utf-8") as f:
        return [float(row["loss"]) for row in csv.DictReader(f)]


def head(c):
    s = c.status()
    return s["head"] if s else 0


def of_three(c):
    """Versions so far that all three sites have a part in."""
    return sum(r["sites"] == 3 for r in c.get("/v1/rounds?from=1")["rounds"]) if c.status() else 0


def kill_and_replace(c):
    """One of three dies; the others go on when its lease time is over, and it comes back."""
    want(c.stop_site("c", signal.SIGKILL) == -signal.SIGKILL, "site c is not dead")
    at = head(c)
    wait_for("rounds without the dead site", lambda: head(c) >= at + 4, 120, c.check_processes)
    c.start_site("c")


def sync_three_sites_are_a_central_run():
    c = begin("central", {"outer.synchronous": 1})
    c.start_hub()
    for name in c.site_words:
        c.start_site(name)
    wait_for("half of the rounds", lambda: of_three(c) >= STEPS // 2, 240, c.check_processes)
    c.kill_hub()
    c.start_hub()
    if LONG:
        kill_and_replace(c)
    wait_for(f"{STEPS} rounds of three sites", lambda: of_three(c) >= STEPS, 240, c.check_processes, pause=0.1)
    for name in list(c.sites):
        want(c.stop_site(name, signal.SIGTERM) == 0, f"site {name} did not leave in good order")
    positions = c.status()["positions"]
    c.stop_hub()
    versions = versions_of(c, positions)
    last = max(versions)
    losses = central(c, versions, last)
    want(len(losses) == last, f"{len(losses)} central steps, {last} versions")
    worst = max(abs(losses[v - 1] - versions[v][1]) for v in range(1, last + 1))
    three = sum(versions[v][2] == 3 for v in versions)
    told(steps=last, of_three_sites=three, loss_first=f"{losses[0]:.4f}", loss_last=f"{losses[-1]:.4f}", worst=f"{worst:.2e}")
    want(three >= STEPS, f"only {three} versions are of three sites")
    want(losses[-1] < losses[0] - (0.5 if LONG else 0.2), "nothing was learnt, so nothing is shown")
    want(worst <= SLACK, f"the losses of sites and central run differ by {worst:.2e}")
    proofs(c)


def sync_warm_start_ends_and_replays():
    words = [w if w != SAMPLES else SAMPLES * (1 if LONG else 4) for w in WORDS]
    c = begin("warm", {"outer.synchronous": 0.2, "outer.steps": 8 if LONG else 4, "outer.grace": "2s"}, words=words)
    c.start_hub()
    for name in c.site_words:
        c.start_site(name)
    wait_for("the first rounds", lambda: head(c) >= 4, 120, c.check_processes)
    c.kill_hub()
    c.start_hub()
    if LONG:
        kill_and_replace(c)
    wait_for("the end of the run", c.complete, 240, c.check_processes, pause=0.1)
    c.wait_sites()
    c.stop_hub()
    rows = records(c)
    kinds = [r["kind"] for r in rows]
    sync = [r for r in rows if r["kind"] == "sync"]
    merges = [r for r in rows if r["kind"] == "merge"]
    want([r["step"] for r in sync] == list(range(1, len(sync) + 1)), "the steps of the moments do not follow one another")
    want([r["version"] for r in sync] == [r["version"] for r in merges[:len(sync)]], "synchronous rounds are not the first ones")
    after = merges[len(sync):]
    want(len(sync) >= 8 and len(after) >= 2, f"{len(sync)} synchronous rounds, {len(after)} others")
    want(after[0]["mu"] == 0 and any(m["mu"] > 0 for m in after[1:]), "the momentum did not begin anew, once, at the switch")
    stages = {r["did"]: r for r in rows if r["kind"] == "stage"}
    codecs = [{stages[p["did"]]["codec"] for p in m["parts"] if stages[p["did"]]["tokens"]} for m in merges]
    want(all(x == {6} for x in codecs[:len(sync)]) and all(x == {1} for x in codecs[len(sync):]), "kinds are mixed")
    want("reject" not in kinds or kinds.count("reject") < 5, "contributions were refused")
    told(synchronous=len(sync), others=len(after), discards=kinds.count("discard"), rejects=kinds.count("reject"))
    proofs(c)


def sync_what_does_not_fit_is_told_in_one_line():
    out = os.path.join(SCRATCH, "wrong")
    data = pack_words(PROGRAM, os.path.join(SCRATCH, "data"))
    os.makedirs(out)
    lines = os.path.join(out, "positions")

    def refused(*words):
        done = subprocess.run([PROGRAM, *map(str, words)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=60, check=False)
        said = done.stderr.strip().splitlines()
        want(done.returncode not in (0, 134, 139) and len(said) == 1, f"{words}: ended with {done.returncode}: {done.stderr[-300:]}")
        return said[0]

    for text, part in (("", "no step"), ("1 2\n3 x\n", "line 2"), ("1 2 3 4 5\n", "--batch 4"), ("1\n2\n\n3\n", "line 3"), ("1\n2 -1", "line 2"),
                       ("99999999999999999\n", "line 1")):
        with open(lines, "w", encoding="utf-8") as f:
            f.write(text)
        said = refused("train", "--central", "--data", data, "--model", MODEL, "--out", os.path.join(out, "central"), "--batch", 4,
                       "--threads", 1, "--positions", lines)
        want(lines in said and part in said, f"{text!r}: {said}")
    for setting, part in ((("train.optimizer", "muon"), "muon"), (("train.beta2", 0), "beta2")):
        said = refused("init", os.path.join(out, "run"), "--model", MODEL, "--data", data, "--set", "outer.synchronous=0.5", "--set",
                       f"{setting[0]}={setting[1]}")
        want("outer.synchronous" in said and part in said, said)


if __name__ == "__main__":
    subprocess.run(["rm", "-rf", SCRATCH], check=True)
    os.makedirs(SCRATCH)
    status = run_scenarios(globals(), "sync_", skip=tsan_is_too_slow())
    if LONG:
        print("sync", *(f"{k}={v}" for k, v in FIGURES.items()), f"failed={status}")
    sys.exit(status)
