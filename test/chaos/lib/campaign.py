# SPDX-License-Identifier: Apache-2.0
"""The phases of a campaign, its oracles and its figures. chaos and day say what happens in it."""
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time

import checks
import losses
from nemeses import USUAL, Storm
from world import Broken, Site, World, now


def settings(a):
    return {"outer.steps": a.steps, "outer.h_ref": a.steps, "outer.grace": f"{a.grace_ms:g}ms", "outer.staleness_max": 4,
            "lease.ttl": f"{a.ttl * 1000:g}ms", "lease.heartbeat": f"{a.heartbeat_ms:g}ms", "lease.samples_min": 2 * a.batch,
            "lease.samples_max": 4 * a.steps * a.batch, "lease.crashes_max": 1000, "hub.keep_checkpoints": 20,
            "hub.keep_every": 0, "hub.sites_max": 1000, "hub.snapshot_every": 200}


def sizes(a):
    """Positions and epochs: a little more than the sites can train in the time."""
    rate = a.batch / (a.step_ms / 1e3) if a.trainer == "counting" else 100.0  # not complete before the end
    total = int(rate * a.sites * a.minutes * 60 * 1.1) + 200
    epochs = 1 if a.per_hour else 3 if total < 20000 else 6  # a real epoch is longer than hours
    return total // epochs + 1, epochs


class Campaign:
    def __init__(self, args):
        self.a, self.rng = args, random.Random(args.seed)
        self.w = World(args, args.out, self.rng)
        self.kept = self.trained_before = self.available = self.speed = 0.0
        self.findings = checks.Findings()
        self.audit, self.replay_equal = {}, False
        self.storm = None

    # ---- phases ------------------------------------------------------------------------------------
    def undisturbed(self, seconds):
        w = self.w
        w.make_run(*sizes(self.a), settings(self.a))
        w.hub.begin()
        w.wait("the hub to answer", w.status, 20)
        for i in range(self.a.sites):
            w.sites.append(Site(w, "abcdefghijkl"[i], on_ram_of_its_own=i == 0))
            w.sites[-1].begin()
        w.wait("all sites to train", lambda: (w.status() or {}).get("sites_live", 0) == self.a.sites, 30)
        self.run_for(1.0)
        first, merged = now(), self.merged()
        self.run_for(seconds)
        last = now()
        if self.a.trainer == "counting":
            self.speed = sum(s.speed(first, last) for s in w.sites) / self.a.sites
            self.trained_before = sum(s.trained(last=last) for s in w.sites)
        else:
            self.speed = (self.merged() - merged) / (last - first) / self.a.sites
            self.trained_before = self.merged()

    def merged(self):
        s = self.w.status()
        return s["tokens"] / self.seq_len() if s else 0

    def seq_len(self):
        return 32 if self.a.trainer == "native" else 4

    def run_for(self, seconds):
        until = now() + seconds
        while now() < until:
            self.w.keep()
            time.sleep(0.05)

    def disturbed(self, seconds):
        w, only = self.w, None
        if self.a.per_hour:
            only = USUAL
        if self.a.only:
            only = self.a.only.split(",")
        self.storm = Storm(w, self.a.gap, only)
        since = until = now()
        until += seconds
        while now() < until or self.storm.running:
            w.keep()
            self.storm.step(now() < until)
            time.sleep(0.02)
            if now() > until + 60:
                raise Broken(f"acts did not end: {[e[0].__name__ for e in self.storm.running]}")
        for s in w.sites:
            s.signal(signal.SIGCONT)
            if s.wanted:
                s.link.calm()
        # What lies in a state directory is not lost: a site that the last act brought back gets as far as its JOIN.
        w.wait("all sites to be back", self.all_back, 30)
        self.hand_in(since)

    def all_back(self):
        heard = {s["name"]: s["heard_ago_s"] for s in (self.w.status() or {}).get("sites", [])}
        return all(s.alive() and heard.get(s.name, 1e9) < now() - s.lives[-1][0] for s in self.w.sites if s.wanted)

    def hand_in(self, since):
        """All that is trained and not lost comes to the hub; then the books are read."""
        w = self.w
        if not w.hub.alive():
            w.hub.begin()
        w.wait("the hub to answer", w.status, 20)
        asked = [s for s in w.sites if s.wanted and s.alive()]
        end = now()
        for s in w.sites:
            s.busy = True
        for s in asked:
            s.signal(signal.SIGTERM)
        w.wait("the sites to hand in", lambda: all(s.ended() is not None for s in asked), 30)
        for s in asked:
            newborn = s.lives[-1][1] - s.lives[-1][0] < 1.0  # SIGTERM came before main()
            if s.ended() not in (0, 26) and not (newborn and s.ended() == -signal.SIGTERM):
                w.break_(f"SIGTERM ended site {s.name} with {s.ended()}")
        self.available = sum(s.available(since, end) for s in w.sites)
        self.storm_time = since, end
        w.wait("what is staged to be merged", lambda: (w.status() or {"staged_deltas": 1})["staged_deltas"] == 0, 30)
        self.kept = self.merged() - self.trained_before

    def finish(self):
        w = self.w
        for s in w.sites:
            s.kill()
            s.fast, s.busy = True, not s.wanted
            s.restart_at = 0
            if s.wanted:
                s.begin()

        def complete():
            s = w.status()
            return s is not None and s["complete"]
        w.wait("the run to be complete, without faults", complete, 300 if self.a.trainer == "native" else 120)
        for s in w.sites:
            s.busy = True
            s.signal(signal.SIGTERM)
        w.wait("the sites to leave", lambda: all(not s.alive() for s in w.sites), 30)
        w.hub.busy = True
        w.hub.signal(signal.SIGTERM)
        w.wait("the hub to stop", lambda: w.hub.ended() is not None, 30)

    # ---- oracles -----------------------------------------------------------------------------------
    def judge(self):
        w, f = self.w, self.findings
        self.audit = json.loads(w.call("audit", w.run, "--json", "--blobs", ok=(0, 17), timeout=300))
        replay = json.loads(w.call("hub", "replay", w.run, "--json", ok=(0, 17, 25), timeout=600))
        self.replay_equal = replay["equal"] is True
        book = checks.Book(checks.journal(w.program, w.run))
        checks.check_histories(w.sites, book, w.windows, f)
        if self.a.trainer == "counting":
            path = os.path.join(w.run, "versions", f"{book.head}.safetensors")
            checks.check_model(path, book, True, w.epochs, f)
        self.book = book
        for log in w.logs():
            with open(log, encoding="utf-8", errors="replace") as text:
                for line in text:
                    if "ThreadSanitizer" in line or "AddressSanitizer" in line or "CHECK" in line and "lvl=" not in line:
                        w.break_(f"{log}: {line.strip()[:160]}")
                        break
        for text in f.all():
            w.break_(text)
        if self.a.useful_min and self.useful() < self.a.useful_min:
            w.break_(f"useful work kept: {self.useful():.4f}, less than {self.a.useful_min}")
        for key in ("lost", "doubled"):
            if self.audit[key]:
                w.break_(f"the audit: {key} {self.audit[key]}")
        if self.audit["merged"] + self.audit.get("skipped", 0) != w.positions * w.epochs:
            w.break_(f"the audit: {self.audit['merged']} of {w.positions * w.epochs} positions are merged")
        if not self.replay_equal:
            w.break_("theta differs from the replay")

    def useful(self):
        return self.kept / (self.speed * self.available) if self.speed and self.available else 0.0

    def losses(self):
        if self.a.trainer != "counting" or not self.speed:
            return []
        path = os.path.join(self.w.out, "acts.jsonl")
        return losses.tell(self.w.sites, path, *self.storm_time, self.speed, self.a.batch, self.available)

    def figures(self, seconds):
        w, f, b = self.w, self.findings, self.book
        faults = sum(w.counts.values())
        hours = seconds / 3600 * (self.a.scale if self.a.per_hour else 1)
        kinds = ",".join(f"{k}:{n}" for k, n in sorted(w.counts.items()))
        return (f"campaign=chaos seed={self.a.seed} trainer={self.a.trainer} sites={self.a.sites} seconds={seconds:.0f} "
                f"faults={faults} kinds={len(w.counts)} per_hour={faults / hours:.0f} useful={self.useful():.4f} "
                f"speed={self.speed:.2f} available_s={self.available:.0f} kept={self.kept:.0f} versions={b.head} "
                f"grants={b.granted} reclaimed={b.reclaimed} reclaimed_share={b.reclaimed_samples / max(1, b.granted_samples):.4f} "
                f"rejected={b.rejected} discarded={b.discarded} messages={f.notes.get('messages', 0)} "
                f"lost={len(f.lost)} doubled={len(f.doubled)} unexpected={len(f.unexpected)} model_wrong={len(f.model)} "
                f"theta_replay_equal={str(self.replay_equal).lower()} broken={len(w.broken)} by_kind={kinds}")


