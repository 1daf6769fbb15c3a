# SPDX-License-Identifier: Apache-2.0
"""What the sites saw against what the journal says, and both against the model. Shares no code with the hub, the
audit or the storm: it reads `beringia journal` (lines of JSON), the histories that the sites wrote, and the bytes of
the head's checkpoint.

  lost        a sample of a sealed epoch that is in no merged contribution; a STAGED answer whose contribution ended
              neither MERGED nor DISCARDED; an answered grant that the journal does not have
  doubled     a sample in two merged contributions; a lease token with two nonces; two outcomes of one contribution
  unexpected  a merged contribution that no site handed in; a version that a site saw go backwards, unannounced
  model       a parameter of the counting model that is not its count of merged contributions, as the journal has it
"""
import array
import json
import struct
import subprocess
import sys

FINAL = {"merged", "rejected", "discarded"}


class Findings:
    def __init__(self):
        self.lost, self.doubled, self.unexpected, self.model = [], [], [], []
        self.notes = {}

    def count(self, what, n=1):
        self.notes[what] = self.notes.get(what, 0) + n

    def all(self):
        return [f"{kind}: {text}" for kind in ("lost", "doubled", "unexpected", "model") for text in getattr(self, kind)]


# ---- The journal ---------------------------------------------------------------------------------------------
class Book:
    """The ledger as this file understands docs/journal.md."""

    def __init__(self, lines):
        self.leases, self.deltas, self.versions = {}, {}, {0: None}
        self.positions = self.epochs_max = 0
        self.rollbacks = self.reclaimed = self.granted = self.rejected = self.discarded = 0
        self.granted_samples = self.reclaimed_samples = 0
        self.head, self.sealed, self.names = 0, set(), {}
        self.order_seed = 0
        self.sites_lost = []
        for r in lines:
            getattr(self, "on_" + r["kind"], self.on_other)(r)

    def on_other(self, r):
        pass

    def on_open(self, r):
        self.positions, self.order_seed = r["positions"], int(r["order_seed"], 16)
        self.seq_len = r["seq_len"]

    def on_join(self, r):
        if r.get("name"):
            self.names[r["site"]] = r["name"]
        for tok in r["fenced"]:
            self.reclaim(self.leases[tok])

    def on_grant(self, r):
        ranges = [tuple(x) for x in r["ranges"]]
        self.leases[r["tok"]] = {"site": r["site"], "epoch": r["epoch"], "ranges": ranges, "nonce": r.get("nonce")}
        self.granted += 1
        self.granted_samples += sum(n for _, n in ranges)

    def on_reclaim(self, r):
        lease = self.leases[r["tok"]]
        if r["reason"] in (1, "lapsed"):
            self.reclaim(lease)
        if r.get("keep"):
            lease["ranges"] = cut(lease["ranges"], r["keep"])[0]

    def reclaim(self, lease):
        self.reclaimed += 1
        self.reclaimed_samples += sum(n for _, n in lease["ranges"])

    def on_stage(self, r):
        took, rest = [], []
        for p in r["parts"]:
            lease = self.leases[p["tok"]]
            first, rest = cut(lease["ranges"], p["done"])
            took += [(lease["epoch"], a, n) for a, n in first]
        if r.get("rest"):
            lease = self.leases[r["parts"][-1]["tok"]]
            self.leases[r["rest"]] = {"site": r["site"], "epoch": lease["epoch"], "ranges": rest, "nonce": None}
        skips = {(s.get("epoch", 0), s["position"]) for s in r["skips"]}
        self.deltas[r["did"]] = {"state": "staged", "took": took, "skips": skips, "site": r["site"], "steps": r["steps"]}

    def on_reject(self, r):
        self.rejected += 1
        self.deltas[r["did"]] = {"state": "rejected", "took": [], "skips": set(), "site": r["site"]}

    def on_discard(self, r):
        self.discarded += 1
        self.deltas[r["did"]]["state"] = "discarded"

    def on_merge(self, r):
        self.versions[r["version"]] = r["parent"]
        self.head = r["version"]
        for p in r["parts"]:
            self.deltas[p["did"]].update(state="merged", version=r["version"])

    def on_seal(self, r):
        self.sealed.add(r["epoch"])

    def on_rollback(self, r):
        self.rollbacks += 1
        self.head = r["version"]
        self.sealed = set()  # those that stay whole are whole by the count below too
        for d in self.deltas.values():
            if d["state"] == "staged" or (d["state"] == "merged" and not self.contains(d["version"])):
                d["state"] = "discarded"

    def contains(self, version):
        at = self.head
        while at is not None and at > version:
            at = self.versions[at]
        return at == version

    def counts(self):
        """epoch -> bytearray: in how many merged contributions each position is; skipped ones apart."""
        out, skipped = {}, {}
        for d in self.deltas.values():
            if d["state"] != "merged":
                continue
            for epoch, a, n in d["took"]:
                c = out.setdefault(epoch, bytearray(self.positions))
                for i in range(a, a + n):
                    c[i] += 1
            for epoch, position in d["skips"]:
                skipped.setdefault(epoch, set()).add(position)
        return out, skipped


