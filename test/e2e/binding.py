#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# release only
# timeout: 200
"""The Python binding without PyTorch, against a live hub. What goes wrong: the library is of another ABI; a program
joins twice, calls from another thread or a forked child, raises in the middle of a step, is interrupted while it waits,
ends without close. What must hold: a clear exception each time, what was not stepped is not counted and comes again, and
the audit is clean at the end."""
import ast
import ctypes
import glob
import os
import pickle
import signal
import subprocess
import sys
import threading
import time
import traceback
import zipfile

ROOT = os.environ.get("ROOT") or os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
B = os.path.join(ROOT, os.environ.get("B", "build/release"))
os.environ.setdefault("BERINGIA_LIBRARY", os.path.join(B, "libberingia.so"))
sys.path[:0] = [os.path.join(ROOT, "python"), os.path.join(ROOT, "scripts", "lib")]
import beringia  # noqa: E402
from cluster import Cluster, Failure, wait_for  # noqa: E402

PROGRAM = os.environ.get("BERINGIA") or os.path.join(B, "beringia")
SCRATCH = os.environ.get("SCRATCH") or "/tmp/beringia-binding-e2e"
FAST = {"lease.ttl": "4s", "lease.heartbeat": "500ms", "outer.steps": 10, "outer.grace": "1s", "lease.samples_min": 16,
        "lease.samples_max": 64, "train.beta2": 0, "train.lr": 0.1}
TENSORS = [("W", (8, 8))]
FAILED = []


def say(name, good, text=""):
    print(f"{'ok' if good else 'FAIL'} binding_{name}", flush=True)
    if not good:
        print(f"  {text}", flush=True)
        FAILED.append(name)


def raises(kind, act, words=""):
    """act() raises kind with these words; gives what is wrong, or nothing."""
    try:
        act()
    except kind as e:
        return "" if words in str(e) else f"the words are: {e}"
    except BaseException as e:  # pylint: disable=broad-except
        return f"{type(e).__name__}: {e}"
    return "nothing was raised"


def site(c, name):
    s = beringia.Site(c.url, name, os.path.join(SCRATCH, "state-" + name), c.data, batch_samples=4, timeout=5,
                      checkpoint_every=0.5, open_timeout=20)
    s.grace = 20
    return s


def train(s, steps, weights=None):
    """So many steps at most; gives how many, and whether the run says there is no more."""
    done = 0
    while done < steps:
        samples = s.take(4, 0.2)
        if samples is None:
            return done, True
        if samples:
            if weights is not None:
                weights[done % len(weights)] -= 0.001
            s.step(len(samples), 1.0)
            done += 1
        s.sync()
    return done, False


# ---- Scenarios -------------------------------------------------------------------------------------------------
def abi():
    say("the_library_is_of_this_abi", beringia.library_version().startswith("0."))
    libc = subprocess.run([sys.executable, "-c", "import beringia"], stderr=subprocess.PIPE, text=True, check=False,
                          env=dict(os.environ, BERINGIA_LIBRARY="libc.so.6", PYTHONPATH=os.path.join(ROOT, "python")))
    say("another_library_is_told", libc.returncode == 1 and "has no brg_" in libc.stderr, libc.stderr[-200:])
    # A struct that is larger here than in the library: as with a library that is older than this file.
    fields = beringia._STRUCTS["brg_run"]._fields_
    grown = type("Grown", (ctypes.Structure,), {"_fields_": [*fields, ("more", ctypes.c_uint64)]})
    keep, beringia._STRUCTS["brg_run"] = beringia._STRUCTS["brg_run"], grown
    text = raises(beringia.AbiError, lambda: beringia._check(beringia._lib, "here"), "struct brg_run")
    beringia._STRUCTS["brg_run"] = keep
    say("a_struct_of_another_size_is_told", not text, text)
    none = subprocess.run([sys.executable, "-c", "import beringia"], stderr=subprocess.PIPE, text=True, check=False,
                          env=dict(os.environ, BERINGIA_LIBRARY="/nowhere.so", PYTHONPATH=os.path.join(ROOT, "python")))
    say("a_missing_library_is_told", "libberingia is not found" in none.stderr, none.stderr[-200:])


