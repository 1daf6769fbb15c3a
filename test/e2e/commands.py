#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# release only
"""The commands in the documents exist. A document that names an option which was renamed costs whoever follows it at night.

Every `sh` block says which test runs it (test/docs/blocks.py), and that test exists. Every `beringia ...` and `make ...` in a block,
or between backticks in the text, names a command and options that --help of it knows, or a target of the Makefile. Every command of the
program stands in some document, and every link between documents leads to a file. What they do when they are run is seen by
`make test-docs` and `make test-facilities`."""
import os
import re
import subprocess
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "docs"))
from blocks import OWN_TEST, ROOT, blocks, documents, read  # noqa: E402

BERINGIA = os.environ["BERINGIA"]
SUB = {"hub": ("replay",), "tokenizer": ("train", "encode", "decode"), "bench": ("train",)}
OPTION = re.compile(r"(?<![\w-])--[a-z][a-z0-9-]*")
FAILED = []


def result(name, wrong):
    wrong = list(wrong)
    print(f"ok {name}" if not wrong else "\n".join([f"FAIL {name}", *(f"  {x}" for x in wrong)]))
    FAILED.extend(wrong)


def help_of(*words):
    return subprocess.run([BERINGIA, *words, "--help"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=True).stdout


def known():
    """Of each command (`hub replay` is one) the options that its help names."""
    names = [n for n in re.findall(r"^  ([a-z]+) +\S", help_of(), re.M) if n != "beringia"]
    options = {n: set(OPTION.findall(help_of(n))) | {"--help"} for n in names}
    for n, subs in SUB.items():
        for s in subs:
            options[f"{n} {s}"] = options[n] | (set(OPTION.findall(help_of(n, s))) if n == "hub" else set())
    return options


def targets():
    done = subprocess.run(["make", "-C", ROOT, "-pRrq", ":"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, check=False)
    return set(re.findall(r"^([A-Za-z0-9_.-]+):", done.stdout, re.M))


def split(text):
    """The single commands of a line of shell, roughly: enough to see which program each begins with."""
    return re.split(r"[;|&()`]+|\bdo\b|\bthen\b|\$\(", text)


def wrong_words(where, text, options, made):
    """What is wrong with each command of ours in a piece of shell."""
    for piece in split(re.sub(r"\b[A-Z_]+=(\"[^\"]*\"|'[^']*')", "", text)):
        words = [w.strip("\"'") for w in piece.split()]
        while words and (re.fullmatch(r"[A-Za-z_]+=.*", words[0]) or words[0] in ("sudo", "exec", "nohup", "until", "while", "if", "!")):
            words.pop(0)
        at = next((i for i, w in enumerate(words) if os.path.basename(w) == "beringia" and (i == 0 or words[0] in ("mpirun", "srun"))), None)
        if at is not None and len(words) > at + 1 and re.fullmatch(r"[a-z]+", words[at + 1]):
            name = words[at + 1]
            if name not in options:
                yield f"{where}: there is no command `beringia {name}`"
                continue
            if len(words) > at + 2 and words[at + 2] in SUB.get(name, ()):
                name += " " + words[at + 2]
            for w in OPTION.findall(" ".join(words[at + 1:])):
                if w not in options[name]:
                    yield f"{where}: beringia {name} --help does not know {w}"
        if words and words[0] == "make":
            for w in words[1:]:
                if w.startswith("-") or "=" in w or re.fullmatch(r"[a-z]+-[A-Z*]+|.*[<>…].*", w):
                    continue
                if w.strip(".,") not in made and not re.fullmatch(r"-?j?\d*", w):
                    yield f"{where}: there is no target {w} in the Makefile"


def of_blocks(options, made):
    for path in documents():
        for b in blocks(path):
            if b.language == "sh":
                for at, text in b.commands():
                    yield from wrong_words(f"{path}:{at}", text.replace(" [", " ").replace("]", ""), options, made)


def of_text(options, made):
    """Between backticks; what is cut (`beringia plan ...`) or a pattern (`make room-ROOM`) is looked at as far as it goes."""
    for path in documents():
        text = re.sub(r"```.*?```", lambda m: "\n" * m.group(0).count("\n"), read(path), flags=re.S)
        for m in re.finditer(r"`((?:beringia|make) [^`]+)`", text):
            where = f"{path}:{text.count(chr(10), 0, m.start()) + 1}"
            yield from wrong_words(where, m.group(1).replace("\n", " ").replace("[", "").replace("]", ""), options, made)


def unmarked():
    with open(os.path.join(ROOT, "test", "docs", "run"), encoding="utf-8") as f:
        worlds = set(re.findall(r"^def world_([a-z_]+)\(", f.read(), re.M))
    for path in documents():
        for b in blocks(path):
            if b.language != "sh":
                if b.mark:
                    yield f"{b}: a comment that says who runs it, and no sh block"
                continue
            kind, words = b.mark or ("", "")
            if not kind:
                yield f"{b}: nobody runs this block; put one of the comments of test/docs/blocks.py before it"
            elif kind == "run" and path in OWN_TEST:
                if f'"{words}"' not in read(OWN_TEST[path]):
                    yield f"{b}: {OWN_TEST[path]} does not run {words}"
            elif kind == "run" and words.replace("-", "_") not in worlds:
                yield f"{b}: test/docs/run has no world {words}"
            elif kind == "run by" and not os.access(os.path.join(ROOT, words), os.X_OK):
                yield f"{b}: there is no test {words}"
            elif kind == "on" and path != "docs/three-facilities.md":
                yield f"{b}: test/facilities/run reads docs/three-facilities.md alone"


def links():
    for path in documents():
        for m in re.finditer(r"\]\(([^)#]+)(#[^)]*)?\)", re.sub(r"```.*?```", "", read(path), flags=re.S)):
            to = m.group(1)
            if "://" not in to and not to.startswith("mailto:") and not os.path.exists(os.path.join(ROOT, os.path.dirname(path), to)):
                yield f"{path}: leads to {to}, which is not there"


def one_line(options):
    """A slip on the command line is one line with what and where to look, status 2; -h is --help."""
    for name in options:
        words = name.split()
        done = subprocess.run([BERINGIA, *words, "--no-such-option"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, check=False)
        lines = done.stderr.splitlines()
        if done.returncode != 2 or len(lines) != 1 or "--no-such-option" not in lines[0] or "--help" not in lines[0]:
            yield f"beringia {name} --no-such-option: status {done.returncode}, {lines}"
        done = subprocess.run([BERINGIA, *words[:1], "-h"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
        if done.returncode != 0 or done.stdout != help_of(words[0]):
            yield f"beringia {words[0]} -h is not its --help"


def unnamed(options):
    text = "\n".join(read(p) for p in documents())
    for name in options:
        if f"beringia {name}" not in text:
            yield f"no document has `beringia {name}`"


def main():
    options, made = known(), targets()
    result("commands_exist_in_blocks", of_blocks(options, made))
    result("commands_exist_in_the_text", of_text(options, made))
    result("commands_are_run_by_a_test", unmarked())
    result("commands_are_all_documented", unnamed(options))
    result("options_that_are_slips_are_one_line", one_line(options))
    result("documents_lead_to_files", links())
    return 1 if FAILED else 0


if __name__ == "__main__":
    sys.exit(main())
