# SPDX-License-Identifier: Apache-2.0
"""What happens to a run whose sites take weights from an object store and bring them there. Each function is one story with real
processes and a real Swift; test/s3/run tells them. `figures` takes what was measured."""
import glob
import json
import os
import re
import socket
import subprocess
import threading
import time
import urllib.error
import urllib.request

import swift
from cluster import Cluster, Failure, pack_words, wait_for

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
PROGRAM = os.environ.get("BERINGIA") or os.path.join(ROOT, "build", "release", "beringia")
SCRATCH = os.environ.get("SCRATCH", "")
TOOLS = os.path.join(ROOT, "build", "tools")
figures = {}
store = None  # set by whoever runs these
made = [0]


def check(what, condition, detail=""):
    if not condition:
        raise Failure(f"{what}: {detail}")


class Meter:
    """An address in front of the hub that counts what passes, both ways."""

    def __init__(self):
        self.to, self.bytes, self.lock = None, 0, threading.Lock()
        self.listener = socket.create_server(("127.0.0.1", 0), backlog=128)
        self.url = f"http://127.0.0.1:{self.listener.getsockname()[1]}"
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self):
        while True:
            try:
                client, _ = self.listener.accept()
                server = socket.create_connection(self.to, timeout=5)
            except (OSError, TypeError):
                if self.listener.fileno() < 0:
                    return
                continue
            server.settimeout(None)
            for a, b in ((client, server), (server, client)):
                threading.Thread(target=self.carry, args=(a, b), daemon=True).start()

    def carry(self, a, b):
        try:
            while True:
                data = a.recv(65536)
                if not data:
                    break
                with self.lock:
                    self.bytes += len(data)
                b.sendall(data)
        except OSError:
            pass
        for s in (a, b):
            try:
                s.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass

    def close(self):
        self.listener.close()


class Run(Cluster):
    """A run with blobs.store; its sites speak to the hub through a meter."""

    def __init__(self, name, sites=("a", "b"), model="tiny", settings=None, secret=swift.SECRET, env=None):
        made[0] += 1
        out = os.path.join(SCRATCH, f"{name}-{made[0]}")
        os.makedirs(out)
        self.keys = os.path.join(out, "keys")
        self.write_keys(secret)
        data = pack_words(PROGRAM, os.path.join(SCRATCH, "data"))
        super().__init__(PROGRAM, out, data, {s: ["--batch", "4", "--threads", "1", "--timeout", "3s"] for s in sites}, env)
        for name_ in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE"):
            self.env.pop(name_, None)
        self.meter = Meter()
        wanted = {"outer.steps": 4, "lease.samples_min": 4, "lease.samples_max": 32, "lease.ttl": "6s", "lease.heartbeat": "1s",
                  "outer.grace": "500ms", "blobs.store": f"s3://{swift.BUCKET}/runs", "blobs.endpoint": store.endpoint,
                  "blobs.credentials": self.keys, "blobs.part": "64k", "blobs.price_writes": "0.005", **(settings or {})}
        self.init(model, wanted)

    def write_keys(self, secret):
        with open(self.keys + ".new", "w", encoding="utf-8", opener=lambda p, f: os.open(p, f, 0o600)) as f:
            f.write(f"[default]\naws_access_key_id = {swift.KEY}\naws_secret_access_key = {secret}\n")
        os.rename(self.keys + ".new", self.keys)

    def serve(self, env=None):
        self.start_hub(env)
        host, port = self.url.split("//")[1].split(":")
        self.meter.to = (host, int(port))

    def start_site(self, name, env=None):
        hub, self.url = self.url, self.meter.url
        try:
            super().start_site(name, env)
        finally:
            self.url = hub

    def said(self, who):
        path = os.path.join(self.out, f"{who}.log")
        if not os.path.exists(path):
            return ""
        with open(path, encoding="utf-8", errors="replace") as f:
            return f.read()

    def objects(self):
        s = self.status()
        return s["objects"] if s else {}

    def alarm(self, name="objects_down"):
        s = self.status()
        return next((a for a in s["alarms"] if a["id"] == name), None) if s else None

    def run_id(self):
        with open(os.path.join(self.run_dir, "run.json"), encoding="utf-8") as f:
            return json.load(f)["run"]

    def key(self, name):
        return f"runs/{self.run_id()}/{name}"

    def moved(self):
        """Bytes of weights that sites say they fetched and sent."""
        text = "".join(self.said(f"site-{s}") for s in self.site_words)
        return sum(int(n) for n in re.findall(r"ev=(?:down|up)loaded .*?bytes=(\d+)", text))

    def train_on(self, versions):
        head = self.status()["head"]

        def further():
            s = self.status()
            return s and (s["head"] >= head + versions or s["complete"])
        wait_for(f"{versions} more versions", further, 240, self.check_processes)

    def finish(self):
        """To the end; then the books, the bytes and every secret are looked at."""
        wait_for("the run to be complete", self.complete, 400, self.check_processes)
        self.wait_sites()
        status = self.status()
        self.stop_hub()
        books = self.audit(blobs=True)
        check("the audit is clean", books["good"], json.dumps(books)[:400])
        replayed = self.replay()
        check("every version is what its deltas give", replayed["equal"], replayed)
        self.look_for_secrets()
        return status

    def look_for_secrets(self):
        """Not the store's secret, and no URL with a signature, in anything that was written down."""
        for path in [*glob.glob(os.path.join(self.out, "*.log")), os.path.join(self.run_dir, "run.yaml"),
                     *glob.glob(os.path.join(self.run_dir, "*.json*"))]:
            with open(path, encoding="utf-8", errors="replace") as f:
                text = f.read()
            for word in (swift.SECRET, "X-Amz-Signature=", "Signature="):
                check(f"{word[:12]} is not in {path}", word not in text)

    def clean(self):
        super().clean()
        self.meter.close()


