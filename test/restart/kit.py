# SPDX-License-Identifier: Apache-2.0
"""A site of two ranks that is killed and started again: from its own memory, from its partner's, from disk.

Both ranks run on this machine; `--memory DIR/node%r` gives each a directory of its own, which plays its node's memory:
removing one is what the loss of that node would be. One round holds the whole run, so that the last weights have the
same bits whenever nothing was lost or changed on the way. The local checkpoint is held at an early step by a
directory in the way of its next one: what goes on later than that has it from memory."""
import glob
import hashlib
import json
import os
import random
import re
import shutil
import signal
import struct
import subprocess
import sys
import time

ROOT = os.environ.get("ROOT") or os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path.insert(0, os.path.join(ROOT, "scripts", "lib"))
from cluster import Cluster, Failure, wait_for  # noqa: E402

PROGRAM = os.environ.get("BERINGIA") or os.path.join(ROOT, "build", "release", "beringia")
TINY = os.path.join(ROOT, "share", "models", "tiny.json")
KILLED = 128 + signal.SIGKILL
LONG = 600  # seconds: only what hangs takes so long
CLUSTERS = []  # all that were made, to be ended whatever happens
PAGE, BOOKS = 4096, 266240  # train/memory.h
# Containers of tests run as root, and on fewer processors than there are ranks; hwloc is not needed to be exact.
ENV = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1", "OMPI_MCA_rmaps_base_oversubscribe": "1",
       "OMPI_MCA_hwloc_base_binding_policy": "none", "OMPI_MCA_btl": "self,vader,tcp"}
ONE_ROUND = {"outer.steps": 100000, "outer.eta": 1, "outer.mu": 0, "outer.m_ref": 1, "outer.codec": "fp32",
             "train.schedule": "constant", "train.lr": 0.001, "lease.samples_max": 1000000, "lease.heartbeat": "500ms",
             "lease.ttl": "1h", "outer.grace": "1s"}
ROUNDS = {**ONE_ROUND, "outer.steps": 10, "lease.samples_min": 16, "lease.samples_max": 128, "lease.ttl": "20s"}


def want(condition, text):
    if not condition:
        raise Failure(text)


def missing():
    if not shutil.which("mpirun"):
        return "mpirun is not there"
    if not os.path.exists(os.path.join(os.path.dirname(PROGRAM), "beringia-mpi.so")):
        return "beringia-mpi.so is not built"
    return None


def memory_root(scratch):
    """In memory, where there is one that everybody may use: a directory of this test alone."""
    path = f"/dev/shm/brg-restart-{os.getpid()}" if os.access("/dev/shm", os.W_OK) else os.path.join(scratch, "memory")
    os.makedirs(path, exist_ok=True)
    return path


class World:
    """Runs of one model on one data set, all with the same seed."""

    def __init__(self, scratch, model=TINY, documents=4, seq_len=32, batch=4, settings=None):
        self.scratch, self.model, self.batch, self.settings = scratch, model, batch, settings or ONE_ROUND
        self.memory = memory_root(scratch)
        self.data = os.path.join(scratch, f"data{documents}-{seq_len}")
        if not os.path.exists(self.data):
            rng = random.Random(5)
            words = "the a of and site hub trains samples once every position merges weights round lease delta".split()
            os.makedirs(scratch, exist_ok=True)
            with open(self.data + ".txt", "w", encoding="utf-8") as f:
                for _ in range(documents):
                    f.write(" ".join(rng.choice(words) for _ in range(400)) + "\n\f\n")
            subprocess.run([PROGRAM, "pack", "--out", self.data, "--seq-len", str(seq_len), self.data + ".txt"],
                           check=True, stdout=subprocess.DEVNULL)

    def close(self):
        shutil.rmtree(self.memory, ignore_errors=True)


