#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# timeout: 200
"""A program of today meets what another day's program wrote, and the other way round.

test/golden/upgrade holds runs and sites' states as programs of earlier days left them when they were killed. What must hold: the
program of today audits and replays each, its hub and its site go on from there, the run is completed and every position is
merged once. And what is newer than the program (a journal, a checkpoint, a backup, a site's state, the other side's
protocol) is refused in one line that says so, and left as it is."""
import glob
import http.server
import json
import os
import shutil
import sqlite3
import subprocess
import sys
import tarfile
import threading
import urllib.error
import urllib.request

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "scripts", "lib"))
from cluster import Cluster, Failure, wait_for  # noqa: E402
from scenarios import run_scenarios  # noqa: E402

BERINGIA, SCRATCH, ROOT = os.environ["BERINGIA"], os.environ["SCRATCH"], os.environ["ROOT"]
GOLDEN = os.path.join(ROOT, "test", "golden", "upgrade")


def check(what, good, detail=""):
    if not good:
        raise Failure(f"{what}: {detail}")


def unpack(name, to=""):
    out = os.path.join(SCRATCH, to + name)
    with tarfile.open(os.path.join(GOLDEN, name + ".tar.xz")) as tar:
        tar.extractall(out)
    return out


def opened(out):
    """A run that was killed, as a Cluster whose site a has the old state."""
    os.rename(os.path.join(out, "state"), os.path.join(out, "site-a"))
    return Cluster(BERINGIA, out, os.path.join(out, "data"), {"a": ["--batch", "2", "--threads", "1"]})


def call(*words):
    return subprocess.run([BERINGIA, *map(str, words)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=60, check=False)


def one_line(what, done, status, *words):
    lines = [x for x in done.stderr.splitlines() if x and not x.startswith("ts=")]
    good = done.returncode == status and len(lines) == 1 and all(w in lines[0] for w in words)
    check(what, good, (done.returncode, done.stderr[-600:]))


def upgrade_opens_every_older_run():
    names = sorted(os.path.basename(x)[:-7] for x in glob.glob(os.path.join(GOLDEN, "*.tar.xz")))
    check("golden files", len(names) >= 3, names)
    for name in names:
        c = opened(unpack(name))
        before = c.audit(blobs=True)
        check(f"{name}: the audit", before["findings"] == 0 and before["doubled"] == before["lost"] == 0, before)
        check(f"{name}: something was merged, something is left", 0 < before["merged"] < before["positions"], before)
        r = c.replay()
        check(f"{name}: replay", r["equal"] and r["versions"] > 0, r)
        c.start_hub()
        c.start_site("a")
        wait_for(f"{name} to be completed", c.complete, 60, each=c.check_processes)
        c.wait_sites()
        with open(os.path.join(c.out, "site-a.log"), encoding="utf-8") as f:
            said = f.read()
        check(f"{name}: the site goes on from its old state", "ev=restored" in said, said[:800])
        c.stop_hub()
        a = c.audit(blobs=True)
        check(f"{name}: at the end", a["merged"] == a["counted"] == a["positions"] and a["findings"] == 0, a)
        check(f"{name}: what was merged stays", a["head"] > before["head"], (a["head"], before["head"]))
        print(f"# {name}: version {before['head']} -> {a['head']}")


def upgrade_refuses_what_is_newer():
    out = unpack(sorted(os.path.basename(x)[:-7] for x in glob.glob(os.path.join(GOLDEN, "*.tar.xz")))[-1], "newer-")
    run = os.path.join(out, "run")
    backup = os.path.join(out, "backup")
    check("a backup", call("backup", run, "--out", backup, "--copy").returncode == 0)

    with open(os.path.join(backup, "backup.json"), encoding="ascii") as f:
        note = json.load(f)
    with open(os.path.join(backup, "backup.json"), "w", encoding="ascii") as f:
        json.dump({**note, "format": 2}, f)
    one_line("a backup", call("restore", backup, "--run", os.path.join(out, "again")), 3, "backup.json", "newer")

    checkpoint = os.path.join(out, "9.safetensors")
    with open(max(glob.glob(os.path.join(run, "versions", "*.safetensors"))), "rb") as f:
        data = f.read()
    at = data.index(b"beringia-checkpoint-") + len(b"beringia-checkpoint-")
    with open(checkpoint, "wb") as f:
        f.write(data[:at] + b"9" + data[at + 1:])
    one_line("a checkpoint", call("hub", os.path.join(out, "rebuilt"), "--rebuild-from", checkpoint), 12, "9.safetensors",
             "beringia-checkpoint-9", "newer")

    newer = os.path.join(out, "newer")
    shutil.copytree(run, newer)
    db = sqlite3.connect(os.path.join(newer, "journal.db"))
    db.execute("UPDATE meta SET value = '2' WHERE name = 'format'")
    db.commit()
    db.close()
    for words in (["hub", newer, "--listen", "127.0.0.1:0"], ["audit", newer], ["journal", newer], ["hub", "replay", newer],
                  ["backup", newer, "--out", os.path.join(out, "none")], ["export", newer, "--out", os.path.join(out, "model")]):
        one_line(f"a journal: {words[0]}", call(*words), 18, "journal.db", "format 2", "newer")
    check("nothing was made", not os.path.exists(os.path.join(out, "none")))


def upgrade_tells_both_sides():
    """A site and a hub that speak different protocols: told by whoever hears it first."""
    out = unpack(sorted(os.path.basename(x)[:-7] for x in glob.glob(os.path.join(GOLDEN, "*.tar.xz")))[0], "both-")
    c = opened(out)
    c.start_hub()
    about = c.get("/v1/run")

    class Newer(http.server.BaseHTTPRequestHandler):
        def do_GET(self):  # noqa: N802
            body = json.dumps({**about, "protocol": 2}).encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_):
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Newer) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_address[1]}"
        done = call("site", "--hub", url, "--name", "b", "--data", c.data, "--state", os.path.join(out, "b"))
        server.shutdown()
    check("a newer hub", done.returncode not in (0, 1) and "protocol 2" in done.stderr and "program 1" in done.stderr,
          (done.returncode, done.stderr[-500:]))

    join = {"site": "b", "run": about["run"], "inc": 0, "req": 1, "boot": "0" * 31 + "1", "protocol": 2, "fingerprint": about["fingerprint"],
            "tensors": about["tensors"], "version_seen": 0, "term_seen": 0, "tokens_per_sample": about["seq_len"], "resume": []}
    try:
        urllib.request.urlopen(urllib.request.Request(c.url + "/v1/join", data=json.dumps(join).encode(),
                                                      headers={"Content-Type": "application/json"}), timeout=10)
        raise Failure("a site with protocol 2 was let in")
    except urllib.error.HTTPError as e:
        answer = json.load(e)
    check("a newer site", answer["code"] == "MISMATCH" and "protocol 1" in answer["text"] and "site 2" in answer["text"], answer)
    c.stop_hub()


if __name__ == "__main__":
    reason = "training is too slow with the thread sanitizer" if os.environ.get("VARIANT") == "tsan" else None
    sys.exit(run_scenarios(globals(), "upgrade_", reason))
