# SPDX-License-Identifier: Apache-2.0
"""A hub with a certificate and tokens, whoever attacks it, and a site that trains meanwhile: for test/e2e/security.py
(a few seconds, in `make test`) and test/security/run (`make test-security`). Standard library only."""
import hashlib
import http.client
import json
import os
import random
import re
import signal
import socket
import ssl
import struct
import subprocess
import time

ROOT = os.environ.get("ROOT") or os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
PROGRAM = os.environ.get("BERINGIA") or os.path.join(ROOT, "build", "release", "beringia")
MODEL = os.path.join(ROOT, "share", "models", "tiny.json")
HEADER = struct.Struct("<8sIIQQQQ16s32s32x")
LEEWAY = 20  # seconds on top of every limit that is waited for: a busy machine


class Failure(Exception):
    """One sentence."""


def want(condition, text):
    if not condition:
        raise Failure(text)


def wait_for(what, condition, seconds=60):
    until = time.monotonic() + seconds
    while True:
        value = condition()
        if value:
            return value
        want(time.monotonic() < until, f"waited {seconds} s for {what}")
        time.sleep(0.02)


def call(*words, ok=(0,), env=None):
    done = subprocess.run([PROGRAM, *map(str, words)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                          env={**os.environ, **(env or {})}, timeout=120)
    want(done.returncode in ok, f"beringia {' '.join(map(str, words))}: {done.returncode}: {done.stdout}{done.stderr}")
    return done


def make_data(scratch):
    path = os.path.join(scratch, "data")
    rng = random.Random(1)
    words = "the a of and site hub trains samples once every position merges weights round lease delta base".split()
    with open(path + ".txt", "w", encoding="utf-8") as f:
        for _ in range(40):
            f.write(" ".join(rng.choice(words) for _ in range(400)) + "\n\f\n")
    call("pack", "--out", path, "--seq-len", "64", path + ".txt")
    return path


class World:
    """RUN with a certificate and tokens: who -> file and text of the token."""

    def __init__(self, scratch, name="run", **settings):
        self.scratch, self.run = scratch, os.path.join(scratch, name)
        self.data = os.path.join(scratch, "data")
        if not os.path.exists(self.data):
            make_data(scratch)
        sets = {"run.epochs": 1000, "lease.ttl": "60s", "lease.heartbeat": "500ms", "outer.steps": 10,
                "outer.grace": "2s", "lease.samples_min": 8, "lease.samples_max": 64, "hub.patience": "2s", **settings}
        call("init", self.run, "--model", MODEL, "--data", self.data, "--seed", 1,
             *[w for k, v in sets.items() for w in ("--set", f"{k}={v}")])
        self.tokens, self.files, self.ids = {"nobody": None}, {}, {}
        self.ca = os.path.join(self.run, "tls", "ca.pem")
        self.hub = self.site = None
        self.url = self.port = None

    def certificate(self, *names):
        call("tls", self.run, "create", *[w for n in names or ("hub.test",) for w in ("--name", n)])

    def token(self, who, scope, name=None, *words):
        path = os.path.join(self.scratch, os.path.basename(self.run) + "-" + who + ".token")
        said = call("token", self.run, "create", "--scope", scope, "--out", path,
                    *(["--name", name] if name else []), *words).stdout
        self.take(who, path)
        self.ids[who] = re.match(r"token ([0-9a-f]{8}),", said).group(1)
        return path

    def take(self, who, path):
        want(os.stat(path).st_mode & 0o777 == 0o600, f"{path} has mode {os.stat(path).st_mode & 0o777:o}")
        with open(path, encoding="ascii") as f:
            self.tokens[who] = f.read().strip()
        self.files[who] = path

    # ---- processes ---------------------------------------------------------------------------------
    def start(self, listen="127.0.0.1:0", ok=True):
        with open(self.run + ".log", "ab") as log:
            self.hub = subprocess.Popen([PROGRAM, "hub", self.run, "--listen", listen], stdout=subprocess.PIPE, stderr=log)
        line = self.hub.stdout.readline().decode()
        if not ok:
            return self.hub.wait(30), self.log()
        want(line.startswith("listening on "), f"the hub does not start: {self.log()[-600:]}")
        self.url = line.split()[-1]
        self.port = int(self.url.rsplit(":", 1)[1])
        return None

    def log(self):
        with open(self.run + ".log", encoding="utf-8", errors="replace") as f:
            return f.read()

    def start_site(self, who="honest", name="honest", *words):
        self.site_log = os.path.join(self.scratch, f"{os.path.basename(self.run)}-{name}.log")
        with open(self.site_log, "ab") as log:
            self.site = subprocess.Popen(
                [PROGRAM, "site", "--hub", self.url, "--ca", self.ca, "--token", self.files[who], "--name", name,
                 "--data", self.data, "--state", os.path.join(self.scratch, f"state-{os.path.basename(self.run)}-{name}"),
                 "--batch", "8", "--threads", "1", "--checkpoint-every", "1s", "--timeout", "10s", *map(str, words)],
                stdout=log, stderr=log)

    def site_says(self):
        with open(self.site_log, encoding="utf-8", errors="replace") as f:
            return f.read()

    def stop_site(self):
        self.site.send_signal(signal.SIGTERM)
        code = self.site.wait(90)
        self.site = None
        return code

    def stop(self):
        self.hub.send_signal(signal.SIGTERM)
        code = self.hub.wait(60)
        self.hub = None
        want(code == 0, f"the hub ended with {code}: {self.log()[-600:]}")

    def clean(self):
        for p in (self.site, self.hub):
            if p is not None and p.poll() is None:
                p.kill()
                p.wait()

    def memory(self):
        """Resident MiB now and at most."""
        with open(f"/proc/{self.hub.pid}/status", encoding="ascii") as f:
            text = f.read()
        return [int(re.search(rf"{k}:\s+(\d+) kB", text).group(1)) / 1024 for k in ("VmRSS", "VmHWM")]

    def peak_from_now(self):
        """memory() gives the most since this call, where we may say so (root)."""
        try:
            with open(f"/proc/{self.hub.pid}/clear_refs", "w", encoding="ascii") as f:
                f.write("5")
        except OSError:
            pass

    def files_open(self):
        return len(os.listdir(f"/proc/{self.hub.pid}/fd"))

    # ---- talking -----------------------------------------------------------------------------------
    def context(self):
        c = ssl.create_default_context(cafile=self.ca)
        return c

    def raw(self, source=None, tls=True, timeout=30):
        s = socket.create_connection(("127.0.0.1", self.port), timeout=timeout,
                                     source_address=(source, 0) if source else None)
        return self.context().wrap_socket(s, server_hostname="127.0.0.1") if tls else s

    def ask(self, method, path, body=None, who="nobody", token=None, headers=None, source=None):
        """(status, answer); status 0 where the connection was cut."""
        if isinstance(body, dict):
            body = json.dumps(body).encode()
        head = {"Content-Type": "application/json", **(headers or {})}
        token = token or self.tokens[who]
        if token:
            head["Authorization"] = "Bearer " + token
        c = http.client.HTTPSConnection("127.0.0.1", self.port, timeout=30, context=self.context(),
                                        source_address=(source, 0) if source else None)
        try:
            c.request(method, path, body=body, headers=head)
            r = c.getresponse()
            data = r.read()
            kind = r.headers.get("Content-Type", "")
            return r.status, json.loads(data) if "json" in kind else data
        except (OSError, http.client.HTTPException):
            return 0, None
        finally:
            c.close()

    def send(self, text, seconds=30, source=None):
        """Raw bytes as a request; the first line of what comes, "" where the connection is cut."""
        s = self.raw(source)
        s.settimeout(seconds)
        try:
            s.sendall(text)
            return s.recv(200).split(b"\r\n")[0].decode("latin-1")
        except (ConnectionError, ssl.SSLError):
            return ""
        finally:
            s.close()

    def bearer(self, who):
        return f"Authorization: Bearer {self.tokens[who]}\r\n".encode()

    def status(self):
        code, s = self.ask("GET", "/v1/status", who="viewer")
        want(code == 200, f"status: {code} {s}")
        return s


class Member:
    """Says what a site says, with somebody's token."""

    def __init__(self, world, who, name):
        self.w, self.who, self.name, self.req, self.inc = world, who, name, 0, 0
        code, self.run = world.ask("GET", "/v1/run", who=who)
        want(code == 200, f"{who}: run: {code} {self.run}")

    def send(self, kind, **fields):
        self.req += 1
        body = {"site": self.name, "run": self.run["run"], "inc": self.inc, "req": self.req, **fields}
        return self.w.ask("POST", f"/v1/{kind}", body, who=self.who)

    def join_fields(self, boot=None):
        return {"boot": boot or os.urandom(16).hex(), "protocol": 1, "fingerprint": self.run["fingerprint"],
                "tensors": self.run["tensors"], "version_seen": 0, "term_seen": 0,
                "tokens_per_sample": self.run["seq_len"], "resume": []}

    def join(self, boot=None):
        self.inc = 0
        code, a = self.send("join", **self.join_fields(boot))
        if code == 200:
            self.inc = a["inc"]
        return code, a

    def lease(self, want_samples=8):
        code, about = self.w.ask("GET", "/v1/run", who=self.who)
        code, a = self.send("lease", want=want_samples, base=about["head"])
        want(code == 200 and a["granted"], f"{self.name}: no lease: {code} {a}")
        self.run = about
        return a["lease"]

    def delta(self, lease, salt=0):
        did = hashlib.sha256(f"{self.name} {self.inc} {self.req} {salt} {os.getpid()}".encode()).digest()[:16]
        n, tokens = self.run["parameters"], lease["count"] * self.run["seq_len"]
        code, about = self.w.ask("GET", "/v1/run", who=self.who)
        data = HEADER.pack(b"BRGDELT1", 1, 0, n, about["head"], tokens, 2, did,
                           bytes.fromhex(about["theta"])) + struct.pack("<f", 1e-7) * n
        return data, {"did": did.hex(), "base": about["head"], "tokens": tokens, "steps": 2, "lr_sum": 6e-4, "loss": 5.0,
                      "elements": n, "bytes": len(data), "codec": 1, "blob": hashlib.sha256(data).hexdigest(),
                      "keep_rest": False, "skips": [],
                      "parts": [{"tok": lease["tok"], "nonce": lease["nonce"], "done": lease["count"]}]}

    def put(self, did, data, offset=0):
        return self.w.ask("PUT", f"/v1/blobs/{did}?offset={offset}", data, who=self.who)


def secrets_nowhere(w):
    """Nothing that is written or shown has a token in it: logs, the run directory, argument lists."""
    secrets = {who: t[13:] for who, t in w.tokens.items() if t}
    places = [w.run + ".log"] + [os.path.join(d, f) for d, _, fs in os.walk(w.run) for f in fs if f != "hub.token"]
    for state, _, fs in os.walk(w.scratch):
        if "state-" in state:
            places += [os.path.join(state, f) for f in fs]
    if w.site is not None:
        places += [f"/proc/{w.site.pid}/cmdline", w.site_log]
    places.append(f"/proc/{w.hub.pid}/cmdline")
    looked = 0
    for path in places:
        try:
            with open(path, "rb") as f:
                text = f.read()
        except OSError:
            continue  # a file of the hub that was there a moment ago
        looked += 1
        for who, secret in secrets.items():
            want(secret.encode() not in text, f"the token of {who} stands in {path}")
    return looked
