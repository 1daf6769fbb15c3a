#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# timeout: 600
"""Contributions and versions on their way in every codec, with real processes. What goes wrong: a codec loses most of
what it is given, updates are missing or damaged on the hub's disk, a site is away for a few versions, the hub is
killed, the run goes back, and the setting changes between two starts. What must hold: every site has, for every
version, the very bits of the hub's weights; updates are used where there are any and the whole weights where there
are none; the journal alone gives the same weights again; the audit is clean."""
import glob
import json
import os
import re
import signal
import sys

ROOT = os.environ.get("ROOT") or os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path.insert(0, os.path.join(ROOT, "scripts", "lib"))
from cluster import Cluster, Failure, wait_for  # noqa: E402
from scenarios import run_scenarios, tsan_is_too_slow  # noqa: E402

PROGRAM = os.environ.get("BERINGIA") or os.path.join(ROOT, "build", "release", "beringia")
SCRATCH = os.environ.get("SCRATCH") or "/tmp/beringia-codecs-e2e"
MODEL = os.path.join(ROOT, "share", "models", "tiny.json")
FAST = {"lease.ttl": "3s", "lease.heartbeat": "300ms", "outer.steps": 8, "outer.grace": "2s",
        "lease.samples_min": 16, "lease.samples_max": 128}
WORDS = ["--batch", 8, "--threads", 1, "--checkpoint-every", "200ms", "--timeout", "5s", "--grace", "20s",
         "--throttle", 0.5]


def want(condition, text):
    if not condition:
        raise Failure(text)


def pack():
    path = os.path.join(SCRATCH, "data")
    if not os.path.exists(path):
        os.makedirs(SCRATCH, exist_ok=True)
        words = "the a of and site hub trains samples once every position merges weights round lease delta".split()
        with open(path + ".txt", "w", encoding="utf-8") as f:
            for i in range(25):
                f.write(" ".join(words[(i * i + k * k) % len(words)] for k in range(400)) + "\n\f\n")
        Cluster(PROGRAM, SCRATCH, path, {}).call("pack", "--out", path, "--seq-len", "64", path + ".txt")
    return path


def begin(name, settings, sites=("a", "b")):
    out = os.path.join(SCRATCH, name)
    data = pack()
    os.makedirs(out)
    c = Cluster(PROGRAM, out, data, {s: list(WORDS) for s in sites})
    c.init(MODEL, {**FAST, **settings}, seed=1)
    return c


def downloads(c, site):
    """version -> (how many updates it came by, hash of theta), as the site tells it."""
    with open(os.path.join(c.out, f"site-{site}.log"), encoding="utf-8") as f:
        found = re.findall(r"ev=downloaded version=(\d+) bytes=(\d+) updates=(\d+) theta=([0-9a-f]{64})", f.read())
    return {int(v): (int(n), h, int(b)) for v, b, n, h in found}


def merges(c):
    lines = c.call("journal", c.run_dir).splitlines()
    return {r["version"]: r for r in map(json.loads, lines) if r["kind"] == "merge"}


def check(c, all_updates):
    """Every version that any site had is the hub's, bit for bit; the journal gives them again."""
    merged = merges(c)
    count = 0
    for site in c.site_words:
        for version, (updates, theta, _) in downloads(c, site).items():
            if version == 0:
                continue
            want(version in merged, f"site {site} had a version {version} that was never merged")
            want(theta == merged[version]["theta"], f"version {version} on site {site} has other weights")
            want(updates > 0 or not all_updates, f"site {site} took version {version} whole")
            count += 1
    want(count >= 4, f"only {count} versions came to the sites")
    audit = c.audit(blobs=True)
    want(audit["lost"] == 0 and audit["doubled"] == 0 and not audit.get("findings"), f"the audit says {audit}")
    replay = c.replay()
    want(replay["equal"], f"the journal gives other weights: {replay}")
    # What a checkpoint holds beside its weights is no tensor of the model.
    said = c.call("export", c.run_dir, "--out", os.path.join(c.out, "exported"))
    want("equal to the checkpoint's hash" in said, said)


def finish(c):
    wait_for("the run to complete", c.complete, 120, each=c.check_processes)
    c.wait_sites()
    c.stop_hub()


def whole_run(codec, settings):
    c = begin(codec, {"outer.codec": codec, "outer.down_codec": codec, **settings})
    c.start_hub()
    c.start_site("a")
    c.start_site("b")
    finish(c)
    check(c, all_updates=True)
    elements = json.loads(c.call("journal", c.run_dir).splitlines()[0])["parameters"]
    sent = [b for v, (n, _, b) in downloads(c, "a").items() if n == 1]
    limit = {"bf16": 0.501, "int8": 0.26, "int4": 0.135, "topk": 0.01}[codec]
    want(all(b <= 4 * elements * limit + 500 for b in sent), f"{sent} bytes down are more than {limit} of fp32")


def codecs_e2e_bf16_both_ways():
    whole_run("bf16", {})


