#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# timeout: 120
# release only
"""A facility where something is wrong, and a doctor who has to find it. Each fault is planted alone in a world that is
fine without it: a doctor who finds it always, or never, is caught by the healthy case before it."""
import http.server
import os
import re
import shutil
import subprocess
import sys
import threading
import time

ROOT = os.environ.get("ROOT") or os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path.insert(0, os.path.join(ROOT, "test", "security"))
from kit import PROGRAM, Failure, World, call, want  # noqa: E402

SCRATCH = os.environ["SCRATCH"]
PROXY = os.path.join(ROOT, "test", "net", "proxy.py")


def examine(*words, env=None):
    clean = {k: v for k, v in os.environ.items() if "proxy" not in k.lower() and not k.startswith("BERINGIA_")}
    done = subprocess.run([PROGRAM, "doctor", *map(str, words)], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                          env={**clean, **(env or {})}, timeout=100, check=False)
    return done.returncode, done.stdout


class Impostor:
    """A server on loopback that says one thing to everybody."""

    def __init__(self, kind, body, date=None):
        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self):
                self.send_response_only(200)
                self.send_header("Content-Type", kind)
                self.send_header("Date", self.date_time_string(time.time() + (date or 0)))
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *words):
                pass
        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()


def proxy(*words):
    p = subprocess.Popen([sys.executable, PROXY, "--listen", "127.0.0.1:0", *words], stdout=subprocess.PIPE)
    return p, p.stdout.readline().decode().split()[-1]


def site_file(w, path, **over):
    keys = {"name": "honest", "hub": w.url, "token": w.files["honest"], "ca": w.ca, "state": os.path.join(SCRATCH, "agent"), **over}
    with open(path, "w", encoding="utf-8") as f:
        f.write("site:\n" + "".join(f"  {k}: {v}\n" for k, v in keys.items()) + "job: {script: job.sh}\nbudget: {node_hours: 1}\n"
                "shape_small: {time: 1h}\n")
    return path


def faults(w, other, started):
    """name -> (words, environment, what the FAIL line is about, a word of it or of the remedy)"""
    good = ["--hub", w.url, "--ca", w.ca, "--token", w.files["honest"]]
    loose = os.path.join(SCRATCH, "loose.token")
    shutil.copy(w.files["honest"], loose)
    os.chmod(loose, 0o644)
    wrong = os.path.join(SCRATCH, "wrong.token")
    with open(wrong, "w", encoding="ascii") as f:
        f.write("brg_12345678_" + "0" * 64)
    os.chmod(wrong, 0o600)
    plain = os.path.join(SCRATCH, "file")
    with open(plain, "w", encoding="ascii") as f:
        f.write("x")
    about = subprocess.run(["curl", "-sS", "--cacert", w.ca, "-H", "Authorization: Bearer " + w.tokens["honest"], w.url + "/v1/run"],
                           stdout=subprocess.PIPE, check=True).stdout
    portal = Impostor("text/html", b"<!DOCTYPE html><title>Please log in</title>")
    late = Impostor("application/json", about, date=-3600)
    keeper, keeper_at = proxy("--user", "guest:right")
    started.append(keeper)
    return {
        "nobody_listens": (["--hub", "https://127.0.0.1:1"], {}, "route", "is the hub running"),
        "a_name_that_is_not_known": (["--hub", "https://hub.invalid"], {}, "name", "spelt"),
        "another_ca": ([*good[:2], "--ca", other.ca, *good[4:]], {}, "certificate", "ca.pem"),
        "http_where_https_is": (["--hub", w.url.replace("https:", "http:")], {}, "certificate", "HTTPS"),
        "no_token": (good[:4], {}, "token", "--token"),
        "a_token_that_is_wrong": ([*good[:4], "--token", wrong], {}, "token", "revoked"),
        "a_token_that_others_may_read": ([*good[:4], "--token", loose], {}, "token", "chmod 600"),
        "a_portal": (["--hub", portal.url], {}, "hub", "log in"),
        "a_clock_that_is_an_hour_off": (["--hub", late.url, "--no-upload"], {}, "clock", "ahead"),
        "a_proxy_that_wants_another_password": (good, {"https_proxy": f"http://guest:wrong@{keeper_at}"}, "proxy", "password"),
        "a_proxy_that_is_not_there": (good, {"https_proxy": "http://127.0.0.1:1"}, "route", "proxy"),
        "a_directory_that_cannot_be_written": ([*good, "--state", plain + "/x"], {}, "disk", "--state"),
        "other_data": ([*good, "--data", other.data2], {}, "data", "another data set"),
        "no_data": ([*good, "--data", SCRATCH + "/nowhere"], {}, "data", "nowhere"),
        "no_scheduler": (["--site", site_file(w, os.path.join(SCRATCH, "site.yaml"))], {"PATH": "/nowhere"}, "scheduler", "sbatch"),
        "a_site_file_that_is_wrong": (["--site", site_file(w, os.path.join(SCRATCH, "bad.yaml"), scheduler="pbs")], {}, "site file",
                                      "scheduler"),
    }