def oldest_python():
    """The package is Python 3.9's language; names that came later are the tests' on the machine that has it."""
    files = glob.glob(os.path.join(ROOT, "python", "**", "*.py"), recursive=True)
    bad = []
    for path in files:
        with open(path, encoding="utf-8") as f:
            try:
                ast.parse(f.read(), feature_version=(3, 9))
            except SyntaxError as e:
                bad.append(f"{path}: {e}")
    say("the_package_is_python_3_9", len(files) >= 5 and not bad, bad)


def examples():
    """The plain loop and its difference are as short as the page on trainers says; job scripts are good shell."""
    here = os.path.join(ROOT, "examples", "pytorch")
    diff = subprocess.run(["diff", "-u", "--label", "plain.py", "--label", "joined.py", "plain.py", "joined.py"], cwd=here,
                          stdout=subprocess.PIPE, text=True, check=False).stdout
    with open(os.path.join(here, "joined.diff"), encoding="utf-8") as f:
        say("the_diff_to_join_is_the_one_that_is_shown", f.read() == diff, "write it again: see this test")
    changed = [x for x in diff.splitlines() if x[:1] in "+-" and x[:3] not in ("+++", "---")]
    with open(os.path.join(here, "plain.py"), encoding="utf-8") as f:
        lines = len(f.readlines())
    say("joining_changes_at_most_ten_lines", lines <= 40 and len(changed) <= 10, f"{len(changed)} of {lines}")
    bad = [p for p in glob.glob(os.path.join(ROOT, "examples", "slurm", "*.sh"))
           if subprocess.run(["bash", "-n", p], check=False).returncode != 0]
    say("job_scripts_are_good_shell", not bad and len(glob.glob(os.path.join(ROOT, "examples", "slurm", "*.sh"))) >= 3, bad)


def wheel():
    """What pip builds holds the package and the library, and runs from elsewhere."""
    out = os.path.join(SCRATCH, "wheel")
    os.makedirs(out)
    made = subprocess.run([sys.executable, "-c", f"import build_wheel; print(build_wheel.build_wheel({out!r}))"], text=True,
                          cwd=os.path.join(ROOT, "python"), stdout=subprocess.PIPE, stderr=subprocess.PIPE, check=False)
    if made.returncode != 0:
        say("the_wheel_is_built", False, made.stderr)
        return
    with zipfile.ZipFile(os.path.join(out, made.stdout.split()[-1])) as z:
        z.extractall(out)
    env = dict(os.environ, PYTHONPATH=out)
    env.pop("BERINGIA_LIBRARY")
    done = subprocess.run([sys.executable, "-c", "import beringia; print(beringia._candidates.__module__, "
                           "list(beringia._candidates())[0], beringia.library_version())"], env=env, cwd=out, text=True,
                          stdout=subprocess.PIPE, stderr=subprocess.PIPE, check=False)
    say("the_wheel_runs_with_the_library_in_it", done.returncode == 0 and os.path.join(out, "beringia") in done.stdout,
        done.stdout + done.stderr)


