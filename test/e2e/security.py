#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# timeout: 240
"""Who gets in. What goes wrong: a hub that can be reached from elsewhere and asks nobody for anything; a token that is
wrong, revoked, for something else or another site's; a certificate that is not the hub's. What must hold: each is
refused with a sentence, at once, by a hub that goes on; a real site with its token trains through TLS, and no token
stands anywhere but in its file. The long table is `make test-security`."""
import hashlib
import http.client
import json
import os
import re
import signal
import subprocess
import sys
import time
import traceback

ROOT = os.environ.get("ROOT") or os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path.insert(0, os.path.join(ROOT, "test", "security"))
from kit import PROGRAM, Failure, Member, World, call, secrets_nowhere, wait_for, want  # noqa: E402

SCRATCH = os.environ["SCRATCH"]
ONLY = os.environ.get("T", "")


def refuses_to_listen(w, listen, *names):
    code, log = w.start(listen, ok=False)
    said = [line for line in log.splitlines() if line.startswith("beringia hub: ")][-1]
    want(code == 3, f"it listened on {listen}, or ended with {code}: {said}")
    for name in names:
        want(name in said, f"no word of {name}: {said}")


def security_beyond_loopback_it_wants_both():
    w = World(SCRATCH, "bare")
    try:
        refuses_to_listen(w, "0.0.0.0:0", "certificate", "tokens", "beringia tls")
        refuses_to_listen(w, ":0", "certificate")
        w.token("honest", "site", "honest")
        refuses_to_listen(w, "0.0.0.0:0", "certificate", "beringia tls")
        os.rename(os.path.join(w.run, "tokens.json"), os.path.join(w.run, "aside"))
        w.certificate()
        refuses_to_listen(w, "0.0.0.0:0", "token", "beringia token")
        os.rename(os.path.join(w.run, "aside"), os.path.join(w.run, "tokens.json"))
        w.start("0.0.0.0:0")  # both
        want(w.url.startswith("https://hub.test:"), w.url)
        s = json.loads(call("status", w.run, "--json").stdout)  # by hub.json's "connect", whatever the name is
        want(s["head"] == 0, s)
        w.stop()
        key = os.path.join(w.run, "tls", "hub-key.pem")
        os.chmod(key, 0o644)
        refuses_to_listen(w, "127.0.0.1:0", "hub-key.pem", "chmod 600")
        os.chmod(key, 0o600)
        with open(os.path.join(w.run, "tokens.json"), "a", encoding="ascii") as f:
            f.write("x")
        code, log = w.start("127.0.0.1:0", ok=False)
        want(code == 13 and "tokens.json" in log.splitlines()[-1], f"{code}: {log.splitlines()[-1]}")
    finally:
        w.clean()


