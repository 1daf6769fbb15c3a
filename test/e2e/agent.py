#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# timeout: 280
"""The agent with local processes as its scheduler, and the courier. What goes wrong: the agent is killed at any
moment, also between a submission's intention and its answer; a hub sends orders with shapes that do not exist, quotes,
line ends, commands and huge counts; jobs have no network; the courier is killed. What must hold: each job is
submitted once, nothing runs that site.yaml does not offer, the budget is kept, jobs drain at their time limit and
follow each other, training goes on through files, and the audit finds nothing."""
import http.server
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import threading
import time

ROOT = os.environ.get("ROOT") or os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path.insert(0, os.path.join(ROOT, "scripts", "lib"))
from cluster import Cluster, Failure, pack_words, wait_for  # noqa: E402
from scenarios import run_scenarios  # noqa: E402

PROGRAM = os.environ.get("BERINGIA") or os.path.join(ROOT, "build", "release", "beringia")
SCRATCH = os.environ.get("SCRATCH") or "/tmp/beringia-agent-e2e"
SLOW = os.environ.get("VARIANT") in ("asan", "tsan", "debug")
MODEL = os.path.join(ROOT, "share", "models", "tiny.json")
FAST = {"lease.ttl": "4s", "lease.heartbeat": "500ms", "outer.steps": 10, "outer.grace": "2s",
        "lease.samples_min": 16, "lease.samples_max": 128}
SITE_WORDS = "--batch 8 --threads 1 --checkpoint-every 500ms --timeout 10s --grace 10s"


def begin(name, settings=None):
    out = os.path.join(SCRATCH, name)
    shutil.rmtree(out, ignore_errors=True)
    os.makedirs(out)
    c = Cluster(PROGRAM, out, pack_words(PROGRAM, os.path.join(SCRATCH, "data")), {})
    c.init(MODEL, {**FAST, **(settings or {})}, seed=1)
    c.start_hub()
    return c


class Agent:
    """One facility: its directory with site.yaml and job.sh, its agent's process."""

    def __init__(self, c, name, throttle=1.0, shapes="shape_small: {time: 60s}\n", budget=100.0, spool="", hub=None,
                 script=None, jobs=2, drain="2s"):
        self.name, self.home, self.process = name, os.path.join(c.out, name), None
        os.makedirs(self.home)
        spool_words = f"courier: {{spool: {spool}}}\n" if spool else ""
        with open(os.path.join(self.home, "site.yaml"), "w", encoding="utf-8") as f:
            f.write(f"site:\n  name: {name}\n  hub: {hub or c.url}\n  state: state\n  scheduler: local\n"
                    f"job: {{script: job.sh, drain: {drain}}}\n"
                    "etiquette: {probe: 1s, look: 1s, hub: 300ms, settle: 3s, commands_per_hour: 100000}\n"
                    f"budget: {{node_hours: {budget}, jobs: {jobs}}}\n{spool_words}{shapes}")
        with open(os.path.join(self.home, "job.sh"), "w", encoding="utf-8") as f:
            f.write(script or "#!/bin/sh\n"
                    f'exec {PROGRAM} site --hub "$BERINGIA_HUB" --name "$BERINGIA_SITE" --data {c.data} '
                    f"--state {self.home}/train {SITE_WORDS} --throttle {throttle}\n")
        os.chmod(os.path.join(self.home, "job.sh"), 0o755)

    def start(self, env=None, words=()):
        with open(os.path.join(self.home, "agent.log"), "ab") as log:
            self.process = subprocess.Popen([PROGRAM, "agent", "--site", os.path.join(self.home, "site.yaml"), *words],
                                            stdout=log, stderr=log, env=dict(os.environ, **(env or {})))
        return self

    def kill(self):
        self.process.kill()
        self.process.wait()

    def stop(self):
        if self.process is not None and self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            if self.process.wait(timeout=60) != 0:
                raise Failure(f"agent {self.name} ended with {self.process.returncode}; see {self.home}/agent.log")

    def submitted(self):
        where = os.path.join(self.home, "state", "local")
        return sorted(f[:-4] for f in os.listdir(where) if f.endswith(".job")) if os.path.exists(where) else []

    def log(self):
        with open(os.path.join(self.home, "agent.log"), encoding="utf-8", errors="replace") as f:
            return f.read()