def cut(ranges, done):
    first, rest = [], []
    for a, n in ranges:
        k = min(done, n)
        if k:
            first.append((a, k))
        if n > k:
            rest.append((a + k, n - k))
        done -= k
    return first, rest


def journal(program, run):
    done = subprocess.run([program, "journal", run], stdout=subprocess.PIPE, check=True, text=True)
    return [json.loads(line) for line in done.stdout.splitlines()]


# ---- Histories -----------------------------------------------------------------------------------------------
def histories(sites, findings):
    """(site, bent, line) of all sites; a process that was killed may leave one torn line."""
    for s in sites:
        try:
            with open(s.history, encoding="utf-8", errors="replace") as f:
                for line in f:
                    try:
                        yield s, json.loads(line)
                    except ValueError:
                        findings.count("torn_lines")
        except FileNotFoundError:
            pass


def in_window(windows, site, x):
    """Was this said by a hub from a backup? Times of bent clocks say nothing, so there anything may be."""
    if not windows:
        return False
    return site.bent or any(x["got"] / 1e9 >= a - 0.5 and x["sent"] / 1e9 <= b + 0.5 for a, b, why in windows)


def check_histories(sites, book, windows, f):
    backups = [w for w in windows if w[2] == "backup"]
    nonces, handed_in, finals, heads = {}, set(), {}, []
    for site, x in histories(sites, f):
        asked, answer = x["asked"], x.get("answer")
        if x["kind"] == "commit":
            handed_in.add(asked["did"])
        if x["status"] == "sent":  # written before the answer, for those who do not live to see it
            continue
        f.count("messages")
        if not isinstance(answer, dict) or answer.get("code") not in ("OK", "COMPLETE", "UPLOAD"):
            f.count("unanswered" if answer is None else "code_" + str(answer.get("code")))
            continue
        old = in_window(backups, site, x)
        lease = answer.get("lease") if x["kind"] == "lease" and answer.get("granted") else answer.get("rest")
        if lease and (x["kind"] == "lease" or answer.get("has_rest")):
            check_lease(site, lease, nonces, book, old, f)
        if x["kind"] in ("commit", "outcome") and "outcome" in answer:
            check_outcome(site, asked["did"], answer, finals, book, old, f)
        head = answer.get("round", {}).get("head")
        if head is not None and not site.bent:
            heads.append((x["sent"] / 1e9, x["got"] / 1e9, head, site.name))
    for did, d in book.deltas.items():
        if d["state"] == "merged" and did not in handed_in:
            f.unexpected.append(f"contribution {did} is merged, and no site handed it in")
    check_heads(heads, windows, f)


