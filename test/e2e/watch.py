#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# timeout: 200
"""What is for people's eyes, asked of a real hub: the page, the stream of events, /metrics, `beringia status --watch`, and
the documents of both.

What can go wrong: a page that loads something from elsewhere, viewers that see different things or hold the hub up, a
stream that says nothing new or never ends, metrics whose names nobody has documented, a log line that nobody explains, a
terminal that flickers or is left without its cursor. tests of the page itself in a browser: make test-web."""
import http.client
import json
import os
import pty
import re
import select
import shutil
import signal
import subprocess
import sys
import time

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import hub as h  # noqa: E402

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
check, wait = h.check, h.wait


class Viewer:
    """One connection to /v1/events."""

    def __init__(self, hub, last=None, token=None):
        self.connection = http.client.HTTPConnection("127.0.0.1", hub.port, timeout=30)
        self.connection.request("GET", "/v1/events", headers={**({"Last-Event-ID": last} if last else {}),
                                                              **({"Authorization": "Bearer " + token} if token else {})})
        self.answer = self.connection.getresponse()
        check("a stream", self.answer.status == 200 and self.answer.headers["Content-Type"] == "text/event-stream",
              (self.answer.status, dict(self.answer.headers)))

    def block(self):
        """Lines up to an empty one; None at the end of the stream."""
        lines = []
        while True:
            line = self.answer.readline().decode()
            if not line:
                return None
            line = line.rstrip("\n")
            if not line and lines:
                return lines
            if line:
                lines.append(line)

    def event(self):
        """(id, the bytes of the status); comments are passed over; None at the end."""
        while True:
            lines = self.block()
            if lines is None:
                return None
            fields = dict(line.split(": ", 1) for line in lines if not line.startswith(":"))
            if fields.get("event") == "status":
                return fields["id"], fields["data"]

    def close(self):
        self.connection.close()


def site_with_work(hub, name):
    site = h.FakeSite(hub, name)
    check("a join", site.join()[0] == 200)
    return site


def beat(site, seq, phase="training", **more):
    status, a = site.send("heartbeat", hb_seq=seq, base=0, phase=phase, leases=[], **more)
    check("a heartbeat", status == 200, a)


# ---- The page ----------------------------------------------------------------------------------------------------
def test_the_page_is_one_file():
    hub = h.Hub(h.make_run("page"))
    try:
        connection = http.client.HTTPConnection("127.0.0.1", hub.port, timeout=20)
        connection.request("GET", "/")
        answer = connection.getresponse()
        body = answer.read().decode()
        check("the page", answer.status == 200 and answer.headers["Content-Type"].startswith("text/html"), answer.status)
        check("no frame", "frame-ancestors 'none'" in answer.headers["Content-Security-Policy"])
        check("a whole page", body.rstrip().endswith("</html>") and "Beringia" in body, body[-100:])
        check("at most 250 kB", len(body) <= 250_000, len(body))
        loaded = re.findall(r"""(?:src|href)\s*=\s*["']?([^"'\s>]+)""", re.sub(r"<script>.*?</script>", "", body, flags=re.S))
        check("nothing of elsewhere", all(re.match(r"(data:|#|v1/|metrics$)", x) for x in loaded), loaded)
        check("no other address", not re.search(r"@import|url\(\s*[\"']?(?!data:)", body), "style")
        status, a = hub.request("POST", "/", {})
        check("only reading", status == 405, (status, a))
    finally:
        hub.kill()


# ---- Events ------------------------------------------------------------------------------------------------------
def test_all_viewers_get_the_same_bytes():
    hub = h.Hub(h.make_run("events", "--set", "lease.ttl=120s"))  # no news but ours
    viewers = []
    try:
        site = site_with_work(hub, "a")
        viewers = [Viewer(hub) for _ in range(3)]
        firsts = [v.event() for v in viewers]
        check("a first event each", all(firsts), firsts)
        now = hub.get("/v1/status")
        check("a status like the other", sorted(json.loads(firsts[0][1])) == sorted(now), firsts[0][1][:200])
        # Something changes: each sees it, with the same number and the same bytes.
        beat(site, 1, loss=4.25)
        seen = [None] * 3
        for i, v in enumerate(viewers):
            while not seen[i] or json.loads(seen[i][1])["sites"][0]["loss"] != 4.25:
                seen[i] = v.event()
        check("the same for all", seen[0] == seen[1] == seen[2], seen)
        # Who comes back and has seen the newest is told of the next, not of the same.
        again = Viewer(hub, last=seen[0][0])
        viewers.append(again)
        beat(site, 2, loss=4.125)
        event = again.event()
        check("the next one", json.loads(event[1])["sites"][0]["loss"] == 4.125, event)
        stale = Viewer(hub, last="0-1")
        viewers.append(stale)
        check("a whole status for the others", json.loads(stale.event()[1])["run"] == now["run"])
        metrics = hub.get("/metrics").decode()
        check("counted", "\nberinga" not in metrics and "\nberingia_viewers 5\n" in metrics, metrics)
        hub.stop()
        check("the end of the hub is the end of the stream", all(v.event() is None or v.event() is None for v in viewers))
    finally:
        for v in viewers:
            v.close()
        hub.kill()