def codecs_e2e_int8_both_ways():
    whole_run("int8", {})


def codecs_e2e_int4_both_ways():
    whole_run("int4", {})


def codecs_e2e_topk_both_ways():
    whole_run("topk", {"outer.mu": 0})


def residuals(c, site):
    return sorted(glob.glob(os.path.join(c.out, f"site-{site}", "outbox", "*.residual")))


def codecs_e2e_topk_keeps_its_residual_through_a_kill():
    """What topk could not carry lies beside the weights: it survives kill -9, is swept when nothing names it any more, and
    where it is damaged the site begins afresh instead of training on with it."""
    c = begin("residual", {"outer.codec": "topk", "outer.down_codec": "int8", "outer.mu": 0, "run.epochs": 3})
    c.start_hub()
    c.start_site("a")
    c.start_site("b")
    merged_to(c, 3)
    for damage in (False, True):
        wait_for("a residual", lambda: residuals(c, "a"), 60, each=c.check_processes)
        c.stop_site("a", signal.SIGKILL)
        files = residuals(c, "a")
        want(0 < len(files) <= 4, f"{len(files)} residuals are kept")
        for path in files if damage else []:
            with open(path, "r+b") as f:
                f.seek(os.path.getsize(path) // 2)
                f.write(b"\x55" * 64)
        head = c.status()["head"]
        c.start_site("a")
        merged_to(c, head + 2)
        with open(os.path.join(c.out, "site-a.log"), encoding="utf-8") as f:
            log = f.read()
        want(("does not have its checksum" in log) == damage, f"damaged: {damage}, and the log of a tells otherwise")
    finish(c)
    check(c, all_updates=False)


def merged_to(c, version):
    wait_for(f"version {version}", lambda: (c.status() or {}).get("head", 0) >= version, 90, each=c.check_processes)


def set_down(c, value):
    path = os.path.join(c.run_dir, "run.yaml")
    with open(path, encoding="utf-8") as f:
        text = f.read()
    changed = re.sub(r"(?m)^(\s*down_codec:\s*)\S+", lambda m: m.group(1) + value, text)
    want(changed != text, "run.yaml has no down_codec")
    with open(path, "w", encoding="utf-8") as f:
        f.write(changed)


def codecs_e2e_the_setting_changes_and_the_run_goes_back():
    """full, then int4 after a kill, back to an earlier version, then full again: each error that updates left behind
    is carried on, or paid out."""
    c = begin("changes", {"outer.codec": "int4", "run.epochs": 5, "hub.snapshot_every": 10})
    c.start_hub()
    c.start_site("a")
    c.start_site("b")
    merged_to(c, 2)
    for value, more in (("int4", 3), ("int8", 2)):
        c.kill_hub()
        head = max(merges(c))
        set_down(c, value)
        c.start_hub()
        merged_to(c, head + more)
    head = c.status()["head"]
    c.call("rollback", c.url, head - 1)
    merged_to(c, head + 2)
    c.kill_hub()
    set_down(c, "full")
    c.start_hub()
    finish(c)
    check(c, all_updates=False)
    used = [n for n, _, _ in downloads(c, "a").values()]
    want(0 in used and 1 in used, f"not both ways were used: {used}")


def codecs_e2e_updates_that_are_missing_or_damaged():
    """A site that was away follows several updates at once; where the hub's files are gone or rotten, the whole
    weights come instead, and nobody trains on wrong ones."""
    c = begin("damage", {"outer.codec": "int8", "outer.down_codec": "int8", "run.epochs": 6})
    c.start_hub()
    c.start_site("a")
    c.start_site("b")
    merged_to(c, 2)
    for rotten in (False, True):
        c.sites["b"].send_signal(signal.SIGSTOP)
        head = c.status()["head"]
        merged_to(c, head + 2)
        c.sites["a"].send_signal(signal.SIGSTOP)  # or the way back becomes longer than b follows
        for path in glob.glob(os.path.join(c.run_dir, "updates", "*.update")) if rotten else []:
            with open(path, "r+b") as f:
                f.seek(os.path.getsize(path) // 2)
                f.write(b"\x55" * 64)
        c.sites["b"].send_signal(signal.SIGCONT)
        wait_for("b to go on", lambda v=head + 2: max(downloads(c, "b")) >= v, 60, each=c.check_processes)
        c.sites["a"].send_signal(signal.SIGCONT)
    os.rename(os.path.join(c.run_dir, "updates"), os.path.join(c.run_dir, "away"))
    finish(c)
    check(c, all_updates=False)
    used = [n for n, _, _ in downloads(c, "b").values()]
    want(max(used) > 1 and 0 in used, f"b used {used}")
    with open(os.path.join(c.out, "site-b.log"), encoding="utf-8") as f:
        want("ev=update_unusable" in f.read(), "a rotten update was not told")


if __name__ == "__main__":
    sys.exit(run_scenarios(globals(), "codecs_e2e_", tsan_is_too_slow()))
