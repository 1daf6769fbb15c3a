# SPDX-License-Identifier: Apache-2.0
"""A hub, its sites and what lies between them, as processes of this machine that can be hurt.

Every site speaks through its own relay (test/link), so each has its own weather; hub and sites are started with the
shims of test/shim, whose control files are empty until somebody writes into them. What was done is one line of JSON
each in acts.jsonl, with the machine's monotonic time.

Time of a site is counted as *available* from the start of its process to its end, without the stretches in which it
was stopped by SIGSTOP: those the machine took away. A hub that is away, a cut link, a full disk are not subtracted."""
import glob
import json
import os
import random
import shutil
import signal
import socket
import struct
import subprocess
import sys
import time
import urllib.error
import urllib.request

HERE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
sys.path.insert(0, os.path.join(os.path.dirname(HERE), "postgres"))
from server import Server  # noqa: E402
ROOT = os.path.dirname(os.path.dirname(HERE))
TOOLS = os.path.join(ROOT, "build", "tools")


class Broken(Exception):
    """A promise of the system is broken, in one sentence."""


def now():
    return time.monotonic()


class Link:
    """The relay between one site and the hub."""

    def __init__(self, world, name, to):
        self.path = os.path.join(world.out, f"link-{name}.sock")
        if os.path.exists(self.path):
            os.unlink(self.path)
        self.process = subprocess.Popen(
            [os.path.join(TOOLS, "link"), "--listen", "127.0.0.1:0", "--to", to, "--delay", world.args.delay,
             "--control", self.path], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        self.url = "http://" + self.process.stdout.readline().split()[-1]

    def say(self, words):
        with socket.socket(socket.AF_UNIX) as s:
            s.settimeout(5)
            s.connect(self.path)
            s.sendall((words + "\n").encode())
            answer = s.recv(200).decode().strip()
        if answer != "ok":
            raise RuntimeError(f"link: {words}: {answer}")

    def calm(self):
        for words in ("heal", "refuse off", "rate 10gbit"):
            self.say(words)


class Process:
    """A child that may be started again and again; knows how long it was there."""

    def __init__(self, world, name, log):
        self.world, self.name, self.log = world, name, log
        self.child = None
        self.lives = []  # [start, end or None, seconds stopped]
        self.stops = []  # (begin, end) of each SIGSTOP
        self.stopped_at = None

    def start(self, words, env):
        with open(self.log, "ab") as out:
            self.child = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=out, stderr=out, env=env)
        self.lives.append([now(), None, 0.0])
        self.stopped_at = None

    def alive(self):
        return self.child is not None and self.child.poll() is None

    def ended(self):
        """Notes the end; the exit status where there is one."""
        code = self.child.poll() if self.child else None
        if code is not None and self.lives and self.lives[-1][1] is None:
            self.go_on_book()
            self.lives[-1][1] = now()
        return code

    def go_on_book(self):
        if self.stopped_at is not None:
            self.lives[-1][2] += now() - self.stopped_at
            self.stops.append((self.stopped_at, now()))
            self.stopped_at = None

    def signal(self, number):
        if not self.alive():
            return
        if number == signal.SIGSTOP:
            self.stopped_at = now()
        if number == signal.SIGCONT:
            self.go_on_book()
        self.child.send_signal(number)

    def kill(self):
        if self.child is None:
            return
        if self.child.poll() is None:
            self.child.kill()
        self.child.wait()
        self.ended()

    def available(self, since, until):
        total = 0.0
        for start, end, held in self.lives:
            stretch = min(end if end is not None else until, until) - max(start, since)
            if stretch > 0:
                total += max(0.0, stretch - held)  # stops lie inside one life; acts end before `until`
        return total


