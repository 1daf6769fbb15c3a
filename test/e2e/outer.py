#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# timeout: 600
"""The options of the outer step with a real hub and real sites, and the way back when held-out loss jumps. What goes
wrong: the hub is killed between rounds, momentum waits for arrivals that a crash must not forget, the learning rate
rises until the run diverges. What must hold: the journal alone gives every version again, byte for byte, the mean of
the weights included; the audit is clean; the run goes back to the last good version by itself, begins its momentum
anew, and ends what a person has to decide by saying so."""
import json
import os
import random
import signal
import subprocess
import sys

ROOT = os.environ.get("ROOT") or os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path.insert(0, os.path.join(ROOT, "scripts", "lib"))
from cluster import Cluster, Failure, wait_for  # noqa: E402
from scenarios import run_scenarios, tsan_is_too_slow  # noqa: E402

PROGRAM = os.environ.get("BERINGIA") or os.path.join(ROOT, "build", "release", "beringia")
SCRATCH = os.environ.get("SCRATCH") or "/tmp/beringia-outer-e2e"
MODEL = os.path.join(ROOT, "share", "models", "tiny.json")
FAST = {"lease.ttl": "3s", "lease.heartbeat": "300ms", "outer.steps": 8, "outer.grace": "2s",
        "lease.samples_min": 16, "lease.samples_max": 128}
WORDS = ["--batch", 8, "--threads", 1, "--checkpoint-every", "200ms", "--timeout", "5s", "--grace", "20s",
         "--throttle", 0.3]


def want(condition, text):
    if not condition:
        raise Failure(text)


def pack():
    path = os.path.join(SCRATCH, "data")
    if not os.path.exists(path):
        os.makedirs(SCRATCH, exist_ok=True)
        rng = random.Random(1)
        words = "the a of and site hub trains samples once every position merges weights round lease delta".split()
        with open(path + ".txt", "w", encoding="utf-8") as f:
            for _ in range(48):
                f.write(" ".join(rng.choice(words) for _ in range(350)) + "\n\f\n")
        Cluster(PROGRAM, SCRATCH, path, {}).call("pack", "--out", path, "--seq-len", "64", "--heldout", "0.1",
                                                 path + ".txt")
    return path


def begin(name, settings, sites=("a", "b")):
    out = os.path.join(SCRATCH, name)
    data = pack()
    os.makedirs(out)
    c = Cluster(PROGRAM, out, data, {s: list(WORDS) for s in sites})
    c.init(MODEL, {**FAST, **settings}, seed=1)
    return c


def records(c, *kinds):
    return [r for r in map(json.loads, c.call("journal", c.run_dir).splitlines()) if r["kind"] in kinds]


def finish(c):
    wait_for("the run to complete", c.complete, 120, each=c.check_processes)
    c.wait_sites()


def check(c):
    c.stop_hub()
    audit = c.audit(blobs=True)
    want(audit["lost"] == 0 and audit["doubled"] == 0 and not audit.get("findings"), f"the audit says {audit}")
    replay = c.replay()
    want(replay["equal"], f"the journal gives other weights: {replay}")


def outer_e2e_radial_mean_ramp_last_round_and_a_mean_of_the_weights():
    c = begin("radial", {"outer.average": "radial", "outer.eta": 0.45, "outer.ema": 0.8, "outer.last": "mean",
                         "outer.steps_first": 3, "outer.ramp": 0.3, "outer.down_codec": "int4", "outer.codec": "int4"})
    c.start_hub()
    c.start_site("a")
    c.start_site("b")
    wait_for("a third of the run", lambda: c.merged_share() >= 0.3, 90, each=c.check_processes)
    c.kill_hub()
    c.start_hub()
    finish(c)
    check(c)
    merges, steps = records(c, "merge"), {r["version"]: r for r in records(c, "step")}
    want(len(merges) > 4, f"only {len(merges)} rounds")
    want(all(steps[m["version"]]["keeps_ema"] for m in merges), "a version without a mean of the weights")
    want(all(steps[m["version"]]["radial"] for m in merges[:-1]), "a version without a radial mean")
    last = merges[-1]
    want(last["eta"] == 1 and last["mu"] == 0 and not steps[last["version"]]["radial"], f"the last round is {last}")
    want(any(len(steps[m["version"]]["sites"]) == 2 for m in merges), "no round knows how its sites agree")
    want(merges[0]["sbar"] < 8, f"the first round was of {merges[0]['sbar']} steps: no ramp")
    mean, head = os.path.join(c.out, "mean"), os.path.join(c.out, "head")
    c.call("export", c.run_dir, "--ema", "--out", mean)
    c.call("export", c.run_dir, "--out", head)
    losses = [json.loads(c.call("eval", *words, "--data", c.data, "--json"))["nll"]
              for words in ([c.run_dir, "--ema"], [mean], [c.run_dir], [head])]
    want(losses[0] == losses[1] and losses[2] == losses[3] and losses[0] != losses[2], f"losses {losses}")