def model_file():
    """A model large enough that bytes of weights are what counts: 1.1 M parameters."""
    path = os.path.join(SCRATCH, "model.json")
    with open(os.path.join(ROOT, "share", "models", "tiny.json"), encoding="utf-8") as f:
        m = json.load(f)
    m.update(hidden_size=160, intermediate_size=480, num_hidden_layers=4, num_attention_heads=4, num_key_value_heads=2, head_dim=40)
    with open(path, "w", encoding="utf-8") as f:
        json.dump(m, f)
    return path


# ---- all goes well -----------------------------------------------------------------------------------------
def through(down="full"):
    """Weights go through the store, whole or in parts; over the hub's line goes control alone."""
    x = Run(f"through-{down}", model=model_file(), settings={"outer.steps": 10, "outer.down_codec": down, "outer.codec": "bf16",
                                                             "blobs.part": "1M", "hub.keep_checkpoints": 3, "hub.keep_every": 0})
    try:
        x.serve()
        for s in x.site_words:
            x.start_site(s)
        status = x.finish()
        moved, hub = x.moved(), x.meter.bytes
        o = status["objects"]
        check("no contribution went to the hub itself", status["uploads_bytes"] == 0, status["uploads_bytes"])
        check("the store was up all the time", o["times_down"] == 0 and o["failures"] == 0, o)
        check("requests were counted, and their price", o["writes"] > 0 and o["reads"] > 0 and abs(o["cost"] - o["writes"] * 5e-6) < 1e-9, o)
        check("the hub's own line carries at most 1 %", hub * 100 <= moved, (hub, moved))
        versions = [v for v in os.listdir(os.path.join(x.run_dir, "versions")) if v.endswith(".safetensors")]
        there = store.names(x.key(""))
        kept = [n for n in there if "/checkpoints/" in n]
        check("the store has what the ledger keeps, give or take the last version", len(kept) <= len(versions) + 1, (kept, versions))
        check("contributions are gone", not [n for n in there if "/contributions/" in n] or o["up"], there)
        figures[f"hub_share_{down}"] = f"{hub / moved:.5f}"
        figures[f"moved_mb_{down}"] = f"{moved / 1e6:.1f}"
        figures[f"requests_{down}"] = o["writes"] + o["reads"]
        figures[f"versions_{down}"] = status["head"]
    finally:
        x.clean()


# ---- the store goes and comes --------------------------------------------------------------------------------
def killed():
    """The store dies under the run: the hub serves the sites itself, says so, and goes on with the store when that is back."""
    x = Run("killed", settings={"run.epochs": 3})
    try:
        x.serve()
        for s in x.site_words:
            x.start_site(s)
        x.train_on(2)
        check("it is used", x.objects()["up"], x.objects())
        store.kill()
        try:
            wait_for("the alarm", x.alarm, 60, x.check_processes)
            x.train_on(2)
            check("contributions came to the hub", x.status()["uploads_bytes"] > 0, x.objects())
        finally:
            store.start()
        began = time.monotonic()
        wait_for("the store to be used again", lambda: x.objects().get("up") and not x.alarm(), 90, x.check_processes)
        figures["store_back_s"] = f"{time.monotonic() - began:.1f}"
        x.train_on(1)
        status = x.finish()
        check("it went once", status["objects"]["times_down"] >= 1, status["objects"])
    finally:
        x.clean()


