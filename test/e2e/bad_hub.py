#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# release only
# timeout: 240
"""A site whose hub, or what stands between, answers with anything: bytes that are no message, web pages, nothing at all,
half an answer, an answer without end, an offset beyond the file, a damaged checkpoint, a connection that dies in the
middle of each upload. What must hold: the host process lives and is never kept waiting, training goes on with the
samples at hand, and when the hub is itself again the run completes with a clean audit. Beside it: a hub whose
settings would let a sample be written beyond its room, a state directory of another run, a forked child with a
site of its own, and two sites in one process."""
import ctypes
import http.client
import os
import subprocess
import sys
import threading
import time
import traceback
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

ROOT = os.environ.get("ROOT") or os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
B = os.path.join(ROOT, os.environ.get("B", "build/release"))
os.environ.setdefault("BERINGIA_LIBRARY", os.path.join(B, "libberingia.so"))
sys.path[:0] = [os.path.join(ROOT, "python"), os.path.join(ROOT, "scripts", "lib")]
import beringia  # noqa: E402
from cluster import Cluster, Failure  # noqa: E402

PROGRAM = os.environ.get("BERINGIA") or os.path.join(B, "beringia")
SCRATCH = os.environ.get("SCRATCH") or "/tmp/beringia-bad-hub-e2e"
FAST = {"lease.ttl": "20s", "lease.heartbeat": "500ms", "outer.steps": 8, "outer.grace": "1s", "lease.samples_min": 16,
        "lease.samples_max": 64, "train.beta2": 0, "train.lr": 0.1}
SIDE = 96  # of the only matrix: a contribution is 37 kB, an upload is more than one packet
TENSORS = [("W", (SIDE, SIDE))]
FAILED = []


def say(name, good, text=""):
    print(f"{'ok' if good else 'FAIL'} bad_hub_{name}", flush=True)
    if not good:
        print(f"  {text}", flush=True)
        FAILED.append(name)


# ---- Between the site and its hub ------------------------------------------------------------------------------------
class Between(ThreadingHTTPServer):
    """Passes requests on to the hub; `mode` says what it does instead, to which of them (a part of the path)."""
    daemon_threads = True

    def __init__(self, to):
        super().__init__(("127.0.0.1", 0), Passer)
        self.to, self.mode, self.of, self.spoilt = to.split("//")[1], "pass", "/v1/", 0
        self.url = f"http://127.0.0.1:{self.server_address[1]}"
        self.quiet = threading.Event()  # ends the silence
        threading.Thread(target=self.serve_forever, daemon=True).start()

    def set(self, mode, of="/v1/"):
        self.quiet.set()
        self.mode, self.of, self.spoilt, self.quiet = mode, of, 0, threading.Event()

    def handle_error(self, request, client_address):
        pass  # a peer that hangs up is what this is about