def check_lease(site, lease, nonces, book, old, f):
    f.count("grants_answered")
    seen = nonces.setdefault(lease["tok"], lease["nonce"])
    if seen != lease["nonce"] and not old:
        f.doubled.append(f"lease {lease['tok']} was granted with two nonces, to {site.name} too")
    known = book.leases.get(lease["tok"])
    if old:
        nonces.pop(lease["tok"], None)
    elif known is None:
        f.lost.append(f"lease {lease['tok']} was granted to {site.name} and is not in the journal")
    elif book.names.get(known["site"]) != site.name:
        f.doubled.append(f"lease {lease['tok']} was granted to {site.name}, in the journal to {book.names.get(known['site'])}")


def check_outcome(site, did, answer, finals, book, old, f):
    said, d = answer["outcome"], book.deltas.get(did)
    f.count("outcome_" + said)
    if old or said == "unknown":
        return
    if d is None:
        f.lost.append(f"{site.name} was told that {did} is {said}; the journal does not know it")
        return
    if said == "staged" and d["state"] not in ("merged", "discarded"):
        f.lost.append(f"{site.name} was told that {did} is staged; it ended {d['state']}")
    if said == "rejected" and d["state"] != "rejected":
        f.doubled.append(f"{site.name} was told that {did} is rejected; it ended {d['state']}")
    before = finals.setdefault(did, said) if said in FINAL else said
    if said in FINAL and before != said and not (book.rollbacks and said == "discarded"):
        f.doubled.append(f"{did} was {before} and then {said}")
    if said in FINAL:
        finals[did] = said


def check_heads(heads, windows, f):
    """No answer may show an older head than one that came back before its question was sent. Between two
    announced steps back (a rollback, a hub from a backup) this holds for all sites together."""
    edges = sorted((a, b) for a, b, why in windows)
    parts = {}
    for sent, got, head, name in heads:
        if any(got >= a and sent <= b for a, b in edges):
            continue
        parts.setdefault(sum(1 for a, b in edges if b < sent), []).append((sent, got, head, name))
    for part in parts.values():
        ends = sorted((got, head) for _, got, head, _ in part)
        floor, i = 0, 0
        for sent, _, head, name in sorted(part):
            while i < len(ends) and ends[i][0] < sent:
                floor = max(floor, ends[i][1])
                i += 1
            if head < floor:
                f.unexpected.append(f"{name} saw version {head} after version {floor} had been seen")
    f.count("heads_compared", len(heads))


# ---- The model -----------------------------------------------------------------------------------------------
def theta(path):
    with open(path, "rb") as f:
        b = f.read()
    n = struct.unpack("<Q", b[:8])[0]
    lo, hi = json.loads(b[8:8 + n])["counts"]["data_offsets"]
    out = array.array("f", b[8 + n + lo:8 + n + hi])
    if sys.byteorder == "big":
        out.byteswap()
    return out


def check_model(path, book, complete, epochs, f):
    """The model against the number 1 where an epoch is whole, and against 0 or 1, in the right number, elsewhere."""
    x, counts = theta(path), book.counts()
    merged, skipped = counts
    for epoch in range(epochs):
        part = x[epoch * book.positions:(epoch + 1) * book.positions]
        c = merged.get(epoch, bytearray(book.positions))
        gone = skipped.get(epoch, set())
        twice = sum(1 for v in c if v > 1)
        if twice:
            f.doubled.append(f"epoch {epoch}: {twice} positions are in more than one merged contribution")
        none = sum(1 for v in c if v == 0)
        if complete and none:
            f.lost.append(f"epoch {epoch}: {none} positions are in no merged contribution")
        ones = sum(1 for v in part if v == 1.0)
        others = sum(1 for v in part if v not in (0.0, 1.0))
        want = sum(1 for v in c if v) - len(gone)
        if others:
            f.model.append(f"epoch {epoch}: {others} parameters are neither 0 nor 1, the first one "
                           f"{next(v for v in part if v not in (0.0, 1.0))}")
        if ones != want:
            f.model.append(f"epoch {epoch}: {ones} parameters are 1, but {want} positions are merged")
    f.count("parameters_checked", len(x))