def test_a_quiet_run_sends_signs_of_life_only():
    # With tokens, too: the gate cuts who is slow to ask; a viewer is one who is answered, however long.
    run_dir = h.make_run("quiet", "--set", "hub.patience=500ms")
    file = run_dir + ".token"
    done = h.run("token", run_dir, "create", "--scope", "viewer", "--out", file)
    check("a token", done.returncode == 0, done.stderr)
    with open(file, encoding="ascii") as f:
        token = f.read().strip()
    hub = h.Hub(run_dir)
    try:
        v = Viewer(hub, token=token)
        check("the first", v.event())
        blocks = [v.block() for _ in range(2)]
        check("comments only, and no end", blocks == [[":"], [":"]], blocks)
        v.close()
        wait("the hub to see that nobody watches", lambda: "\nberingia_viewers 0\n" in
             hub.request("GET", "/metrics", headers={"Authorization": "Bearer " + token})[1].decode())
        hub.stop()
    finally:
        hub.kill()


def test_what_a_late_page_needs():
    run_dir = h.make_run("late")
    hub = h.Hub(run_dir)
    try:
        site = site_with_work(hub, "a")
        status, a, _ = site.hand_in()
        check("a contribution", status == 200 and a["outcome"] in ("staged", "merged"), (status, a))
        wait("version 1", lambda: hub.get("/v1/status")["head"] == 1)

        def complete():
            t = hub.get("/v1/timeline")
            return t if t["rounds"] and any(x["spans"] for x in t["sites"]) else None
        t = wait("the timeline", complete)
        r = t["rounds"][0]
        times = [r[k] for k in ("began", "staged_first", "staged_last", "merge_began", "merged", "published")]
        check("in order", times == sorted(times) and r["version"] == 1 and t["since"] <= times[0], r)
        check("the site's lane", t["sites"][0]["name"] == "a" and t["sites"][0]["spans"][-1][1] == t["sites"][0]["state"], t)
        newer = hub.get(f"/v1/timeline?since={t['now'] + 1000}")
        check("nothing newer", newer["rounds"] == [] and newer["sites"][0]["spans"] == [], newer)
        check("a bad since", hub.request("GET", "/v1/timeline?since=-1")[0] == 400)
        kept = hub.get("/v1/versions")
        check("what can be downloaded", [v["version"] for v in kept["versions"]] == [1, 0], kept)
        check("nothing was measured", hub.get("/v1/heldout") == {"heldout": []})
        with open(os.path.join(run_dir, "heldout.jsonl"), "w", encoding="utf-8") as f:
            f.write('strange\n{"version":1,"loss":2.0,"samples":4,"tokens":64,"wall":5.5}\n')
        e = hub.get("/v1/heldout")["heldout"]
        check("what was measured", len(e) == 1 and e[0]["loss"] == 2 and abs(e[0]["perplexity"] - 7.389) < 1e-3 and
              e[0]["tokens"] == hub.get("/v1/status")["tokens"], e)
        hub.stop()
    finally:
        hub.kill()


def test_a_measured_version_is_shown():
    data, run_dir = os.path.join(h.SCRATCH, "held"), os.path.join(h.SCRATCH, "measured")
    done = h.run("pack", "--out", data, "--seq-len", "16", "--heldout", "0.1", os.path.join(h.SCRATCH, "t.txt"))
    check("pack", done.returncode == 0, done.stderr)
    done = h.run("init", run_dir, "--model", "tiny", "--data", data)
    check("init", done.returncode == 0, done.stderr)
    hub = h.Hub(run_dir)
    try:
        done = h.run("eval", run_dir, "--data", data, "--record", "--json")
        check("eval --record", done.returncode == 0, done.stderr)
        e = hub.get("/v1/heldout")["heldout"]
        check("shown", len(e) == 1 and e[0]["version"] == 0 and e[0]["loss"] == json.loads(done.stdout)["nll"], (e, done.stdout))
        done = h.run("eval", run_dir, "--ids", os.path.join(h.SCRATCH, "t.txt"), "--record")
        check("only of held-out samples", done.returncode == 2 and "--data" in done.stderr, done.stderr)
        hub.stop()
    finally:
        hub.kill()