def order(c, *words):
    return c.call("order", c.run_dir, *words)


def orders(c):
    return {o["id"]: o for o in c.get("/v1/status")["orders"]}


def shape_known(c, name):
    return lambda: any(f["name"] == name and f["shapes"] for f in c.get("/v1/status")["facilities"])


def check(what, good):
    if not good:
        raise Failure(what)


def audit_clean(c):
    a = c.audit()
    check(f"the audit: {a}", a["findings"] == 0 and a["lost"] == 0 and a["doubled"] == 0)


def once_each(names):
    jobs = [n.rsplit("-a", 1)[0] for n in names]
    check(f"submitted more than once: {names}", len(jobs) == len(set(jobs)))


def chain_drains_and_completes(c, a):
    """Two jobs and a budget of three: the first ends at its time limit, the second takes over, the run completes."""
    a.start()
    wait_for("the shape to be known", shape_known(c, a.name))
    order(c, a.name, "small", "--jobs", 3)
    wait_for("the run to be complete", c.complete, 200)
    wait_for("the order to be over", lambda: not orders(c)[1]["open"], 60)
    a.stop()
    names = a.submitted()
    once_each(names)
    check(f"one job after another: {names}", len(names) >= 2)
    jobs = {j["job"]: j for f in c.get("/v1/status")["facilities"] for j in f["jobs"]}
    check(f"the first job ended in good order: {jobs[1]}", jobs[1]["state"] == "done")
    audit_clean(c)


def agent_chain():
    c = begin("chain")
    a = Agent(c, "alder", throttle=0.6 if SLOW else 0.15, shapes="shape_small: {time: 12s}\n")
    try:
        chain_drains_and_completes(c, a)
    finally:
        a.stop()
        c.clean()


def agent_kills():
    """Killed at random and at the two worst moments; jobs that only sleep, so that many are submitted."""
    c = begin("kills")
    a = Agent(c, "birch", script="#!/bin/sh\nsleep 0.3\n", shapes="shape_small: {time: 60s}\n")
    rng = random.Random(5)
    kills, began = 0, time.monotonic()
    try:
        a.start()
        wait_for("the shape to be known", shape_known(c, a.name))
        order(c, a.name, "small", "--jobs", 12)
        faults = ["agent.before_submit:1", "agent.after_submit:1"] * 3
        while orders(c)[1]["open"]:
            time.sleep(rng.uniform(0.1, 1.2))
            if kills < 20:
                a.kill()
                kills += 1
                a.start(env={"BERINGIA_FAULT": faults[kills % len(faults)]} if kills % 2 else None)
            elif a.process.poll() is not None:
                a.start()
            check("the kills took too long", time.monotonic() - began < 250)
        check(f"only {kills} kills", kills >= 6)
        wait_for("the last report", lambda: sum(len(f["jobs"]) for f in c.get("/v1/status")["facilities"]) >= 12, 30)
        names = a.submitted()
        once_each(names)
        check(f"twelve jobs: {names}", len(names) == 12)
        check(f"how it ended: {orders(c)[1]}", orders(c)[1]["word"] == "done")
        audit_clean(c)
    finally:
        a.stop()
        c.clean()