def prepare():
    w, other = World(SCRATCH, "run"), World(SCRATCH, "other")
    w.certificate()
    other.certificate()
    w.token("honest", "site", "honest")
    other.data2 = os.path.join(SCRATCH, "data2")
    with open(other.data2 + ".txt", "w", encoding="utf-8") as f:
        f.write("quite another text " * 400)
    call("pack", "--out", other.data2, "--seq-len", "64", other.data2 + ".txt")
    w.start()
    return w, other


def healthy(w, at):
    code, said = examine("--hub", w.url, "--ca", w.ca, "--token", w.files["honest"], "--data", w.data, "--state",
                         os.path.join(SCRATCH, "state"), env={"https_proxy": f"http://guest:right@{at}"})
    want(code == 0 and "FAIL" not in said and "wrong=0" in said, said)
    left = os.listdir(os.path.join(w.run, "incoming"))
    want(left == [], f"what it sent to measure the line lies at the hub still: {left}")
    for word in ("proxy        (user)@" + at, "trusted, holds for", "agrees with the hub's", "ms a request", "MB/s: the weights",
                 "MB/s: a contribution", "GB free", "is the run's", "processors may be used"):
        want(word in said, f"no word of '{word}': {said}")
    want("right" not in said and w.tokens["honest"][13:] not in said, "a secret is shown")


def links_under_its_own_name(w):
    words = ("--links", "--hub", w.url, "--ca", w.ca, "--token", w.files["honest"])
    code, said = examine(*words, "--name", "honest", "--fabric", "europe/alder")
    want(code == 0 and "the hub has it" in said, said)
    code, said = examine(*words, "--name", "another")
    want(code != 0 and re.search(r"FAIL +links .*no other site", said), f"figures under another's name: {said}")
    left = os.listdir(os.path.join(w.run, "incoming"))
    want(left == [], f"what it sent to measure the line lies at the hub still: {left}")


def report(name, f, *words):
    try:
        f(*words)
        print(f"ok doctor_{name}", flush=True)
        return 0
    except (Failure, OSError, subprocess.SubprocessError) as why:
        print(f"FAIL doctor_{name}: {why}", flush=True)
        return 1


def finds(words, env, about, says):
    code, said = examine(*words, env=env)
    lines = said.splitlines()
    first = next((i for i, line in enumerate(lines) if line.startswith("FAIL")), None)
    want(first is not None and code != 0, f"status {code}: {said}")
    whole = lines[first] + (lines[first + 1] if "->" in lines[first + 1] else "")
    want(lines[first][6:].startswith(about) and says in whole, whole)


def main():
    started, failed, w = [], 0, None
    try:
        w, other = prepare()
        keeper, at = proxy("--user", "guest:right")
        started.append(keeper)
        failed += report("finds_nothing_where_nothing_is", healthy, w, at)
        failed += report("tells_links_under_its_own_name_alone", links_under_its_own_name, w)
        for name, (words, env, about, says) in faults(w, other, started).items():
            failed += report("finds_" + name, finds, words, env, about, says)
    finally:
        for p in started:
            p.kill()
            p.wait()
        if w is not None:
            w.clean()
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
