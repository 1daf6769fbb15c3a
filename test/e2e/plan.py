#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# timeout: 240
"""`beringia plan` on a live run. What goes wrong: a plan orders what it ordered a moment ago; it believes a scheduler that is always
wrong; it orders what a site refuses, no longer offers, or cannot pay; it acts without being told to; a status that is none. What must
hold: without --issue nothing is ordered; each decision has its reason; budgets are kept; two agents with a plan beside the hub, and nobody
else, bring a run to its end, with successors that take over from jobs that still train."""
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
import http.server
import urllib.request

ROOT = os.environ.get("ROOT") or os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path.insert(0, os.path.join(ROOT, "scripts", "lib"))
from cluster import Cluster, Failure, pack_words, wait_for  # noqa: E402
from scenarios import run_scenarios  # noqa: E402

PROGRAM = os.environ.get("BERINGIA") or os.path.join(ROOT, "build", "release", "beringia")
SCRATCH = os.environ.get("SCRATCH") or "/tmp/beringia-plan-e2e"
MODEL = os.path.join(ROOT, "share", "models", "tiny.json")
FAST = {"lease.ttl": "4s", "lease.heartbeat": "500ms", "outer.steps": 10, "outer.grace": "2s",
        "lease.samples_min": 16, "lease.samples_max": 128}


def check(what, good):
    if not good:
        raise Failure(what)


def begin(name, settings=None):
    out = os.path.join(SCRATCH, name)
    shutil.rmtree(out, ignore_errors=True)
    os.makedirs(out)
    c = Cluster(PROGRAM, out, pack_words(PROGRAM, os.path.join(SCRATCH, "data")), {})
    c.init(MODEL, {**FAST, **(settings or {})}, seed=1)
    c.start_hub()
    return c


class Reporter:
    """What an agent would report, word by word."""

    def __init__(self, c, site):
        self.c, self.site, self.n = c, site, 0
        self.run = c.get("/v1/run")["run"]

    def report(self, *items):
        for i in items:
            self.n += 1
            i["n"] = self.n
            i.setdefault("at", int(time.time()))
        for k in range(0, max(1, len(items)), 32):
            body = json.dumps({"site": self.site, "run": self.run, "items": items[k:k + 32]}).encode()
            request = urllib.request.Request(self.c.url + "/v1/agent", data=body, headers={"Content-Type": "application/json"})
            with urllib.request.urlopen(request, timeout=10) as answer:
                check("the report is taken", json.load(answer)["code"] == "OK")

    @staticmethod
    def shape(name, nodes, hours, **more):
        return {"kind": "shape", "shape": name, "nodes": nodes, "seconds": int(hours * 3600), "gpus": 4, **more}

    @staticmethod
    def probe(name, wait_s, word="fine", why=""):
        start = int(time.time() + wait_s) if word == "fine" else 0
        return {"kind": "probe", "shape": name, "word": word, "start": start, "why": why}

    @staticmethod
    def budget(node_hours, jobs=2):
        return {"kind": "budget", "seconds": int(node_hours * 3600), "nodes": jobs}

    @staticmethod
    def job(order, shape, nodes, hours, word, **times):
        return {"kind": "job", "shape": shape, "order": order, "job": 1, "id": 100 + order, "word": word, "nodes": nodes,
                "seconds": int(hours * 3600), **times}


def plan(c, *words, ok=(0,)):
    return json.loads(c.call("plan", c.run_dir, "--json", *words, ok=ok))


def actions(p, site):
    return [(a["do"], a.get("shape")) for a in p["actions"] if a["site"] == site]


def site_of(p, name):
    return next(s for s in p["sites"] if s["name"] == name)


def shape_of(p, site, shape):
    return next(s for s in site_of(p, site)["shapes"] if s["shape"] == shape)


def orders(c):
    return c.get("/v1/status")["orders"]


