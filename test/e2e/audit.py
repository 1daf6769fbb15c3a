#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# timeout: 120
"""Is a lie in the journal found?

A finished run's journal is copied and changed by somebody who knows the format and mends the hash chain behind the
change: a contribution that is merged twice, one that was left out of its merge, positions given to two leases, a weight
that is not the one used. And by somebody who does not: a changed, a missing, a cut record; a damaged file. The audit or
the replay must say so, each with its own exit status."""
import hashlib
import json
import os
import shutil
import sqlite3
import struct
import sys
import time
import traceback

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import hub as h  # noqa: E402

GRANT, STAGE, MERGE, SEAL, ROLLBACK = 5, 7, 10, 11, 13
BASE = None


def finished_run():
    path = h.make_run("base", "--set", "lease.samples_max=64")
    server = h.Hub(path)
    try:
        site = h.FakeSite(server, "fake")
        site.join()
        h.complete(server, site)
    finally:
        server.stop()
    return path


def copy(name):
    path = os.path.join(h.SCRATCH, name)
    shutil.copytree(BASE, path, symlinks=True)
    return path


def read(path):
    db = sqlite3.connect(os.path.join(path, "journal.db"))
    rows = [(k, bytes(b)) for k, b in db.execute("SELECT kind, body FROM journal ORDER BY seq")]
    db.close()
    return rows


def write(path, rows):
    """The records anew, with a chain that fits."""
    db = sqlite3.connect(os.path.join(path, "journal.db"))
    chain = bytes(32)
    db.execute("DELETE FROM journal")
    db.execute("DELETE FROM snapshot")
    for seq, (kind, body) in enumerate(rows, 1):
        chain = hashlib.sha256(chain + struct.pack("<QH", seq, kind) + body).digest()
        db.execute("INSERT INTO journal VALUES(?, ?, ?, ?)", (seq, kind, body, chain))
    db.commit()
    db.close()


def audit(path, *more):
    done = h.run("audit", path, "--json", *more)
    return done.returncode, json.loads(done.stdout) if done.stdout else None, done.stderr


MERGE_PARTS = 8 + 16 + 64 + 16 + 64 + 32  # offset of the list of parts in a MERGE body


def test_a_true_journal_is_good():
    status, a, said = audit(copy("true"), "--blobs")
    h.check("good", status == 0 and a["good"] and a["merged"] == a["positions"], (status, a, said))
    path = copy("rewritten")
    write(path, read(path))
    h.check("rewriting alone changes nothing", audit(path)[0] == 0)


def test_a_contribution_merged_twice_is_found():
    path = copy("twice")
    rows = read(path)
    stage = next(b for k, b in rows if k == STAGE)
    merge = [b for k, b in rows if k == MERGE][-1]
    head = struct.unpack_from("<Q", merge, 8)[0]
    did = b"\xee" * 16
    rows.append((STAGE, stage[:8] + did + stage[24:]))
    body = bytearray(merge)
    struct.pack_into("<QQ", body, 8, head + 1, head)
    body = bytes(body[:MERGE_PARTS]) + struct.pack("<I", 1) + did + struct.pack("<dB", 1.0, 0)
    rows.append((MERGE, body))
    write(path, rows)
    status, a, said = audit(path)
    h.check("found", status == 17 and a["doubled"] > 0 and a["findings"] > 0, (status, a, said))


def test_a_version_that_is_its_own_parent_ends():
    path = copy("circle")
    rows = read(path)
    i = max(i for i, (k, _) in enumerate(rows) if k == MERGE)
    body = bytearray(rows[i][1])
    head = struct.unpack_from("<Q", body, 8)[0]
    struct.pack_into("<Q", body, 16, head)
    rows[i] = (MERGE, bytes(body))
    rows.append((ROLLBACK, bytes(body[:8]) + struct.pack("<QQI", 1, head + 1, 9)))
    write(path, rows)
    status, a, said = audit(path)
    h.check("found", status == 17 and a["findings"] > 0, (status, a, said))


def test_a_contribution_left_out_is_found():
    path = copy("left-out")
    rows = read(path)
    for i, (kind, body) in enumerate(rows):
        if kind == MERGE and struct.unpack_from("<I", body, MERGE_PARTS)[0] >= 1:
            rows[i] = (kind, body[:MERGE_PARTS] + struct.pack("<I", struct.unpack_from("<I", body, MERGE_PARTS)[0] - 1) +
                       body[MERGE_PARTS + 4 + 25:])
            break
    write(path, rows)
    status, a, said = audit(path)
    h.check("found", status == 17 and a["lost"] > 0 and a["doubled"] == 0, (status, a, said))