class Passer(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, format, *args):  # pylint: disable=redefined-builtin
        pass

    def answer(self, code, body, length=None, kind="application/json"):
        self.send_response(code)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body) if length is None else length))
        self.end_headers()
        self.wfile.write(body)

    def spoil(self, mode, body):
        noise = bytes((i * 37 + 11) % 256 for i in range(3000))
        if mode == "bytes":
            self.answer(200, noise)
        elif mode == "page":
            self.answer(200, b"<!DOCTYPE html><title>Please log in</title>", kind="text/html")
        elif mode == "500":
            self.answer(503, b'{"code":"BUSY"}')
        elif mode == "nonsense":
            self.answer(200, b'{"code":"OK","term":-1,"inc":"x","round":{"head":1e99},"leases":[{"tok":-5}],"offset":"\\u0000"}')
        elif mode == "deep":
            self.answer(200, b"[" * 20000)
        elif mode == "huge":
            self.answer(200, b'{"code":"' + b"a" * (4 << 20))
        elif mode == "cut":
            self.answer(200, b'{"code":"OK","te', length=5000)
            self.close_connection = True
        elif mode == "silent":
            self.server.quiet.wait(60)
            self.close_connection = True
        elif mode == "far":
            self.answer(200, b'{"offset":99999999999}')
        elif mode == "dies":  # half of a request was read, see do_PUT
            self.close_connection = True
        else:
            raise AssertionError(mode)
        del body

    def forward(self):
        server, mode = self.server, self.server.mode
        n = int(self.headers.get("Content-Length", 0))
        hit = mode != "pass" and server.of in self.path
        body = self.rfile.read(n // 2 if hit and mode == "dies" else n)
        if hit and mode != "damaged":
            server.spoilt += 1
            self.spoil(mode, body)
            return
        peer = http.client.HTTPConnection(server.to, timeout=30)
        headers = {k: v for k, v in self.headers.items() if k.lower() in ("content-type", "range", "authorization")}
        try:
            peer.request(self.command, self.path, body, headers)
            r = peer.getresponse()
            data = r.read()
        except OSError:
            self.close_connection = True
            return
        finally:
            peer.close()
        if hit and mode == "damaged" and len(data) > 64:
            server.spoilt += 1
            data = data[:-40] + bytes(b ^ 255 for b in data[-40:])
        self.send_response(r.status)
        for k in ("Content-Type", "Content-Range"):
            if r.getheader(k):
                self.send_header(k, r.getheader(k))
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    do_GET = do_POST = do_PUT = forward


# ---- The trainer ---------------------------------------------------------------------------------------------------------
def site(url, name, data, **more):
    words = {"batch_samples": 4, "timeout": 2, "checkpoint_every": 0.5, "open_timeout": 30, **more}
    s = beringia.Site(url, name, os.path.join(SCRATCH, "state-" + name), data, **words)
    s.grace = 30
    return s


def train(s, weights, until, longest=60, batch=4, nap=0.02):
    """Trains until `until()`; no call may keep the loop for longer than a few seconds. Gives the longest, and whether the
    run is complete."""
    began, slowest = time.monotonic(), 0.0
    while not until():
        if time.monotonic() - began > longest:
            raise Failure(f"after {longest} s of training it is still not so: {s.figures()}")
        at = time.monotonic()
        samples = s.take(batch, 0.05)
        if samples is None:
            return slowest, True
        if samples:
            weights[s.figures().steps % len(weights)] -= 0.001
            s.step(len(samples), 1.0)
        s.sync()
        slowest = max(slowest, time.monotonic() - at)
        time.sleep(nap)
    return slowest, False


def answers_of_all_kinds(c, between):
    weights = (ctypes.c_float * (SIDE * SIDE))()
    s = site(between.url, "a", c.data)
    s.join(TENSORS, weights=ctypes.addressof(weights))
    train(s, weights, lambda: s.figures().steps >= 4)
    for mode, of in (("bytes", "/v1/"), ("page", "/v1/"), ("500", "/v1/"), ("nonsense", "/v1/"), ("deep", "/v1/"),
                     ("huge", "/v1/"), ("cut", "/v1/"), ("silent", "/v1/"), ("far", "/v1/blobs"), ("dies", "/v1/blobs"),
                     ("bytes", "/v1/blobs"), ("damaged", "/v1/versions"), ("cut", "/v1/versions"), ("bytes", "/v1/versions"),
                     ("nonsense", "/v1/heartbeat"), ("nonsense", "/v1/lease"), ("nonsense", "/v1/commit")):
        name = f"{mode}_for_{of.split('/')[-1] or 'everything'}"
        between.set(mode, of)
        few = 1 if mode in ("far", "silent") else 2
        slowest, complete = train(s, weights, lambda: between.spoilt >= few)
        if complete:
            say(name, False, "the run is complete before this was tried; make the text longer")
            return
        between.set("pass")
        before, began = s.figures(), time.monotonic()
        train(s, weights, lambda: s.figures().joined and s.figures().merged > before.merged)
        say(name, slowest < 10, f"a call kept the loop for {slowest:.1f} s")
        print(f"# {name}: healed in {time.monotonic() - began:.1f} s", flush=True)
    # What is at hand when the hub falls silent stays on the disk, and the end does not wait for it.
    done = s.figures().steps
    between.set("silent")
    train(s, weights, lambda: s.figures().steps >= done + 2)
    done, at = s.figures().steps, time.monotonic()
    try:
        s.close(timeout=1)
        text = "it closed as if nothing was"
    except beringia.TimedOut:
        text = ""
    say("a_close_does_not_wait_for_a_silent_hub", not text and time.monotonic() - at < 20, text or time.monotonic() - at)
    between.set("pass")
    s = site(between.url, "a", c.data)
    s.join(TENSORS, weights=ctypes.addressof(weights))
    say("and_loses_nothing", s.figures().steps == done, (done, s.figures()))
    s.close()


def a_hub_that_lies_about_the_samples(c, between):
    """brg_run's seq_len is what a caller makes room for; tokens of the real length would be written beyond it."""
    body = http_get(c.url, "/v1/run")
    server = ThreadingHTTPServer(("127.0.0.1", 0), Passer)
    server.daemon_threads = True

    class Liar(Passer):
        def forward(self):
            self.answer(200, body.replace(b'"seq_len":64', b'"seq_len":4'))
        do_GET = do_POST = do_PUT = forward
    server.RequestHandlerClass = Liar
    threading.Thread(target=server.serve_forever, daemon=True).start()
    text = "it was opened"
    try:
        site(f"http://127.0.0.1:{server.server_address[1]}", "liar", c.data).close(0)
    except beringia.DataError as e:
        text = "" if "seq_len 4" in str(e) else str(e)
    say("settings_that_do_not_fit_the_data_are_refused", b'"seq_len":64' in body and not text, text)
    server.shutdown()
    del between


def http_get(url, path):
    peer = http.client.HTTPConnection(url.split("//")[1], timeout=30)
    peer.request("GET", path)
    out = peer.getresponse().read()
    peer.close()
    return out


# ---- Processes and directories -------------------------------------------------------------------------------------------
def a_child_with_a_site_of_its_own(c, between):
    del between
    weights = (ctypes.c_float * (SIDE * SIDE))()
    s = site(c.url, "parent", c.data)
    s.join(TENSORS, weights=ctypes.addressof(weights))
    train(s, weights, lambda: s.figures().steps >= 2)
    child = os.fork()
    if child == 0:
        try:
            mine = (ctypes.c_float * (SIDE * SIDE))()
            t = site(c.url, "child", c.data)
            t.join(TENSORS, weights=ctypes.addressof(mine))
            train(t, mine, lambda: t.figures().steps >= 3)
            t.close()
            os._exit(0)
        except BaseException:  # pylint: disable=broad-except
            traceback.print_exc()
            os._exit(1)
    before = s.figures().steps
    train(s, weights, lambda: s.figures().steps >= before + 2)
    say("a_child_trains_with_a_site_of_its_own", os.waitpid(child, 0)[1] == 0)
    train(s, weights, lambda: s.figures().steps >= before + 4)
    s.close()
    say("and_its_parent_goes_on", True)


def two_sites_in_one_process(c, between):
    del between
    wrong = []

    def live(name):
        try:
            weights = (ctypes.c_float * (SIDE * SIDE))()
            with site(c.url, name, c.data) as s:
                s.join(TENSORS, weights=ctypes.addressof(weights))
                train(s, weights, lambda: s.figures().steps >= 10)
        except BaseException as e:  # pylint: disable=broad-except
            wrong.append(f"{name}: {type(e).__name__}: {e}")
    threads = [threading.Thread(target=live, args=(f"pair-{i}",)) for i in range(2)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    say("two_sites_in_one_process", not wrong, wrong)


def a_state_directory_of_another_run(c, between):
    del between
    other = begin("other", c.data)
    try:
        s = site(c.url, "moved", c.data)
        s.join(TENSORS)
        train(s, (ctypes.c_float * 8).from_address(s.weights_address), lambda: s.figures().steps >= 12)
        s.close()
        s = site(other.url, "moved", c.data)  # the same name, directory and data; another run
        weights = (ctypes.c_float * (SIDE * SIDE))()
        s.join(TENSORS, weights=ctypes.addressof(weights))
        fresh = s.figures().steps == 0 and not any(weights)
        train(s, weights, lambda: s.figures().merged >= 1)
        s.close()
        say("a_state_directory_of_another_run_is_begun_anew", fresh, s)
        kept = [f for f in os.listdir(os.path.join(SCRATCH, "state-moved")) if ".safetensors.of-" in f]
        say("and_what_it_held_is_kept_aside", len(kept) == 1, kept)
        other.stop_hub()
        a = other.audit()
        say("and_nothing_of_it_comes_in", a.get("lost", 1) == 0 and a.get("doubled", 1) == 0, a)
    finally:
        other.clean()


def to_the_end(c, between):
    del between
    weights = (ctypes.c_float * (SIDE * SIDE))()
    with site(c.url, "last", c.data) as s:
        s.join(TENSORS, weights=ctypes.addressof(weights))
        _, complete = train(s, weights, lambda: False, 100, batch=32, nap=0.0)
    c.stop_hub()
    a = c.audit()
    say("the_audit_is_clean", complete and a.get("lost", 1) == 0 and a.get("doubled", 1) == 0 and
        a["merged"] == a["positions"], a)


def begin(name, data):
    weights = os.path.join(SCRATCH, "w.safetensors")
    size = 4 * SIDE * SIDE
    head = f'{{"W":{{"dtype":"F32","shape":[{SIDE},{SIDE}],"data_offsets":[0,{size}]}}}}'.encode()
    with open(weights, "wb") as f:
        f.write(len(head).to_bytes(8, "little") + head + b"\0" * size)
    out = os.path.join(SCRATCH, name)
    os.makedirs(out)
    c = Cluster(PROGRAM, out, data, {})
    c.call("init", c.run_dir, "--weights-file", weights, "--data", data,
           *[w for k, v in FAST.items() for w in ("--set", f"{k}={v}")])
    c.start_hub()
    return c


def main():
    os.makedirs(SCRATCH, exist_ok=True)
    beringia.log_level("error")
    data, text = os.path.join(SCRATCH, "data"), os.path.join(SCRATCH, "text.txt")
    with open(os.path.join(ROOT, "share", "text", "moby-dick.txt"), encoding="utf-8") as f, \
            open(text, "w", encoding="utf-8") as out:
        out.write(f.read(900000))
    subprocess.run([PROGRAM, "pack", "--out", data, "--seq-len", "64", "--heldout", "0", text], check=True,
                   stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    c = begin("cluster", data)
    between = Between(c.url)
    try:
        for scenario in (answers_of_all_kinds, a_hub_that_lies_about_the_samples, a_child_with_a_site_of_its_own,
                         two_sites_in_one_process, a_state_directory_of_another_run, to_the_end):
            began = time.monotonic()
            try:
                scenario(c, between)
            except Exception as e:  # pylint: disable=broad-except
                traceback.print_exc()
                say(scenario.__name__, False, e)
            print(f"# {scenario.__name__}: {time.monotonic() - began:.1f} s", flush=True)
    finally:
        between.shutdown()
        c.clean()
    return 1 if FAILED else 0


if __name__ == "__main__":
    sys.exit(main())
