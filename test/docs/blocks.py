# SPDX-License-Identifier: Apache-2.0
"""The code blocks of the documents, for test/e2e/commands.py (are they marked, do they parse?) and test/docs/run (which runs them).

Every ```sh block follows a comment that says who runs it:

    <!-- run: WORLD -->       test/docs/run, in that world (docs/install.md has a test of its own: OWN_TEST)
    <!-- run by: PATH -->     that test, which does the same with other words
    <!-- on: MACHINES -->     test/facilities/run, as it stands; docs/three-facilities.md alone
    <!-- long: WHY -->        nobody regularly: it takes minutes to hours. Commands and targets must be there all the same"""
import glob
import os
import re

ROOT = os.environ.get("ROOT") or os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
OWN_TEST = {"docs/install.md": "test/package/run", "docs/three-facilities.md": "test/facilities/run"}
MARK = re.compile(r"<!-- (run|run by|on|long): (.+?) -->")


class Block:
    def __init__(self, path, line, language, mark, lines):
        self.path, self.line, self.language, self.mark, self.lines = path, line, language, mark, lines

    def __str__(self):
        return f"{self.path}:{self.line}"

    def commands(self):
        """Its commands, continued lines joined and comments cut off, in order: [(line number, text)]."""
        found, held, at = [], "", 0
        for i, line in enumerate(self.lines):
            at = at if held else self.line + 1 + i
            held += line
            if held.endswith("\\") and not held.endswith("\\\\"):
                held = held[:-1] + " "
                continue
            if open_quote(cut_comment(held)) or re.search(r"(\||&&)\s*$", cut_comment(held)):
                held += "\n"
                continue
            text = cut_comment(held).rstrip()
            if text.strip():
                found.append((at, text))
            held = ""
        return found


def scan(text):
    """(index, character, inside quotes) for each character outside of escapes."""
    quote, i = "", 0
    while i < len(text):
        c = text[i]
        if c == "\\" and quote != "'":
            i += 2
            continue
        if quote:
            if c == quote:
                quote = ""
        elif c in "'\"":
            quote = c
        yield i, c, quote
        i += 1


def open_quote(text):
    last = ""
    for _, _, quote in scan(text):
        last = quote
    return bool(last)


def cut_comment(text):
    for i, c, quote in scan(text):
        if c == "#" and not quote and (i == 0 or text[i - 1] in " \t\n"):
            return text[:i]
    return text


def documents():
    return ["README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md",
            *sorted(os.path.relpath(x, ROOT) for x in glob.glob(os.path.join(ROOT, "docs", "*.md")))]


def read(path):
    with open(os.path.join(ROOT, path), encoding="utf-8") as f:
        return f.read()


def blocks(path):
    """Every fenced block of a document; mark is (kind, words) of the comment right before it, or None."""
    lines, found, i, mark = read(path).splitlines(), [], 0, None
    while i < len(lines):
        m = MARK.fullmatch(lines[i].strip())
        if m:
            mark = (m.group(1), m.group(2))
        elif lines[i].lstrip().startswith("```"):
            indent = lines[i][:len(lines[i]) - len(lines[i].lstrip())]
            end = next((j for j in range(i + 1, len(lines)) if lines[j].strip() == "```"), len(lines))
            found.append(Block(path, i + 1, lines[i].strip()[3:], mark, [x[len(indent):] if x.startswith(indent) else x for x in lines[i + 1:end]]))
            mark, i = None, end
        elif lines[i].strip():
            mark = None
        i += 1
    return found
