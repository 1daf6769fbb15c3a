#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Hub and site meet in a bucket; the store is a few lines here that keep objects in memory and verify nothing (`make test-s3` has a
real one). What goes wrong: nobody wants a token; the store answers 503; what lies there
is no request. What must hold: the hub refuses a mailbox without tokens; both ends wait and go on; nothing of it is left, lost or merged
twice; weights never come to the hub's own line."""
import email.utils
import http.server
import json
import os
import re
import subprocess
import sys
import threading
import time
import urllib.parse

sys.path.insert(0, os.path.join(os.environ["ROOT"], "scripts", "lib"))
from cluster import Cluster, Failure, pack_words, wait_for  # noqa: E402
from scenarios import run_scenarios, tsan_is_too_slow  # noqa: E402

PROGRAM, SCRATCH = os.environ["BERINGIA"], os.environ["SCRATCH"]
XML = '<?xml version="1.0"?><{0} xmlns="http://s3.amazonaws.com/doc/2006-03-01/">{1}</{0}>'


class Store(http.server.ThreadingHTTPServer):
    """One bucket. `away`: it answers 503. `asked`: requests by method."""
    daemon_threads = True

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Handler)
        self.objects, self.lock, self.away, self.asked = {}, threading.Lock(), False, {}
        self.endpoint = f"http://127.0.0.1:{self.server_address[1]}"
        threading.Thread(target=self.serve_forever, daemon=True).start()

    def names(self, prefix):
        with self.lock:
            return [k for k in self.objects if k.startswith(prefix)]

    def put(self, key, body):
        with self.lock:
            self.objects[key] = (body, time.time(), "")


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def say(self, status, body=b"", headers=None):
        self.send_response(status)
        for k, v in {"Content-Length": str(len(body)), **(headers or {})}.items():
            self.send_header(k, v)
        self.end_headers()
        self.wfile.write(body)

    def begin(self):
        """(key, query, body), or None where it was answered already."""
        url = urllib.parse.urlsplit(self.path)
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        s = self.server
        with s.lock:
            s.asked[self.command] = s.asked.get(self.command, 0) + 1
        if s.away:
            self.say(503, XML.format("Error", "<Code>SlowDown</Code><Message>away</Message>").encode())
            return None
        _, _, key = urllib.parse.unquote(url.path)[1:].partition("/")
        return key, urllib.parse.parse_qs(url.query, keep_blank_values=True), body

    def do_PUT(self):
        asked = self.begin()
        if asked:
            with self.server.lock:
                self.server.objects[asked[0]] = (asked[2], time.time(), self.headers.get("x-amz-meta-sha256", ""))
            self.say(200)

    def do_DELETE(self):
        asked = self.begin()
        if asked:
            with self.server.lock:
                self.server.objects.pop(asked[0], None)
            self.say(204)

    def do_GET(self):
        asked = self.begin()
        if not asked:
            return
        key, query, _ = asked
        with self.server.lock:
            objects = dict(self.server.objects)
        if "uploads" in query:
            self.say(200, XML.format("ListMultipartUploadsResult", "").encode())
        elif not key:
            rows = "".join(f"<Contents><Key>{k}</Key><Size>{len(v[0])}</Size><LastModified>{time.strftime('%Y-%m-%dT%H:%M:%S.000Z', time.gmtime(v[1]))}"
                           "</LastModified></Contents>" for k, v in sorted(objects.items()) if k.startswith(query["prefix"][0]))
            self.say(200, XML.format("ListBucketResult", rows).encode())
        elif key not in objects:
            self.say(404, XML.format("Error", "<Code>NoSuchKey</Code><Message>none</Message>").encode())
        else:
            body, put, sha = objects[key]
            headers = {"x-amz-meta-sha256": sha, "Last-Modified": email.utils.formatdate(put, usegmt=True)}
            part = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", ""))
            if not part:
                self.say(200, body, headers)
                return
            first, last = int(part[1]), min(int(part[2] or len(body)), len(body) - 1)
            if first >= len(body):
                self.say(416, XML.format("Error", "<Code>InvalidRange</Code><Message>behind</Message>").encode())
                return
            self.say(206, body[first:last + 1], {**headers, "Content-Range": f"bytes {first}-{last}/{len(body)}"})


def keys(path):
    with open(path, "w", encoding="utf-8", opener=lambda p, f: os.open(p, f, 0o600)) as f:
        f.write("[default]\naws_access_key_id = k\naws_secret_access_key = s\n")
    return path


