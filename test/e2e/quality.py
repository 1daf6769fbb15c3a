#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# timeout: 900
"""The laboratory of bench/quality. What goes wrong: its sites do not do what the program's do, so that its figures mean
nothing; a sample is lost or doubled in a history of leaves, crashes and joins; a stopped campaign begins anew. What
must hold: one site at eta 1, mu 0 through fp32 is the central run, overlapped or not; the ledger ends full, and what a
crash costs is done again; equal settings give equal numbers; what was run is not run again."""
import csv
import json
import os
import subprocess
import sys

ROOT = os.environ.get("ROOT") or os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path[:0] = [os.path.join(ROOT, "scripts", "lib"), os.path.join(ROOT, "bench", "quality")]
import runs  # noqa: E402
from cluster import Failure  # noqa: E402
from scenarios import run_scenarios  # noqa: E402

BUILD = os.path.join(ROOT, os.environ.get("B") or os.path.join("build", "release"))
PROGRAM = os.path.join(BUILD, "bench", "quality_run")
BERINGIA = os.environ.get("BERINGIA") or os.path.join(BUILD, "beringia")
SCRATCH = os.environ.get("SCRATCH") or "/tmp/beringia-quality-e2e"


def want(condition, text):
    if not condition:
        raise Failure(text)


def pack():
    out = os.path.join(SCRATCH, "data")
    if not os.path.exists(out):
        with open(os.path.join(ROOT, "share", "text", "moby-dick.txt"), encoding="utf-8") as f:
            head = f.read(150000)
        with open(out + ".txt", "w", encoding="utf-8") as f:
            f.write(head)
        subprocess.run([BERINGIA, "pack", "--out", out, "--seq-len", "32", "--heldout", "0.1", out + ".txt"], check=True,
                       stdout=subprocess.DEVNULL)
    return out


def run(*words, tokens=24000, ok=0):
    done = subprocess.run([PROGRAM, f"data={pack()}", f"model={ROOT}/share/models/tiny.json", f"tokens={tokens}", *words],
                          stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, check=False)
    want(done.returncode == ok, f"{words}: ended with {done.returncode}: {done.stderr[-300:]}")
    return json.loads(done.stdout) if ok == 0 else done.stderr


def quality_e2e_one_site_is_the_central_run():
    for optimizer in ("adamw", "muon"):
        central = run("sites=0", "batch=8", "lr=0.004", f"optimizer={optimizer}")
        for delay in (0, 3):
            one = run("sites=1", "batch=8", "lr=0.004", f"optimizer={optimizer}", "eta=1", "mu=0", "m_ref=1", "steps=7",
                      f"delay={delay}")
            want(one["rounds"] > 8, f"{one['rounds']} rounds only")
            # Both are sums of the same steps, rounded in another order; what differs is far below any effect.
            want(abs(one["nll"] - central["nll"]) < 2e-4, f"{optimizer}, delay {delay}: {one['nll']} is not {central['nll']}")


def quality_e2e_synchronous_rounds_are_the_central_run_and_a_warm_start_ends():
    central = run("sites=0", "batch=8", "lr=0.004")
    one = run("sites=1", "batch=8", "lr=0.004", "synchronous=1")
    want(one["rounds"] == central["steps"], f"{one['rounds']} rounds, {central['steps']} steps of the central run")
    want(abs(one["nll"] - central["nll"]) < 2e-4, f"one synchronous site: {one['nll']} is not {central['nll']}")
    base = ("batch=4", "steps=6", "lr=0.004", "mu=0.5")
    cold, warm, three = run(*base), run(*base, "synchronous=0.2"), run(*base, "synchronous=1")
    want(warm["rounds"] > cold["rounds"] + 4 and three["rounds"] > warm["rounds"], f"{[r['rounds'] for r in (cold, warm, three)]} rounds")
    want(len({r["nll"] for r in (cold, warm, three)}) == 3 and warm["nll"] < 5, f"{cold['nll']}, {warm['nll']}, {three['nll']}")


def quality_e2e_a_history_of_members_loses_no_sample():
    r = run("batch=4", "steps=6", "lr=0.004", "mu=0.5", "events=c0.2l,a0.4l,b0.4c,a0.4j,b0.7j,c0.7j")
    # The run itself ends with an error where the ledger is not full: each sample merged exactly once.
    want(r["joins"] == 6, f"{r['joins']} joins instead of 3 at the beginning and 3 later")
    want(r["lost_samples"] >= 4, "the crash cost nothing: it did not happen within a round")
    again = run("batch=4", "steps=6", "lr=0.004", "mu=0.5", "events=c0.2l,a0.4l,b0.4c,a0.4j,b0.7j,c0.7j")
    want({**r, "seconds": 0} == {**again, "seconds": 0}, "equal settings, other numbers")
    late = run("batch=4", "steps=6", "lr=0.004", "mu=0.5", "away=c", "events=c0.3j")
    want(late["joins"] == 3, f"{late['joins']} joins")


