# SPDX-License-Identifier: Apache-2.0
# timeout: 3600
"""One native C site and one PyTorch site train one model on real text; then one native site and a PyTorch site of two
DistributedDataParallel ranks; beside them two native sites, at equal tokens. Both kinds must contribute, the audits be
clean, perplexities be within 1 %. Then rank 1 of the DDP site is killed in the middle: its site must end by itself,
start again, and the audit stay clean."""
import json
import os
import re
import subprocess

import kit
from kit import begin, contributions, finish, log_of, perplexity, say, start, wait_for

CHARS, LIMIT = 420000, 0.01
SETTINGS = {"train.lr": 0.006, "outer.mu": 0.5}
STEP_S = 0.12  # every site is paced to this, so that rounds have one shape and perplexities can be compared
_native = {}


def first_weights():
    """Where all runs begin: an epoch of a central run. From random weights a small model sits on a plateau, which each run
    leaves at a moment of its own; two equal runs then differ by more than what is looked for here."""
    data, out = kit.pack(CHARS), os.path.join(kit.SCRATCH, "central")
    if not os.path.exists(out):
        subprocess.run([kit.PROGRAM, "train", "--central", "--data", data, "--model", kit.TINY, "--out", out, "--batch", "8",
                        "--threads", "1", "--lr", "0.02", "--warmup-tokens", "8000", "--seed", "1"], check=True,
                       stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        told = subprocess.run([kit.PROGRAM, "eval", out, "--data", data, "--json"], check=True, stdout=subprocess.PIPE)
        _native["begin"] = json.loads(told.stdout)["perplexity"]
    return out


def warm(name, native):
    return begin(name, kit.pack(CHARS), SETTINGS, native=native, weights=first_weights())


def pace(keep, share=1.0):
    """Words for a native site that makes a step in STEP_S / share: its own speed is measured first."""
    if "pace" not in _native:
        c = begin("speed", kit.pack(60000), native={"a": ["--steps", 80]})
        keep(c)
        c.start_site("a")
        c.wait_sites()
        c.stop_hub()
        spent, steps = re.search(r"ev=summary .*steps_s=([0-9.]+) steps=(\d+)", log_of(c, "a")).groups()
        _native["pace"] = float(spent) / int(steps) / STEP_S
    return ["--throttle", min(1.0, max(0.002, share * _native["pace"]))]


def native_perplexity(keep, name, ratio):
    """Of two native sites whose speeds are as unequal as those of the mixed run were: on a busy machine PyTorch does not
    keep the pace, and a run of unequal sites ends elsewhere than one of equal ones."""
    c = warm("native-" + name, {"a": pace(keep), "b": pace(keep, ratio)})
    keep(c)
    c.start_site("b")
    c.start_site("a")
    finish(c)
    return perplexity(c)


def compare(c, name, keep, audit):
    c.last = contributions(c)
    mixed, native = perplexity(c), native_perplexity(keep, name, c.last["p"] / c.last["a"])
    gap = mixed / native - 1
    shares = {k: round(v / sum(c.last.values()), 3) for k, v in c.last.items()}
    print(f"{name} perplexity={mixed:.3f} native={native:.3f} begin={_native['begin']:.3f} gap={100 * gap:+.2f}% shares={shares} "
          f"positions={audit['positions']} lost=0 doubled=0")
    say(f"{name}_both_contribute", min(c.last.values()) > 0.1 * sum(c.last.values()), c.last)
    say(f"{name}_learns", mixed < 0.97 * _native["begin"], (mixed, _native["begin"]))
    say(f"{name}_perplexity_within_1_percent", abs(gap) <= LIMIT, f"{100 * gap:+.2f} %")


def mixed_native_and_pytorch(keep):
    c = warm("mixed", {"a": pace(keep)})
    keep(c)
    start(c, "p", "--model", kit.TINY, "--pace", STEP_S)
    wait_for("the PyTorch site", lambda: "joined rank=0" in log_of(c, "p"), kit.LONG, each=c.check_processes)
    c.start_site("a")
    a = finish(c)
    say("mixed_audit_is_clean", True)
    compare(c, "mixed", keep, a)


def ddp_of_two_ranks_beside_a_native_one(keep):
    c = warm("ddp", {"a": pace(keep)})
    keep(c)
    start(c, "p", "--model", kit.TINY, "--batch", 4, "--pace", STEP_S, ranks=2)
    wait_for("the DDP site", lambda: "joined rank=0" in log_of(c, "p"), kit.LONG, each=c.check_processes)
    c.start_site("a")
    a = finish(c)
    say("ddp_audit_is_clean", True)
    compare(c, "ddp", keep, a)


def ddp_rank_1_is_killed(keep):
    c = begin("killed", kit.pack(300000), native={"a": pace(keep)})
    keep(c)
    ranks = start(c, "p", "--model", kit.TINY, "--batch", 4, "--pace", STEP_S, ranks=2)
    c.start_site("a")
    wait_for("some steps", lambda: "step 10" in log_of(c, "p"), kit.LONG, each=c.check_processes)
    ranks[1].kill()
    codes = [p.wait(timeout=kit.LONG) for p in ranks]
    c.sites.pop("p")
    c.sites.pop("p1")
    say("ddp_a_lost_rank_ends_the_site", codes[0] not in (0, None), codes)
    start(c, "p", "--model", kit.TINY, "--batch", 4, "--pace", STEP_S, ranks=2)
    finish(c)
    found = re.findall(r"joined rank=0 steps=(\d+)", log_of(c, "p"))
    say("ddp_the_member_goes_on_after_rank_1_was_killed", len(found) == 2 and int(found[1]) > 0, found)
    say("ddp_audit_is_clean_after_rank_1_was_killed", True)


if __name__ == "__main__":
    raise SystemExit(kit.main([mixed_native_and_pytorch, ddp_of_two_ranks_beside_a_native_one, ddp_rank_1_is_killed]))