def bad_words(c):
    say("no_hub_is_told", not (t := raises(beringia.NetError, lambda: beringia.Site(
        "http://127.0.0.1:9", "x", os.path.join(SCRATCH, "x"), c.data, open_timeout=0.3))), t)
    say("a_bad_name_is_told", not (t := raises(beringia.ConfigError, lambda: beringia.Site(
        c.url, "Not a name", os.path.join(SCRATCH, "x"), c.data), "site_name")), t)
    say("no_data_is_told", not (t := raises(beringia.Error, lambda: beringia.Site(
        c.url, "x", os.path.join(SCRATCH, "x"), "/nowhere"), "/nowhere")), t)
    for what, kind, words in (("name", beringia.ConfigError, {"name": "x\0y"}), ("hub", beringia.ConfigError, {"hub": None}),
                              ("state", beringia.ConfigError, {"state": 7}), ("timeout", beringia.ConfigError, {"timeout": -1}),
                              ("open_timeout", beringia.ConfigError, {"open_timeout": float("nan")}),
                              ("batch_samples", beringia.UsageError, {"batch_samples": -4}),
                              ("warmup_steps", beringia.UsageError, {"warmup_steps": 2.5}),
                              ("seed", beringia.UsageError, {"seed": -1}),
                              ("fingerprint", beringia.ConfigError, {"fingerprint": b"short"})):
        given = {"hub": c.url, "name": "x", "state": os.path.join(SCRATCH, "x"), "data": c.data, **words}
        say("a_bad_" + what + "_is_told", not (t := raises(kind, lambda g=given: beringia.Site(**g), what)), t)
    d = beringia.Data(c.data)
    say("a_sample_below_all_is_told", not (t := raises(beringia.UsageError, lambda: d.sample(-1))), t)
    copy = pickle.loads(pickle.dumps(d))
    say("a_data_set_is_pickled", list(copy.sample(3)) == list(d.sample(3)))
    copy.close()
    say("a_closed_data_set_is_told", not (t := raises(beringia.UsageError, lambda: copy.sample(3))), t)
    say("a_sample_is_read", len(d.sample(0)) == d.seq_len + 1 and max(d.sample(0)) < d.vocab_size)
    say("a_sample_too_far_is_told", not (t := raises(beringia.UsageError, lambda: d.sample(d.samples))), t)


def bad_use(c):
    s = site(c, "bad")
    say("a_step_before_join_is_told", not (t := raises(beringia.UsageError, s.sync, "brg_join comes first")), t)
    say("a_wrong_model_is_told", not (t := raises(beringia.ModelError, lambda: s.join([("W", (7, 8))]), "tensors")), t)
    say("five_dimensions_are_told", not (t := raises(beringia.ModelError, lambda: s.join([("W", (1, 1, 1, 8, 8))]))), t)
    s.join(TENSORS)
    say("a_second_join_is_told", not (t := raises(beringia.UsageError, lambda: s.join(TENSORS), "already")), t)
    say("a_twin_is_told", not (t := raises(beringia.BusyError, lambda: site(c, "bad"))), t)
    text = ["nothing ran"]
    thread = threading.Thread(target=lambda: text.__setitem__(0, raises(beringia.UsageError, s.sync, "thread")))
    thread.start()
    thread.join()
    say("another_thread_is_told", not text[0], text[0])
    child = os.fork()
    if child == 0:
        wrong = raises(beringia.UsageError, s.sync, "fork")
        s.close()  # nothing happens
        os._exit(1 if wrong else 0)
    say("a_forked_child_is_told", os.waitpid(child, 0)[1] == 0)
    for words, act in (("want", lambda: s.take(-1)), ("want", lambda: s.take(1 << 40)), ("timeout", lambda: s.take(1, -1.0)),
                       ("count", lambda: s.step(-1, 0.0))):
        say(f"a_bad_{words}_of_a_call_is_told", not (t := raises(beringia.Error, act, words)), t)
    say("a_step_on_nothing_is_told", not (t := raises(beringia.UsageError, lambda: s.step(1, 0.0), "taken")), t)
    done, _ = train(s, 3)
    say("the_site_is_as_before", done == 3)
    s.close()
    say("closed_twice_is_fine", (t := raises(beringia.Error, s.close)) == "nothing was raised", t)
    say("a_closed_site_is_told", not (t := raises(beringia.UsageError, s.sync, "closed")), t)


def exception_in_user_code(c):
    """The samples in hand are not counted, and the segment is given up; to_the_end() shows that all of them come back."""
    before = c.status()["counts"]
    try:
        with site(c, "thrower") as s:
            s.join(TENSORS)
            train(s, 2)
            wait_for("samples", lambda: s.take(4, 0.2), 20)
            raise KeyError("the user's own")
    except KeyError:
        pass
    after = c.status()["counts"]
    good = after["merged"] + after["staged"] == before["merged"] + before["staged"]
    say("an_exception_counts_nothing", good, f"{before} then {after}")


def child(mode, *words):
    env = dict(os.environ, PYTHONPATH=os.pathsep.join([os.path.join(ROOT, "python"), os.path.join(ROOT, "scripts", "lib")]))
    return subprocess.Popen([sys.executable, os.path.abspath(__file__), "child", mode, *words], env=env, text=True,
                            stdout=subprocess.PIPE, stderr=subprocess.PIPE)