def restarted_hub():
    """kill -9 of the hub: the next one finds in the store what is there, and puts nothing twice."""
    x = Run("hub-killed", settings={"run.epochs": 2})
    try:
        x.serve()
        for s in x.site_words:
            x.start_site(s)
        x.train_on(2)
        x.kill_hub()
        x.serve()
        wait_for("the store to be used", lambda: x.objects().get("up"), 30)
        x.train_on(2)
        x.finish()
    finally:
        x.clean()


# ---- credentials and clocks ------------------------------------------------------------------------------------
def wrong_secret():
    """The hub's secret is not the store's: an alarm says so, the run goes on through the hub; the file is mended, nothing restarted."""
    x = Run("secret", settings={"run.epochs": 2}, secret="not-the-secret")
    try:
        x.serve()
        for s in x.site_words:
            x.start_site(s)
        wait_for("the alarm", x.alarm, 30)
        a = x.alarm()
        check("it says what is wrong", "look at the credentials: the secret" in a["text"], a)
        x.train_on(1)
        x.write_keys(swift.SECRET)
        wait_for("the store to be used", lambda: x.objects().get("up") and not x.alarm(), 90, x.check_processes)
        x.train_on(1)
        x.finish()
        check("the wrong one is nowhere either", "not-the-secret" not in x.said("hub") and "not-the-secret" not in x.said("site-a"))
        figures["wrong_secret"] = "told"
    finally:
        x.clean()


def bent(x, offset):
    path = os.path.join(x.out, "clock")
    with open(path, "w", encoding="utf-8") as f:
        f.write(f"realtime {offset} 1\n")
    return {"LD_PRELOAD": os.path.join(TOOLS, "clock.so"), "BERINGIA_CLOCK": path}


def clock_off():
    """The hub's clock is wrong by an hour: the store refuses what it signs, an alarm says why, the run goes on through the hub."""
    x = Run("clock")
    try:
        x.serve(bent(x, 3600))
        for s in x.site_words:
            x.start_site(s)
        wait_for("the alarm", x.alarm, 30)
        check("it says what to do", "set the clock" in x.alarm()["text"], x.alarm())
        x.finish()
        figures["clock_off"] = "told"
    finally:
        x.clean()


def expired():
    """The hub's clock is slow by ten minutes, and its URLs are good for five: over before they are used. Sites say so, and take the
    hub's own line after a few tries."""
    x = Run("expired", settings={"blobs.expires": "300s"})
    try:
        x.serve(bent(x, -600))
        for s in x.site_words:
            x.start_site(s)
        wait_for("a site to say it", lambda: "URL's time is over" in x.said("site-a"), 120, x.check_processes)
        x.finish()
        figures["expired_url"] = "told"
    finally:
        x.clean()


