#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""`beringia check`: files of settings with many slips, as people bring them.

What must hold: every fault is a line with file, line, column and key, all of them in one go; the status is that of the first; a
good file is said to be fine; what the kinds' own commands refuse, check refuses too, and the other way round."""
import os
import subprocess
import sys

BERINGIA, SCRATCH, ROOT = os.environ["BERINGIA"], os.environ["SCRATCH"], os.environ["ROOT"]
SITE = """site: {name: lumi, hub: "https://hub.example.org", token: token, state: state}
job: {script: job.sh}
budget: {node_hours: 5}
shape_small: {nodes: 1, time: 1h}
"""
FAILED = []


def path(*words):
    return os.path.join(SCRATCH, *words)


def put(name, text, mode=0o644):
    with open(path(name), "w", encoding="utf-8") as f:
        f.write(text)
    os.chmod(path(name), mode)
    return path(name)


def beringia(*words):
    return subprocess.run([BERINGIA, *map(str, words)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=60, check=False)


def told(name, status, faults, *words, out=""):
    """The command ends with `status` and one line of standard error for each of `faults`, in this order."""
    done = beringia("check", *words)
    lines = done.stderr.splitlines()
    wrong = [] if done.returncode == status else [f"status {done.returncode} instead of {status}"]
    if len(lines) != len(faults):
        wrong.append(f"{len(lines)} lines instead of {len(faults)}")
    wrong += [f"{line!r} does not begin with {want!r}" for line, want in zip(lines, faults) if not line.startswith("beringia check: " + want)]
    if out not in done.stdout:
        wrong.append(f"does not say {out!r}: {done.stdout!r}")
    if wrong:
        FAILED.append(name)
        print(f"FAIL check_{name}\n  " + "\n  ".join([*wrong, *lines]))
    else:
        print(f"ok check_{name}")


def run_settings():
    put("text.txt", "a text of some words\n\f\n" * 200)
    beringia("pack", "--out", path("data"), "--seq-len", "16", path("text.txt"))
    made = beringia("init", path("run"), "--model", "tiny", "--data", path("data"))
    assert made.returncode == 0, made.stderr
    mine = path("run", "run.yaml")
    told("what_init_writes", 0, [], mine, out="run: fine")
    bad = put("bad.yaml", "run:\n  epochs: 0\n  epoch: 1\ntrain: {lr: fast, schedule: cosin}\nouter:\n  codec: int5\n"
                          "lease:\n  ttl: 5\n  heartbeat: 4s\nhbu:\n  listen: x\n")
    told("run_settings", 3, [f"{bad}:2:11: run.epochs: 0 is out of range", f"{bad}:3:3: run.epoch: unknown key; did you mean run.epochs?",
                             f"{bad}:4:13: train.lr: \"fast\"", f"{bad}:4:29: train.schedule: \"cosin\"", f"{bad}:6:10: outer.codec: \"int5\"",
                             f"{bad}:8:8: lease.ttl: \"5\"", f"{bad}:10:1: hbu: unknown section; did you mean hub?"], bad, out="run: 7 faults")
    both = put("both.yaml", "lease: {ttl: 5s, heartbeat: 4s, samples_min: 9, samples_max: 8}\nhub: {tls_cert: a}\n")
    told("keys_that_do_not_fit_together", 3, [f"{both}:1:46: lease.samples_min: is larger", f"{both}:1:29: lease.heartbeat: is more than half",
                                              "default: hub.tls_key: is missing"], both)
    with open(mine, encoding="utf-8") as f:
        text = f.read()
    with open(mine, "w", encoding="utf-8") as f:
        f.write(text.replace("warmup_tokens: 0", "warmup_tokens: 1e12"))
    told("the_size_of_its_run", 3, [mine], mine)
    refused = beringia("hub", path("run"))
    same = refused.returncode == 3 and "train.warmup_tokens" in refused.stderr
    print("ok check_as_the_hub_does" if same else f"FAIL check_as_the_hub_does: {refused.stderr}")
    FAILED.extend([] if same else ["hub"])


def site_file():
    site = put("site.yaml", SITE)
    told("its_script", 4, [f"{site}: job.script: {path('job.sh')} is not there"], site)
    put("job.sh", "#!/bin/sh\n")
    told("its_token", 4, [f"{site}: "], site)
    put("token", "brg_00000000_" + "0" * 64 + "\n", 0o644)
    told("a_token_that_others_may_read", 3, [f"{site}: "], site)
    os.chmod(path("token"), 0o600)
    told("site_file", 0, [], site, out="site: fine")
    bad = put("bad-site.yaml", SITE.replace("name: lumi", "name: LUMI").replace("https://", "ftp://").replace("node_hours: 5", "node_hours: 5, jobs: 2")
              .replace("time: 1h", "time: 1m, options: [--array=3, nothing]"))
    told("site_rules", 3, [f"{bad}:1:14: site.name: want", f"{bad}:1:25: site.hub: want http", f"{bad}:4:44: shape_small.options: --array=3",
                           f"{bad}:4:44: shape_small.options: \"nothing\"", f"{bad}:4:31: shape_small.time: the time limit"], bad, out="site: 5 faults")


def others():
    told("scenarios", 0, [], os.path.join(ROOT, "share/place/ideal.yaml"), os.path.join(ROOT, "share/place/replay.yaml"), out="scenario: fine")
    bad = put("scenario.yaml", "run: {target_tokens: 1e9}\nsite1: {name: a, shapes: [4x1h, 4h, x], tokens_per_node_s: -1}\nplanner: {draws: 0}\n")
    told("scenario", 3, [f"{bad}:3:18: planner.draws: 0"], bad)
    bad = put("scenario.yaml", "run: {target_tokens: 1e9}\nsite1: {name: a, shapes: [4x1h, 4h, x], tokens_per_node_s: -1}\n")
    told("scenario_rules", 3, [f"{bad}:2:60: site1.tokens_per_node_s", f"{bad}:2:26: site1.shapes: \"4h\"", f"{bad}:2:26: site1.shapes: \"x\""], bad)
    told("models", 0, [], os.path.join(ROOT, "share/models/tiny.json"), out="model: fine")
    bad = put("model.json", '{"model_type": "qwen3"}')
    told("model", 24, [f"{bad}"], bad)
    none = path("none.yaml")
    told("a_file_that_is_not_there", 4, [f"cannot open {none}"], none)
    nothing = put("nothing.yaml", "colour: blue\n")
    told("a_kind_that_nobody_knows", 2, [f"{nothing}: no section tells"], nothing)
    told("the_kind_that_is_said", 3, [f"{nothing}:1:1: colour: unknown section"], "--kind", "run", nothing)
    told("a_wrong_kind", 2, ["--kind wants"], "--kind", "plan", nothing)


run_settings()
site_file()
others()
sys.exit(1 if FAILED else 0)