class HostileHub(http.server.BaseHTTPRequestHandler):
    run, evil, refused, stop = b"{}", [], {}, None

    def log_message(self, *words):
        pass

    def answer(self, body):
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_GET(self):
        self.answer(HostileHub.run)

    def do_POST(self):
        report = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        items = report.get("items", [])
        for i in items:
            if i["kind"] == "order":
                HostileHub.refused[i["order"]] = (i["word"], i["why"])
        self.answer(HostileHub.reply(max([0] + [i["n"] for i in items])))

    @staticmethod
    def reply(n):
        orders_now = [o for o in HostileHub.evil if o["id"] not in HostileHub.refused]
        return json.dumps({"code": "OK", "term": 1, "n": n, "orders": orders_now[:64]}).encode()


def agent_hostile():
    """Whatever the orders say, nothing of it is run, and each is refused under its number."""
    c = begin("hostile")
    with open(os.path.join(c.out, "run.json"), "w", encoding="utf-8") as f:
        json.dump(c.get("/v1/run"), f)
    HostileHub.run = json.dumps(c.get("/v1/run")).encode()
    mark = os.path.join(c.out, "pwned")
    shapes = ["large", "", "../../etc/passwd", f"small; touch {mark}", f"$(touch {mark})", f"`touch {mark}`", "small\n#",
              f"'; touch {mark}; '", f'"; touch {mark}; "', "--wrap=id", "-Jx", "small ", "SMALL", "s" * 40]
    HostileHub.evil = [{"id": i + 1, "shape": s, "jobs": 1} for i, s in enumerate(shapes)]
    HostileHub.evil += [{"id": 100, "shape": "small", "jobs": 4294967295}, {"id": 101, "shape": "small", "jobs": 0},
                        {"id": 102, "shape": "big", "jobs": 1}]
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), HostileHub)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    a = Agent(c, "cedar", hub=f"http://127.0.0.1:{server.server_address[1]}", script=f"#!/bin/sh\ntouch {mark}\n",
              shapes="shape_small: {time: 60s}\nshape_big: {time: 200h}\n", budget=100)
    try:
        a.start()
        wait_for("every order to be refused", lambda: len(HostileHub.refused) == len(HostileHub.evil), 60)
        check(f"refused all: {HostileHub.refused}", all(w == "refused" for w, _ in HostileHub.refused.values()))
        log = a.log()
        check("each refusal is logged", log.count("ev=order_refused") == len(HostileHub.evil))
        # Answers that are no answers: the agent goes on, and nothing runs.
        for body in (b"", b"[]", b"{\"code\":\"OK\",\"orders\":[{\"id\":-1,\"shape\":\"small\",\"jobs\":1}]}",
                     b"{\"code\":\"OK\",\"orders\":[{\"id\":7e9,\"shape\":\"small\",\"jobs\":1}]}", b"\x00" * 1000,
                     b"{\"code\":\"OK\",\"orders\":[" + b"{\"id\":900,\"shape\":\"small\",\"jobs\":1}," * 65 +
                     b"{\"id\":901,\"shape\":\"small\",\"jobs\":1}]}", b"{" * 100000):
            HostileHub.reply = staticmethod(lambda n, body=body: body)
            time.sleep(0.6)
            check("the agent still runs", a.process.poll() is None)
        check("nothing was submitted", a.submitted() == [])
        check("nothing was run", not os.path.exists(mark))
        a.stop()
    finally:
        a.stop()
        server.shutdown()
        c.clean()


def agent_budget_and_cancel():
    """Two jobs fit into the budget and a third does not; a cancelled order drains what runs and drops what waits."""
    c = begin("budget")
    a = Agent(c, "alder", script="#!/bin/sh\ntrap 'exit 0' USR1\nwhile :; do sleep 0.1; done\n", budget=0.05,
              shapes="shape_small: {time: 80s}\n")
    try:
        a.start()
        wait_for("the shape to be known", shape_known(c, a.name))
        order(c, a.name, "small", "--jobs", 5)
        wait_for("a job that runs and one that waits", lambda: len(a.submitted()) == 2, 30)
        time.sleep(2)
        check("80 s are 0.022 node-hours: two of 0.05", len(a.submitted()) == 2)
        order(c, "--cancel", 1)
        wait_for("the order to be over", lambda: not orders(c)[1]["open"], 60)
        check(f"{orders(c)[1]}", orders(c)[1]["word"] == "cancelled")
        jobs = {j["job"]: j["state"] for f in c.get("/v1/status")["facilities"] for j in f["jobs"]}
        check(f"drained and cancelled: {jobs}", jobs == {1: "done", 2: "cancelled"})
        a.stop()
        # --once: a second agent, and what is due now.
        a.start(words=("--once",))
        check("--once ends by itself", a.process.wait(timeout=60) == 0)
    finally:
        a.stop()
        c.clean()


