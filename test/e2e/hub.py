#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# timeout: 280
"""The hub as a process, and a site made of HTTP requests alone.

What can go wrong between a site and the hub, and between the hub and its disk: pieces that do not fit, bytes that are
damaged on the way, a message twice, an old incarnation, a full disk, kill -9 between any two of the hub's duties, a
second hub on the same run. What must hold: the answer says what to do, nothing acknowledged is lost, the audit finds
nothing doubled and nothing lost, and replay gives the same bytes."""
import hashlib
import json
import os
import signal
import struct
import subprocess
import sys
import time
import traceback
import urllib.error
import urllib.request

BERINGIA = os.environ["BERINGIA"]
SCRATCH = os.environ["SCRATCH"]
SETTINGS = ["--set", "outer.steps=2", "--set", "lease.samples_min=4", "--set", "lease.samples_max=8",
            "--set", "lease.ttl=3s", "--set", "lease.heartbeat=300ms", "--set", "outer.grace=300ms",
            "--set", "outer.codec=fp32", "--set", "hub.keep_checkpoints=2", "--set", "hub.keep_every=0",
            "--set", "hub.snapshot_every=40"]
HEADER = struct.Struct("<8sIIQQQQ16s32s32x")


def run(*words, **kw):
    return subprocess.run([BERINGIA, *map(str, words)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **kw)


def check(what, condition, detail=""):
    if not condition:
        raise AssertionError(f"{what}: {detail}")


def wait(what, condition, seconds=20):
    until = time.monotonic() + seconds
    while True:
        value = condition()
        if value:
            return value
        check(f"waited {seconds} s for {what}", time.monotonic() < until)
        time.sleep(0.02)


class Hub:
    def __init__(self, run_dir, env=None, port=0):
        self.run_dir = run_dir
        with open(run_dir + ".log", "ab") as log:
            self.process = subprocess.Popen([BERINGIA, "hub", run_dir, "--listen", f"127.0.0.1:{port}"],
                                            stdout=subprocess.PIPE, stderr=log, env={**os.environ, **(env or {})})
        line = self.process.stdout.readline().decode()
        self.url = line.split()[-1] if line.startswith("listening on ") else None
        self.port = int(self.url.rsplit(":", 1)[1]) if self.url else None

    def request(self, method, path, body=None, headers=None):
        """(status, body as JSON or bytes); 0 where the hub cannot be reached."""
        if isinstance(body, dict):
            body = json.dumps(body).encode()
            headers = {"Content-Type": "application/json", **(headers or {})}
        r = urllib.request.Request(self.url + path, data=body, method=method, headers=headers or {})
        try:
            with urllib.request.urlopen(r, timeout=20) as answer:
                status, data, kind = answer.status, answer.read(), answer.headers.get("Content-Type", "")
        except urllib.error.HTTPError as e:
            status, data, kind = e.code, e.read(), e.headers.get("Content-Type", "")
        except (OSError, urllib.error.URLError):
            return 0, None
        return status, json.loads(data) if "json" in kind else data

    def get(self, path):
        status, body = self.request("GET", path)
        check(f"GET {path}", status == 200, (status, body))
        return body

    def stop(self):
        self.process.send_signal(signal.SIGTERM)
        check("the hub stops cleanly", self.process.wait(20) == 0, self.process.returncode)

    def kill(self):
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()


class FakeSite:
    """Says what a site says. Its contributions are small random moves."""

    def __init__(self, hub, name):
        self.hub, self.name, self.req, self.inc, self.seq = hub, name, 0, 0, 0
        self.about = hub.get("/v1/run")
        self.leases = []

    def send(self, kind, **fields):
        self.req += 1
        return self.hub.request("POST", f"/v1/{kind}", {"site": self.name, "run": self.about["run"], "inc": self.inc,
                                                        "req": self.req, **fields})

    def join(self, **over):
        fields = {"boot": os.urandom(16).hex(), "protocol": 1, "fingerprint": self.about["fingerprint"],
                  "tensors": self.about["tensors"], "version_seen": 0, "term_seen": 0,
                  "tokens_per_sample": self.about["seq_len"], "resume": []}
        fields.update(over)
        self.inc = 0
        status, a = self.send("join", **fields)
        if status == 200:
            self.inc = a["inc"]
        return status, a

    def lease(self, want=8):
        status, a = self.send("lease", want=want, base=self.hub.get("/v1/run")["head"])
        if status == 200 and a["granted"]:
            self.leases.append(a["lease"])
        return status, a

    def delta(self, lease, steps=2, scale=1e-6, base=None, theta=None):
        about = self.hub.get("/v1/run")
        self.seq += 1
        base = about["head"] if base is None else base
        did = hashlib.sha256(f"{self.name} {self.inc} {self.seq} {os.getpid()}".encode()).digest()[:16]
        tokens = lease["count"] * about["seq_len"]
        n = about["parameters"]
        values = struct.pack("<f", scale * (1 + self.seq % 3)) * n
        data = HEADER.pack(b"BRGDELT1", 1, 0, n, base, tokens, steps, did,
                           bytes.fromhex(theta or about["theta"])) + values
        message = {"did": did.hex(), "base": base, "tokens": tokens, "steps": steps, "lr_sum": steps * 3e-4,
                   "loss": 5.0, "elements": n, "bytes": len(data), "codec": 1,
                   "blob": hashlib.sha256(data).hexdigest(), "keep_rest": False,
                   "parts": [{"tok": lease["tok"], "nonce": lease["nonce"], "done": lease["count"]}], "skips": []}
        return data, message

    def put(self, did, data, offset=0):
        return self.hub.request("PUT", f"/v1/blobs/{did}?offset={offset}", data)

    def hand_in(self):
        status, a = self.lease()
        check("a lease", status == 200 and a["granted"], (status, a))
        data, message = self.delta(self.leases.pop())
        status, a = self.put(message["did"], data)
        check("an upload", status == 200 and a["offset"] == len(data), (status, a))
        status, a = self.send("commit", **message)
        return status, a, message


def make_data():
    text = os.path.join(SCRATCH, "t.txt")
    with open(text, "w", encoding="utf-8") as f:
        for i in range(60):
            f.write(" ".join(f"word{(i * 7 + k * k) % 50}" for k in range(40)) + "\n<|endoftext|>\n")
    data = os.path.join(SCRATCH, "data")
    done = run("pack", "--out", data, "--seq-len", "16", text)
    check("pack", done.returncode == 0, done.stderr)
    return data


DATA = None


def make_run(name, *more, where=None):
    path = os.path.join(where or SCRATCH, name)
    done = run("init", path, "--model", "tiny", "--data", DATA, *SETTINGS, *more)
    check("init", done.returncode == 0, done.stderr)
    return path


def prove(run_dir, blobs=True):
    done = run("audit", run_dir, "--json", *(["--blobs"] if blobs else []))
    check("audit", done.returncode == 0, done.stdout + done.stderr)
    audit = json.loads(done.stdout)
    done = run("hub", "replay", run_dir, "--json")
    check("replay", done.returncode == 0 and json.loads(done.stdout)["equal"], done.stdout + done.stderr)
    return audit


# ---- init and start --------------------------------------------------------------------------------------------------
def test_init_refuses():
    path = make_run("refuse")
    done = run("init", path, "--model", "tiny", "--data", DATA)
    check("a second init", done.returncode == 27 and path in done.stderr, (done.returncode, done.stderr))
    fresh = os.path.join(SCRATCH, "fresh")
    done = run("init", fresh, "--model", "tiny", "--data", DATA, "--set", "outer.stps=3")
    check("a wrong key", done.returncode == 3 and "outer.stps" in done.stderr, (done.returncode, done.stderr))
    done = run("init", fresh, "--model", "tiny", "--data", DATA, "--set", "lease.heartbeat=100s")
    check("keys that do not fit", done.returncode == 3 and "lease.heartbeat" in done.stderr, done.stderr)
    with open(os.path.join(path, "model.json"), encoding="utf-8") as f:
        model = json.load(f)
    model["vocab_size"] = 100
    other = os.path.join(SCRATCH, "model.json")
    with open(other, "w", encoding="utf-8") as f:
        json.dump(model, f)
    done = run("init", fresh, "--model", other, "--data", DATA)
    check("a vocabulary", done.returncode == 11 and "vocab_size" in done.stderr, (done.returncode, done.stderr))
    check("nothing is left", not any(n.startswith("fresh") for n in os.listdir(SCRATCH)), os.listdir(SCRATCH))
    with open(os.path.join(path, "run.yaml"), "a", encoding="utf-8") as f:
        f.write("lesae:\n  ttl: 3s\n")
    done = run("hub", path, "--listen", "127.0.0.1:0")
    check("a wrong section", done.returncode == 3 and "run.yaml:" in done.stderr and "lesae" in done.stderr, done.stderr)
    done = run("hub", SCRATCH)
    check("no run directory", done.returncode == 4, (done.returncode, done.stderr))


def test_one_hub_and_one_port():
    path, other = make_run("one"), make_run("two")
    hub = Hub(path)
    try:
        done = run("hub", path, "--listen", "127.0.0.1:0", timeout=20)
        check("a second hub", done.returncode == 7 and str(hub.process.pid) in done.stderr, done.stderr)
        done = run("hub", other, "--listen", f"127.0.0.1:{hub.port}", timeout=20)
        check("a taken port", done.returncode == 8 and "port 0" in done.stderr, done.stderr)
        with open(os.path.join(path, "hub.json"), encoding="utf-8") as f:
            told = json.load(f)
        check("hub.json", told == {"url": hub.url, "pid": hub.process.pid}, told)
        done = run("status", path, "--json")
        check("status", done.returncode == 0 and json.loads(done.stdout)["head"] == 0, done.stderr)
    finally:
        hub.stop()
    check("hub.json is gone", not os.path.exists(os.path.join(path, "hub.json")))
    done = run("status", path)
    check("status without a hub", done.returncode == 14 and "beringia hub" in done.stderr, done.stderr)
    done = run("stauts", path)
    check("a slip of the finger", done.returncode == 2 and "'status'" in done.stderr, done.stderr)


def test_paths_and_methods():
    hub = Hub(make_run("paths"))
    try:
        for method, path, body, want in [
                ("POST", "/", b"{}", 405), ("GET", "//", None, 404), ("GET", "/v1/versions/1", None, 404), ("GET", "/v1/versions/x", None, 404),
                ("GET", "/v1//run", None, 404), ("GET", "/v1/join", None, 405), ("POST", "/v1/run", b"{}", 405),
                ("DELETE", "/v1/run", None, 405), ("POST", "/v1/join", b"{", 400), ("POST", "/v1/join", b"[]", 400),
                ("POST", "/v1/join", b"{}", 400), ("POST", "/v1/join", b" " * 300000, 413),
                ("PUT", "/v1/blobs/xyz?offset=0", b"x", 400), ("PUT", "/v1/blobs/" + "0" * 32, b"x", 400),
                ("GET", "/v1/blobs/..%2f..%2fx", None, 404), ("GET", "/v1/rounds?from=-1", None, 400),
                ("PUT", "/v1/blobs/" + "0" * 32 + "?offset=99999999999", b"x", 413),
                ("POST", "/v1/operator/drain", b'{"on":true}', 403), ("POST", "/v1/operator/explode", b"{}", 404)]:
            status, answer = hub.request(method, path, body)
            if status == 0:  # the hub answered and closed before the whole body was sent: seen by some clients only
                continue
            check(f"{method} {path}", status == want, (status, answer))
            check(f"{method} {path} explains", isinstance(answer, dict) and answer["code"] and answer["text"], answer)
        status, answer = hub.request("POST", "/v1/operator/drain", {"on": True})
        check("drain", status == 200 and hub.get("/v1/status")["draining"], answer)
        status, answer = hub.request("POST", "/v1/operator/rollback", {"version": 7})
        check("rollback to nowhere", status == 409, answer)
    finally:
        hub.stop()


def test_range_downloads():
    path = make_run("range")
    hub = Hub(path)
    try:
        with open(os.path.join(path, "versions", "0.safetensors"), "rb") as f:
            whole = f.read()
        where = "/v1/versions/0/checkpoint"
        check("whole", hub.request("GET", where)[1] == whole)
        about = hub.get("/v1/versions/0")
        check("its hash", hashlib.sha256(whole).hexdigest() == about["checkpoint"] and about["kept"] is True, about)
        theta = hub.get("/v1/versions/0/theta")
        part = whole[theta["offset"]:theta["offset"] + theta["bytes"]]
        check("theta", hashlib.sha256(part).hexdigest() == theta["theta"], theta)
        n = len(whole)
        for text, want in [("bytes=0-0", whole[:1]), ("bytes=10-19", whole[10:20]), (f"bytes={n - 5}-", whole[-5:]),
                           ("bytes=-7", whole[-7:]), (f"bytes=100-{n + 50}", whole[100:])]:
            status, body = hub.request("GET", where, headers={"Range": text})
            check(text, status == 206 and body == want, status)
        status, _ = hub.request("GET", where, headers={"Range": f"bytes={n}-"})
        check("behind the end", status == 416, status)
        status, body = hub.request("GET", where, headers={"Range": "bytes=5-9", "If-Range": '"other"'})
        check("another file", status == 200 and body == whole, status)
        half = os.path.join(SCRATCH, "half")
        with open(half, "wb") as f:
            f.write(whole[:n // 2])
        done = subprocess.run(["curl", "-sS", "--fail", "-C", "-", "-o", half, hub.url + where], check=False)
        with open(half, "rb") as f:
            check("curl goes on where it was", done.returncode == 0 and f.read() == whole)
    finally:
        hub.stop()


# ---- contributions ---------------------------------------------------------------------------------------------------
def test_contribution_and_its_faults():
    path = make_run("faults")
    hub = Hub(path)
    try:
        site = FakeSite(hub, "fake")
        status, a = site.send("lease", want=4, base=0)
        check("join first", status == 409 and a["code"] == "UNKNOWN_SITE", a)
        status, a = site.join(fingerprint="00" * 32)
        check("other data", status == 409 and a["code"] == "MISMATCH" and a["text"], a)
        status, a = site.join()
        check("join", status == 200 and a["inc"] == 1 and a["round"]["head"] == 0, a)
        status, a = site.lease()
        check("a lease", status == 200 and a["granted"] and a["lease"]["count"] == 8, a)
        again = site.hub.request("POST", "/v1/lease", {"site": "fake", "run": site.about["run"], "inc": 1,
                                                       "req": site.req, "want": 8, "base": 0})[1]
        check("the same request, the same lease", again["lease"] == a["lease"], again)
        data, message = site.delta(site.leases.pop())
        did = message["did"]
        status, a = site.send("commit", **message)
        check("nothing uploaded", status == 409 and a["code"] == "UPLOAD" and a["offset"] == 0, a)
        half = len(data) // 2
        site.put(did, data[:half])
        status, a = site.send("commit", **message)
        check("truncated", status == 409 and a["code"] == "UPLOAD" and a["offset"] == half, a)
        status, a = site.put(did, data[half + 3:], half + 3)
        check("a gap", status == 409 and a["offset"] == half, a)
        status, a = site.put(did, data[half - 3:], half - 3)
        check("an overlap", status == 409 and a["offset"] == half, a)
        check("where it is", hub.get(f"/v1/blobs/{did}")["offset"] == half)
        site.put(did, bytes(len(data) - half), half)
        status, a = site.send("commit", **message)
        check("damaged on the way: again from the start", status == 409 and a["code"] == "UPLOAD" and a["offset"] == 0, a)
        check("dropped", hub.get(f"/v1/blobs/{did}")["offset"] == 0)
        site.put(did, data)
        status, a = site.send("commit", **message)
        check("staged", status == 200 and a["outcome"] in ("staged", "merged"), a)
        first = a
        status, a = site.send("commit", **message)
        check("the same again", status == 200 and a["outcome"] in ("staged", "merged"), (first, a))
        status, a = site.send("commit", **{**message, "loss": 1.0, "steps": 3})
        check("the same name for another one", status == 409 and a["code"] == "KEY_REUSED", a)
        wait("a merge", lambda: hub.get("/v1/status")["head"] >= 1)
        status, a = site.send("outcome", did=did)
        check("merged", a["outcome"] == "merged" and a["version"] == 1, a)
        status, a = site.lease()
        data, message = site.delta(site.leases.pop())
        bad = data[:-4] + struct.pack("<f", float("nan"))
        message["blob"] = hashlib.sha256(bad).hexdigest()
        site.put(message["did"], bad)
        status, a = site.send("commit", **message)
        check("not finite", status == 200 and a["outcome"] == "rejected" and a["reason"], a)
        status, a = site.lease()
        data, message = site.delta(site.leases.pop(), scale=1e3)
        site.put(message["did"], data)
        status, a = site.send("commit", **message)
        check("beyond any AdamW step", status == 200 and a["outcome"] == "rejected" and a["reason"], a)
        status, a = site.lease()
        data, message = site.delta(site.leases.pop(), theta="11" * 32)
        site.put(message["did"], data)
        status, a = site.send("commit", **message)
        check("cut from other weights", status == 200 and a["outcome"] == "rejected", a)
        site.lease()
        data, message = site.delta(site.leases.pop())
        site.put(message["did"], data)
        twin = FakeSite(hub, "fake")
        status, a = twin.join()
        check("a newer incarnation", status == 200 and a["inc"] == 2, a)
        status, a = site.send("commit", **message)
        check("the old one is fenced", status == 409 and a["code"] == "FENCED", a)
        status, a = twin.send("leave")
        check("leave", status == 200, a)
        left = [f for _, _, files in os.walk(os.path.join(path, "blobs")) for f in files]
        rounds = hub.get("/v1/rounds?from=0")
        check("rounds", [r["version"] for r in rounds["rounds"]][:2] == [0, 1] and rounds["rounds"][1]["loss"] == 5.0, rounds)
        check("refused contributions are not kept", len(left) == 3, left)  # versions 0 and 1, one contribution
    finally:
        hub.stop()
    audit = prove(path)
    check("rejected ones are counted", audit["rejected"] >= 3, audit)


def poisons():
    """name -> (what the refusal's reason names, change of the file's bytes, change of the message)."""
    def last(x):
        return lambda data, m: data[:-4] + struct.pack("<f", x)

    def header(at, fmt, value):
        return lambda data, m: data[:at] + struct.pack(fmt, value) + data[at + struct.calcsize(fmt):]

    same = lambda data, m: data  # noqa: E731
    return {
        "NaN": ("finite", last(float("nan")), {}),
        "Inf": ("finite", last(float("inf")), {}),
        "-Inf": ("finite", last(float("-inf")), {}),
        "one weight of 1e30": ("AdamW", last(1e30), {}),
        "a norm of 1e30": ("AdamW", lambda data, m: data[:128] + struct.pack("<f", 1e30) * m["elements"], {}),
        "wrong shape": ("elements", same, {"elements": lambda m: m["elements"] + 1}),
        "wrong shape inside": ("elements", header(16, "<Q", 77), {}),
        "truncated": ("bytes", lambda data, m: data[:-8], {"bytes": lambda m: m["bytes"] - 8}),
        "too long": ("bytes", lambda data, m: data + bytes(8), {"bytes": lambda m: m["bytes"] + 8}),
        "another codec": ("codec", same, {"codec": lambda m: 2}),
        "no codec": ("codec", same, {"codec": lambda m: 99}),
        "another base inside": ("base", header(24, "<Q", 99), {}),
        "cut from other weights": ("weights", lambda data, m: data[:64] + bytes(32) + data[96:], {}),
        "another's name inside": ("did", lambda data, m: data[:48] + bytes(16) + data[64:], {}),
        "no delta at all": ("BRGDELT1", lambda data, m: bytes(len(data)), {}),
        "more tokens than trained": ("tokens", same, {"tokens": lambda m: m["tokens"] + 16}),
    }


def test_one_bad_site_is_told_why_and_harms_nobody():
    """A good site has handed in; another sends one bad contribution after the other into the same round. Each is refused
    with a reason that names what is wrong, its positions come back, and the round goes on as if nothing had been."""
    path = make_run("poison", "--set", "outer.grace=10m", "--set", "outer.quorum=2", "--set", "lease.ttl=10m")
    hub = Hub(path)
    try:
        good, bad = FakeSite(hub, "good"), FakeSite(hub, "bad")
        good.join()
        bad.join()
        bad.lease()  # a live site that holds work: the round waits for it
        status, a, message = good.hand_in()
        check("the good one is staged", status == 200 and a["outcome"] == "staged", a)
        kept = bad.leases.pop()
        data, m = bad.delta(kept)
        replayed = None
        for name, (word, change, fields) in poisons().items():
            lease = kept
            if lease is None:
                status, a = bad.lease()
                check(f"{name}: its positions can be leased again", status == 200 and a["granted"], a)
                lease = bad.leases.pop()
            kept = None
            data, m = bad.delta(lease)
            data = change(data, m)
            for key, value in fields.items():
                m[key] = value(m)
            m["blob"] = hashlib.sha256(data).hexdigest()
            bad.put(m["did"], data)
            status, a = bad.send("commit", **m)
            check(f"{name}: refused", status == 200 and a["outcome"] == "rejected", (status, a))
            check(f"{name}: with the reason", word in a["reason"], a)
            status, a = bad.send("commit", **m)
            check(f"{name}: and again when it is replayed", status == 200 and a["outcome"] == "rejected", a)
            counts = hub.get("/v1/status")["counts"]
            check(f"{name}: positions returned", counts["leased"] == 0 and counts["merged"] == 0, counts)
            check(f"{name}: the good one stays", counts["staged"] == 8, counts)
        status, a = good.send("outcome", did=message["did"])
        check("still staged", a["outcome"] == "staged", a)
        check("no version was made of it", hub.get("/v1/run")["head"] == 0)
        status, a, replayed = bad.hand_in()
        check("a good one of the same site is taken", status == 200 and a["outcome"] in ("staged", "merged"), a)
        wait("the round", lambda: hub.get("/v1/status")["head"] == 1)
        rounds = hub.get("/v1/rounds?from=1")["rounds"]
        check("of both sites", rounds[0]["sites"] == 2 and rounds[0]["parts"] == 2, rounds)
        status, a = bad.send("commit", **replayed)
        check("a replay is not merged twice", status == 200 and a["outcome"] == "merged" and a["version"] == 1, a)
        bad.lease()
        data, m = bad.delta(bad.leases[-1])
        other = {**m, "did": os.urandom(16).hex(), "parts": replayed["parts"]}
        bad.put(other["did"], data)
        status, a = bad.send("commit", **other)
        check("merged positions under a new name", status == 200 and a["outcome"] == "rejected" and a["reason"], a)
    finally:
        hub.stop()
    audit = prove(path)
    check("all are in the books", audit["rejected"] == len(poisons()) + 1, audit)


def test_an_old_contribution_is_refused():
    """What was cut from weights that others have left behind twice is refused, its positions come back."""
    path = make_run("old", "--set", "outer.staleness_max=1", "--set", "outer.grace=0s", "--set", "lease.ttl=10m")
    hub = Hub(path)
    try:
        slow, fast = FakeSite(hub, "slow"), FakeSite(hub, "fast")
        slow.join()
        fast.join()
        slow.lease()
        data, m = slow.delta(slow.leases.pop())
        for version in (1, 2):
            fast.hand_in()
            wait("a version", lambda v=version: hub.get("/v1/status")["head"] >= v)
        slow.put(m["did"], data)
        status, a = slow.send("commit", **m)
        check("too old", status == 200 and a["outcome"] == "rejected" and a["reason"], a)
        counts = hub.get("/v1/status")["counts"]
        check("its positions come back", counts["leased"] == 0, counts)
    finally:
        hub.stop()
    prove(path)


def complete(hub, site, seconds=60):
    """Hands in until the run is complete."""
    until = time.monotonic() + seconds
    while not hub.get("/v1/status")["complete"]:
        check("the run completes in time", time.monotonic() < until, hub.get("/v1/status")["counts"])
        status, a = site.lease(64)
        if status == 200 and not a["granted"]:
            site.send("heartbeat", hb_seq=site.req, base=hub.get("/v1/run")["head"], phase="waiting")
            time.sleep(0.05)
            continue
        check("a lease", status == 200, (status, a))
        lease = site.leases.pop()
        data, message = site.delta(lease)
        site.put(message["did"], data)
        status, a = site.send("commit", **message)
        check("handed in", status == 200 and a["outcome"] in ("staged", "merged"), (status, a))


def test_restart_and_completion():
    path = make_run("restart", "--set", "lease.samples_max=64")
    hub = Hub(path)
    site = FakeSite(hub, "fake")
    try:
        site.join()
        for _ in range(3):
            status, a, _ = site.hand_in()
            check("staged", status == 200 and a["outcome"] in ("staged", "merged"), a)
        before = hub.get("/v1/status")
        hub.kill()
        hub2 = Hub(path)
        site.hub = hub2
        after = hub2.get("/v1/status")
        check("a new term", after["term"] == before["term"] + 1, after["term"])
        check("nothing lost", after["counts"]["merged"] + after["counts"]["staged"] >=
              before["counts"]["merged"] + before["counts"]["staged"], (before["counts"], after["counts"]))
        hub = hub2
        done = run("audit", path, "--json")
        check("the audit reads beside a running hub", done.returncode == 0, done.stderr)
        complete(hub, site)
        status, a = site.lease()
        check("complete", status == 200 and a["code"] == "COMPLETE", a)
        done = run("status", path)
        check("status says so", "COMPLETE" in done.stdout and "100.0 %" in done.stdout, done.stdout)
    finally:
        hub.stop()
    audit = prove(path)
    check("every position merged once", audit["merged"] == audit["positions"] and audit["epochs_sealed"] == 1, audit)
    kept = sorted(int(n.split(".")[0]) for n in os.listdir(os.path.join(path, "versions")))
    check("retention", kept[0] == 0 and len(kept) == 3 and kept[-1] == audit["head"], kept)
    lines = run("journal", path).stdout.splitlines()
    kinds = [json.loads(line)["kind"] for line in lines]
    check("the journal as JSON", len(kinds) == audit["records"] and kinds[0] == "open" and kinds[-1] in ("seal", "term"), kinds[-3:])


def test_rollback():
    path = make_run("rollback", "--set", "hub.keep_checkpoints=10")
    hub = Hub(path)
    try:
        site = FakeSite(hub, "fake")
        site.join()
        for v in range(1, 4):
            site.hand_in()
            wait("a merge", lambda: hub.get("/v1/status")["head"] >= v)
        status, a = hub.request("POST", "/v1/operator/rollback", {"version": 1})
        check("rollback", status == 200 and hub.get("/v1/status")["head"] == 1, a)
        done = run("export", path, "--out", path + "-head")  # newer files are still there, and the hub runs
        check("the head is exported", "version 1," in done.stdout and "3.safetensors" in os.listdir(path + "/versions"),
              (done.stdout, done.stderr))
        site.join()
        status, a, _ = site.hand_in()
        wait("the branch", lambda: hub.get("/v1/status")["head"] >= 4)
        check("its parent", hub.get("/v1/versions/4")["parent"] == 1)
    finally:
        hub.stop()
    audit = prove(path)
    check("counted", audit["rollbacks"] == 1 and audit["merged"] == 16, audit)


def test_a_commit_cannot_remove_what_it_names():
    """A refused contribution's file goes; a file that was there before, whose hash anybody may name, stays."""
    path = make_run("names", "--set", "hub.keep_checkpoints=20")
    hub = Hub(path)
    try:
        site = FakeSite(hub, "fake")
        site.join()
        for v in range(1, 8):
            site.hand_in()
            wait("a merge", lambda: hub.get("/v1/status")["head"] >= v)
        status, a = site.lease()
        old = hub.get("/v1/versions/1")
        _, message = site.delta(site.leases.pop())
        message.update(blob=old["checkpoint"], bytes=os.path.getsize(os.path.join(path, "versions", "1.safetensors")))
        status, a = site.send("commit", **message)
        check("refused", status == 200 and a["outcome"] == "rejected", a)
        check("still there", hub.get("/v1/versions/1")["kept"] is True)
    finally:
        hub.stop()
    prove(path)


# ---- crashes ---------------------------------------------------------------------------------------------------------
def crash_at(point, passage):
    path = make_run(f"crash-{point}-{passage}")
    hub = Hub(path, {"BERINGIA_FAULT": f"{point}:{passage}"})
    site = FakeSite(hub, "fake")
    promised = []
    try:
        until = time.monotonic() + 30
        while hub.process.poll() is None and time.monotonic() < until:
            if site.inc == 0 and site.join()[0] != 200:
                continue
            try:  # reading what is not there any more is no failure here
                status, a = site.lease()
                if status != 200 or not a["granted"]:
                    time.sleep(0.02)
                    continue
                data, message = site.delta(site.leases.pop())
            except AssertionError:
                continue
            site.put(message["did"], data)
            status, a = site.send("commit", **message)
            if status == 200:
                promised.append((message["did"], a["outcome"]))
        check(f"{point} was reached", hub.process.wait(5) == -signal.SIGKILL, hub.process.returncode)
        hub = Hub(path)
        site.hub = hub
        for did, outcome in promised:
            status, a = site.send("outcome", did=did)
            check("what was promised is kept", a["outcome"] in ("staged", "merged"), (did, outcome, a))
        site.join()
        status, a, _ = site.hand_in()
        check("it goes on", status == 200 and a["outcome"] in ("staged", "merged"), a)
        head = hub.get("/v1/status")["head"]
        wait("another merge", lambda: hub.get("/v1/status")["head"] > head or hub.get("/v1/status")["staged_deltas"] == 0)
    finally:
        hub.kill()
    prove(path)


def test_kill_at_every_duty():
    for point, passage in [("hub.blob.synced", 2), ("hub.before_append", 5), ("hub.after_append", 5),
                           ("hub.before_append", 9), ("hub.after_append", 9), ("hub.after_checkpoint", 2),
                           ("hub.after_flip", 1), ("hub.before_publish", 2)]:
        crash_at(point, passage)


# ---- a full disk -----------------------------------------------------------------------------------------------------
class Skip(Exception):
    pass


def test_full_disk():
    small = os.path.join(SCRATCH, "small")
    os.makedirs(small)
    done = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=6m", "none", small], stderr=subprocess.PIPE, text=True,
                          check=False)
    if done.returncode != 0:
        raise Skip("a tmpfs cannot be mounted here: " + done.stderr.strip())
    hub = None
    try:
        path = make_run("run", where=small)
        hub = Hub(path)
        site = FakeSite(hub, "fake")
        site.join()
        site.hand_in()
        # A merge under way takes room and gives it back; the disk is filled when nothing moves.
        wait("the merge", lambda: hub.get("/v1/status")["head"] == 1)
        wait("its publication", lambda: os.path.exists(os.path.join(path, "versions", "1.safetensors")))
        site.lease()
        data, message = site.delta(site.leases.pop())
        ballast = os.path.join(small, "ballast")
        with open(ballast, "wb", buffering=0) as f:
            block = b"\xaa" * 4096
            try:
                while True:
                    f.write(block)
            except OSError:
                pass
        status, a = site.put(message["did"], data)
        check("an upload is refused", status == 507 and a["code"] == "RETRY", (status, a))
        refused = 0
        for _ in range(200):  # what room the log still has is used up by records
            status, a = site.join()
            if status == 507:
                refused += 1
                break
            check("join", status == 200, (status, a))
        check("a full journal refuses", refused == 1 and a["code"] == "RETRY" and a["retry_ms"] > 0, (status, a))
        s = hub.get("/v1/status")
        check("it says so and serves on", s["full"] is True and s["full_times"] >= 1, s)
        check("and raises an alarm", s["alarms"][0]["id"] == "disk_full" and s["alarms"][0]["remedy"], s["alarms"])
        status, body = hub.request("GET", f"/v1/versions/{s['head']}/checkpoint")
        check("downloads go on", status == 200 and len(body) > 0, status)
        os.unlink(ballast)
        wait("space to be noticed", lambda: hub.get("/v1/status")["full"] is False)
        check("join", site.join()[0] == 200)
        status, a, _ = site.hand_in()
        check("it goes on", status == 200 and a["outcome"] in ("staged", "merged"), a)
        hub.stop()
        hub = None
        audit = prove(path)
        check("positions", audit["merged"] + audit["staged"] > 0, audit)
    finally:
        if hub:
            hub.kill()
        subprocess.run(["umount", small], check=False)


def run_tests(module, prefix):
    """Each function test_NAME of `module` (its globals()), told as PREFIX_NAME; the environment's T chooses by a part of the name,
    and where it is in none of them (it then meant the file) all run. Returns the exit status."""
    failed, wanted = 0, os.environ.get("T", "")
    tests = {k: v for k, v in module.items() if k.startswith("test_")}
    if not any(wanted in k for k in tests):
        wanted = ""
    for name, body in tests.items():
        if wanted not in name:
            continue
        began, told = time.monotonic(), f"{prefix}_{name[5:]}"
        try:
            body()
            print(f"ok {told} ({1000 * (time.monotonic() - began):.0f} ms)", flush=True)
        except Skip as why:
            print(f"skip {told}: {why}", flush=True)
        except Exception as why:  # pylint: disable=broad-except
            failed += 1
            traceback.print_exc(limit=4)
            print(f"FAIL {told}: {why}", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    DATA = make_data()
    sys.exit(run_tests(globals(), "hub"))
