#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""corpus_audit.py JOURNAL.DB OUT-DIR: beginnings of a real journal as inputs of fuzz_audit."""
import os
import sqlite3
import struct
import sys


def corpus(journal, out):
    rows = sqlite3.connect(f"file:{journal}?mode=ro", uri=True).execute("SELECT kind, body FROM journal ORDER BY seq LIMIT 400")
    data = b""
    os.makedirs(out, exist_ok=True)
    for i, (kind, body) in enumerate(rows, 1):
        data += struct.pack("<BH", kind, len(body)) + body
        if i in (2, 5, 20, 60, 150, 400):
            with open(os.path.join(out, f"records-{i}"), "wb") as f:
                f.write(data)


if __name__ == "__main__":
    corpus(*sys.argv[1:3])