class Run:
    """One run with one site of `ranks` ranks (1: no MPI)."""

    def __init__(self, world, name, ranks=2, memory=True, more=(), throttle=0.03):
        self.world, self.name, self.ranks, self.throttle = world, name, ranks, throttle
        self.nodes = [os.path.join(world.memory, name, f"node{r}") for r in range(ranks)]
        words = ["--batch", world.batch, "--threads", 1, "--timeout", "5s", "--grace", "30s", "--trust-data",
                 "--log-level", "debug", "--checkpoint-every", "1ms", *more]
        if memory:
            words += ["--memory", os.path.join(world.memory, name, "node%r")]
        out = os.path.join(world.scratch, name)
        os.makedirs(out)
        self.c = Cluster(PROGRAM, out, world.data, {"a": words}, env=ENV)
        CLUSTERS.append(self.c)
        self.words = words
        if ranks > 1:
            self.c.launch = {"a": ["mpirun", "-n", str(ranks)]}
        self.c.init(world.model, world.settings, seed=1)
        self.c.start_hub()
        self.state = os.path.join(out, "site-a")
        self.log_path = os.path.join(out, "site-a.log")
        self.read_from = 0

    # ---- the log ---------------------------------------------------------------------------------
    def log(self, from_the_start=False):
        if not os.path.exists(self.log_path):
            return ""
        with open(self.log_path, "rb") as f:
            f.seek(0 if from_the_start else self.read_from)
            return f.read().decode("utf-8", "replace")

    def event(self, name):
        """The fields of the last line of this event since the last start, or None."""
        found = re.findall(rf"ev={name}\b([^\n]*)\n", self.log())
        return dict(re.findall(r"(\w+)=(\S+)", found[-1])) if found else None

    def wait_event(self, name, fits=lambda e: True, seconds=LONG):
        def there():
            e = self.event(name)
            return e is not None and fits(e)
        wait_for(f"{self.name}: {name}", there, seconds, each=self.c.check_processes, pause=0.005)
        return self.event(name)

    # ---- the site --------------------------------------------------------------------------------
    def start(self, slow=True, env=None, more=()):
        self.read_from = os.path.getsize(self.log_path) if os.path.exists(self.log_path) else 0
        throttle = ["--throttle", self.throttle] if slow and self.throttle < 1 else []
        self.c.site_words["a"] = [*self.words, *throttle, *more]
        self.began = time.monotonic()
        self.c.start_site("a", env=env)

    def pids(self):
        launcher, found = self.c.sites["a"].pid, {}
        if self.ranks == 1:
            return {0: launcher}
        for path in glob.glob("/proc/[0-9]*/stat"):
            try:
                with open(path, encoding="utf-8", errors="replace") as f:
                    if int(f.read().rsplit(")", 1)[1].split()[1]) != launcher:
                        continue
                with open(os.path.join(os.path.dirname(path), "environ"), "rb") as f:
                    rank = re.search(rb"OMPI_COMM_WORLD_RANK=(\d+)", f.read())
                if rank:
                    found[int(rank[1])] = int(path.split("/")[2])
            except (OSError, ValueError, IndexError):
                continue
        return found

    def kill(self, ranks, pids=None):
        """kill -9 of these ranks; waits until the job is gone. pids: looked up before, where time matters."""
        pids = pids or self.pids()
        want(all(r in pids for r in ranks), f"{self.name}: ranks {ranks} are not there: {pids}")
        for r in ranks:
            os.kill(pids[r], signal.SIGKILL)
        self.gone()

    def gone(self):
        process = self.c.sites.pop("a")
        status = process.wait(timeout=LONG)
        want(status in (KILLED, -signal.SIGKILL), f"{self.name}: it ended with {status}, not as killed")

    # ---- what is done to it ----------------------------------------------------------------------
    def hold_disk(self):
        """No later local checkpoint than the one that is there. Gives its step."""
        path = os.path.join(self.state, "checkpoint.safetensors")
        wait_for("a local checkpoint", lambda: os.path.exists(path), LONG, each=self.c.check_processes)

        os.makedirs(os.path.join(self.c.out, "way", "in"))  # not empty, or it would be removed as a failed file is

        def in_the_way():
            try:
                os.rename(os.path.join(self.c.out, "way"), path + ".tmp")
                return True
            except NotADirectoryError:  # a checkpoint is being written
                return False
        wait_for("a moment without a checkpoint", in_the_way, LONG, pause=0.001)
        with open(path, "rb") as f:
            n = struct.unpack("<Q", f.read(8))[0]
            return int(json.loads(f.read(n))["__metadata__"]["steps"])

    def let_disk(self):
        shutil.rmtree(os.path.join(self.state, "checkpoint.safetensors.tmp"))

    def wipe(self, node):
        shutil.rmtree(self.nodes[node])

    def rot(self, node):
        """Another byte in every generation of this node's own shard."""
        path = glob.glob(os.path.join(self.nodes[node], "beringia-*", "*.own"))[0]
        size = os.path.getsize(path) // 2
        with open(path, "r+b") as f:
            for at in (0, size):
                f.seek(at + PAGE + BOOKS + 100)
                byte = f.read(1)[0]
                f.seek(at + PAGE + BOOKS + 100)
                f.write(bytes([byte ^ 1]))

    def holds_what_it_said(self, node=0):
        """MiB of the files in this node's memory: no more than was said at the start, and all of it was there at once."""
        said = re.search(r"keeps \d+ generations in \S+: ([0-9.]+) MiB of rank 0", self.log(from_the_start=True))
        want(said, f"{self.name}: it did not say what it keeps")
        files = glob.glob(os.path.join(self.nodes[node], "beringia-*", "*"))
        held = sum(os.stat(f).st_blocks * 512 for f in files) / 2**20
        want(0 < held <= float(said[1]) + 0.1, f"{self.name}: it said {said[1]} MiB, and holds {held:.2f} in {files}")
        return held

    # ---- the end ---------------------------------------------------------------------------------
    def finish(self):
        """Hash of the last version's weights, after a clean audit; nothing is left in memory."""
        wait_for("the run to complete", self.c.complete, 3 * LONG, each=self.c.check_processes)
        self.c.wait_sites()
        self.c.stop_hub()
        audit = self.c.json("audit", self.c.run_dir, "--json")
        want(audit.get("lost", 1) == 0 and audit.get("doubled", 1) == 0, f"{self.name}: the audit says {audit}")
        left = [f for n in self.nodes for f in glob.glob(os.path.join(n, "**"), recursive=True) if os.path.isfile(f)]
        want(not left, f"{self.name}: the run is over, and memory still holds {left}")
        return self.weights()

    def weights(self):
        files = glob.glob(os.path.join(self.c.run_dir, "versions", "*.safetensors"))
        newest = max(files, key=lambda p: int(os.path.basename(p).split(".")[0]))
        with open(newest, "rb") as f:
            n = struct.unpack("<Q", f.read(8))[0]
            header, data = json.loads(f.read(n)), f.read()
        h = hashlib.sha256()
        for name in sorted(k for k, v in header.items() if k != "__metadata__" and v["dtype"] == "F32"):
            begin, end = header[name]["data_offsets"]
            h.update(name.encode() + data[begin:end])
        return h.hexdigest()