def plan_told_and_issued():
    """Without --issue only words; with it one order, and not the same again; what is refused or gone is left alone."""
    c = begin("told")
    try:
        p = plan(c)
        check(f"no facility yet: {p}", "no facility" in p["idle"])
        a, b = Reporter(c, "alder"), Reporter(c, "birch")
        a.report(a.shape("small", 1, 1), a.shape("large", 4, 12), a.probe("small", 60), a.probe("large", 60), a.budget(500))
        b.report(b.shape("solo", 1, 2), b.probe("solo", 0, "never", "Invalid partition name specified"), b.budget(10))
        p = plan(c)
        check(f"a job at alder: {p['actions']}", [x[0] for x in actions(p, "alder")] == ["submit"])
        check(f"nothing at birch: {p['actions']}", actions(p, "birch") == [])
        why = next(x["why"] for x in p["actions"])
        check(f"words and figures: {why}", "the target comes in" in why and "80 %" in why and "tokens/s" in why)
        check(f"why not birch: {shape_of(p, 'birch', 'solo')}", "Invalid partition" in shape_of(p, "birch", "solo")["why"])
        check("nothing was ordered", orders(c) == [] and not p["actions"][0]["sent"])
        text = c.call("plan", c.run_dir)
        for word in ("the target comes in", "=> submit", "=> nothing: no shape can be ordered", "node-hours are free", "a guess"):
            check(f"'{word}' in:\n{text}", word in text)
        p = plan(c, "--issue")
        check(f"sent: {p['actions']}", p["actions"][0]["sent"] and p["actions"][0]["order"] == 1)
        check(f"{orders(c)}", len(orders(c)) == 1 and orders(c)[0]["open"])
        first = orders(c)[0]["shape"]
        for _ in range(3):  # V2: it stands in the plan as a job
            p = plan(c, "--issue")
            check(f"the same again: {p['actions']}", ("submit", first) not in actions(p, "alder"))
        waiting = [j for j in site_of(p, "alder")["jobs"] if not j["running"]]
        check(f"it waits in the plan: {site_of(p, 'alder')}", any(j["order"] == 1 for j in waiting))
        # The agent refuses it: the shape is left alone until the file is read again.
        a.report({"kind": "order", "order": 1, "shape": first, "word": "refused", "why": "Invalid account"},
                 *[{"kind": "order", "order": o["id"], "shape": o["shape"], "word": "cancelled"} for o in orders(c)[1:]])
        p = plan(c)
        check(f"refused: {shape_of(p, 'alder', first)}", "Invalid account" in shape_of(p, "alder", first)["why"])
        check("not again", ("submit", first) not in actions(p, "alder"))
        a.report(a.shape("small", 1, 1, at=int(time.time()) + 5), a.probe("small", 60))
        p = plan(c)
        check(f"large is gone: {shape_of(p, 'alder', 'large')}", "no longer" in shape_of(p, "alder", "large")["why"])
        check(f"small is back: {shape_of(p, 'alder', 'small')}", shape_of(p, "alder", "small")["offered"])
        a.report(a.budget(0.5))
        p = plan(c)
        check(f"half a node-hour pays for no hour: {p['actions']}", actions(p, "alder") == [])
        check(f"{site_of(p, 'alder')['nothing']}", "no further job fits" in site_of(p, "alder")["nothing"])
    finally:
        c.clean()


def plan_learns():
    """A scheduler that always says ten hours where five minutes come: after a dozen jobs the plan knows. What runs and what waits stands
    in the plan; a job that was cancelled while it waited counts as longer than that. A hub that starts again knows the same."""
    c = begin("learns")
    try:
        a, now = Reporter(c, "alder"), int(time.time())
        a.report(a.shape("small", 2, 1, at=now - 90000), a.budget(400, 3))
        for i in range(1, 13):
            at = now - 80000 + i * 3000
            a.report({"kind": "probe", "shape": "small", "word": "fine", "at": at - 60, "start": at + 36000})
            a.report(a.job(i, "small", 2, 1, "pending", submit=at))
            a.report(a.job(i, "small", 2, 1, "done", submit=at, start=at + 280 + 10 * (i % 5), end=at + 2000))
        a.report(a.job(13, "small", 2, 1, "pending", submit=now - 6000),
                 a.job(13, "small", 2, 1, "cancelled", submit=now - 6000, end=now - 5900))
        a.report(a.job(14, "small", 2, 1, "running", submit=now - 4000, start=now - 1200), a.probe("small", 36000))
        jobs = {j["order"]: j for j in c.get("/v1/status")["facilities"][0]["jobs"]}
        check(f"the estimate stays with the job: {jobs[3]}", jobs[3]["estimate"] - jobs[3]["submit"] == 36000 and
              jobs[3]["estimate_class"] == "fine")
        p = plan(c)
        s = shape_of(p, "alder", "small")
        check(f"learned from 14: {site_of(p, 'alder')}", site_of(p, "alder")["outcomes"] >= 13)
        check(f"minutes, not ten hours: {s}", s["estimate_s"] > 30000 and s["wait_s"]["p50"] < 3000)
        running = [j for j in site_of(p, "alder")["jobs"] if j["running"]]
        check(f"one runs: {site_of(p, 'alder')['jobs']}", [j["order"] for j in running] == [14])
        if os.environ.get("KEEP_STATUS"):
            with open(os.environ["KEEP_STATUS"], "w", encoding="utf-8") as f:
                json.dump(c.get("/v1/status"), f, indent=1)
        c.kill_hub()
        c.start_hub()
        again = plan(c)
        check("it is silent since the hub started: no orders", actions(again, "alder") == [] and
              "since the hub started" in shape_of(again, "alder", "small")["why"])
        a.report(a.budget(400, 3))
        again = plan(c)
        check("the same waits", abs(shape_of(again, "alder", "small")["wait_s"]["p50"] / s["wait_s"]["p50"] - 1) < 0.05)
    finally:
        c.clean()


