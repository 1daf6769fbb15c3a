# SPDX-License-Identifier: Apache-2.0
"""What the tests of the PyTorch helper share: a packed piece of real text, a hub, native sites and PyTorch sites as
processes, and comparisons of checkpoints."""
import json
import os
import signal
import socket
import struct
import subprocess
import sys
import traceback

ROOT = os.environ.get("ROOT") or os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
B = os.path.join(ROOT, os.environ.get("B", "build/release"))
os.environ.setdefault("BERINGIA_LIBRARY", os.path.join(B, "libberingia.so"))
for part in ("examples/pytorch", "scripts/lib", "python"):
    sys.path.insert(0, os.path.join(ROOT, part))
from cluster import Cluster, Failure, wait_for  # noqa: E402,F401

PROGRAM = os.environ.get("BERINGIA") or os.path.join(B, "beringia")
SCRATCH = os.environ.get("SCRATCH") or "/tmp/beringia-python-tests"
ONLY = os.environ.get("T", "")
TINY = os.path.join(ROOT, "share", "models", "tiny.json")
FAST = {"lease.ttl": "6s", "lease.heartbeat": "500ms", "outer.steps": 10, "outer.grace": "3s", "lease.samples_min": 32,
        "lease.samples_max": 128, "train.lr": 0.004, "train.warmup_tokens": 8000}
TRAINER = os.path.join(ROOT, "test", "python", "trainer.py")
LONG = 900  # seconds: only what hangs takes so long. PyTorch alone may need minutes to begin on a busy machine
FAILED = []


def say(name, good, text=""):
    print(f"{'ok' if good else 'FAIL'} {name}", flush=True)
    if not good:
        print("  " + str(text).strip().replace("\n", "\n  "), flush=True)
        FAILED.append(name)


def pack(chars, seq_len=64):
    """The first so many characters of the sample text, with a tenth held out."""
    path = os.path.join(SCRATCH, f"data-{chars}-{seq_len}")
    if os.path.exists(path):
        return path
    os.makedirs(SCRATCH, exist_ok=True)
    with open(os.path.join(ROOT, "share", "text", "moby-dick.txt"), encoding="utf-8") as f, \
            open(path + ".txt", "w", encoding="utf-8") as out:
        out.write(f.read(chars))
    subprocess.run([PROGRAM, "pack", "--out", path, "--seq-len", str(seq_len), "--heldout", "0.1", path + ".txt"],
                   check=True, stdout=subprocess.DEVNULL)
    return path


def begin(name, data, settings=None, model=TINY, native=None, seed=1, weights=None):
    """A run with its hub. native: name -> further arguments of `beringia site`; weights: a directory to begin with."""
    out = os.path.join(SCRATCH, name)
    os.makedirs(out)
    words = ["--batch", 8, "--threads", 1, "--checkpoint-every", "1s", "--timeout", "5s"]
    c = Cluster(PROGRAM, out, data, {n: words + w for n, w in (native or {}).items()})
    sets = [w for k, v in {**FAST, **(settings or {})}.items() for w in ("--set", f"{k}={v}")]
    c.call("init", c.run_dir, "--model", model, "--data", data, "--seed", seed, *sets,
           *(["--weights", weights] if weights else []))
    c.start_hub()
    return c


def start(c, name, *words, ranks=1, env=None, script=TRAINER, python=sys.executable):
    """A PyTorch site; with ranks > 1 a list of processes, rank by rank."""
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    processes = []
    for rank in range(ranks):
        e = dict(os.environ, PYTHONPATH=os.pathsep.join(sys.path[:3]), BERINGIA_HUB=c.url, BERINGIA_NAME=name,
                 BERINGIA_DATA=c.data, BERINGIA_STATE=os.path.join(c.out, "site-" + name), OMP_NUM_THREADS="1")
        e.setdefault("USE_LIBUV", "0")  # Debian's PyTorch 2.6 is built without it, and its store wants it
        e.update(env or {})
        if ranks > 1:
            e.update(RANK=str(rank), WORLD_SIZE=str(ranks), MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
        with open(os.path.join(c.out, f"site-{name}{rank or ''}.log"), "ab") as log:
            processes.append(subprocess.Popen([python, script, *map(str, words)], stdout=log, stderr=log, env=e))
    c.started = getattr(c, "started", []) + processes
    for i, p in enumerate(processes):
        c.sites[f"{name}{i}" if i else name] = p
    return processes if ranks > 1 else processes[0]


def log_of(c, name):
    with open(os.path.join(c.out, f"site-{name}.log"), encoding="utf-8") as f:
        return f.read()


def wait_sites(c, seconds=LONG):
    """PyTorch takes its time to begin, on a busy machine more than a native site takes for all of it."""
    wait_for("the sites to end", lambda: all(p.poll() is not None for p in c.sites.values()), seconds, each=c.check_processes)
    c.wait_sites()


def finish(c, seconds=LONG):
    """The run completes, all sites end with 0; the audit's figures."""
    wait_for("the run to complete", c.complete, seconds, each=c.check_processes)
    wait_sites(c)
    c.stop_hub()
    a = c.audit()
    if a.get("lost") or a.get("doubled") or a["merged"] != a["positions"]:
        raise Failure(f"the audit says {a}")
    return a


def clean(c):
    c.clean()
    for p in getattr(c, "started", []):
        if p.poll() is None:
            p.kill()
            p.wait()


def perplexity(c):
    return json.loads(c.call("eval", c.run_dir, "--data", c.data, "--json"))["perplexity"]


def contributions(c):
    """site -> tokens merged."""
    sites = c.json("status", c.run_dir, "--json")["sites"] if c.hub.poll() is None else c.last_status["sites"]
    return {s["name"]: s.get("tokens_merged", s.get("merged_tokens", 0)) for s in sites}


def theta(path):
    """All F32 tensors of a version, one after another, as one torch vector; outer state left out."""
    import torch
    with open(path, "rb") as f:
        n = struct.unpack("<Q", f.read(8))[0]
        head = json.loads(f.read(n))
        head.pop("__metadata__", None)
        out = []
        for name, t in sorted(head.items(), key=lambda x: x[1]["data_offsets"][0]):
            if t["dtype"] != "F32" or not name.startswith(("model.", "lm_head.")):
                continue
            f.seek(8 + n + t["data_offsets"][0])
            out.append(torch.frombuffer(bytearray(f.read(t["data_offsets"][1] - t["data_offsets"][0])), dtype=torch.float32))
    return torch.cat(out)


def main(scenarios):
    for scenario in scenarios:
        name = scenario.__name__
        if ONLY and ONLY not in name and ONLY not in os.path.basename(sys.argv[0]):
            continue
        made = []
        try:
            scenario(made.append)
        except Exception as e:  # pylint: disable=broad-except
            traceback.print_exc()
            say(name, False, e)
        for c in made:
            clean(c)
    return 1 if FAILED else 0


TERM, KILL, INT = signal.SIGTERM, signal.SIGKILL, signal.SIGINT
