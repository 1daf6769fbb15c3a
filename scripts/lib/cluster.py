# SPDX-License-Identifier: Apache-2.0
"""A hub and its sites as processes of this machine, for the demonstration and the tests with real processes.

Every wait names what it waits for, looks at the condition and has a deadline; every process that is started here
is ended here, by its pid."""
import json
import os
import random
import signal
import subprocess
import time
import urllib.error
import urllib.request


class Failure(Exception):
    """One sentence for the person who reads the last line of the log."""


def wait_for(what, condition, seconds=60, each=None, pause=0.02):
    """Waits until condition() is true; each() runs between looks. A condition that is never met is a Failure."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            raise Failure(f"waited {seconds} s for {what}")
        if each:
            each()
        time.sleep(pause)


def pack_words(program, path, seed=1):
    """A data set of 40 documents of random words at `path`, with samples of 64 tokens; another seed, another text. Gives path."""
    if os.path.exists(path):
        return path
    os.makedirs(os.path.dirname(path), exist_ok=True)
    rng = random.Random(seed)
    words = "the a of and site hub trains samples once every position merges weights round lease delta base".split()
    with open(path + ".txt", "w", encoding="utf-8") as f:
        for _ in range(40):
            f.write(" ".join(rng.choice(words) for _ in range(400)) + "\n\f\n")
    subprocess.run([program, "pack", "--out", path, "--seq-len", "64", path + ".txt"], check=True, stdout=subprocess.DEVNULL)
    return path


class Cluster:
    """One run directory, its hub, its sites, all below `out`.

    program: path of the executable; sites: name -> list of further arguments of `beringia site`; data: a packed data
    set; env: further environment of every process (name -> value)."""

    def __init__(self, program, out, data, sites, env=None):
        self.program = program
        self.out = out
        self.run_dir = os.path.join(out, "run")
        self.data = data
        self.site_words = sites
        self.env = dict(os.environ, **(env or {}))
        self.url = None
        self.hub = None
        self.sites = {}
        self.launch = {}  # name -> words before the program, such as mpirun -n 2
        self.last_status = None

    # ---- commands --------------------------------------------------------------------------------
    def call(self, *words, ok=(0,)):
        """Runs `beringia words...` to its end and gives its standard output."""
        done = subprocess.run([self.program, *map(str, words)], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                              text=True, env=self.env)
        if done.returncode not in ok:
            said = done.stderr.strip().splitlines()
            raise Failure(f"`beringia {' '.join(map(str, words))}` ended with {done.returncode}: "
                          f"{said[-1] if said else 'no message'}")
        return done.stdout

    def json(self, *words, ok=(0,)):
        return json.loads(self.call(*words, ok=ok))

    def init(self, model, settings, seed=7):
        sets = [w for k, v in settings.items() for w in ("--set", f"{k}={v}")]
        self.call("init", self.run_dir, "--model", model, "--data", self.data, "--seed", seed, *sets)

    # ---- the hub ---------------------------------------------------------------------------------
    def start_hub(self, env=None, wait=True):
        path = os.path.join(self.run_dir, "hub.json")
        if os.path.exists(path):
            os.unlink(path)
        listen = self.url.split("//")[1] if self.url else "127.0.0.1:0"
        with open(os.path.join(self.out, "hub.log"), "ab") as log:
            self.hub = subprocess.Popen([self.program, "hub", self.run_dir, "--listen", listen],
                                        stdout=log, stderr=log, env=dict(self.env, **(env or {})))

        def up():
            if self.hub.poll() is not None:
                raise Failure(f"the hub ended with {self.hub.returncode}; see {self.out}/hub.log")
            if not os.path.exists(path):
                return False
            with open(path, encoding="utf-8") as f:
                self.url = json.load(f)["url"]
            return self.status() is not None

        if wait:
            wait_for("the hub to answer", up, 30)

    def kill_hub(self):
        self.hub.kill()
        self.hub.wait()

    def stop_hub(self):
        self.hub.send_signal(signal.SIGTERM)
        if self.hub.wait(timeout=60) != 0:
            raise Failure(f"the hub did not stop cleanly; see {self.out}/hub.log")

    def get(self, path):
        with urllib.request.urlopen(self.url + path, timeout=5) as answer:
            return json.load(answer)

    def status(self):
        """The hub's status, or None while it cannot be reached."""
        try:
            self.last_status = self.get("/v1/status")
            return self.last_status
        except (urllib.error.URLError, OSError, ValueError):
            return None

    def merged_share(self):
        s = self.status()
        return s["counts"]["merged"] / s["positions"] if s else 0.0

    def complete(self):
        s = self.status()
        return bool(s and s["complete"])

    # ---- sites -----------------------------------------------------------------------------------
    def start_site(self, name, env=None):
        with open(os.path.join(self.out, f"site-{name}.log"), "ab") as log:
            self.sites[name] = subprocess.Popen(
                [*map(str, self.launch.get(name, [])), self.program, "site", "--hub", self.url, "--name", name,
                 "--data", self.data, "--state", os.path.join(self.out, f"site-{name}"), *map(str, self.site_words[name])],
                stdout=log, stderr=log, env=dict(self.env, **(env or {})))

    def stop_site(self, name, sig):
        process = self.sites.pop(name)
        process.send_signal(sig)
        process.wait(timeout=60)
        return process.returncode

    def check_processes(self):
        """A process that ended by itself with a failure is the end of the story."""
        if self.hub and self.hub.poll() is not None:
            raise Failure(f"the hub ended by itself with {self.hub.returncode}; see {self.out}/hub.log")
        for name, process in self.sites.items():
            if process.poll() not in (None, 0):
                raise Failure(f"site {name} ended with {process.returncode}; see {self.out}/site-{name}.log")

    def wait_sites(self):
        for name, process in self.sites.items():
            if process.wait(timeout=60) != 0:
                raise Failure(f"site {name} ended with {process.returncode}; see {self.out}/site-{name}.log")
        self.sites = {}

    def clean(self):
        for name in self.launch:  # a launcher has to be asked, or its processes stay
            process = self.sites.get(name)
            if process is not None and process.poll() is None:
                process.terminate()
                try:
                    process.wait(timeout=20)
                except subprocess.TimeoutExpired:
                    pass
        for process in [self.hub, *self.sites.values()]:
            if process is not None and process.poll() is None:
                process.kill()
                process.wait()

    # ---- proofs ----------------------------------------------------------------------------------
    def audit(self, blobs=False):
        """The audit's figures; works on a live run too."""
        return self.json("audit", self.run_dir, "--json", *(["--blobs"] if blobs else []), ok=(0, 17))

    def replay(self):
        return self.json("hub", "replay", self.run_dir, "--json", ok=(0, 17, 25))
