#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# timeout: 240
"""The hub's disk is gone, or two hubs believe in one run.

A run is lost with its whole directory while sites train; it is made anew from the checkpoint that a site has, or from a
published version, and finished. What must hold: no position is merged twice or lost (the audit counts them), the
journal replays to the same bytes, older contributions and processes have no effect. And a hub that got past the lock
ends at its next transaction, with a sentence."""
import os
import shutil
import sys
import time

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "scripts", "lib"))
import audit as a  # noqa: E402
import hub as h  # noqa: E402
import cluster as c  # noqa: E402

OPERATOR = "/v1/operator/"


def newest_copy(out):
    """The newest checkpoint that any site has on its own disk."""
    found = []
    for name in os.listdir(out):
        base = os.path.join(out, name, "base")
        if name.startswith("site-") and os.path.isdir(base):
            found += [(int(f.split(".")[0]), os.path.join(base, f)) for f in os.listdir(base)
                      if f.endswith(".safetensors")]
    return max(found)


def lose_disk(run_dir, keep=None):
    """rm -rf of the run; keep: files of it that somebody has."""
    kept = {k: open(os.path.join(run_dir, k), "rb").read() for k in keep or []}
    shutil.rmtree(run_dir)
    for name, data in kept.items():
        os.makedirs(run_dir, exist_ok=True)
        with open(os.path.join(run_dir, name), "wb") as f:
            f.write(data)


def test_a_lost_run_goes_on_from_a_sites_copy():
    out = os.path.join(h.SCRATCH, "lost")
    os.makedirs(out)
    words = ["--batch", "4", "--threads", "1"]
    x = c.Cluster(h.BERINGIA, out, h.DATA, {"a": words, "b": words})
    x.init("tiny", {"outer.steps": 4, "lease.samples_min": 4, "lease.samples_max": 16, "lease.ttl": "4s",
                    "lease.heartbeat": "300ms", "outer.grace": "500ms", "run.epochs": 2, "hub.snapshot_every": 50})
    try:
        x.start_hub()
        x.start_site("a")
        x.start_site("b")
        c.wait_for("a third of the run", lambda: x.merged_share() > 0.6, 120, each=x.check_processes)
        x.kill_hub()
        lose_disk(x.run_dir)
        version, copy = newest_copy(out)
        h.check("a site has a copy", version > 0, version)
        saved = os.path.join(out, "copy.safetensors")
        shutil.copyfile(copy, saved)
        rebuild(x, saved)
        s = x.status()
        h.check("the version goes on", s["head"] >= version, (s["head"], version))
        # A site may have heard of a version that nobody had fetched. The key of the seals went with the disk, so it
        # cannot prove it: it alone is refused until the operator declares that the run goes on from here.
        until = time.monotonic() + 100
        while not x.complete():
            h.check("completes after the rebuild", time.monotonic() < until, x.last_status)
            if x.status() and any(s["id"] in ("hub_behind", "unproved") for s in x.last_status["alarms"]):
                done = h.run("rollback", x.run_dir, x.last_status["head"])
                h.check("rollback", done.returncode == 0, done.stderr)
            x.check_processes()
            time.sleep(0.1)
        x.wait_sites()
        x.stop_hub()
        a = x.audit(blobs=True)
        h.check("audit", a["good"] and a["merged"] == a["positions"] and a["counted"] == a["positions"], a)
        h.check("nothing twice, nothing lost", a["doubled"] == 0 and a["lost"] == 0 and a["epochs_sealed"] == 2, a)
        r = x.replay()
        h.check("replay", r["equal"] and r["versions"] > 0, r)
    finally:
        x.clean()


def rebuild(x, checkpoint):
    """Starts the hub of a cluster at its old address from a checkpoint."""
    listen = x.url.split("//")[1]
    log = os.path.join(x.out, "hub.log")
    with open(log, "ab") as f:
        x.hub = h.subprocess.Popen([h.BERINGIA, "hub", x.run_dir, "--listen", listen, "--rebuild-from", checkpoint],
                                   stdout=f, stderr=f)
    c.wait_for("the rebuilt hub", lambda: x.hub.poll() is not None or x.status() is not None, 30)
    with open(log, encoding="utf-8") as f:
        said = f.read()
    h.check("it started", x.hub.poll() is None, said[-600:])
    h.check("it says what it did", "rebuilt" in said, said[-600:])


