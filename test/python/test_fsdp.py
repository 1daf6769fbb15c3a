# SPDX-License-Identifier: Apache-2.0
# timeout: 3600
"""FullyShardedDataParallel, with flat and with original parameters, and fully_shard (FSDP2), over two ranks on CPUs.
PyTorch 1.13 cannot (Debian's does not even import it under Python 3.11, and it shards on CUDA only); 2.6 can, and
`make test-torch2` runs this with it. What must hold: 30 steps give the delta that DistributedDataParallel gives; beside a
native site the run completes with a clean audit; after SIGTERM the optimizer's state comes back, to another number of
ranks too; what is not supported is told."""
import os
import re
import subprocess
import sys

import torch

import kit
from kit import begin, finish, log_of, say, start, wait_for
from test_segment import PLAIN, delta

KINDS = tuple(os.environ.get("KINDS", "units orig parts").split())


def why_not(kind):
    """The reason for which this PyTorch cannot do it here; "" where it can. A process of its own finds out."""
    done = subprocess.run([sys.executable, os.path.join(kit.ROOT, "test", "python", "cpu_fsdp.py"), kind], capture_output=True,
                          text=True, timeout=kit.LONG, check=False)
    return "" if done.returncode == 0 else (done.stderr.strip().splitlines() or ["it died"])[-1][:100]


POSSIBLE = {}


def possible(kind, name):
    if kind not in POSSIBLE:
        POSSIBLE[kind] = why_not(kind)
    if POSSIBLE[kind]:
        print(f"skip {name}: PyTorch {torch.__version__}: {POSSIBLE[kind]}", flush=True)
    return not POSSIBLE[kind]


def segment(keep, name, *words):
    c = begin("segment-" + name, kit.pack(60000), PLAIN)
    keep(c)
    start(c, "a", "--model", kit.TINY, "--batch", 4, "--steps", 30, "--decay", 0.0, *words, ranks=2)
    kit.wait_sites(c)
    first, d = delta(c)
    return first, d, c.audit()["merged"]


def a_segment_is_that_of_ddp(keep):
    kinds = [k for k in KINDS if possible(k, f"fsdp_{k}_segment")]
    if not kinds:
        return
    first, want, counted = segment(keep, "ddp")
    for kind in kinds:
        begun, have, merged = segment(keep, kind, "--fsdp", kind)
        cosine = float(torch.dot(want, have) / (want.norm() * have.norm()))
        gap = float((want - have).norm() / want.norm())
        print(f"fsdp {kind} steps=30 norm={float(have.norm()):.4f} cosine={cosine:.7f} gap={gap:.2e}", flush=True)
        say(f"fsdp_{kind}_segment_is_that_of_ddp", torch.equal(first, begun) and cosine >= 0.999 and merged == counted == 240,
            (cosine, merged, counted))


def comes_back(keep, kind):
    """Ended by SIGTERM; then on, over as many ranks; at last over one, and with a native site beside it."""
    c = begin("back-" + kind, kit.pack(110000), native={"n": ["--throttle", 0.2]})
    keep(c)
    for round_, ranks in enumerate((2, 2, 1)):
        words = ["--model", kit.TINY, "--batch", 8 // ranks, "--fsdp", kind, "--nap", 0.05]
        # One rank is a world of its own, so that the same script runs.
        env = {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"} if ranks == 1 else None
        p = start(c, "p", *words, ranks=ranks, env=env)
        if ranks == 1:
            wait_for("its third job", lambda: log_of(c, "p").count("joined rank=0") == 3, kit.LONG, each=c.check_processes)
            c.start_site("n")  # not before: it would have done all of the work while PyTorch was loaded
            break
        wait_for("some steps", lambda n=round_: log_of(c, "p").count("step 20 ") > n, kit.LONG, each=c.check_processes)
        for one in p:
            one.send_signal(kit.TERM)
        codes = [one.wait(timeout=kit.LONG) for one in p]
        c.sites.pop("p")
        c.sites.pop("p1")
        if codes != [0, 0]:
            say(f"fsdp_{kind}_ends_in_good_order", False, codes)
            return
    finish(c)
    text = log_of(c, "p")
    joined = [(int(a), int(b), float(s)) for a, b, s in
              re.findall(r"joined rank=0 steps=(\d+) moments=(\d+) state=(\S+)", text)]
    ended = [float(s) for s in re.findall(r"^end .* state=(\S+)", text, re.M)]
    same = len(joined) == len(ended) == 3 and all(abs(j[2] - e) <= 1e-6 * e for j, e in zip(joined[1:], ended))
    say(f"fsdp_{kind}_state_comes_back", same and joined[0][:2] == (0, 0) and 20 <= joined[1][0] < joined[2][0] and
        all(a == b for a, b, _ in joined), (joined, ended))
    losses = [float(x) for x in re.findall(r"^step \d+ loss ([0-9.]+)", text, re.M)]
    given = kit.contributions(c)
    say(f"fsdp_{kind}_learns_beside_a_native_site", losses[-1] < losses[0] - 1 and min(given.values()) > 0, (losses, given))


def comes_back_after_sigterm(keep):
    for kind in KINDS:
        if possible(kind, f"fsdp_{kind}_comes_back"):
            comes_back(keep, kind)


def bf16_is_told(keep):
    if not possible("units", "fsdp_bf16_is_told"):
        return
    c = begin("bf16", kit.pack(60000))
    keep(c)
    p = start(c, "p", "--model", kit.TINY, "--fsdp", "units", "--dtype", "bfloat16", ranks=2)
    codes = [one.wait(timeout=kit.LONG) for one in p]
    c.sites.clear()
    say("fsdp_bf16_is_told", 0 not in codes and "ModelError" in log_of(c, "p") and "MixedPrecision" in log_of(c, "p"), codes)


if __name__ == "__main__":
    raise SystemExit(kit.main([a_segment_is_that_of_ddp, comes_back_after_sigterm, bf16_is_told]))