def quality_e2e_codecs_delays_and_speeds_end_with_a_full_ledger():
    for more, share in ((("codec=int4", "down_codec=int4", "delay=2"), 0.1333), (("codec=topk", "mu=0", "eta=1"), 0.01),
                        (("codec=int8", "speeds=1:2:4"), 0.26), (("speeds=1:2:4", "cadence_batch=1"), 1.0)):
        r = run("batch=4", "steps=6", "lr=0.004", *more)
        want(0 < r["bytes_up_share"] <= share, f"{more}: {r['bytes_up_share']} of fp32's bytes")
        want(r["nll"] < 5, f"{more}: learns nothing, {r['nll']}")


def quality_e2e_options_of_the_outer_step_do_what_they_say():
    base = ("batch=4", "steps=6", "lr=0.004", "mu=0.5")
    plain = run(*base, "outer=plain")
    mean = run("batch=4", "steps=6", "lr=0.004", "eta=1", "mu=0", "m_ref=3")  # three equal sites: the same rule
    want(abs(plain["nll"] - mean["nll"]) < 5e-3, f"the plain mean is {plain['nll']}, by its settings {mean['nll']}")
    ramp = run(*base, "steps_first=2", "ramp=0.5")
    want(ramp["rounds"] > run(*base)["rounds"], "rounds are not shorter at the start")
    want(run(*base, "ema=0.5")["nll_ema"] > 0, "no mean of the versions is kept")
    seen = {run(*base, *more)["nll"] for more in ((), ("radial=1",), ("last_mean=1",), ("outer=delayed", "arrivals=2"))}
    want(len(seen) == 4, f"an option makes no difference: {seen}")


def quality_e2e_a_hopeless_rate_is_given_up_and_no_other():
    for base in (("sites=0", "batch=12"), ("batch=4", "steps=6", "mu=0.5")):
        base = (*base, "curve_points=8", "curve_rows=32")
        good = run(*base, "lr=0.004")
        stop = runs.bounds(good)
        want(stop and stop[0].startswith("stop="), f"no bounds: {stop}")
        again = run(*base, "lr=0.004", *stop)
        want(again["stopped"] == 0 and again["nll"] == good["nll"], f"it was given up for itself: {again}")
        bad = run(*base, "lr=0.00002", *stop)
        want(0.2 <= bad["stopped"] < 0.9 and len(bad["curve"]) < 8, f"a rate that learns nothing went on: {bad}")


def quality_e2e_topk_with_its_residual_aside_follows_fp32():
    base = ("batch=2", "steps=2", "lr=0.004", "mu=0", "eta=1")
    full, topk, without = (run(*base, *more, tokens=48000) for more in ((), ("codec=topk",), ("codec=topk", "keep=0")))
    # What it leaves behind comes with later rounds.
    want(topk["nll"] < full["nll"] + 0.15, f"topk ends at {topk['nll']}, fp32 at {full['nll']}")
    want(without["nll"] > topk["nll"] + 0.2, f"what was left behind makes no difference: {without['nll']}, {topk['nll']}")


def quality_e2e_wrong_words_are_told():
    for words, part in ((("stop=2:1",), "stop"), (("stop=0.5:1,0.4:1",), "in order"), (("eta=99",), "eta=99"),
                        (("colour=red",), "colour"), (("events=z0.3j",), "not there"), (("synchronous=0.5", "optimizer=muon"), "synchronous"), (("speeds=2:3:1",), "multiple")):
        want(part in run(*words, ok=2), f"{words}: not told")


def quality_e2e_a_campaign_goes_on_where_it_was():
    words = [os.path.join(ROOT, "bench", "quality", "quality"), "--build", BUILD, "--dir", os.path.join(SCRATCH, "lab"),
             "--tokens-per-parameter", "0.05", "--only", "central", "--text", os.path.join(SCRATCH, "data.txt"), "--heldout", "0.1"]
    pack()
    env = dict(os.environ, QUICK="1")
    for n, share in ((1, None), (2, 0)):
        done = subprocess.run(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env, check=False)
        want(done.returncode == 2, f"ended with {done.returncode}: {done.stderr[-300:]}")  # 2: parts were left out
        last = dict(w.split("=") for w in done.stdout.strip().splitlines()[-1].split() if "=" in w)
        want((int(last["runs"]) >= 4) == (n == 1), f"time {n}: {last['runs']} runs")
        want(share is None or int(last["runs"]) == share, "runs were made again")
    path = os.path.join(SCRATCH, "lab", "40k", "runs.csv")
    with open(path, newline="", encoding="utf-8") as f:
        rows = list(csv.DictReader(f))
    with open(path, "r+", encoding="utf-8") as f:  # killed while it wrote the last row
        f.truncate(os.path.getsize(path) - 9)
    done = subprocess.run(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env, check=False)
    want("runs=1 " in done.stdout.strip().splitlines()[-1], f"a torn row: {done.stdout[-200:]}")
    with open(path, newline="", encoding="utf-8") as f:
        whole = [r for r in csv.DictReader(f) if r["curve"] and r["curve"].endswith("]")]
    want(len(whole) == len(rows), f"{len(whole)} whole rows of {len(rows)}")


if __name__ == "__main__":
    os.makedirs(SCRATCH, exist_ok=True)
    sys.exit(run_scenarios(globals(), "quality_", None if os.path.exists(PROGRAM) else f"{PROGRAM} is not built"))