def test_the_same_hand_ins_count_once():
    """By hand: what was staged when the disk was lost is trained again, the old contribution is refused."""
    path = h.make_run("again", "--set", "lease.samples_max=64")
    hub = h.Hub(path)
    site = h.FakeSite(hub, "fake")
    site.join()
    for k in range(2):
        status, a, _ = site.hand_in()
        h.check("staged", status == 200, (status, a))
        h.wait("a merge", lambda k=k: hub.get("/v1/status")["head"] > k)
    checkpoint = os.path.join(h.SCRATCH, "again.safetensors")
    shutil.copyfile(os.path.join(path, "versions", "2.safetensors"), checkpoint)
    _, a = site.lease()
    data, message = site.delta(site.leases.pop())
    site.put(message["did"], data)
    hub.kill()
    lose_disk(path, keep=["run.yaml"])
    done = h.run("hub", path, "--rebuild-from", os.path.join(h.SCRATCH, "t.txt"), timeout=20)
    h.check("no checkpoint", done.returncode == 12 and "t.txt" in done.stderr, (done.returncode, done.stderr))
    hub = start_rebuilt(path, checkpoint)
    try:
        status = hub.get("/v1/status")
        h.check("the ledger came with it", status["head"] == 2 and status["counts"]["merged"] > 0, status)
        merged = status["counts"]["merged"]
        site.hub = hub
        status, a = site.send("commit", **message)
        h.check("an old process", status == 409 and a["code"] == "UNKNOWN_SITE", a)
        status, a = site.join(version_seen=2, term_seen=1)
        h.check("join", status == 200 and a["inc"] > 1000, a)
        status, a = site.send("commit", **message)
        h.check("an old contribution", a.get("outcome") == "rejected", a)
        h.check("took nothing", hub.get("/v1/status")["counts"]["merged"] == merged)
        h.complete(hub, site)
    finally:
        hub.stop()
    audit = h.prove(path)
    h.check("all positions once", audit["merged"] == audit["positions"] == audit["counted"], audit)
    lies_are_found(path)
    done = h.run("hub", path, "--rebuild-from", checkpoint, timeout=20)
    h.check("not over a journal", done.returncode == 27 and "journal" in done.stderr, (done.returncode, done.stderr))
    flipped = os.path.join(h.SCRATCH, "flipped.safetensors")
    shutil.copyfile(checkpoint, flipped)
    with open(flipped, "r+b") as f:
        f.seek(os.path.getsize(flipped) // 4)
        byte = f.read(1)
        f.seek(-1, os.SEEK_CUR)
        f.write(bytes([byte[0] ^ 1]))
    other = os.path.join(h.SCRATCH, "other")
    done = h.run("hub", other, "--rebuild-from", flipped, timeout=20)
    h.check("a flipped bit", done.returncode == 25 and "hash" in done.stderr, (done.returncode, done.stderr))
    hub = start_rebuilt(other, checkpoint)  # the same command goes on where it failed
    h.check("served", hub.get("/v1/run")["head"] == 2)
    hub.stop()


REBUILD, LEDGER = 16, 17


def lies_are_found(path):
    """Who changes what the checkpoint's ledger said, and mends the chain, is found by the audit and the replay."""
    rows = a.read(path)
    h.check("how it begins", [k for k, _ in rows[:2]] == [REBUILD, LEDGER], rows[:2])
    rebuild_body, ledger = rows[0][1], rows[1][1]
    head, data = ledger[:8 + 8 + 4], bytearray(ledger[20:])
    digest = len(rebuild_body) - 32
    for name, change in {"hash": False, "mended": True}.items():
        other = os.path.join(h.SCRATCH, "lie-" + name)
        shutil.copytree(path, other, symlinks=True)
        lie = bytearray(data)
        run = lie.index(1, 12)  # the first run that is merged: called open instead
        lie[run] ^= 2
        body = rebuild_body[:digest] + h.hashlib.sha256(lie).digest() if change else rebuild_body
        a.write(other, [(REBUILD, body), (LEDGER, head + bytes(lie))] + rows[2:])
        done = h.run("audit", other, "--json")
        h.check(name + ": audit", done.returncode in (17, 18), (done.returncode, done.stdout, done.stderr))
        done = h.run("hub", "replay", other)
        h.check(name + ": replay", done.returncode in (17, 18), (done.returncode, done.stdout, done.stderr))


def test_an_old_copy_holds_where_a_site_proves_what_it_has_seen():
    """The copy cannot know that it is old. With the run's key it believes a site that shows its seals, and nobody else;
    without the key it goes on, says so, and a rollback settles it."""
    path, copy = h.make_run("newer"), os.path.join(h.SCRATCH, "older")
    hub = h.Hub(path)
    site = h.FakeSite(hub, "fake")
    site.join()
    h.check("0600", os.stat(os.path.join(path, "seal.key")).st_mode & 0o777 == 0o600)
    for k in range(2):
        if k == 1:
            hub.stop()
            shutil.copytree(path, copy, symlinks=True)
            hub = site.hub = h.Hub(path)
        status, a, _ = site.hand_in()
        h.check("staged", status == 200, (status, a))
        h.wait("a merge", lambda k=k: hub.get("/v1/status")["head"] > k)
    status, told = site.send("heartbeat", hb_seq=9, base=1, phase="training", leases=[])
    h.check("told", status == 200 and told["round"]["head"] == 2, told)
    seen = {"version_seen": 2, "theta_seen": told["round"]["theta"], "version_seal": told["round"]["seal"],
            "term_seen": told["term"], "term_seal": told["term_seal"]}
    hub.stop()
    lost = os.path.join(h.SCRATCH, "keyless")
    shutil.copytree(copy, lost, symlinks=True)
    os.unlink(os.path.join(lost, "seal.key"))
    for where, held in ((copy, True), (lost, False)):
        hub = site.hub = h.Hub(where)
        try:
            other = h.FakeSite(hub, "other")
            h.check("another site", other.join()[0] == 200)
            status, a = other.join(**dict(seen, version_seal="0" * 64, term_seal="1" * 64))
            h.check("no proof", status == 409 and a["code"] == "HUB_BEHIND" and "prove" in a["text"], (status, a))
            h.check("it goes on", not hub.get("/v1/status")["held"])
            status, a = site.join(**seen)
            h.check("refused", status == 409 and a["code"] == "HUB_BEHIND", (status, a))
            s = hub.get("/v1/status")
            h.check("held", s["held"] == held, s["held"])
            h.check("an alarm", any(x["id"] == ("hub_behind" if held else "unproved") for x in s["alarms"]), s["alarms"])
            other.join()
            status, a = other.lease()
            h.check("work for others", status == (503 if held else 200), (status, a))
            said(["rollback", where, 1], 0, "")
            status, a = site.join(**seen)
            h.check("it was decided", status == 200, (status, a))
            status, a, _ = site.hand_in()
            h.wait("a merge", lambda: hub.get("/v1/status")["head"] > 2)
        finally:
            hub.stop()
        h.prove(where)
    with open(os.path.join(lost, "seal.key"), "w", encoding="ascii") as f:
        f.write("of another run\n")
    said(["hub", lost, "--listen", "127.0.0.1:0"], 3, "seal.key")


def start_rebuilt(path, checkpoint):
    return start_with(path, "--rebuild-from", checkpoint)


def start_with(path, *options):
    hub = h.Hub.__new__(h.Hub)
    hub.run_dir = path
    with open(path + ".log", "ab") as log:
        hub.process = h.subprocess.Popen([h.BERINGIA, "hub", path, "--listen", "127.0.0.1:0", *options],
                                         stdout=h.subprocess.PIPE, stderr=log)
    for line in iter(hub.process.stdout.readline, b""):
        if line.startswith(b"listening on "):
            hub.url = line.decode().split()[-1]
            hub.port = int(hub.url.rsplit(":", 1)[1])
            return hub
    raise AssertionError(f"the hub ended with {hub.process.wait()}; see {path}.log")


def test_a_hub_that_got_past_the_lock_ends_the_older_one():
    path = h.make_run("past")
    old = h.Hub(path)
    site = h.FakeSite(old, "fake")
    site.join()
    for name in ("lock", "journal.db.lock"):
        os.unlink(os.path.join(path, name))
    new = h.Hub(path)
    try:
        h.check("a second one", new.url is not None)
        status, a = site.send("lease", want=4, base=0)  # the older hub cannot make it durable
        h.check("no answer of the older one", status == 0, (status, a))
        h.check("it says so", old.process.wait(20) == 16, old.process.returncode)
        with open(path + ".log", encoding="utf-8") as f:
            said = f.read()
        h.check("in one line", "ev=fenced" in said and "another hub" in said, said[-500:])
        site.hub = new
        status, a = site.send("lease", want=4, base=0)
        h.check("the newer one goes on", status == 200 and a["granted"], (status, a))
    finally:
        old.kill()
        new.stop()
    h.prove(path)


# ---- What an operator decides ----------------------------------------------------------------------------------------
def said(words, status, text):
    done = h.run(*words)
    h.check(" ".join(map(str, words)), done.returncode == status and text in done.stdout + done.stderr,
            (done.returncode, done.stdout, done.stderr))
    return done.stdout


def test_an_operator_discards_and_rolls_back():
    path = h.make_run("operator", "--set", "outer.grace=60s", "--set", "lease.ttl=30s", "--set",
                      "hub.keep_checkpoints=9")
    hub = h.Hub(path)
    site, other = h.FakeSite(hub, "fake"), h.FakeSite(hub, "other")
    try:
        site.join()
        for k in range(2):
            site.hand_in()
            h.wait("a merge", lambda k=k: hub.get("/v1/status")["head"] > k)
        other.join()
        other.lease()  # it is waited for, so what is staged now stays so
        status, a, message = site.hand_in()
        h.check("staged", a["outcome"] == "staged", (status, a))
        said(["discard", path, "00" * 16], 15, "no staged contribution")
        said(["discard", path, "zz"], 2, "32 hexadecimal digits")
        said(["discard", path, message["did"], "--reason", "a wrong corpus"], 0, "discarded; head 2")
        _, a = site.send("outcome", did=message["did"])
        h.check("the site is told", a["outcome"] == "discarded" and "wrong corpus" in a["reason"], a)
        said(["rollback", path, 7], 15, "is not there")
        said(["rollback", path, "x"], 2, "want a version")
        merged = hub.get("/v1/status")["counts"]["merged"]
        said(["rollback", path, 1], 0, "head 1")
        h.check("half is free again", hub.get("/v1/status")["counts"]["merged"] == merged // 2)
        said(["drain", hub.url], 0, "draining")
        h.check("drains", hub.get("/v1/status")["draining"])
        said(["drain", path, "--off"], 0, "not draining")
    finally:
        hub.stop()
    said(["rollback", path, 0], 14, "no hub is running")
    said(["hub", path, "--rollback-to", 5, "--listen", "127.0.0.1:0"], 2, "no version 5")
    hub = start_with(path, "--rollback-to", "0")
    try:
        v = hub.get("/v1/status")
        h.check("back at the start", v["head"] == 0 and v["counts"]["merged"] == 0, v)
        site.hub = hub
        site.join()
        h.complete(hub, site)
    finally:
        hub.stop()
    audit = h.prove(path)
    h.check("all once", audit["merged"] == audit["positions"] and audit["rollbacks"] == 2, audit)


def test_an_operator_decides_about_the_quarantine():
    path = h.make_run("quarantine", "--set", "lease.samples_max=4", "--set", "lease.crashes_max=2")
    hub = h.Hub(path)
    site = h.FakeSite(hub, "fake")
    try:
        said(["quarantine", path], 0, "nothing is quarantined")
        for _ in range(4):  # each join without its lease is a crash on its positions
            site.join()
            site.lease(4)
        site.join()
        ranges = said(["quarantine", path, "--list"], 0, "crashes 2").splitlines()
        epoch, rest = ranges[0].split()[0].split(":")
        start, count = map(int, rest.split("+"))
        h.check("two leases", epoch == "0" and count == 8, ranges)
        said(["quarantine", path, "--skip", "0:900000+1"], 15, "not all of these")
        said(["quarantine", path, "--skip", "0:5"], 2, "EPOCH:START+COUNT")
        said(["quarantine", path, "--skip", f"0:{start}+2", "--reason", "broken text"], 0, "skipped for good")
        said(["quarantine", path, "--return", f"0:{start + 2}+{count - 2}"], 0, "returned")
        said(["quarantine", path], 0, "nothing is quarantined")
        h.complete(hub, site)
    finally:
        hub.stop()
    audit = h.prove(path)
    h.check("skipped by name", audit["skipped"] == 2 and audit["merged"] == audit["positions"] - 2, audit)


if __name__ == "__main__":
    h.DATA = h.make_data()
    sys.exit(h.run_tests(globals(), "recover"))