class Site(Process):
    def __init__(self, world, name, on_ram_of_its_own=False):
        super().__init__(world, name, os.path.join(world.out, f"site-{name}.log"))
        self.disk = None
        base = world.ram
        if on_ram_of_its_own and world.can_mount:
            self.disk = base = world.mount(f"disk-{name}", world.site_disk_bytes)
        self.state = os.path.join(base, f"state-{name}")
        self.link = Link(world, name, world.listen)
        self.history = os.path.join(world.out, f"history-{name}.jsonl")
        self.progress = os.path.join(world.out, f"progress-{name}.txt")
        self.clock = os.path.join(world.out, f"clock-{name}")
        self.rules = os.path.join(world.out, f"rules-{name}")
        self.busy = False     # an act has it; nobody else touches it
        self.wanted = True    # is to be started again when it is gone
        self.restart_at = 0.0
        self.allowed = {0, -signal.SIGKILL}
        self.bent = False     # its monotonic clock was bent: its times in the history say nothing
        self.fast = False
        self.complete = False
        for path in (self.clock, self.rules):
            open(path, "w").close()

    def begin(self, env=None):
        w = self.world
        words = w.site_words(self)
        more = dict(os.environ, BERINGIA_HISTORY=self.history, **w.shims(self.rules, self.clock), **(env or {}))
        self.complete = False
        self.start(words, more)

    def trained(self, first=None, last=None):
        """Samples trained, over all its processes, from its progress file; in an interval where one is given."""
        total, before = 0, {}
        for t, event, n in self.lines():
            if event == "begin":
                before = {"n": 0}
            delta = n - before.get("n", 0)
            before["n"] = n
            if (first is None or t >= first) and (last is None or t <= last):
                total += delta
        return total

    def lines(self):
        if not os.path.exists(self.progress):
            return
        with open(self.progress, encoding="utf-8", errors="replace") as f:
            for line in f:
                p = line.split()
                if len(p) == 3 and line.endswith("\n"):
                    yield float(p[0]) / 1e3, p[1], int(p[2])

    def speed(self, first, last):
        """Samples a second between two times, from its steady lines."""
        at = [(t, n) for t, event, n in self.lines() if event == "at" and first <= t <= last]
        return (at[-1][1] - at[0][1]) / (at[-1][0] - at[0][0]) if len(at) > 2 else 0.0


class Hub(Process):
    def __init__(self, world):
        super().__init__(world, "hub", os.path.join(world.out, "hub.log"))
        self.clock = os.path.join(world.out, "clock-hub")
        self.rules = os.path.join(world.out, "rules-hub")
        self.undo = os.path.join(world.hub_disk, "undo")
        self.busy = False
        self.allowed = set()
        self.faults_calm()
        open(self.clock, "w").close()

    def faults_calm(self, more=""):
        """The disk is good, apart from `more`; what is not synced is written down for the power cut."""
        text = f"log {self.undo}\nroot {self.world.run}\n{more}"
        with open(self.rules + ".new", "w", encoding="utf-8") as f:
            f.write(text)
        os.rename(self.rules + ".new", self.rules)

    def begin(self, env=None, run=None, plain=False):
        w = self.world
        more = {} if plain else w.shims(self.rules, self.clock)
        self.start([w.program, "hub", run or w.run, "--listen", w.listen],
                   dict(os.environ, **more, **(env or {})))