def outer_e2e_delayed_momentum_counts_arrivals_across_a_killed_hub():
    c = begin("delayed", {"outer.optimizer": "delayed", "outer.delay": 4, "outer.late_decay": 0.5,
                          "outer.staleness_max": 3, "outer.grace": "0s"})
    c.start_hub()
    c.start_site("a")
    c.start_site("b")
    wait_for("a third of the run", lambda: c.merged_share() >= 0.3, 90, each=c.check_processes)
    c.kill_hub()
    c.start_hub()
    finish(c)
    check(c)
    arrived = 0
    for m in records(c, "merge"):
        fresh = len([p for p in m["parts"] if not p["late"] and p["weight"] > 0])
        arrived += fresh
        want((m["kappa"] > 0) == (fresh > 0 and arrived >= 4), f"version {m['version']} after {arrived} arrivals: {m}")
        if m["kappa"] > 0:
            arrived = 0


def outer_e2e_batches_follow_the_speed_of_their_sites():
    c = begin("batch", {"outer.cadence_by": "batch", "lease.heartbeat": "200ms"})
    c.site_words["a"] = WORDS[:-1] + [0.2, "--batch-max", 32]
    c.site_words["b"] = WORDS[:-1] + [1.0, "--batch-max", 32]
    c.start_hub()
    c.start_site("a")
    c.start_site("b")
    finish(c)
    check(c)
    names = {r["site"]: r["name"] for r in records(c, "join")}
    batch = {"a": [], "b": []}
    for r in records(c, "stage"):
        batch[names[r["site"]]].append(r["tokens"] / r["steps"] / 64)
    # Eight samples each at the begin, then shares of sixteen: whoever of the two is faster has more.
    want(batch["a"][0] <= 12 and batch["b"][0] <= 12, f"the batches begin with {batch['a'][0]}, {batch['b'][0]}")
    spread = [max(batch[s][1:]) for s in batch], [min(batch[s][1:-1]) for s in batch]
    want(max(spread[0]) > 9 and min(spread[1]) < 7.5, f"the batches do not follow the speed: {batch}")


def after_return(c):
    told = records(c, "eval", "merge")
    back = [i for i, r in enumerate(told) if r["kind"] == "eval" and r["back"]]
    return back and any(r["kind"] == "merge" for r in told[back[0]:])


def outer_e2e_a_run_that_diverges_goes_back_by_itself():
    # The rate rises over the whole run to a height at which nothing can be learnt any more.
    c = begin("jump", {"train.lr": 3, "train.schedule": "constant", "train.warmup_tokens": 1,
                       "outer.loss_jump": 0.3, "outer.mu": 0.9, "outer.norm_z": 0, "hub.keep_checkpoints": 50},
              sites=("a",))
    total = json.loads(c.call("journal", c.run_dir).splitlines()[0])
    tokens = total["positions"] * total["seq_len"]
    path = os.path.join(c.run_dir, "run.yaml")
    with open(path, encoding="utf-8") as f:
        text = f.read()
    with open(path, "w", encoding="utf-8") as f:
        f.write(text.replace("warmup_tokens: 1", f"warmup_tokens: {tokens}"))
    c.start_hub()
    with open(os.path.join(c.out, "eval.log"), "w", encoding="utf-8") as log:
        watcher = subprocess.Popen([PROGRAM, "eval", c.run_dir, "--data", c.data, "--watch", "--poll", "50ms",
                                    "--threads", "1"], stdout=log, stderr=log)
        try:
            wait_for("version 0 to be measured", lambda: records(c, "eval"), 60, pause=0.2)
            c.start_site("a")
            wait_for("a return, and a round after it", lambda: after_return(c), 150, pause=0.2,
                     each=lambda: want(watcher.poll() is None, "the watcher ended early"))
            c.stop_site("a", signal.SIGTERM)
        finally:
            if watcher.poll() is None:
                watcher.kill()
                watcher.wait()
    check(c)
    told = records(c, "eval", "rollback", "merge")
    back = [i for i, r in enumerate(told) if r["kind"] == "eval" and r["back"]]
    for i in back:
        before = [r["loss"] for r in told[:i] if r["kind"] == "eval" and r["version"] == told[i]["to"]]
        want(told[i]["loss"] > before[-1] + 0.3, f"a return without a jump: {told[i]} after {before}")
        want(told[i + 1]["kind"] == "rollback" and told[i + 1]["version"] == told[i]["to"], "no way back was gone")
        later = [r for r in told[i + 2:] if r["kind"] == "merge"]
        want(not later or later[0]["mu"] == 0, f"the momentum goes on: {later[0] if later else None}")


if __name__ == "__main__":
    sys.exit(run_scenarios(globals(), "outer_e2e_", tsan_is_too_slow()))