class NoHub(http.server.BaseHTTPRequestHandler):
    body = b""

    def log_message(self, *words):
        pass

    def do_GET(self):
        self.send_response(200)
        self.send_header("Content-Length", str(len(NoHub.body)))
        self.end_headers()
        self.wfile.write(NoHub.body)


def said(*words):
    done = subprocess.run([PROGRAM, "plan", *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=60, check=False)
    return done.returncode, done.stderr.strip()


def plan_bad_input():
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), NoHub)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    url = f"http://127.0.0.1:{server.server_address[1]}"
    good = {"run": "0" * 32, "tokens": 1, "tokens_total": 9, "complete": False, "draining": False, "facilities": []}
    cases = [(b"", 13, "JSON"), (b"[]", 13, "object"), (b"{}", 13, "status.tokens"),
             (json.dumps({**good, "facilities": 7}).encode(), 13, "facilities"),
             (json.dumps({**good, "facilities": [{"name": "../x"}]}).encode(), 13, "name"),
             (json.dumps({**good, "facilities": [{"name": f"s{i}"} for i in range(17)]}).encode(), 20, "16"),
             (json.dumps({**good, "facilities": [{"name": "a", "shapes": [{"shape": "s", "nodes": 0, "seconds": 1}]}]}).encode(), 13, "shape")]
    try:
        for body, status, word in cases:
            NoHub.body = body
            got, text = said(url)
            check(f"{body[:60]}: {got} {text}", got == status and word in text and len(text.splitlines()) == 1)
        NoHub.body = json.dumps(good).encode()
        check("an empty run is fine", said(url)[0] == 0)
        for words, status in ((["--every", "0s", url], 2), (["--speed", "a=1", url], 2), (["--waiting", "9", url], 2), ([], 2),
                              (["--frobnicate", url], 2), ([os.path.join(SCRATCH, "nowhere")], 4), (["http://127.0.0.1:9"], 14)):
            got, text = said(*words)
            check(f"{words}: {got} {text}", got == status and len(text.splitlines()) == 1)
    finally:
        server.shutdown()


class Agent:
    """A facility with the local scheduler: two jobs at a time, so that a successor starts beside its predecessor."""

    def __init__(self, c, name, share, seconds):
        self.home, self.name = os.path.join(c.out, name), name
        os.makedirs(self.home)
        with open(os.path.join(self.home, "site.yaml"), "w", encoding="utf-8") as f:
            f.write(f"site: {{name: {name}, hub: \"{c.url}\", state: state, scheduler: local}}\n"
                    "job: {script: job.sh, drain: 4s}\nlocal: {nodes: 2}\n"
                    "etiquette: {probe: 1s, look: 1s, hub: 300ms, settle: 3s, commands_per_hour: 100000}\n"
                    f"budget: {{node_hours: 2, jobs: 2}}\nshape_small: {{time: {seconds}s}}\n")
        with open(os.path.join(self.home, "job.sh"), "w", encoding="utf-8") as f:
            f.write("#!/bin/sh\n"
                    f'exec {PROGRAM} site --hub "$BERINGIA_HUB" --name "$BERINGIA_SITE" --data {c.data} --state {self.home}/train '
                    f"--batch 8 --threads 1 --checkpoint-every 500ms --timeout 10s --grace 10s --take-over 60s --throttle $(cat {share})\n")
        os.chmod(os.path.join(self.home, "job.sh"), 0o755)
        with open(os.path.join(self.home, "agent.log"), "ab") as log:
            self.process = subprocess.Popen([PROGRAM, "agent", "--site", os.path.join(self.home, "site.yaml")], stdout=log, stderr=log)

    def stop(self):
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            check(f"agent {self.name} ended badly", self.process.wait(timeout=60) == 0)

    def submitted(self):
        where = os.path.join(self.home, "state", "local")
        return sorted(f[:-4] for f in os.listdir(where) if f.endswith(".job")) if os.path.exists(where) else []


