#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# release only
# timeout: 900
"""libberingia as somebody else gets it: installed, found by pkg-config, compiled by gcc and clang as C99 and as
C++, shared and static. What goes wrong: a program does with it what it should not (bad_use.c); a program was
built with the first header that was ever given out; a page of the manual or an exported name is forgotten. What must
hold: every call answers with a status and a sentence, no host process ends, old programs run, the manual is whole."""
import glob
import os
import re
import subprocess
import sys
import traceback

ROOT = os.environ.get("ROOT") or os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path.insert(0, os.path.join(ROOT, "scripts", "lib"))
from cluster import Cluster, Failure, wait_for  # noqa: E402

B = os.path.join(ROOT, os.environ.get("B", "build/release"))
PROGRAM = os.environ.get("BERINGIA") or os.path.join(B, "beringia")
SCRATCH = os.environ.get("SCRATCH") or "/tmp/beringia-library-e2e"
PREFIX = os.path.join(SCRATCH, "inst")
LINEAR = os.path.join(ROOT, "examples", "c", "linear.c")
FIRST = os.path.join(ROOT, "test", "e2e", "library", "first")
STRICT = ["-Wall", "-Wextra", "-pedantic", "-Werror"]
VOCAB = 257
FAILED = []


def say(name, good, text=""):
    print(f"{'ok' if good else 'FAIL'} {name}", flush=True)
    if not good:
        print("  " + str(text).strip().replace("\n", "\n  "), flush=True)
        FAILED.append(name)