# ---- what is in the store is not what was put there -----------------------------------------------------------
def truncated():
    """A checkpoint in the store is cut short: the site that fetches it says so, and has the hub put it there again."""
    x = Run("truncated", sites=("a",), settings={"run.epochs": 1})
    try:
        x.serve()
        first = lambda: [k for k in store.names(x.key("checkpoints/"))]  # noqa: E731
        wait_for("version 0 to be there", lambda: x.objects().get("objects", 0) >= 1 and first(), 60)
        name = first()[0]
        whole = store.get(name)
        store.put(name, whole[:len(whole) // 2])
        x.start_site("a")
        wait_for("the hub to hear of it", lambda: "ev=object_doubted" in x.said("hub"), 60, x.check_processes)
        wait_for("the site to have it", lambda: "ev=downloaded" in x.said("site-a"), 90, x.check_processes)
        check("the site says what was wrong", "is truncated there" in x.said("site-a"), x.said("site-a")[-500:])
        # Of the right length, with another byte in it: its hash tells.
        x.train_on(1)
        x.finish()
        figures["truncated"] = "mended"
    finally:
        x.clean()


def changed():
    """A checkpoint and a contribution in the store have the right length and another byte: both are found by their hash."""
    x = Run("changed", sites=("a",), settings={"run.epochs": 1})
    try:
        x.serve()
        wait_for("version 0 to be there", lambda: x.objects().get("objects", 0) >= 1 and store.names(x.key("checkpoints/")), 60)
        name = list(store.names(x.key("checkpoints/")))[0]
        whole = bytearray(store.get(name))
        sent = {"x-amz-meta-sha256": "0" * 64}
        whole[x.get("/v1/versions/0/theta")["offset"] + 5] ^= 1
        store.put(name, bytes(whole), sent)
        # It ends when its first contribution is in the store, and not told yet.
        x.start_site("a", {"BERINGIA_FAULT": "site.uploaded:1"})
        wait_for("the hub to hear of it", lambda: "ev=object_doubted" in x.said("hub"), 60)
        site = x.sites["a"]
        wait_for("the site to end at the named point", lambda: site.poll() is not None, 120)
        del x.sites["a"]
        there = store.names(x.key("contributions/"))
        check("one contribution is there", len(there) == 1, there)
        name = list(there)[0]
        body = bytearray(store.get(name))
        body[-1] ^= 1
        store.put(name, bytes(body))
        x.start_site("a")
        wait_for("the hub to find it", lambda: "ev=upload_corrupt" in x.said("hub"), 120, x.check_processes)
        x.train_on(1)
        x.finish()
        figures["changed"] = "mended"
    finally:
        x.clean()


# ---- other peers -------------------------------------------------------------------------------------------------
def fetched(url, headers=None):
    """(status, body) without following anything."""
    class Stay(urllib.request.HTTPRedirectHandler):
        def redirect_request(self, *_):
            return None
    try:
        with urllib.request.build_opener(Stay).open(urllib.request.Request(url, headers=headers or {}), timeout=30) as answer:
            return answer.status, answer.read()
    except urllib.error.HTTPError as e:
        return e.code, e.read()


def older_peers():
    """A site that knows no store asks as ever and is served by the hub; what curl sees; and a URL for one object is for no other."""
    x = Run("older", sites=())
    try:
        x.serve()
        wait_for("version 0 to be there", lambda: x.objects().get("objects", 0) >= 1, 60)
        status, body = fetched(x.url + "/v1/versions/0/checkpoint")
        check("without ?store=1 the hub serves", status == 200 and len(body) > 1000, status)
        status, told = fetched(x.url + "/v1/versions/0/checkpoint?store=1")
        check("with it, it sends to the store", status == 303, (status, told[:200]))
        g = json.loads(told)
        status, same = fetched(g["url"])
        check("there it is", status == 200 and same == body and g["bytes"] == len(body), status)
        status, part = fetched(g["url"], {"Range": "bytes=100-199"})
        check("in pieces too", status == 206 and part == body[100:200], status)
        other = re.sub(r"checkpoints/[0-9a-f]{8}", "checkpoints/00000000", g["url"])
        status, said = fetched(other)
        check("another object is refused", status == 403 and b"SignatureDoesNotMatch" in said, (status, said[:200]))
        put = urllib.request.Request(g["url"], b"x", method="PUT")
        try:
            urllib.request.urlopen(put, timeout=30)
            check("writing by it is refused", False)
        except urllib.error.HTTPError as e:
            check("writing by it is refused", e.code == 403, e.code)
        largest = 128 + 4 * x.status()["parameters"]
        status, said = fetched(x.url + "/v1/blobs/" + "0a" * 16)
        check("an upload without ?store=1 is the hub's", json.loads(said) == {"offset": 0}, said)
        status, said = fetched(x.url + "/v1/blobs/" + "0a" * 16 + f"?store=1&bytes={largest}")
        plan = json.loads(said)
        check("with it, in parts of blobs.part", plan["store"] and [p["bytes"] for p in plan["pieces"]] == [65536, largest - 65536], plan)
        status, said = fetched(x.url + "/v1/blobs/" + "0a" * 16 + "?store=1&bytes=99999999999")
        check("not more than any contribution", status == 413, status)
        status, said = fetched(x.url + "/v1/blobs/" + "0a" * 16 + "?store=1")
        check("its length is wanted", status == 400 and b"bytes=N" in said, said)
        x.stop_hub()
        done = subprocess.run([PROGRAM, "status", x.run_dir], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
        check("the signature is in no answer of status", "X-Amz" not in done.stdout, done.stdout[-300:])
        figures["older_peers"] = "served"
    finally:
        x.clean()