def plan_drives_a_run():
    """Nobody orders anything but the plan. Jobs are shorter than the run, so each site needs a chain of them."""
    c = begin("drives")
    agents, planner, share = [], None, os.path.join(c.out, "share")

    def pace(part):  # read by each job as it starts: the run crawls until every site has had a successor
        with open(share + ".new", "w", encoding="ascii") as f:
            f.write(f"{part}\n")
        os.rename(share + ".new", share)

    try:
        pace(0.02)
        agents = [Agent(c, n, share, 15) for n in ("alder", "birch")]
        with open(os.path.join(c.out, "plan.log"), "ab") as log:
            planner = subprocess.Popen([PROGRAM, "plan", c.run_dir, "--issue", "--every", "1s", "--join", "1s"], stdout=log, stderr=log)
        wait_for("a successor at each site", lambda: sum(s["inc"] >= 2 for s in c.get("/v1/status")["sites"]) == 2, 120)
        check("the run is under way: it crawls too fast", not c.complete())
        pace(1)
        wait_for("the run to be complete", c.complete, 150)
        check("the plan ends with the run", planner.wait(timeout=60) == 0)
        wait_for("all orders to be over", lambda: all(not o["open"] for o in orders(c)), 60)
        for a in agents:
            a.stop()
            names = [n.rsplit("-a", 1)[0] for n in a.submitted()]
            check(f"{a.name}: once each: {names}", len(names) == len(set(names)))
        total = sum(len(a.submitted()) for a in agents)
        check(f"chains of jobs: {total}", total >= 4)
        check(f"no more jobs than a plan has use for: {total}", total <= 40)
        ends = [j for f in c.get("/v1/status")["facilities"] for j in f["jobs"]]
        check(f"none failed: {ends}", all(j["state"] in ("done", "cancelled") for j in ends))
        with open(os.path.join(c.out, "plan.log"), encoding="utf-8") as f:
            text = f.read()
        check("the orders are explained", text.count("is given") >= 3 and "heartbeat" in text and "runs since" in text)
        a = c.audit()
        check(f"the audit: {a}", a["findings"] == 0 and a["lost"] == 0 and a["doubled"] == 0)
    finally:
        if planner is not None and planner.poll() is None:
            planner.kill()
            planner.wait()
        for a in agents:
            if a.process.poll() is None:
                a.process.kill()
                a.process.wait()
        c.clean()


def plan_take_over():
    """A newer job of a site asks the older one to hand in and leave, and goes on with its state. Without the option: status 7."""
    c = begin("takeover")
    words = [PROGRAM, "site", "--hub", c.url, "--name", "alder", "--data", c.data, "--state", os.path.join(c.out, "train"), "--batch", "8",
             "--threads", "1", "--timeout", "10s", "--throttle", "0.3"]
    older = newer = None
    try:
        with open(os.path.join(c.out, "older.log"), "ab") as log:
            older = subprocess.Popen(words, stdout=log, stderr=log)
        wait_for("the older job to train", lambda: c.merged_share() > 0, 60)
        twin = subprocess.run(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=60, check=False)
        check(f"a twin without the option: {twin.returncode}", twin.returncode == 7 and older.poll() is None)
        with open(os.path.join(c.out, "newer.log"), "ab") as log:
            newer = subprocess.Popen([*words, "--take-over", "60s"], stdout=log, stderr=log)
        check("the older one leaves in good order", older.wait(timeout=60) == 0)
        check("before the run is complete", not c.complete())
        merged = c.merged_share()
        wait_for("the newer one to go on", lambda: c.complete() or (c.get("/v1/status")["sites"][0]["inc"] == 2 and c.merged_share() > merged), 120)
        newer.send_signal(signal.SIGTERM)
        check("and it ends in good order", newer.wait(timeout=60) == 0)
        check("no mark is left", not os.path.exists(os.path.join(c.out, "train", "successor")))
        a = c.audit()
        check(f"the audit: {a}", a["findings"] == 0 and a["lost"] == 0 and a["doubled"] == 0)
    finally:
        for p in (older, newer):
            if p is not None and p.poll() is None:
                p.kill()
                p.wait()
        c.clean()


if __name__ == "__main__":
    sys.exit(run_scenarios(globals(), "plan_"))