def test_positions_in_two_leases_are_found():
    path = copy("two-leases")
    rows = read(path)
    grants = [i for i, (k, _) in enumerate(rows) if k == GRANT]
    first, second = rows[grants[0]][1], rows[grants[1]][1]
    ranges = 8 + 8 + 8 + 12 + 8  # wall, tok, nonce, site, inc, epoch, req
    rows[grants[1]] = (GRANT, second[:ranges] + first[ranges:])
    write(path, rows)
    status, a, said = audit(path)
    h.check("found", status == 17 and a["doubled"] > 0 and a["lost"] > 0, (status, a, said))


def test_a_record_that_was_changed_is_found():
    for name, change in {
            "byte": "UPDATE journal SET body = substr(body, 1, 20) || x'ff' || substr(body, 22) WHERE seq = 6",
            "gap": "DELETE FROM journal WHERE seq = 5",
            "kind": "UPDATE journal SET kind = 6 WHERE seq = 5",
            "order": "UPDATE journal SET seq = CASE seq WHEN 5 THEN -6 ELSE -5 END WHERE seq IN (5, 6)"}.items():
        path = copy("changed-" + name)
        db = sqlite3.connect(os.path.join(path, "journal.db"))
        db.execute(change)
        if name == "order":
            db.execute("UPDATE journal SET seq = -seq WHERE seq < 0")
        db.commit()
        db.close()
        status, _, said = audit(path)
        h.check(name, status == 18 and "record" in said, (status, said))
        done = h.run("hub", "replay", path)  # a restart would begin at a snapshot behind the change
        h.check("replay sees it too", done.returncode == 18, done.stderr)


def test_a_cut_body_is_found():
    path = copy("cut")
    rows = read(path)
    i = next(i for i, (k, _) in enumerate(rows) if k == STAGE)
    rows[i] = (STAGE, rows[i][1][:-1])
    write(path, rows)
    status, _, said = audit(path)
    h.check("found", status == 18 and "damaged" in said, (status, said))


def test_another_weight_is_found_by_replay():
    path = copy("weight")
    rows = read(path)
    i = [i for i, (k, _) in enumerate(rows) if k == MERGE][1]
    body = bytearray(rows[i][1])
    struct.pack_into("<d", body, MERGE_PARTS + 4 + 16, 0.5)
    rows[i] = (MERGE, bytes(body))
    write(path, rows)
    done = h.run("hub", "replay", path)
    h.check("replay", done.returncode == 17 and "version 2" in done.stderr, (done.returncode, done.stderr))


def test_damaged_files_are_found():
    path = copy("damaged")
    about = json.loads(h.run("journal", path).stdout.splitlines()[0])
    stage = next(json.loads(line) for line in h.run("journal", path).stdout.splitlines() if '"kind":"stage"' in line)
    for blob, audit_more, who in [(stage["blob"], ["--blobs"], "delta"), (about["checkpoint"], ["--blobs"], "v0")]:
        name = os.path.join(path, "blobs", blob[:2], blob)
        with open(name, "r+b") as f:
            f.seek(os.path.getsize(name) - 1000)
            old = f.read(1)
            f.seek(-1, os.SEEK_CUR)
            f.write(bytes([old[0] ^ 1]))
        status, a, said = audit(path, *audit_more)
        h.check(who, status == 17 and a["blobs_bad"] >= 1, (status, a, said))
        done = h.run("hub", "replay", path)
        h.check("replay stops", done.returncode == 25, (done.returncode, done.stderr))
    merge = [json.loads(line) for line in h.run("journal", path).stdout.splitlines() if '"kind":"merge"' in line][-1]
    name = os.path.join(path, "blobs", merge["checkpoint"][:2], merge["checkpoint"])
    with open(name, "r+b") as f:
        f.truncate(os.path.getsize(name) - 1)
    done = h.run("hub", path, "--listen", "127.0.0.1:0", timeout=20)
    h.check("a hub does not serve a damaged head", done.returncode in (12, 25), (done.returncode, done.stderr))
    os.unlink(name)
    done = h.run("hub", path, "--listen", "127.0.0.1:0", timeout=20)
    h.check("nor a missing one", done.returncode == 12, (done.returncode, done.stderr))


def main():
    global BASE
    h.DATA = h.make_data()
    BASE = finished_run()
    failed, wanted = 0, os.environ.get("T", "")
    tests = {k: v for k, v in globals().items() if k.startswith("test_")}
    if not any(wanted in k for k in tests):
        wanted = ""
    for name, body in tests.items():
        if wanted not in name:
            continue
        try:
            began = time.monotonic()
            body()
            print(f"ok audit_{name[5:]} ({1000 * (time.monotonic() - began):.0f} ms)", flush=True)
        except Exception as why:  # pylint: disable=broad-except
            failed += 1
            traceback.print_exc(limit=4)
            print(f"FAIL audit_{name[5:]}: {why}", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