class World:
    def __init__(self, args, out, rng):
        self.args, self.out, self.rng = args, out, rng
        self.build = os.path.abspath(args.build)
        self.program = os.path.join(self.build, "beringia")
        self.counting = os.path.join(self.build, "chaos", "counting_site")
        self.mounts = []
        self.sites = []
        self.hub = None
        self.server = None    # of the journal, with --postgres
        self.acts_log = None
        self.counts = {}      # faults by kind
        self.broken = []
        self.windows = []     # [begin, end, why]: times in which the hub was an old copy, or was rolled back
        self.skipped = {}     # kind -> reason
        self.prepare_directory()

    # ---- ground ------------------------------------------------------------------------------------
    def prepare_directory(self):
        with open("/proc/mounts", encoding="utf-8") as f:
            old = [line.split()[1] for line in f if line.split()[1].startswith(self.out + "/")]
        for path in reversed(old):
            subprocess.run(["umount", "-l", path], check=False)
        shutil.rmtree(self.out, ignore_errors=True)
        os.makedirs(self.out)
        self.acts_log = open(os.path.join(self.out, "acts.jsonl"), "a", buffering=1, encoding="utf-8")
        self.can_mount = False
        self.ram = self.mount("ram", 8 << 30) or os.path.join(self.out, "ram")
        self.can_mount = bool(self.mounts)
        os.makedirs(self.ram, exist_ok=True)
        if not self.can_mount:
            self.skipped["full_hub"] = self.skipped["full_site"] = "tmpfs cannot be mounted here (needs root)"
        self.hub_disk = self.mount("disk-hub", 6 << 30) if self.can_mount else self.ram
        self.run = os.path.join(self.hub_disk, "run")
        self.preload = "tsan" not in os.path.basename(self.build) and "asan" not in os.path.basename(self.build)

    def mount(self, name, bytes_):
        path = os.path.join(self.out, name)
        os.makedirs(path, exist_ok=True)
        done = subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={bytes_}", "beringia-chaos", path],
                              stderr=subprocess.DEVNULL, check=False)
        if done.returncode != 0:
            return None
        self.mounts.append(path)
        return path

    def resize(self, path, bytes_):
        subprocess.run(["mount", "-o", f"remount,size={int(bytes_)}", path], check=True)

    def shims(self, rules, clock):
        if not self.preload:
            return {}
        return {"LD_PRELOAD": f"{TOOLS}/faultfs.so:{TOOLS}/clock.so", "BERINGIA_FAULTFS": rules, "BERINGIA_CLOCK": clock}

    def note(self, what, **more):
        self.acts_log.write(json.dumps({"t": round(now(), 3), "act": what, **more}) + "\n")

    def fault(self, kind, count=1, **more):
        self.counts[kind] = self.counts.get(kind, 0) + count
        self.note(kind, **more)

    def break_(self, text):
        self.broken.append(text)
        self.note("broken", text=text)
        print(f"chaos: broken: {text}", flush=True)

    # ---- the run -----------------------------------------------------------------------------------
    def call(self, *words, ok=(0,), timeout=120):
        done = subprocess.run([self.program, *map(str, words)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                              timeout=timeout, check=False)
        if done.returncode not in ok:
            raise Broken(f"`beringia {' '.join(map(str, words))}` ended with {done.returncode}: "
                         f"{(done.stderr.strip().splitlines() or ['no message'])[-1]}")
        return done.stdout

    def make_run(self, positions, epochs, settings):
        text, rng = os.path.join(self.out, "text.txt"), random.Random(5)
        with open(text, "w", encoding="utf-8") as f:
            seq = 32 if self.args.trainer == "native" else 4
            for _ in range(positions * (seq + 1) // 500 + 4):
                f.write("".join(rng.choice("etaoin shrdlu") for _ in range(600)) + "\n\f\n")
        self.data = os.path.join(self.out, "data")
        self.call("pack", "--out", self.data, "--tokenizer", "bytes", "--seq-len", seq, "--heldout", "0",
                  "--max-samples", positions, text)
        with open(os.path.join(self.data, "manifest.json"), encoding="utf-8") as f:
            positions = json.load(f)["train"]["samples"]  # whole documents: a few more than asked for
        sets = [w for k, v in settings.items() for w in ("--set", f"{k}={v}")]
        model = ["--model", os.path.join(ROOT, "share", "models", "tiny.json")]
        if self.args.trainer == "counting":
            weights = os.path.join(self.out, "zeros.safetensors")
            zeros_write(weights, positions * epochs)
            model = ["--weights-file", weights]
            sets += ["--set", "outer.average=sum", "--set", "outer.codec=fp32", "--set", "train.schedule=constant",
                     "--set", "train.lr=10"]
        if getattr(self.args, "postgres", False):
            self.server = Server().start()
            sets += ["--store", self.server.url("chaos")]
        self.call("init", self.run, *model, "--data", self.data, "--seed", "1", "--set", f"run.epochs={epochs}", *sets)
        self.positions, self.epochs = positions, epochs
        self.delta_bytes = self.json_file("run.json")["parameters"] * (4 if self.args.trainer == "counting" else 1) + 200
        with socket.socket() as s:
            s.bind(("127.0.0.1", 0))
            self.listen = f"127.0.0.1:{s.getsockname()[1]}"
        self.site_disk_bytes = 64 * self.delta_bytes + (64 << 20)
        self.hub = Hub(self)

    def json_file(self, name):
        with open(os.path.join(self.run, name), encoding="utf-8") as f:
            return json.load(f)

    def site_words(self, s):
        a = self.args
        if a.trainer == "native":
            words = [self.program, "site", "--batch", "2", "--threads", "1", "--checkpoint-every",
                     f"{a.checkpoint_ms:g}ms", "--timeout", f"{a.timeout_ms:g}ms", "--grace", "10s", "--trust-data",
                     "--throttle", "1" if s.fast else f"{a.throttle:g}"]
        else:
            words = [self.counting, "--batch", str(64 if s.fast else a.batch), "--step-ms",
                     "1" if s.fast else f"{a.step_ms:g}", "--checkpoint-ms", f"{a.checkpoint_ms:g}", "--timeout-ms",
                     f"{a.timeout_ms:g}", "--progress", s.progress, "--seed", str(1 + self.rng.randrange(1 << 30))]
        return words + ["--hub", s.link.url, "--name", s.name, "--data", self.data, "--state", s.state]

    # ---- looking -----------------------------------------------------------------------------------
    def status(self, timeout=2):
        try:
            with urllib.request.urlopen(f"http://{self.listen}/v1/status", timeout=timeout) as answer:
                return json.load(answer)
        except (urllib.error.URLError, OSError, ValueError):
            return None

    def post(self, path, body, timeout=5):
        ask = urllib.request.Request(f"http://{self.listen}{path}", json.dumps(body).encode(),
                                     {"Content-Type": "application/json"})
        try:
            with urllib.request.urlopen(ask, timeout=timeout) as answer:
                return json.load(answer)
        except (urllib.error.URLError, OSError, ValueError):
            return None

    def keep(self):
        """What ended by itself: is that allowed? Sites that are wanted come back."""
        hub_code = self.hub.ended()
        if hub_code is not None and not self.hub.busy:
            if hub_code not in self.hub.allowed:
                self.break_(f"the hub ended by itself with {hub_code}; see {self.hub.log}")
            self.hub.begin()
        for s in self.sites:
            code = s.ended()
            if code is None or s.busy or not s.wanted:
                continue
            if s.restart_at == 0:
                if code not in s.allowed:
                    self.break_(f"site {s.name} ended by itself with {code}; see {s.log}")
                s.complete = code == 0
                s.restart_at = now() + self.rng.uniform(0.2, 1.0)
            elif now() >= s.restart_at:
                s.restart_at = 0
                s.begin()

    def wait(self, what, condition, seconds):
        until = now() + seconds
        while not condition():
            if now() > until:
                raise Broken(f"waited {seconds} s for {what}")
            self.keep()
            time.sleep(0.05)

    def clean(self):
        for p in [self.hub, *self.sites]:
            if p is not None:
                p.signal(signal.SIGCONT)
                p.kill()
        for s in self.sites:
            s.link.process.kill()
            s.link.process.wait()

    def end_server(self):
        """After the oracles: they ask it too."""
        if self.server is not None:
            self.server.remove()
            self.server = None

    def unmount(self):
        for path in reversed(self.mounts):
            subprocess.run(["umount", "-l", path], check=False)
        self.mounts = []

    def logs(self):
        return sorted(glob.glob(os.path.join(self.out, "*.log")))


def zeros_write(path, count):
    head = json.dumps({"counts": {"dtype": "F32", "shape": [count], "data_offsets": [0, 4 * count]}}).encode()
    head += b" " * (-len(head) % 8)
    with open(path, "wb") as f:
        f.write(struct.pack("<Q", len(head)) + head)
        f.truncate(8 + len(head) + 4 * count)