def agent_lost_state():
    """agent.json is gone: the job that runs is found by its name, the hub's numbers go on, nothing is submitted twice."""
    c = begin("lost")
    a = Agent(c, "birch", script="#!/bin/sh\nsleep 6\n")
    try:
        a.start()
        wait_for("the shape to be known", shape_known(c, a.name))
        order(c, a.name, "small", "--jobs", 2)
        wait_for("a job that runs", lambda: any(j["state"] == "running" for f in c.get("/v1/status")["facilities"]
                                                for j in f["jobs"]), 30)
        a.kill()
        os.unlink(os.path.join(a.home, "state", "agent.json"))
        a.start()
        wait_for("the order to be over", lambda: not orders(c)[1]["open"], 90)
        names = a.submitted()
        once_each(names)
        check(f"two jobs: {names}", len(names) == 2)
        jobs = {j["job"]: j["state"] for f in c.get("/v1/status")["facilities"] for j in f["jobs"]}
        check(f"both reported: {jobs}", jobs == {1: "done", 2: "done"})
    finally:
        a.stop()
        c.clean()


def agent_lock():
    c = begin("lock")
    a = Agent(c, "alder")
    try:
        a.start()
        wait_for("the shape to be known", shape_known(c, a.name))
        second = subprocess.run([PROGRAM, "agent", "--site", os.path.join(a.home, "site.yaml")], stdout=subprocess.PIPE,
                                stderr=subprocess.STDOUT, timeout=60, check=False)
        check(f"a second agent: {second.returncode}", second.returncode == 7)
    finally:
        a.stop()
        c.clean()


def agent_courier():
    """A job in a network namespace without any route (where that may be made), through the agent's courier, which is
    killed twice with its agent."""
    c = begin("courier")
    alone = os.geteuid() == 0 and subprocess.run(["unshare", "-n", "true"], check=False).returncode == 0
    spool = os.path.join(c.out, "spool")
    unshare = "unshare -n " if alone else ""
    script = (f'#!/bin/sh\nexec {unshare}{PROGRAM} site --hub "$BERINGIA_HUB" --name "$BERINGIA_SITE" '
              f"--data {c.data} --state {c.out}/train {SITE_WORDS} --throttle {0.6 if SLOW else 0.2}\n")
    a = Agent(c, "cedar", spool=spool, script=script, shapes="shape_small: {time: 250s}\n")
    try:
        a.start()
        wait_for("the shape to be known", shape_known(c, a.name))
        order(c, a.name, "small")
        for share in (0.2, 0.5):
            wait_for("the job to train", lambda: c.merged_share() >= share, 120)
            a.kill()
            time.sleep(1.5)
            a.start()
        wait_for("the run to be complete", c.complete, 200)
        wait_for("the order to be over", lambda: not orders(c)[1]["open"], 60)
        a.stop()
        once_each(a.submitted())
        jobs = [j for f in c.get("/v1/status")["facilities"] for j in f["jobs"]]
        check(f"the job ended by itself: {jobs}", jobs and jobs[0]["state"] == "done")
        audit_clean(c)
        if not alone:
            print("skip agent_courier_namespace: no network namespace can be made here; the courier itself was tested")
    finally:
        a.stop()
        c.clean()


if __name__ == "__main__":
    sys.exit(run_scenarios(globals(), "agent_"))