def test_viewers_are_bounded():
    hub = h.Hub(h.make_run("crowd"))
    crowd = []
    try:
        status, _ = hub.request("HEAD", "/v1/events")
        check("HEAD", status == 200, status)
        crowd = [Viewer(hub) for _ in range(128)]
        status, a = hub.request("GET", "/v1/events")
        check("one too many", status == 503 and a["code"] == "RETRY" and "128" in a["text"], (status, a))
        check("the hub serves", hub.get("/v1/status")["head"] == 0 and "\nberingia_viewers 128\n" in hub.get("/metrics").decode())
        crowd.pop().close()
        wait("a free place", lambda: "\nberingia_viewers 127\n" in hub.get("/metrics").decode())
        crowd.append(Viewer(hub))
        hub.stop()
    finally:
        for v in crowd:
            v.close()
        hub.kill()


# ---- Metrics -----------------------------------------------------------------------------------------------------
def documented():
    with open(os.path.join(ROOT, "docs", "metrics.md"), encoding="utf-8") as f:
        return set(re.findall(r"^\| `(beringia_[a-z_]+)`", f.read(), flags=re.M))


def test_metrics_are_the_documented_ones():
    hub = h.Hub(h.make_run("metrics"))
    try:
        site_with_work(hub, "a")
        text = hub.get("/metrics").decode()
        names = set(re.findall(r"^# TYPE (\S+) ", text, flags=re.M))
        check("in docs/metrics.md and nowhere else", names == documented(), names ^ documented())
        lines = [x for x in text.split("\n") if x and not x.startswith("#")]
        bad = [x for x in lines if not re.fullmatch(r'beringia_[a-z_]+(\{([a-z]+="[^"\\]*",?)+\})? (-?[0-9.e+-]+|NaN)', x)]
        check("the format", not bad, bad)
        status = hub.get("/v1/status")
        value = dict(x.rsplit(" ", 1) for x in lines)
        check("the same as the status", float(value["beringia_head_version"]) == status["head"] and
              float(value['beringia_sites{state="live"}']) == status["sites_live"] == 1, value)
        with open(os.path.join(ROOT, "share", "prometheus", "alerts.yml"), encoding="utf-8") as f:
            alerts = f.read()
        with open(os.path.join(ROOT, "share", "grafana", "beringia.json"), encoding="utf-8") as f:
            grafana = json.load(f)
        used = set(re.findall(r"\bberingia_[a-z_]+", alerts)) | set(re.findall(r"\bberingia_[a-z_]+", json.dumps(grafana)))
        check("the examples use what there is", used <= names | {"beringia_down"}, used - names)
        if shutil.which("promtool"):
            done = subprocess.run(["promtool", "check", "metrics"], input=text, text=True, capture_output=True)
            check("promtool", done.returncode == 0, done.stdout + done.stderr)
            done = subprocess.run(["promtool", "check", "rules", os.path.join(ROOT, "share", "prometheus", "alerts.yml")],
                                  text=True, capture_output=True)
            check("promtool on the rules", done.returncode == 0, done.stdout + done.stderr)
        else:
            print("skip watch_promtool: Debian's package prometheus is not installed (make test-web installs it)", flush=True)
        hub.stop()
    finally:
        hub.kill()