def run(*words, env=None, timeout=120):
    return subprocess.run([str(w) for w in words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                          env=dict(os.environ, **(env or {})), timeout=timeout)


def pkg_config(*words):
    done = run("pkg-config", *words, "beringia", env={"PKG_CONFIG_PATH": os.path.join(PREFIX, "lib", "pkgconfig")})
    if done.returncode != 0:
        raise Failure(done.stderr)
    return done.stdout.split()


def build(out, source, compiler, *flags):
    path = os.path.join(SCRATCH, out)
    done = run(*compiler, *STRICT, "-O1", source, *flags, "-o", path)
    return path if done.returncode == 0 else None, done.stderr


def compilers():
    flags = [*pkg_config("--cflags", "--libs"), "-lm", "-Wl,-rpath," + os.path.join(PREFIX, "lib")]
    for name, words in {"gcc_c99": ["gcc", "-std=c99"], "clang_c99": ["clang", "-std=c99"],
                        "gcc_c17": ["gcc", "-std=c17"], "gcc_cpp": ["g++", "-std=c++11", "-x", "c++"],
                        "clang_cpp": ["clang++", "-std=c++17", "-x", "c++"]}.items():
        path, text = build("linear-" + name, LINEAR, words, *(["-x", "none"] if "-x" in words else []), *flags)
        # Its usage line needs no hub; that it is printed shows that the program starts with the library.
        started = path and run(path).returncode == 2
        say(f"library_installed_{name}", started, text)
    static = [os.path.join(PREFIX, "lib", "libberingia.a"), *pkg_config("--cflags"),
              *run("pkg-config", "--libs", "libcurl", "jansson", "nettle", "libpcre2-8", "libutf8proc").stdout.split(),
              "-lm", "-pthread"]
    path, text = build("linear-static", LINEAR, ["gcc", "-std=c99"], *static)
    say("library_installed_static", path and run(path).returncode == 2, text)
    names = run("nm", "-g", "--defined-only", static[0]).stdout.split("\n")
    extra = [n for n in names if len(n.split()) == 3 and not n.split()[2].startswith("brg_")]
    say("library_static_shows_nothing_else", not extra, extra[:5])


# ---- A live run ------------------------------------------------------------------------------------------------
def begin():
    data, text = os.path.join(SCRATCH, "data"), os.path.join(SCRATCH, "text.txt")
    with open(os.path.join(ROOT, "share", "text", "moby-dick.txt"), encoding="utf-8") as f, \
            open(text, "w", encoding="utf-8") as out:
        out.write(f.read(250000))
    subprocess.run([PROGRAM, "pack", "--out", data, "--seq-len", "64", text], check=True, stdout=subprocess.DEVNULL)
    weights = os.path.join(SCRATCH, "w.safetensors")
    made = run(os.path.join(SCRATCH, "linear-gcc_c99"), "--weights", weights, VOCAB)
    if made.returncode != 0:
        raise Failure("the example cannot write its first weights")
    out = os.path.join(SCRATCH, "cluster")
    os.makedirs(out)
    c = Cluster(PROGRAM, out, data, {})
    # Hosts that are tried here end in the midst of their samples, also three times at the same ones: on purpose, and no
    # reason to keep these from everybody, which the run would wait for.
    sets = {"lease.crashes_max": 1000, "lease.ttl": "4s", "lease.heartbeat": "500ms", "outer.steps": 10, "outer.grace": "1s",
            "lease.samples_min": 16, "lease.samples_max": 128, "train.lr": 0.5, "train.beta2": 0}
    c.call("init", c.run_dir, "--weights-file", weights, "--data", data,
           *[w for k, v in sets.items() for w in ("--set", f"{k}={v}")])
    c.start_hub()
    return c


def bad_use(c):
    path, text = build("bad_use", os.path.join(ROOT, "test", "e2e", "library", "bad_use.c"),
                       ["gcc", "-std=gnu99", "-pthread", "-Wno-pedantic"], *pkg_config("--cflags", "--libs"),
                       "-Wl,-rpath," + os.path.join(PREFIX, "lib"))
    if not path:
        say("library_bad_use", False, text)
        return
    done = run(path, c.url, c.data, os.path.join(SCRATCH, "state"))
    lines = done.stdout.splitlines()
    # Whatever is on standard output and is not this program's own, the library wrote.
    foreign = [x for x in lines if not re.match(r"(ok|FAIL) library_|  status ", x)]
    print(done.stdout, end="", flush=True)
    FAILED.extend(x for x in lines if x.startswith("FAIL"))
    say("library_writes_nothing_to_standard_output", not foreign, foreign[:3])
    say("library_no_call_ends_the_process", done.returncode in (0, 1) and "library_log_levels" in done.stdout,
        f"ended with {done.returncode}: {done.stderr[-300:]}")


def hostile(c):
    """A locale whose numbers have commas is made here, because Debian's minimal system has none."""
    source = os.path.join(SCRATCH, "comma.src")
    with open(source, "w", encoding="ascii") as f:
        f.write('LC_NUMERIC\ndecimal_point ","\nthousands_sep "."\ngrouping 3;3\nEND LC_NUMERIC\n')
    run("localedef", "-c", "--no-archive", "-i", source, os.path.join(SCRATCH, "comma"))
    path, text = build("hostile", os.path.join(ROOT, "test", "e2e", "library", "hostile.c"),
                       ["gcc", "-std=gnu99", "-D_GNU_SOURCE", "-pthread", "-Wno-pedantic"], *pkg_config("--cflags", "--libs"),
                       "-ldl", "-lm", "-Wl,-rpath," + os.path.join(PREFIX, "lib"))
    if not path:
        say("library_hostile", False, text)
        return
    states = os.path.join(SCRATCH, "hostile-states")
    os.makedirs(states)
    done = run(path, c.url, c.data, states, env={"LOCPATH": SCRATCH})
    print(done.stdout, end="", flush=True)
    FAILED.extend(x for x in done.stdout.splitlines() if x.startswith("FAIL"))
    say("library_no_host_ends_of_it", done.returncode in (0, 1) and "the_hostile_host_lives" in done.stdout,
        f"ended with {done.returncode}: {done.stderr[-300:]}")


def old_and_new_train_together(c):
    """The example as of the first header, and as of today, as two sites; the run must complete, the audit be clean."""
    first, text = build("linear-first", os.path.join(FIRST, "linear.c"), ["gcc", "-std=c99"], "-I" + FIRST, "-L" + os.path.join(PREFIX, "lib"),
                        "-lberingia", "-lm", "-Wl,-rpath," + os.path.join(PREFIX, "lib"))
    if not first:
        say("library_a_program_of_the_first_header_runs", False, text)
        return
    used = run("nm", "-u", first).stdout
    say("library_the_first_program_knows_only_the_first_names",
        "brg_options_init\n" in used.replace("@BERINGIA_0", "") and "brg_options_init_bytes" not in used, used)
    logs, sites = [], []
    for name, path in {"old": first, "new": os.path.join(SCRATCH, "linear-gcc_cpp")}.items():
        logs.append(os.path.join(SCRATCH, f"{name}.log"))
        with open(logs[-1], "wb") as log:
            sites.append(subprocess.Popen([path, c.url, name, c.data, os.path.join(SCRATCH, "state-" + name)],
                                          stdout=log, stderr=log))
    try:
        wait_for("the run to complete", c.complete, 120)
        codes = [p.wait(timeout=60) for p in sites]
    finally:
        for p in sites:
            if p.poll() is None:
                p.kill()
                p.wait()
    tail = "".join(open(p, encoding="utf-8").read()[-400:] for p in logs)
    say("library_a_program_of_the_first_header_runs", codes == [0, 0], f"ended with {codes}: {tail}")
    c.stop_hub()
    a = c.audit()
    say("library_the_audit_is_clean", a.get("lost", 1) == 0 and a.get("doubled", 1) == 0, a)
    losses = [float(x) for p in logs for x in re.findall(r"loss ([0-9.]+)", open(p, encoding="utf-8").read())]
    say("library_the_linear_model_learns", losses and min(losses) < max(losses) - 0.5, losses)


# ---- The manual -----------------------------------------------------------------------------------------------
def manual():
    pages = sorted(glob.glob(os.path.join(ROOT, "man", "man3", "*.3")))
    exported = set(run("nm", "-D", "--defined-only", os.path.join(B, "libberingia.so")).stdout.split())
    exported = {x.split("@")[0] for x in exported if x.startswith("brg_")}
    named, declared = set(), set()
    for page in pages:
        with open(page, encoding="utf-8") as f:
            text = f.read()
        named.update(re.findall(r"^\.Nm (brg_\w+)", text, re.M))
        declared.update(re.findall(r"^\.F[no] (brg_\w+)", text.split(".Sh DESCRIPTION")[0], re.M))
    say("library_every_function_has_a_page", exported <= named and exported <= declared,
        f"not in NAME: {sorted(exported - named)}; not in SYNOPSIS: {sorted(exported - declared)}")
    say("library_every_page_is_of_a_function", named <= exported, sorted(named - exported))
    lint = run("mandoc", "-T", "lint", "-W", "warning", *pages)
    say("library_the_manual_is_well_formed", lint.returncode == 0, lint.stdout[:600])
    there = set(os.path.basename(p) for p in glob.glob(os.path.join(PREFIX, "share", "man", "man3", "*.3")))
    say("library_man_finds_every_function", {n + ".3" for n in exported} <= there, sorted(exported))


def main():
    os.makedirs(SCRATCH, exist_ok=True)
    done = run("make", "-s", "-C", ROOT, "install", "PREFIX=" + PREFIX, timeout=600)
    if done.returncode != 0:
        say("library_installs", False, done.stderr[-600:])
        return 1
    compilers()
    manual()
    cluster = begin()
    try:
        bad_use(cluster)
        hostile(cluster)
        old_and_new_train_together(cluster)
    finally:
        cluster.clean()
    return 1 if FAILED else 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except (Failure, subprocess.SubprocessError, OSError):
        traceback.print_exc()
        print("FAIL library")
        sys.exit(1)
