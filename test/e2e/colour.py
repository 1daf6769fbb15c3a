#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Colours on a terminal alone, and never where NO_COLOR is set (no-color.org): logs, mails and pipes stay readable.

`beringia status` is the command that has some. What must hold: it has them on a terminal, has none in a pipe or a file, none with
NO_COLOR, and some again where NO_COLOR is empty; the other commands that people look at have none anywhere."""
import os
import pty
import subprocess
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "scripts", "lib"))
from cluster import Cluster, Failure, pack_words  # noqa: E402
from scenarios import run_scenarios  # noqa: E402

BERINGIA, SCRATCH = os.environ["BERINGIA"], os.environ["SCRATCH"]
PAINT = b"\x1b["


def terminal(*words, **env):
    """Standard output and error of a command that believes to stand on a terminal."""
    ours, theirs = pty.openpty()
    p = subprocess.Popen([BERINGIA, *words], stdin=theirs, stdout=theirs, stderr=theirs, env={**{k: v for k, v in os.environ.items()
                         if k != "NO_COLOR"}, "TERM": "xterm", **env})
    os.close(theirs)
    said = b""
    while True:
        try:
            piece = os.read(ours, 65536)
        except OSError:  # Linux's word for the end
            break
        if not piece:
            break
        said += piece
    os.close(ours)
    p.wait(60)
    return said


def colour_on_a_terminal_alone():
    c = Cluster(BERINGIA, SCRATCH, pack_words(BERINGIA, os.path.join(SCRATCH, "data")), {})
    c.init("tiny", {})
    c.start_hub()
    cases = {"a terminal": (terminal("status", c.run_dir), True), "NO_COLOR": (terminal("status", c.run_dir, NO_COLOR="1"), False),
             "an empty NO_COLOR": (terminal("status", c.run_dir, NO_COLOR=""), True),
             "a pipe": (subprocess.run([BERINGIA, "status", c.run_dir], stdout=subprocess.PIPE, check=True).stdout, False)}
    for words in (["audit", c.run_dir], ["order", c.run_dir, "--list"], ["plan", c.run_dir], ["check", os.path.join(c.run_dir, "run.yaml")],
                  ["doctor", "--hub", c.url], ["--help"], ["site", "--help"], ["audit", os.path.join(SCRATCH, "none")]):
        cases[f"{words[0]} on a terminal"] = (terminal(*words), False)
    for name, (said, painted) in cases.items():
        if not said or (PAINT in said) != painted:
            raise Failure(f"{name}: {'no ' if painted else ''}colour: {said[:300]!r}")


if __name__ == "__main__":
    sys.exit(run_scenarios(globals(), "colour_"))
