# SPDX-License-Identifier: Apache-2.0
"""What happens to a run whose journal is on a PostgreSQL server. Each function is one story with real processes; test/postgres/run
tells them at length, test/e2e/postgres.py some of them in `make test`. `figures` takes what was measured."""
import glob
import json
import os
import shutil
import signal
import stat
import subprocess
import time
import urllib.error
import urllib.request

from cluster import Failure, pack_words, wait_for
from hubs import LONG, ROOT, Run, check, taken_over, wait_for_status

PROGRAM = os.environ.get("BERINGIA") or os.path.join(ROOT, "build", "release", "beringia")
SCRATCH = os.environ.get("SCRATCH", "")
figures = {}
server = None  # set by whoever runs these
made = [0]


def fresh(name, **kw):
    made[0] += 1
    data = pack_words(PROGRAM, os.path.join(SCRATCH, "data"))
    return Run(PROGRAM, os.path.join(SCRATCH, f"{name}-{made[0]}"), data, kw.pop("server", server), f"{name}_{made[0]}", **kw)


def post(url, path, body):
    ask = urllib.request.Request(url + path, json.dumps(body).encode(), {"Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(ask, timeout=10) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as e:
        return e.code, json.load(e)


# ---- a standby -------------------------------------------------------------------------------------------
def takeover(kills, within_s=None):
    """kill -9 of the hub, again and again; each time a standby has the run (within so many seconds) and a new one stands by."""
    x, times = fresh("takeover", settings={"run.epochs": 3}), []
    try:
        hub = x.serve(x.add_hub())
        x.start_site("a")
        x.start_site("b")
        for _ in range(kills):
            standby = x.add_hub(standby=True)
            wait_for("the standby to follow", standby.follows, LONG)
            x.train_on(1)
            head = wait_for_status(x)["head"]
            check("it only stands by", standby.url() is None, standby.said()[-200:])
            hub.process.kill()
            times.append(taken_over(standby))
            check("nothing is lost", standby.status()["head"] >= head, (standby.status()["head"], head))
            hub.end()
            hub = x.serve(standby)
        x.finish()
    finally:
        x.clean()
    figures["takeover_s_max"] = f"{max(times):.2f}"
    figures["takeover_s_mean"] = f"{sum(times) / len(times):.2f}"
    figures["takeovers"] = kills
    check(f"within {within_s} s", within_s is None or max(times) <= within_s, times)


def fenced():
    """The hub is stopped (SIGSTOP) and a standby takes over; when it goes on it finds that it is not the hub any more."""
    x = fresh("fenced", settings={"run.epochs": 2})
    try:
        old = x.serve(x.add_hub())
        x.start_site("a")
        x.start_site("b")
        standby = x.add_hub(standby=True)
        wait_for("the standby to follow", standby.follows, LONG)
        x.train_on(1)
        old.process.send_signal(signal.SIGSTOP)
        figures["takeover_stopped_s"] = f"{taken_over(standby):.2f}"
        x.serve(standby)
        x.train_on(1)
        old.process.send_signal(signal.SIGCONT)
        wait_for("the old hub to end", lambda: not old.alive(), LONG)
        check("it says that it is fenced", old.process.returncode == 16 and "ev=fenced" in old.said(),
              (old.process.returncode, old.said()[-300:]))
        with open(os.path.join(x.run_dir, "hub.json"), encoding="utf-8") as f:
            check("hub.json is the new one's", json.load(f)["pid"] == standby.process.pid, standby.process.pid)
        x.finish()
        figures["fenced"] = "yes"
    finally:
        x.clean()


# ---- the server --------------------------------------------------------------------------------------------
def stays():
    """The server is restarted, and hub and standby lose their sessions together: the run does not change hands for that. Then
    the hub dies, and the standby, which lost its server once, takes over all the same."""
    x = fresh("stays", settings={"run.epochs": 2})
    try:
        hub = x.serve(x.add_hub())
        x.start_site("a")
        x.start_site("b")
        standby = x.add_hub(standby=True)
        wait_for("the standby to follow", standby.follows, LONG)
        x.train_on(1)
        server.stop(signal.SIGINT)
        try:
            wait_for("the hub to notice", lambda: "ev=journal_away" in hub.said(), LONG)
        finally:
            server.start()
        wait_for("the hub to go on", lambda: "ev=journal_back" in hub.said() or not hub.alive(), LONG)
        check("the hub is the hub still", hub.alive() and hub.status() and standby.url() is None, hub.said()[-300:])
        x.train_on(1)
        hub.process.kill()
        figures["takeover_after_restart_s"] = f"{taken_over(standby):.2f}"
        hub.end()
        x.serve(standby)
        x.finish()
    finally:
        x.clean()


def outage(number, word):
    """The server goes while sites train; the hub says `try later`, and goes on with nothing lost."""
    x = fresh(word)
    try:
        hub = x.serve(x.add_hub())
        x.start_site("a")
        x.start_site("b")
        x.train_on(1)
        server.stop(number)
        try:
            wait_for("the hub to notice", lambda: "ev=journal_away" in hub.said(), LONG)
            code, said = post(hub.url(), "/v1/operator/drain", {"on": False})
            check("it says: later", code == 503 and said["code"] == "RETRY" and "come again" in said["text"], (code, said))
        finally:
            server.start()
        began = time.monotonic()
        wait_for("the hub to go on", lambda: "ev=journal_back" in hub.said(), LONG)
        figures[f"{word}_back_s"] = f"{time.monotonic() - began:.2f}"
        check("it is the same process", hub.alive(), hub.process.returncode)
        x.finish()
    finally:
        x.clean()


def away_at_start():
    """A hub that starts before its server waits for it; and one that nobody has time for ends at SIGTERM."""
    x = fresh("early", sites=())
    try:
        server.stop(signal.SIGINT)
        try:
            hub = x.add_hub()
            wait_for("the hub to wait", lambda: "ev=journal_waited_for" in hub.said(), LONG)
            other = x.add_hub()
            wait_for("the other to wait", lambda: "ev=journal_waited_for" in other.said(), LONG)
            other.process.send_signal(signal.SIGTERM)
            check("SIGTERM ends it", other.process.wait(timeout=LONG) == 0, other.said()[-200:])
        finally:
            server.start()
        x.serve(hub)
        second = subprocess.run([PROGRAM, "hub", x.run_dir, "--listen", "127.0.0.1:0"], stdout=subprocess.PIPE,
                                stderr=subprocess.PIPE, text=True, timeout=LONG, check=False)
        check("a second hub is refused", second.returncode == 7, (second.returncode, second.stderr[-300:]))
        x.stop_hub()
    finally:
        x.clean()


# ---- moving ------------------------------------------------------------------------------------------------
def same_journal(x, want):
    a = x.audit()
    check("the same journal", a["good"] and (a["records"], a["chain"]) == want, (a["records"], a["chain"], want))


def migration():
    """From a file to the server and back, the run half done; stopped in between at each point; refused where it must be."""
    x = fresh("moved", server=None)
    url = server.url(x.schema)

    def move(to, ok=(0,), env=None):
        done = subprocess.run([PROGRAM, "store", "migrate", x.run_dir, "--to", to], stdout=subprocess.PIPE,
                              stderr=subprocess.PIPE, text=True, env=dict(os.environ, **(env or {})), check=False)
        check(f"migrate to {to.split(':')[0]}", done.returncode in ok, (done.returncode, done.stderr[-300:]))
        return done.stdout + done.stderr

    try:
        hub = x.serve(x.add_hub())
        x.start_site("a")
        x.start_site("b")
        x.train_on(1)
        check("a live run is refused", "process" in move(url, ok=(7,)))
        x.stop_hub()
        for name in list(x.sites):
            x.stop_site(name, signal.SIGKILL)
        a = x.audit()
        want, digest = (a["records"], a["chain"]), x.replay()["digest"]
        for point in ("store.before_switch", "store.after_switch"):
            move(url, ok=(-9, 137), env={"BERINGIA_FAULT": f"{point}:1"})
            same_journal(x, want)
            if point == "store.before_switch":  # the copy is there, and is not the run's: a person removes it
                check("what is there is not overwritten", "schema" in move(url, ok=(27,)))
                server.sql(f"DROP SCHEMA {x.schema} CASCADE")
        os.rename(os.path.join(x.run_dir, "journal.db"), os.path.join(x.run_dir, "journal.db.moved"))
        for to in ("sqlite", url, "sqlite", url):
            check("it says the same state", digest in move(to))
            same_journal(x, want)
            check("the replay too", x.replay()["digest"] == digest)
        hub = x.serve(x.add_hub())
        check("it serves from the server", hub.status()["seq"] >= want[0], hub.status())
        backup = os.path.join(x.out, "backup")  # beside the hub that writes
        x.call("backup", x.run_dir, "--out", backup, "--copy")
        copy = x.json("audit", backup, "--json", "--blobs")
        check("a backup has the journal as a file", copy["good"] and copy["records"] >= want[0], copy)
        check("and does not point to the server", not os.path.exists(os.path.join(backup, "journal.url")))
        x.start_site("a")
        x.start_site("b")
        x.finish()
        figures["migrated"] = "both_ways"
    finally:
        x.clean()


def lost_run():
    """The directory is gone but for journal.url, and the server's journal with it: a new one from a checkpoint, there."""
    x = fresh("rebuilt", settings={"run.epochs": 1})
    try:
        x.serve(x.add_hub())
        x.start_site("a")
        x.train_on(2)
        for name in list(x.sites):
            x.stop_site(name, signal.SIGKILL)
        x.stop_hub()
        newest = max(glob.glob(os.path.join(x.run_dir, "versions", "*.safetensors")),
                     key=lambda p: int(os.path.basename(p).split(".")[0]))
        copy = os.path.join(x.out, "copy.safetensors")
        shutil.copyfile(newest, copy)
        done = subprocess.run([PROGRAM, "hub", x.run_dir, "--rebuild-from", copy], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                              text=True, timeout=LONG, check=False)
        check("a journal that is there is kept", done.returncode == 27, (done.returncode, done.stderr[-200:]))
        server.sql(f"DROP SCHEMA {x.schema} CASCADE")
        log = os.path.join(x.out, "rebuild.log")
        with open(log, "ab") as out:
            p = subprocess.Popen([PROGRAM, "hub", x.run_dir, "--rebuild-from", copy, "--listen", "127.0.0.1:0"], stdout=out,
                                 stderr=out)
        try:
            wait_for("the rebuilt hub", lambda: "listening on" in open(log, encoding="utf-8").read(), LONG)
        finally:
            p.send_signal(signal.SIGTERM)
            p.wait(timeout=LONG)
        a = x.audit()
        check("the audit is good", a["good"], a)
    finally:
        x.clean()


# ---- secrets -----------------------------------------------------------------------------------------------
def secrets():
    """A password is taken from a file, and stands in no argument, log, message or file of the run."""
    word = "se5ame-0pen"
    server.sql(f"DO $$ BEGIN CREATE ROLE secret LOGIN PASSWORD '{word}'; EXCEPTION WHEN duplicate_object THEN NULL; END $$")
    server.sql("GRANT CREATE ON DATABASE postgres TO secret")
    made[0] += 1
    out = os.path.join(SCRATCH, f"secrets-{made[0]}")
    os.makedirs(out)
    passfile, run = os.path.join(out, "pass"), os.path.join(out, "run")
    with open(passfile, "w", encoding="utf-8") as f:
        f.write(f"*:*:*:secret:{word}\n")
    os.chmod(passfile, stat.S_IRUSR | stat.S_IWUSR)
    data = pack_words(PROGRAM, os.path.join(SCRATCH, "data"))
    url = server.url(f"secrets_{made[0]}", user="secret")

    def init(url, env=None):
        return subprocess.run([PROGRAM, "init", run, "--model", "tiny", "--data", data, "--store", url], text=True,
                              stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=dict(os.environ, **(env or {})), check=False)

    done = init(url.replace("secret@", f"secret:{word}@"))
    check("a password in the name is refused", done.returncode == 3 and word not in done.stderr, (done.returncode, done.stderr))
    done = init(url)
    check("without a password it is not let in", done.returncode == 14 and "\n" not in done.stderr.strip(), done.stderr)
    done = init(url, {"PGPASSFILE": passfile})
    check("PGPASSFILE is taken", done.returncode == 0, done.stderr)
    log = os.path.join(out, "hub.log")
    with open(log, "ab") as f:
        hub = subprocess.Popen([PROGRAM, "hub", run, "--listen", "127.0.0.1:0", "--log-level", "trace"], stdout=f, stderr=f,
                               env=dict(os.environ, PGPASSFILE=passfile))
    try:
        wait_for("the hub", lambda: "listening on" in open(log, encoding="utf-8").read(), LONG)
        with open(f"/proc/{hub.pid}/cmdline", encoding="utf-8") as f:
            check("not in its arguments", word not in f.read())
    finally:
        hub.send_signal(signal.SIGTERM)
        hub.wait(timeout=LONG)
    for base, _, files in os.walk(out):
        for name in files:
            path = os.path.join(base, name)
            with open(path, "rb") as f:
                check(f"not in {name}", path == passfile or word.encode() not in f.read())


# ---- units and rates ---------------------------------------------------------------------------------------
def units(build, only="journal"):
    """The store's own tests, each in a file and on the server."""
    done = subprocess.run([os.path.join(build, "test", "store"), only], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                          env=dict(os.environ, BERINGIA_TEST_POSTGRES=server.base()), check=False)
    lines = done.stdout.splitlines()
    good = [line for line in lines if line.startswith("ok ")]
    bad = [line for line in lines if line.startswith(("FAIL ", "skip "))]
    check("the store's tests", done.returncode == 0 and good and not bad, "\n".join(lines[-30:]))
    check("some are on the server", any("_postgres" in line for line in good), good[:3])
    figures["store_tests"] = len(good)


def rates(build, turns):
    """Grants and contributions a second, each durable before its answer: a file and the server in turns."""
    got = {"sqlite": [], "postgres": []}
    for _ in range(turns):
        for kind, env in (("sqlite", {}), ("postgres", {"BENCH_STORE": server.base()})):
            done = subprocess.run([os.path.join(build, "bench", "hub"), "durable"], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                  text=True, env=dict(os.environ, BENCH_DIR=SCRATCH, **env), check=False)
            words = dict(w.split("=", 1) for w in done.stdout.split() if "=" in w)
            if "grants_and_commits_per_s" not in words:
                raise Failure(f"bench hub says no rate: {done.stdout[-200:]} {done.stderr[-200:]}")
            got[kind].append(float(words["grants_and_commits_per_s"]) / 2)
    for kind, values in got.items():
        figures[f"grants_per_s_{kind}"] = f"{sum(values) / len(values):.0f}"
    figures["grants_ratio"] = f"{sum(got['postgres']) / sum(got['sqlite']):.3f}"
