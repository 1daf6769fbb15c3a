#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The checker of the black box against planted faults: an oracle that finds nothing proves nothing."""
import array
import json
import os
import struct
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "lib"))
import checks  # noqa: E402

HOLD = tempfile.TemporaryDirectory(prefix="brg-checks-")
SCRATCH = HOLD.name


class Witness:
    def __init__(self, name, lines):
        self.name, self.bent = name, False
        self.history = os.path.join(SCRATCH, name)
        with open(self.history, "w", encoding="utf-8") as f:
            f.writelines(json.dumps(x) + "\n" for x in lines)
            f.write('{"torn": ')


def journal():
    """Two sites, eight positions, two contributions, one version."""
    return [
        {"kind": "open", "positions": 8, "order_seed": "1", "seq_len": 4},
        {"kind": "join", "site": 1, "name": "a", "fenced": []}, {"kind": "join", "site": 2, "name": "b", "fenced": []},
        {"kind": "grant", "tok": "t1", "site": 1, "epoch": 0, "ranges": [[0, 2], [4, 2]]},
        {"kind": "grant", "tok": "t2", "site": 2, "epoch": 0, "ranges": [[2, 2], [6, 2]]},
        {"kind": "stage", "did": "d1", "site": 1, "steps": 2, "parts": [{"tok": "t1", "done": 3}], "skips": [], "rest": "t3"},
        {"kind": "stage", "did": "d2", "site": 2, "steps": 2, "parts": [{"tok": "t2", "done": 4}], "skips": []},
        {"kind": "stage", "did": "d3", "site": 1, "steps": 1, "parts": [{"tok": "t3", "done": 1}], "skips": []},
        {"kind": "merge", "version": 1, "parent": 0, "parts": [{"did": "d1"}, {"did": "d2"}, {"did": "d3"}]},
    ]


def said(kind, t, asked, **answer):
    answer.setdefault("code", "OK")
    answer.setdefault("round", {"head": 0})
    return {"pid": 1, "sent": int(t * 1e9), "got": int((t + 0.1) * 1e9), "kind": kind, "status": "OK", "http": 200,
            "asked": asked, "answer": answer}


def history():
    lease = {"tok": "t1", "nonce": "n1", "epoch": 0, "ranges": []}
    return [said("lease", 1, {}, granted=True, lease=lease),
            said("commit", 2, {"did": "d1"}, outcome="staged"), said("commit", 2, {"did": "d2"}, outcome="staged"),
            said("commit", 2.5, {"did": "d3"}, outcome="staged"),
            said("outcome", 3, {"did": "d1"}, outcome="merged", round={"head": 1})]


def look(records, lines, theta, windows=()):
    f = checks.Findings()
    book = checks.Book(records)
    checks.check_histories([Witness("a", lines)], book, list(windows), f)
    path = os.path.join(SCRATCH, "theta.safetensors")
    head = json.dumps({"counts": {"dtype": "F32", "shape": [len(theta)], "data_offsets": [0, 4 * len(theta)]}}).encode()
    with open(path, "wb") as out:
        out.write(struct.pack("<Q", len(head)) + head + array.array("f", theta).tobytes())
    checks.check_model(path, book, True, 1, f)
    return f


def cases():
    ones = [1.0] * 8
    yield "a_good_run_is_good", look(journal(), history(), ones), None
    yield "a_zero_in_the_model", look(journal(), history(), [1.0] * 7 + [0.0]), "model"
    yield "a_two_in_the_model", look(journal(), history(), [1.0] * 7 + [2.0]), "model"
    j = journal()
    j[4]["ranges"] = [[2, 2], [5, 2]]
    yield "a_position_in_two_contributions", look(j, history(), ones), "doubled"
    j = journal()
    j[-1]["parts"].pop()
    yield "a_staged_contribution_that_is_nowhere", look(j, history(), ones), "lost"
    yield "a_staged_answer_without_a_record", look(journal(), history() + [
        said("commit", 4, {"did": "dx"}, outcome="staged")], ones), "lost"
    yield "a_contribution_from_nobody", look(journal(), [x for x in history() if x["asked"].get("did") != "d2"], ones), \
        "unexpected"
    again = {"tok": "t1", "nonce": "n2", "epoch": 0, "ranges": []}
    yield "a_token_with_two_nonces", look(journal(), history() + [
        said("lease", 4, {}, granted=True, lease=again)], ones), "doubled"
    unknown = {"tok": "t9", "nonce": "n9", "epoch": 0, "ranges": []}
    yield "a_grant_that_is_not_in_the_journal", look(journal(), history() + [
        said("lease", 4, {}, granted=True, lease=unknown)], ones), "lost"
    yield "merged_and_then_rejected", look(journal(), history() + [
        said("outcome", 4, {"did": "d1"}, outcome="rejected")], ones), "doubled"
    back = history() + [said("outcome", 4, {"did": "d2"}, outcome="merged", round={"head": 0})]
    yield "a_version_that_goes_back", look(journal(), back, ones), "unexpected"
    yield "a_version_that_goes_back_as_announced", look(journal(), back, ones, [(3.5, 3.6, "rollback")]), None


def main():
    failed = 0
    for name, f, kind in cases():
        found = [k for k in ("lost", "doubled", "unexpected", "model") if getattr(f, k)]
        good = (not found) if kind is None else kind in found
        failed |= not good
        print(f"{'ok' if good else 'FAIL'} chaos_check_{name}" + ("" if good else f": found {found}"))
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