def security_tokens_open_what_they_are_for():
    w = World(SCRATCH, "scopes")
    w.certificate()
    for who, scope, name in [("alder", "site", "alder"), ("birch", "site", "birch"), ("agent", "agent", "alder"),
                             ("viewer", "viewer", None), ("boss", "operator", None)]:
        w.token(who, scope, name)
    w.start()
    try:
        run = w.ask("GET", "/v1/run", who="viewer")[1]
        join = Member(w, "alder", "alder")
        body = {"site": "alder", "run": run["run"], "inc": 0, "req": 1, **join.join_fields()}
        report = {"site": "alder", "run": run["run"], "items": []}
        blob = "/v1/blobs/" + "0" * 32
        asked = [("GET", "/v1/status", None, {"alder": 200, "agent": 200, "viewer": 200, "boss": 200}),
                 ("GET", "/v1/rounds", None, {"alder": 200, "agent": 200, "viewer": 200, "boss": 200}),
                 ("GET", "/v1/versions", None, {"alder": 200, "agent": 200, "viewer": 200, "boss": 200}),
                 ("GET", "/v1/versions/0", None, {"alder": 200, "agent": 200, "viewer": 200, "boss": 200}),
                 ("GET", "/v1/versions/0/checkpoint", None, {"alder": 200, "agent": 200, "boss": 200}),
                 ("GET", blob, None, {"alder": 200, "agent": 200}),
                 ("PUT", blob + "?offset=0", b"x", {"alder": 200}),
                 ("DELETE", blob, None, {"agent": 200, "alder": 200}),
                 ("POST", "/v1/join", body, {"alder": 200, "agent": 200}),
                 ("POST", "/v1/agent", report, {"agent": 200}),
                 ("POST", "/v1/operator/drain", {"on": False}, {"boss": 200}),
                 ("GET", "/v1/status%00x", None, {"alder": 404, "viewer": 404, "agent": 404, "boss": 404}),
                 ("GET", "/v1/nothing", None, {"alder": 404, "viewer": 404, "agent": 404, "boss": 404})]
        for method, path, data, good in asked:
            for who in w.tokens:
                code, a = w.ask(method, path, data, who=who)
                expect = good.get(who, 401 if who == "nobody" else 403)
                if path == "/v1/versions" and code == 200:
                    want(a["weights"] == (who != "viewer"), f"{who}: {a['weights']}")
                if path == blob + "?offset=0" and who == "agent":
                    expect = 409  # alder's upload too: it is one byte further
                if who == "birch" and path in ("/v1/join",) + ((blob + "?offset=0"),):
                    expect = 403  # in another site's name; another site's upload
                elif who == "birch" and expect == 403 and "alder" in good:
                    expect = good["alder"]
                want(code == expect, f"{method} {path} by {who}: {code}, not {expect}: {a}")
                if code >= 400:
                    want(a["code"] and a["text"], f"{method} {path} by {who}: no sentence: {a}")
        for bad in ("x", "brg_" + w.ids["boss"] + "_" + "0" * 64, w.tokens["boss"][:-1],
                    w.tokens["alder"][:13] + w.tokens["boss"][13:]):
            want(w.ask("GET", "/v1/status", token=bad)[0] == 401, f"let in with {bad}")
        # The commands on this machine, with RUN/hub.token; and from elsewhere with a token of the environment.
        call("drain", w.run, "--off")
        there = {"BERINGIA_CA": w.ca, "BERINGIA_TOKEN_FILE": w.files["boss"]}
        call("drain", w.url, "--off", env=there)
        said = call("drain", w.url, env={"BERINGIA_CA": w.ca, "BERINGIA_TOKEN_FILE": w.files["alder"]}, ok=(15,)).stderr
        want("scope" in said, said)
        said = call("status", w.url, env={"BERINGIA_CA": w.ca}, ok=(15,)).stderr
        want("wants a token" in said, said)
        said = call("status", w.url, env={"BERINGIA_TOKEN_FILE": w.files["viewer"]}, ok=(14,)).stderr
        want("not trusted" in said, said)
        # What was done is written down: who, what, the answer; nothing of it has a token in it.
        with open(os.path.join(w.run, "access.jsonl"), encoding="utf-8") as f:
            lines = [json.loads(x) for x in f]
        drains = [x for x in lines if x["what"] == "operator/drain"]
        want([(x["who"], x.get("http")) for x in drains] ==
             [("token", None), ("token", 200), ("local", None), ("local", 200), ("token", None), ("token", 200)], drains)
        want(drains[0]["token"] == w.ids["boss"] and drains[0]["args"] == {"on": False} and drains[0]["from"], drains[0])
        want(sum(x["what"] == "token/create" for x in lines) == 5, lines)
        secrets_nowhere(w)
        w.stop()
        want(not os.path.exists(os.path.join(w.run, "hub.token")), "hub.token is left")
    finally:
        w.clean()