# ---- The terminal ------------------------------------------------------------------------------------------------
def test_status_in_place():
    run_dir = h.make_run("terminal")
    hub = h.Hub(run_dir)
    pid, fd = pty.fork()
    if pid == 0:
        os.execve(h.BERINGIA, [h.BERINGIA, "status", run_dir, "--watch"], {**os.environ, "TERM": "xterm"})
    try:
        seen = b""

        def read():
            nonlocal seen
            ready, _, _ = select.select([fd], [], [], 0.1)
            if ready:
                try:
                    seen += os.read(fd, 65536)
                except OSError:
                    return False
            return True
        wait("two frames", lambda: read() and seen.count(b"\x1b[?2026l") >= 2)
        os.kill(pid, signal.SIGINT)
        while read():
            pass
        _, status = os.waitpid(pid, 0)
        check("ends well", os.waitstatus_to_exitcode(status) == 0, status)
        frames = re.findall(rb"\x1b\[\?2026h(.*?)\x1b\[\?2026l", seen, flags=re.S)
        check("nothing is cleared before it is drawn over", all(f.startswith(b"\x1b[H[") and f.endswith(b"\x1b[J") and
              f.count(b"\x1b[J") == 1 and b"\x1b[2J" not in f for f in frames), frames[0])
        check("the cursor and the screen come back", seen.count(b"\x1b[?25l") == seen.count(b"\x1b[?25h") == 1 and
              seen.rindex(b"\x1b[?1049l") > seen.rindex(b"\x1b[?2026l"), seen[-300:])
        check("an alarm with what to do", b"no site is live" in seen and b"start a site" in seen, seen)
        done = h.run("status", run_dir, "--json")
        check("--json", json.loads(done.stdout)["alarms"][0]["id"] == "no_live_site", done.stdout)
        done = h.run("status", run_dir)
        check("plain, no colours", "! warn  no site is live" in done.stdout and "\x1b" not in done.stdout, done.stdout)
        hub.stop()
    finally:
        os.close(fd)
        hub.kill()


# ---- Documents ---------------------------------------------------------------------------------------------------
def arguments(text, at):
    """The arguments of a call in C, from behind its parenthesis on."""
    found, depth, start, quoted = [], 0, at, False
    while True:
        c = text[at]
        if quoted:
            if c == "\\":
                at += 1
            elif c == '"':
                quoted = False
        elif c == '"':
            quoted = True
        elif c in "([{":
            depth += 1
        elif c in ")]}":
            if depth == 0:
                return found + [text[start:at]]
            depth -= 1
        elif c == "," and depth == 0:
            found.append(text[start:at])
            start = at + 1
        at += 1


def events_of_sources():
    """(room, event) of every line: the arguments of log_line, and notes of the pure rooms ("lvl=info ev=...")."""
    found = set()
    for folder, _, files in os.walk(os.path.join(ROOT, "src")):
        for name in files:
            if not name.endswith(".c"):
                continue
            with open(os.path.join(folder, name), encoding="utf-8") as f:
                text = re.sub(r"/\*.*?\*/", "", f.read(), flags=re.S)
            for call in re.finditer(r"\blog_line\(", text):
                words = arguments(text, call.end())
                room = re.findall(r'"([a-z]+)"', words[1])
                found |= {(r, e) for r in room for e in re.findall(r'"([a-z0-9_]+)"', words[2])}
            for room, event in re.findall(r"lvl=(?:%s|[a-z]+) (?:room=([a-z]+) )?ev=([a-z0-9_]+(?:%s)?)", text):
                found.add((room or os.path.basename(folder), event))
    return found - {("base", "%s"), ("site", "%s")}


def test_every_log_line_is_explained():
    with open(os.path.join(ROOT, "docs", "log.md"), encoding="utf-8") as f:
        told = set(re.findall(r"^\| ([a-z]+) \| `([a-z0-9_]+)` \| [a-z, ]+ \| [^|]+ \| [^|]+ \|$", f.read(), flags=re.M))
    real = events_of_sources()
    check("the sources have events", len(real) > 100, len(real))
    for room, event in [x for x in real if x[1].endswith("%s")]:  # the end of the word is chosen at run time
        ends = {x for x in told if x[0] == room and x[1].startswith(event[:-2])}
        check(f"{event} is explained", ends)
        real = real - {(room, event)} | ends
    check("in docs/log.md and nowhere else", told == real, {"missing": sorted(real - told), "extra": sorted(told - real)})


def main():
    h.DATA = h.make_data()
    failed = 0
    tests = {k: v for k, v in globals().items() if k.startswith("test_")}
    wanted = os.environ.get("T", "")
    if not any(wanted in k for k in tests):
        wanted = ""
    for name, body in tests.items():
        if wanted not in name:
            continue
        began = time.monotonic()
        try:
            body()
            print(f"ok watch_{name[5:]} ({1000 * (time.monotonic() - began):.0f} ms)", flush=True)
        except Exception as why:  # pylint: disable=broad-except
            failed += 1
            import traceback
            traceback.print_exc(limit=4)
            print(f"FAIL watch_{name[5:]}: {why}", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
