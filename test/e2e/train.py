#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# timeout: 600
"""`beringia train --central` interrupted. What goes wrong: it is killed before the first checkpoint, between two, while
one is being written, just after, and while the model is being saved; it is told to stop; its checkpoint is damaged, or
of another command. What must hold: started again it ends with the same bytes and the same log as without any
interruption, or says in one line why it cannot go on."""
import os
import random
import signal
import subprocess
import sys
import time

ROOT = os.environ.get("ROOT") or os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path.insert(0, os.path.join(ROOT, "scripts", "lib"))
from cluster import Failure  # noqa: E402
from scenarios import run_scenarios, tsan_is_too_slow  # noqa: E402

PROGRAM = os.environ.get("BERINGIA") or os.path.join(ROOT, "build", "release", "beringia")
SCRATCH = os.environ.get("SCRATCH") or "/tmp/beringia-train-e2e"
MODEL = os.path.join(ROOT, "share", "models", "tiny.json")
STEPS = 40
KILLED = 128 + signal.SIGKILL


def want(condition, text):
    if not condition:
        raise Failure(text)


def pack():
    path = os.path.join(SCRATCH, "data")
    if not os.path.exists(path):
        rng = random.Random(1)
        words = "the a of and site hub trains samples once every position merges weights round lease delta".split()
        with open(path + ".txt", "w", encoding="utf-8") as f:
            for _ in range(40):
                f.write(" ".join(rng.choice(words) for _ in range(400)) + "\n\f\n")
        subprocess.run([PROGRAM, "pack", "--out", path, "--seq-len", "32", "--heldout", "0.02", path + ".txt"],
                       check=True, stdout=subprocess.DEVNULL)
    return path


def words(out, *more, every="0s"):
    """Odd batches, two micro-batches a step, an epoch that ends half-way: whatever a resume could get wrong."""
    return [PROGRAM, "train", "--central", "--data", pack(), "--model", MODEL, "--out", os.path.join(SCRATCH, out),
            "--log", os.path.join(SCRATCH, out + ".csv"), "--tokens", str(STEPS * 7 * 32 - 96), "--batch", "7",
            "--micro-batch", "4", "--threads", "2", "--eval-every", "9", "--checkpoint-every", every, *more]


def train(out, *more, fault=None, every="0s", ok=(0,)):
    env = dict(os.environ)
    if fault:
        env["BERINGIA_FAULT"] = fault
    done = subprocess.run(words(out, *more, every=every), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                          env=env)
    status = 128 - done.returncode if done.returncode < 0 else done.returncode
    want(status in ok, f"ended with {status} instead of {ok}: {done.stderr[-500:]}")
    return done


def weights(out):
    with open(os.path.join(SCRATCH, out, "model.safetensors"), "rb") as f:
        return f.read()


def log(out):
    """The log without the column of speed."""
    with open(os.path.join(SCRATCH, out + ".csv"), encoding="utf-8") as f:
        return [[x for i, x in enumerate(line.rstrip("\n").split(",")) if i != 5] for line in f]


def same_as_without(out):
    if not os.path.exists(os.path.join(SCRATCH, "whole")):
        train("whole", every="1h")
        want(len(log("whole")) == STEPS + 1, "the run has other steps than the test thinks")
    want(weights(out) == weights("whole"), "the weights are not those of a run without interruption")
    want(log(out) == log("whole"), "the log is not that of a run without interruption")
    want(not os.path.exists(os.path.join(SCRATCH, out, "checkpoint.safetensors")), "a checkpoint is left over")


def train_C1_e2e_killed_at_any_point_it_goes_on_to_the_same_bits():
    points = ["train.step:1", "train.step:17", "train.save.torn:1", "train.save.torn:2", "train.save.torn:29",
              "train.save.done:1", "train.save.done:38", "train.saved:1"]
    for i, point in enumerate(points):
        train(f"killed{i}", fault=point, ok=(KILLED,))
        done = train(f"killed{i}")
        want(("resumed" in done.stdout) == (i not in (0, 2, 3)), f"{point}: resumed where it should not, or not")
        same_as_without(f"killed{i}")


def train_C1_e2e_muon_killed_goes_on_to_the_same_bits():
    muon = ("--optimizer", "muon", "--muon-lr-ratio", "1.5", "--eval-every", "40")
    train("muon", *muon, every="1h")
    if not os.path.exists(os.path.join(SCRATCH, "whole")):
        train("whole", every="1h")
    want(weights("muon") != weights("whole"), "the optimizer makes no difference")
    train("muon-killed", *muon, fault="train.step:23", ok=(KILLED,))
    said = train("muon-killed", every="0s", ok=(12,)).stderr
    want("optimizer=muon" in said and "--fresh" in said, f"another optimizer goes on from Muon's checkpoint: {said}")
    want("resumed" in train("muon-killed", *muon).stdout, "it began anew")
    want(weights("muon-killed") == weights("muon"), "the weights are not those of a run without interruption")


def train_C1_e2e_killed_again_and_again():
    for step in (3, 11, 2, 9):
        train("often", fault=f"train.step:{step}", ok=(KILLED,))
    train("often")
    same_as_without("often")


def train_e2e_told_to_stop_it_saves_and_goes_on():
    for number, signum in enumerate((signal.SIGTERM, signal.SIGUSR1, signal.SIGINT)):
        csv = os.path.join(SCRATCH, "told.csv")
        before = os.path.getsize(csv) if os.path.exists(csv) else 0
        p = subprocess.Popen(words("told", every="1h"), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        deadline = time.monotonic() + 60
        while p.poll() is None and (not os.path.exists(csv) or os.path.getsize(csv) < max(before, 60) + 60):
            want(time.monotonic() < deadline, "no step within a minute")
            time.sleep(0.001)
        p.send_signal(signum)
        said = p.communicate()[1]
        if p.returncode == 0:
            want(number > 0, "it ended before it could be told to stop")
            break
        want(p.returncode == 23, f"{signum.name}: ended with {p.returncode}: {said}")
        want("start again" in said, f"it does not say how to go on: {said}")
    if p.returncode != 0:
        train("told")
    same_as_without("told")


def train_e2e_what_does_not_fit_is_told():
    train("odd", fault="train.step:5", ok=(KILLED,))
    path = os.path.join(SCRATCH, "odd", "checkpoint.safetensors")
    for more, field in ((["--lr", "0.5"], "lr="), (["--batch", "8"], "batch="), (["--seed", "9"], "seed=")):
        said = train("odd", *more, ok=(12,)).stderr
        want(field in said and "--fresh" in said and said.count("\n") == 1, f"unclear: {said}")
    with open(path, "rb") as f:
        good = f.read()
    for cut, flip in ((100, None), (len(good) - 1, None), (None, len(good) // 2), (None, len(good) - 1), (0, None)):
        bad = bytearray(good[:cut] if cut is not None else good)
        if flip is not None:
            bad[flip] ^= 1
        with open(path, "wb") as f:
            f.write(bad)
        said = train("odd", ok=(25,)).stderr
        want(path in said and said.count("\n") == 1, f"unclear: {said}")
    train("odd", "--fresh")
    same_as_without("odd")


if __name__ == "__main__":
    os.makedirs(SCRATCH, exist_ok=True)
    sys.exit(run_scenarios(globals(), "train_", tsan_is_too_slow()))