def security_a_revoked_token_ends_at_once():
    w = World(SCRATCH, "revoke")
    w.start()  # loopback, no token yet: as it always was
    try:
        url = w.url
        want(url.startswith("http://"), url)
        done = subprocess.run(["curl", "-s", "-o", os.devnull, "-w", "%{http_code}", url + "/v1/status"],
                              stdout=subprocess.PIPE, check=False)
        want(done.stdout == b"200", done.stdout)
        w.token("viewer", "viewer")

        def code(who=None):
            head = ["-H", "@" + os.path.join(SCRATCH, "head")] if who else []
            if who:
                with open(os.path.join(SCRATCH, "head"), "w", encoding="ascii") as f:
                    f.write("Authorization: Bearer " + w.tokens[who])
            return int(subprocess.run(["curl", "-s", "-o", os.devnull, "-w", "%{http_code}", *head, url + "/v1/status"],
                                      stdout=subprocess.PIPE, check=False).stdout)
        want(code() == 401, "the hub that runs does not see that tokens are wanted now")
        want(code("viewer") == 200, "a new token is not known")
        old = w.tokens["viewer"]
        out = os.path.join(SCRATCH, "new.token")
        call("token", w.run, "rotate", w.ids["viewer"], "--grace", "1h", "--out", out)
        w.take("new", out)
        want(w.tokens["new"] != old and code("new") == 200 and code("viewer") == 200, "both hold for a while")
        call("token", w.run, "revoke", w.ids["viewer"])
        want(code("viewer") == 401 and code("new") == 200, "a revoked token is good still")
        listed = json.loads(call("token", w.run, "list", "--json").stdout)["tokens"]
        want([t["revoked"] > 0 for t in listed] == [True, False] and all(set(t["hash"]) == {"0"} for t in listed), listed)
        want("revoked" in call("token", w.run, "list").stdout, "list")
        call("token", w.run, "rotate", w.ids["viewer"], "--out", out, ok=(2,))
        call("token", w.run, "revoke", "12345678", ok=(4,))
        call("token", w.run, "create", "--scope", "site", "--out", out + "2", ok=(2,))
        call("token", w.run, "create", "--scope", "viewer", "--out", out, ok=(27,))
        os.rename(os.path.join(w.run, "tokens.json"), os.path.join(w.run, "gone"))
        want(code("new") == 503 and code() == 503, "a hub that lost its tokens lets people in")
        os.rename(os.path.join(w.run, "gone"), os.path.join(w.run, "tokens.json"))
        want(code("new") == 200, "the file is back")
        # What is under way ends with the token: a stream of the dashboard that would go on for ever.
        stream = http.client.HTTPConnection(url.split("//")[1], timeout=60)
        stream.request("GET", "/v1/events", headers={"Authorization": "Bearer " + w.tokens["new"]})
        events = stream.getresponse()
        want(events.status == 200 and events.read(1), events.status)
        new = next(t["id"] for t in json.loads(call("token", w.run, "list", "--json").stdout)["tokens"] if not t["revoked"])
        call("token", w.run, "revoke", new)
        try:
            while events.read1(65536):
                pass
        except (http.client.HTTPException, ConnectionError):
            pass  # in the midst of a piece
        except TimeoutError as why:
            raise Failure("a stream goes on with a revoked token") from why
        w.stop()
    finally:
        w.clean()


def fingerprint(w):
    s = w.raw()
    try:
        return hashlib.sha256(s.getpeercert(binary_form=True)).hexdigest()
    finally:
        s.close()


def security_a_renewed_certificate_is_taken_up_without_a_restart():
    w = World(SCRATCH, "renew")
    w.certificate()
    w.token("viewer", "viewer")
    w.start()
    try:
        seen = [fingerprint(w)]
        open_ = w.raw()  # what is connected stays so, with the certificate that it knows

        def goes_on():
            open_.sendall(b"GET /v1/status HTTP/1.1\r\nHost: x\r\n" + w.bearer("viewer") + b"\r\n")
            got = b""
            while b"\r\n\r\n" not in got or len(got.split(b"\r\n\r\n", 1)[1]) < int(
                    got.lower().split(b"content-length:")[1].split(b"\r\n")[0]):
                more = open_.recv(65536)
                want(more, "an open connection was cut")
                got += more
            want(b" 200 " in got[:20], got[:100])
        goes_on()
        for by_signal in (False, True):  # by itself, and at once
            w.certificate()
            if by_signal:
                w.hub.send_signal(signal.SIGHUP)
            seen.append(wait_for("the new certificate", lambda: (lambda f: f not in seen and f)(fingerprint(w)), 60))
            goes_on()
        with open(os.path.join(w.run, "tls", "hub.pem"), encoding="ascii") as f:
            good = f.read()
        with open(os.path.join(w.run, "tls", "hub.pem"), "w", encoding="ascii") as f:
            f.write(good[:300])
        wait_for("a complaint", lambda: "ev=certificate_unusable" in w.log(), 60)
        want(fingerprint(w) == seen[-1], "a damaged file took the good certificate away")
        with open(os.path.join(w.run, "tls", "hub.pem"), "w", encoding="ascii") as f:
            f.write(good)
        w.hub.send_signal(signal.SIGHUP)
        wait_for("it to be said", lambda: "same=1" in w.log(), 60)
        goes_on()
        for _ in range(6):  # more than it keeps the old ones of
            w.certificate()
            w.hub.send_signal(signal.SIGHUP)
            seen.append(wait_for("the new certificate", lambda: (lambda f: f not in seen and f)(fingerprint(w)), 60))
        want(w.ask("GET", "/v1/status", who="viewer")[0] == 200, "it does not answer")
        open_.close()
        w.stop()
    finally:
        w.clean()