class Met(Cluster):
    def __init__(self, name):
        out = os.path.join(SCRATCH, name)
        os.makedirs(out)
        super().__init__(PROGRAM, out, pack_words(PROGRAM, os.path.join(SCRATCH, "data")), {"a": ["--batch", "8", "--threads", "1"]})
        for word in [w for w in self.env if w.startswith(("AWS_", "BERINGIA_TOKEN")) or w.lower().endswith("_proxy")]:
            self.env.pop(word)
        self.store = Store()
        self.env.update(AWS_ENDPOINT_URL=self.store.endpoint, AWS_SHARED_CREDENTIALS_FILE=keys(os.path.join(out, "keys")))
        self.init("tiny", {"run.epochs": 1, "outer.steps": 20, "lease.samples_min": 80, "lease.samples_max": 320, "outer.grace": "100ms",
                           "blobs.store": "s3://bucket/p", "blobs.endpoint": self.store.endpoint, "blobs.mailbox": "true", "blobs.mailbox_idle": "200ms"})
        with open(os.path.join(self.run_dir, "run.json"), encoding="utf-8") as f:
            self.prefix = f"p/{json.load(f)['run']}/"
        self.address = f"bucket:s3://bucket/{self.prefix[:-1]}"
        self.token = os.path.join(out, "a.token")

    def tokens(self):
        self.call("token", self.run_dir, "create", "--scope", "site", "--name", "a", "--out", self.token)

    def status(self):
        done = subprocess.run([PROGRAM, "status", self.run_dir, "--json"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=self.env, check=False)
        return json.loads(done.stdout) if done.returncode == 0 else None

    def told(self, word):
        status = self.status()
        return status[word] if status else None

    def enter(self):
        with open(os.path.join(self.out, "site-a.log"), "ab") as log:
            self.sites["a"] = subprocess.Popen(
                [PROGRAM, "site", "--hub", self.address, "--token", self.token, "--name", "a", "--data", self.data, "--state",
                 os.path.join(self.out, "state"), *self.site_words["a"]], stdout=log, stderr=log, env=self.env)

    def clean(self):
        super().clean()
        self.store.shutdown()
        self.store.server_close()


def want(condition, what, seen=""):
    if not condition:
        raise Failure(f"{what}: {seen}")


def bucket_wants_tokens():
    x = Met("strangers")
    done = subprocess.run([PROGRAM, "hub", x.run_dir, "--listen", "127.0.0.1:0"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                          env=x.env, timeout=120, check=False)
    want(done.returncode == 3 and "no token is wanted yet" in done.stdout, "the hub refuses", (done.returncode, done.stdout[-300:]))


def bucket_carries_a_run():
    x = Met("met")
    x.tokens()
    x.store.put(x.prefix + "mail/req/no-id", b"x")
    x.store.put(x.prefix + "mail/req/" + "f" * 32, b"BRGSPOOL2\nno")
    x.start_hub()
    x.enter()
    wait_for("a version", lambda: x.told("head"), 120, x.check_processes, 0.1)
    x.store.away = True
    wait_for("the alarm", lambda: "mailbox_down" in json.dumps(x.told("alarms")), 120, x.check_processes, 0.1)
    x.store.away = False
    wait_for("the run to be complete", x.complete, 200, x.check_processes, 0.1)
    x.wait_sites()
    wait_for("no request to be left", lambda: not x.store.names(x.prefix + "mail/req/"), 60, None, 0.1)
    status = x.status()
    x.stop_hub()
    books, m = x.audit(blobs=True), status["mailbox"]
    want(books["good"] and books["lost"] == 0 and books["doubled"] == 0, "the audit is clean", json.dumps(books)[:300])
    want(x.replay()["equal"], "every version is what its deltas give")
    want(status["uploads_bytes"] == 0, "no weights came to the hub itself", status["uploads_bytes"])
    want(m["up"] and m["answers"] > 0 and m["lists"] > m["answers"] / 4 and m["address"] == x.address, "it is counted", m)
    with open(os.path.join(x.out, "hub.log"), encoding="utf-8") as f:
        log = f.read()
    want(log.count("ev=mailbox_refused") == 2, "what was no request was removed, and told", log.count("ev=mailbox_refused"))
    with open(x.token, encoding="ascii") as f:
        want(f.read().strip() not in log, "no token is in the log")


if __name__ == "__main__":
    sys.exit(run_scenarios(globals(), "bucket_", tsan_is_too_slow()))