def without_close(c):
    p = child("exit", c.url, c.data)
    out, err = p.communicate(timeout=60)
    say("an_exit_without_close_closes", p.returncode == 0 and "without closing" in err and "steps 3" in out,
        f"ended with {p.returncode}: {out} {err[-300:]}")
    s = c.status()["counts"]
    say("and_hands_in_what_was_done", s["staged"] + s["merged"] >= 12, s)


def interrupted(c):
    p = child("wait", "http://127.0.0.1:9", c.data)
    line = p.stderr.readline()  # the library says that it waits
    p.send_signal(signal.SIGINT)
    out, err = p.communicate(timeout=60)
    say("ctrl_c_while_waiting_for_a_hub", p.returncode == -signal.SIGINT and "KeyboardInterrupt" in err and "unreachable" in line,
        f"ended with {p.returncode}: {line}{err[-300:]}")
    p = child("train", c.url, c.data)
    wait_for("it to train", lambda: p.stdout.readline().startswith("training"), 30)
    p.send_signal(signal.SIGINT)
    out, err = p.communicate(timeout=60)
    say("ctrl_c_while_training", p.returncode == -signal.SIGINT and "KeyboardInterrupt" in err, f"ended with {p.returncode}: {err[-300:]}")


def to_the_end(c):
    weights = (ctypes.c_float * 64)()
    with site(c, "last") as s:
        s.join(TENSORS, weights=ctypes.addressof(weights))
        if s.settings.parameters != 64 or s.lr <= 0:
            raise Failure("the settings are not the run's")
        _, ended = train(s, 1 << 30, weights)
        say("the_run_completes", ended and s.complete and s.figures().complete)
    c.stop_hub()
    a = c.audit()
    say("the_audit_is_clean", a.get("lost", 1) == 0 and a.get("doubled", 1) == 0 and a["merged"] == a["positions"], a)


def child_main(mode, url, data):
    s = beringia.Site(url, "child-" + mode, os.path.join(SCRATCH, "state-child-" + mode), data, batch_samples=4)
    s.join(TENSORS)
    if mode == "exit":
        print("steps", train(s, 3)[0], flush=True)
        return  # and no close
    with s:
        while True:
            if s.take(4, 0.2):
                print("training", flush=True)
                time.sleep(0.05)


def write_weights(path):
    head = b'{"W":{"dtype":"F32","shape":[8,8],"data_offsets":[0,256]}}'
    with open(path, "wb") as f:
        f.write(len(head).to_bytes(8, "little") + head + b"\0" * 256)


def main():
    os.makedirs(SCRATCH, exist_ok=True)
    beringia.log_level("error")
    abi()
    oldest_python()
    examples()
    wheel()
    data, text, weights = (os.path.join(SCRATCH, n) for n in ("data", "text.txt", "w.safetensors"))
    with open(os.path.join(ROOT, "share", "text", "moby-dick.txt"), encoding="utf-8") as f, \
            open(text, "w", encoding="utf-8") as out:
        out.write(f.read(40000))
    subprocess.run([PROGRAM, "pack", "--out", data, "--seq-len", "64", "--heldout", "0", text], check=True,
                   stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    write_weights(weights)
    out = os.path.join(SCRATCH, "cluster")
    os.makedirs(out)
    c = Cluster(PROGRAM, out, data, {})
    c.call("init", c.run_dir, "--weights-file", weights, "--data", data,
           *[w for k, v in FAST.items() for w in ("--set", f"{k}={v}")])
    c.start_hub()
    try:
        for scenario in (bad_words, bad_use, exception_in_user_code, without_close, interrupted, to_the_end):
            try:
                scenario(c)
            except Exception as e:  # pylint: disable=broad-except
                traceback.print_exc()
                say(scenario.__name__, False, e)
    finally:
        c.clean()
    return 1 if FAILED else 0


if __name__ == "__main__":
    sys.exit(child_main(*sys.argv[2:]) if sys.argv[1:2] == ["child"] else main())