def tell_tests(c):
    f, w = c.findings, c.w
    rows = {"chaos_model_counts_every_sample_once": not (f.model or f.lost or f.doubled) and c.audit["lost"] == 0
            and c.audit["doubled"] == 0, "chaos_history_of_sites_agrees_with_the_journal": not f.unexpected,
            "chaos_theta_equals_the_replay": c.replay_equal, "chaos_no_promise_is_broken": not w.broken,
            "chaos_many_kinds_of_faults": len(w.counts) >= 5}
    for name, good in rows.items():
        print(f"{'ok' if good else 'FAIL'} {name}" + ("" if good else f": seed {c.a.seed}: {'; '.join(w.broken)[:300]}"))
    for kind, why in sorted(w.skipped.items()):
        print(f"skip chaos_{kind}: {why}")


def conclude(c, story):
    """Runs it, tells what came of it, cleans up; the exit status. story() gives the last line."""
    w, a, began = c.w, c.a, now()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # a time limit of make test: leave no process, no mount
    try:
        line = story()
        for kind, why in sorted(w.skipped.items()):
            print(f"chaos: {kind} was left out: {why}")
        with open(os.path.join(a.out, "figures.txt"), "w", encoding="utf-8") as f:
            f.write(line + "\n")
    except (Broken, subprocess.SubprocessError) as e:
        w.break_(str(e))
        line = f"FAIL chaos_seed_{a.seed}: {e}" if a.tests else f"broken={len(w.broken)} seed={a.seed} why=\"{e}\""
    finally:
        w.clean()
        if w.broken and os.path.isdir(w.run):
            evidence = os.path.join(a.out, "evidence")
            shutil.copytree(w.run, evidence, ignore=shutil.ignore_patterns("blobs", "versions"), dirs_exist_ok=True)
            print(f"chaos: seed {a.seed}; what is left lies in {a.out} (acts.jsonl, logs, histories, evidence/)")
        w.end_server()
        if not a.keep:
            w.unmount()
    print(f"# {now() - began:.0f} s in all")
    print(line, flush=True)
    return 1 if w.broken else 0