def uninterrupted(world, name="whole", ranks=2, **kw):
    """What the others are compared with."""
    r = Run(world, name, ranks, **kw)
    r.start(slow=False)
    hashed = r.finish()
    want(r.event("resumed")["from"] == "hub", "it did not begin afresh")
    return hashed, r


def interrupted(world, name, dead, harm, source, whole, ranks=2, later=3, then=(), **kw):
    """A run whose ranks `dead` are killed some steps after its last local checkpoint; harm(run) is what happens to
    memory; then it goes on from `source`, with the words `then`, and its last weights are `whole`. Gives the figures of the
    start."""
    r = Run(world, name, ranks, **kw)
    r.start()
    held = r.hold_disk()
    pids = r.pids()
    reached = int(r.wait_event("kept", lambda e: int(e["steps"]) >= held + later)["steps"])
    r.kill(dead, pids)
    held_MiB = r.holds_what_it_said()
    harm(r)
    r.let_disk()
    r.start(slow=False, more=then)
    resumed, first = r.wait_event("resumed"), r.wait_event("first_step")
    wall = time.monotonic() - r.began
    want(resumed["from"] == source, f"{name}: it went on from {resumed['from']}, not from {source}")
    step = int(resumed["steps"])
    want(step == held if source == "disk" else step > held, f"{name}: step {step}, the disk had {held}, {reached} was reached")
    want(r.finish() == whole, f"{name}: other weights than without the interruption")
    figures = {"from": source, "repeated": max(0, reached - step), "recall_s": float(resumed["recall_s"]),
               "resumed_s": float(resumed["seconds"]), "first_step_s": float(first["seconds"]), "wall_s": wall, "held_MiB": held_MiB}
    print(f"  {name}: from {source} at step {step} (disk {held}, reached {reached}); seconds to resume "
          f"{figures['resumed_s']:.2f}, to the next step {figures['first_step_s']:.2f}, with the launcher {wall:.2f}")
    return figures