def security_a_site_trains_through_tls_with_its_token():
    w = World(SCRATCH, "train", **{"run.epochs": 1})
    w.certificate()
    w.token("viewer", "viewer")
    w.token("honest", "site", "honest")
    w.start()
    try:
        w.start_site()
        wait_for("the first version", lambda: w.status()["head"] >= 1, 120)
        # Its token is rotated while it trains: it reads the file again, and nobody starts anything anew.
        old = w.ids["honest"]
        call("token", w.run, "rotate", old, "--grace", "0s", "--out", w.files["honest"])
        w.take("honest2", w.files["honest"])
        merged = w.status()["counts"]["merged"]
        wait_for("more to be merged", lambda: w.status()["complete"] or w.status()["counts"]["merged"] > merged, 120)
        secrets_nowhere(w)
        wait_for("the end", lambda: w.status()["complete"], 120)
        want(w.site.wait(60) == 0, "the site failed: " + w.site_says()[-500:])
        w.site = None
        want("ev=token_renewed" in w.site_says(), "the site did not take its new token")
        # Somebody else's certificate, and a token that is not for this name: the site says so and ends.
        other = World(SCRATCH, "other")
        other.certificate()
        words = ["site", "--hub", w.url, "--data", w.data, "--state", os.path.join(SCRATCH, "state-x"), "--timeout", "3s"]
        said = call(*words, "--name", "else", "--ca", w.ca, "--token", w.files["honest"], ok=(15,)).stderr
        want("speaks for no other site" in said, said)
        said = call("status", w.url, env={"BERINGIA_CA": other.ca, "BERINGIA_TOKEN_FILE": w.files["viewer"]},
                    ok=(14,)).stderr
        want("not trusted" in said, said)
        w.stop()
        a = json.loads(call("audit", w.run, "--json").stdout)
        want(a["lost"] == 0 and a["doubled"] == 0, a)
    finally:
        w.clean()


def security_an_agent_and_its_job_have_one_token():
    """The agent's job is told where token and CA lie, and trains with them; neither is given a secret by argument or file."""
    w = World(SCRATCH, "queue")
    w.certificate()
    w.token("agent", "agent", "alder")
    w.token("viewer", "viewer")
    w.start()
    home, agent = os.path.join(SCRATCH, "facility"), None
    os.makedirs(home)
    try:
        with open(os.path.join(home, "site.yaml"), "w", encoding="utf-8") as f:
            f.write(f"site:\n  name: alder\n  hub: {w.url}\n  token: {w.files['agent']}\n  ca: {w.ca}\n  state: state\n"
                    "  scheduler: local\njob: {script: job.sh, drain: 2s}\n"
                    "etiquette: {probe: 1s, look: 1s, hub: 300ms, settle: 3s, commands_per_hour: 100000}\n"
                    "budget: {node_hours: 1, jobs: 1}\nshape_small: {time: 120s}\n")
        with open(os.path.join(home, "job.sh"), "w", encoding="utf-8") as f:
            f.write(f'#!/bin/sh\nexec {PROGRAM} site --hub "$BERINGIA_HUB" --name "$BERINGIA_SITE" --data {w.data} '
                    f"--state {home}/train --batch 8 --threads 1 --timeout 10s --grace 10s\n")
        os.chmod(os.path.join(home, "job.sh"), 0o755)
        with open(os.path.join(home, "agent.log"), "ab") as log:
            agent = subprocess.Popen([PROGRAM, "agent", "--site", os.path.join(home, "site.yaml")], stdout=log, stderr=log)
        wait_for("the facility's shape", lambda: "alder" in [f["name"] for f in w.status()["facilities"] if f["shapes"]], 60)
        said = call("order", w.run, "alder", "small", "--jobs", "1").stdout
        wait_for("the job to hand in", lambda: any(s["merged"] > 0 for s in w.status()["sites"] if s["name"] == "alder"), 120)
        want("1" in said, said)
        call("drain", w.run)
        wait_for("the job to leave", lambda: not any(s["joined"] for s in w.status()["sites"]), 90)
        secrets_nowhere(w)
    finally:
        if agent is not None:
            agent.terminate()
            agent.wait(30)
        w.clean()


def main():
    failed = 0
    tests = [f for name, f in globals().items() if name.startswith("security_") and callable(f)]
    if not any(ONLY in f.__name__ for f in tests):
        chosen = tests
    else:
        chosen = [f for f in tests if ONLY in f.__name__]
    for f in chosen:
        began = time.monotonic()
        try:
            f()
            print(f"ok {f.__name__} ({1000 * (time.monotonic() - began):.0f} ms)", flush=True)
        except (Failure, AssertionError, OSError, KeyError, IndexError, subprocess.SubprocessError) as why:
            failed += 1
            traceback.print_exc(limit=4)
            print(f"FAIL {f.__name__}: {re.sub('brg_[0-9a-f_]*', 'brg_...', str(why))}", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
