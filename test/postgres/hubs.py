# SPDX-License-Identifier: Apache-2.0
"""A run whose journal is on a server, its hubs (one active, others standing by), and an address in front of them that
sites keep while hubs come and go: what a name or a proxy is in real life."""
import json
import os
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path.insert(0, os.path.join(ROOT, "scripts", "lib"))
from cluster import Cluster, Failure, wait_for  # noqa: E402


LONG = 300  # seconds: only what hangs takes so long


def check(what, condition, detail=""):
    if not condition:
        raise Failure(f"{what}: {detail}")


class Front:
    """Carries connections to whichever hub `to` (host, port) names when they begin; cut() ends those that are open."""

    def __init__(self):
        self.to, self.open = None, []
        self.listener = socket.create_server(("127.0.0.1", 0), backlog=128)
        self.url = f"http://127.0.0.1:{self.listener.getsockname()[1]}"
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self):
        while True:
            try:
                client, _ = self.listener.accept()
            except OSError:
                return
            try:
                server = socket.create_connection(self.to, timeout=5)
                server.settimeout(None)
            except (OSError, TypeError):
                client.close()
                continue
            self.open += [client, server]
            for a, b in ((client, server), (server, client)):
                threading.Thread(target=self.carry, args=(a, b), daemon=True).start()

    @staticmethod
    def carry(a, b):
        try:
            while True:
                data = a.recv(65536)
                if not data:
                    break
                b.sendall(data)
        except OSError:
            pass
        for s in (a, b):
            try:
                s.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass

    def switch(self, url):
        host, port = url.rsplit("/", 1)[-1].split(":")
        self.to = (host, int(port))
        self.cut()

    def cut(self):
        for s in self.open:
            try:
                s.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass
        self.open = []

    def close(self):
        self.listener.close()
        self.cut()


class Hub:
    """One process; `url` once it says that it listens."""

    def __init__(self, run, log, standby=False, env=None):
        self.log = log
        with open(log, "ab") as out:
            self.at = out.tell()
            self.process = subprocess.Popen(
                [run.program, "hub", run.run_dir, "--listen", "127.0.0.1:0", *(["--standby"] if standby else [])],
                stdin=subprocess.DEVNULL, stdout=out, stderr=out, env=dict(run.env, **(env or {})))

    def said(self):
        with open(self.log, encoding="utf-8", errors="replace") as f:
            f.seek(self.at)
            return f.read()

    def url(self):
        for line in self.said().splitlines():
            if line.startswith("listening on "):
                return line.split()[-1]
        return None

    def follows(self):
        return "ev=standby " in self.said()

    def status(self):
        url = self.url()
        try:
            with urllib.request.urlopen(url + "/v1/status", timeout=5) as answer:
                return json.load(answer)
        except (urllib.error.URLError, OSError, ValueError, TypeError):
            return None

    def alive(self):
        return self.process.poll() is None

    def end(self):
        if self.alive():
            self.process.kill()
        self.process.wait()


class Run(Cluster):
    """A Cluster (scripts/lib) whose journal is on `server`, and whose sites speak to the front."""

    def __init__(self, program, out, data, server, schema, sites=("a", "b"), settings=None):
        os.makedirs(out, exist_ok=True)
        super().__init__(program, out, data, {s: ["--batch", "4", "--threads", "1", "--timeout", "3s"] for s in sites})
        self.server, self.schema = server, schema
        self.front = Front()
        self.hubs = []
        wanted = {"outer.steps": 4, "lease.samples_min": 4, "lease.samples_max": 16, "lease.ttl": "6s", "lease.heartbeat": "300ms",
                  "outer.grace": "500ms", "run.epochs": 1, "hub.snapshot_every": 50, **(settings or {})}
        sets = [w for k, v in wanted.items() for w in ("--set", f"{k}={v}")]
        store = ["--store", server.url(schema)] if server else []
        self.call("init", self.run_dir, "--model", "tiny", "--data", data, "--seed", 7, *store, *sets)

    def add_hub(self, standby=False, env=None):
        hub = Hub(self, os.path.join(self.out, f"hub-{len(self.hubs)}.log"), standby, env)
        self.hubs.append(hub)
        return hub

    def serve(self, hub, seconds=LONG):
        """Waits until it answers; sites are led to it from then on."""
        def up():
            check("the hub lives", hub.alive(), f"it ended with {hub.process.returncode}: {hub.said()[-300:]}")
            return hub.url() and hub.status()
        wait_for("the hub to answer", up, seconds)
        self.front.switch(hub.url())
        self.hub, self.url = hub.process, self.front.url
        return hub

    def train_on(self, versions, seconds=LONG):
        """Until so many more versions are there."""
        first = wait_for_status(self)["head"]
        wait_for(f"{versions} more versions", lambda: (self.status() or {"head": 0})["head"] >= first + versions, seconds,
                 each=self.check_processes)

    def finish(self, seconds=2 * LONG):
        wait_for("the run to be complete", self.complete, seconds, each=self.check_processes)
        self.wait_sites()
        self.stop_hub()
        self.prove()

    def prove(self):
        a = self.audit(blobs=True)
        check("the audit is good", a["good"] and a["doubled"] == 0 and a["lost"] == 0, a)
        check("every position is merged once", a["merged"] == a["positions"] == a["counted"], a)
        check("the replay gives the same", self.replay()["equal"], "theta differs")

    def clean(self):
        for hub in self.hubs:
            hub.end()
        super().clean()
        self.front.close()


def wait_for_status(run):
    wait_for("a status", lambda: run.status() is not None, LONG)
    return run.last_status


def taken_over(hub, seconds=LONG):
    """Seconds until it answers."""
    began = time.monotonic()
    wait_for("the standby to serve", lambda: hub.url() and hub.status(), seconds, pause=0.01)
    return time.monotonic() - began
