# SPDX-License-Identifier: Apache-2.0
"""What may happen to a run. An act is a generator: it does something, yields how many seconds it waits (or a
condition and a limit), and leaves things as they were. Acts on different processes overlap; one process has one
act at a time. World.fault() counts each fault when it is done, not when it is planned."""
import os
import shutil
import signal
import subprocess

from world import HERE, Site, now

HUB_POINTS = ("hub.before_append", "hub.after_append", "hub.blob.synced", "hub.after_checkpoint", "hub.after_flip",
              "hub.before_publish")
SITE_POINTS = ("site.answered", "site.uploaded", "site.before_checkpoint", "site.checkpointed", "site.before_delta",
               "site.delta_stored")
POWERCUT = os.path.join(HERE, "..", "..", "build", "tools", "powercut")


def write_file(path, text):
    with open(path + ".new", "w", encoding="utf-8") as f:
        f.write(text)
    os.rename(path + ".new", path)


def ttls(w, low=0.5, high=5.0):
    return w.rng.uniform(low, high) * w.args.ttl


def outage(w):
    """How long something is away: around the time of a lease, where all the decisions are; or, for the share of
    useful work, as outages are: many short ones, few long ones, 5 s to 5 min of the real run."""
    if w.args.per_hour:
        return 5 * 60 ** w.rng.random() / w.args.scale
    return ttls(w)


# ---- the hub -------------------------------------------------------------------------------------------------
def kill_hub(w):
    w.fault("kill_hub")
    w.hub.kill()
    yield w.rng.uniform(0, 1.0)
    w.hub.begin()


def kill_hub_at_a_point(w):
    point = w.rng.choice(HUB_POINTS)
    w.hub.kill()
    w.hub.begin({"BERINGIA_FAULT": f"{point}:{w.rng.randint(1, 4)}"})
    yield (lambda: w.hub.ended() is not None), 6.0
    hit = w.hub.ended() is not None
    w.fault("kill_hub_at_a_point" if hit else "kill_hub", point=point, hit=hit)
    w.hub.kill()
    yield w.rng.uniform(0, 0.5)
    w.hub.begin()


def restart_hub(w):
    w.fault("restart_hub")
    w.hub.signal(signal.SIGTERM)
    yield (lambda: w.hub.ended() is not None), 20.0
    if w.hub.ended() != 0:
        w.break_(f"SIGTERM ended the hub with {w.hub.ended()} within 20 s")
        w.hub.kill()
    w.hub.begin()


def freeze_hub(w):
    w.fault("freeze_hub")
    w.hub.signal(signal.SIGSTOP)
    yield outage(w)
    w.hub.signal(signal.SIGCONT)


def cut_hub_power(w):
    """SIGKILL alone loses nothing that was written; here all (or a part of) what was not synced is gone too."""
    w.hub.kill()
    keep = w.rng.choice((None, 0.5))
    words = [POWERCUT, w.hub.undo] + (["--keep", str(keep), "--seed", str(w.rng.randrange(1 << 30))] if keep else [])
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    w.fault("power_cut_hub", keep=keep, said=(done.stdout + done.stderr).strip()[-200:])
    forget_undo(w)
    yield 0.1
    w.hub.begin()


def forget_undo(w):
    for path in (w.hub.undo, w.hub.undo + ".kept"):
        if os.path.isdir(path):
            shutil.rmtree(path)
        elif os.path.exists(path):
            os.unlink(path)


def bad_disk_hub(w):
    call = w.rng.choice(("fsync", "write", "rename"))
    when = w.rng.choice(("nth=1", "nth=3", "p=0.2"))
    w.fault("eio_hub", call=call, when=when)
    w.hub.allowed = {-signal.SIGABRT, 5, 8}  # abort, E_IO, E_JOURNAL: it must not go on with a journal in doubt
    w.hub.faults_calm(f"fail {w.run} {call} EIO {when}\nseed {w.rng.randrange(1, 1 << 30)}\n")
    yield (lambda: w.hub.ended() is not None), 4.0
    w.hub.faults_calm()
    code = w.hub.ended()
    if code is not None:
        if code not in w.hub.allowed:
            w.break_(f"a bad disk ended the hub with {code}")
        w.hub.begin()
    yield 0.3  # what it had begun under the fault may still end it
    code = w.hub.ended()
    if code is not None:
        w.hub.begin()
    w.hub.allowed = set()


def full_disk_hub(w):
    """The undo log of a power cut has no room either, so there is none meanwhile; the next hub begins a fresh one."""
    w.fault("full_hub")
    write_file(w.hub.rules, "")
    used = used_bytes(w.hub_disk)
    w.resize(w.hub_disk, used + w.rng.choice((4096, 1 << 16, 3 * w.delta_bytes)))
    yield ttls(w, 0.5, 2.5)
    w.resize(w.hub_disk, 6 << 30)

    def serves():
        s = w.status(0.5)
        return w.hub.ended() is not None or (s is not None and not s["full"])
    yield serves, 20.0
    if w.hub.ended() is not None:
        w.break_(f"a full disk ended the hub with {w.hub.ended()}")
    elif not serves():
        w.break_("20 s after space returned the hub does not take contributions")
    w.hub.kill()
    forget_undo(w)
    w.hub.faults_calm()
    w.hub.begin()


def used_bytes(path):
    v = os.statvfs(path)
    return (v.f_blocks - v.f_bfree) * v.f_frsize


def bend_hub_clock(w):
    how = w.rng.choice(("day", "fast", "slow"))
    w.fault("clock_hub", how=how)
    text = {"day": f"realtime {w.rng.choice((-86400, 86400))} 1\n", "fast": "monotonic 0 3\n", "slow": "monotonic 0 0.4\n"}
    write_file(w.hub.clock, text[how])
    yield ttls(w)
    write_file(w.hub.clock, "realtime 0 1\nmonotonic 0 1\n")


def second_hub(w):
    """Two hubs on one run directory: the second must not start, the first must not notice."""
    w.fault("second_hub")
    p = subprocess.Popen([w.program, "hub", w.run, "--listen", "127.0.0.1:0"], stdout=subprocess.DEVNULL,
                         stderr=subprocess.PIPE, text=True)
    yield (lambda: p.poll() is not None), 10.0
    if p.poll() is None:
        p.kill()
        w.break_("a second hub serves the run directory of the first")
    elif p.returncode != 7:
        w.break_(f"a second hub on the same run directory ended with {p.returncode}, not with BUSY")
    p.stderr.close()
    p.wait()


def old_copy_of_hub(w):
    """The store comes back from a backup, while sites have seen newer versions: the old one must hold, and do no
    harm; then the newer one is brought back."""
    copy = os.path.join(w.hub_disk, "run-old")
    shutil.rmtree(copy, ignore_errors=True)
    w.hub.kill()
    copy_run(w.run, copy)
    w.hub.begin()
    before = None
    until = now() + 15

    def newer():
        nonlocal before
        s = w.status(0.5)
        if s is not None and before is None:
            before = s["head"]
        return now() > until or (s is not None and before is not None and s["head"] >= before + 3)
    yield newer, 16.0
    w.fault("hub_from_backup")
    w.hub.kill()
    begin = now()
    w.hub.begin(run=copy, plain=True)

    def held():
        s = w.status(0.5)
        return s is not None and s["held"]
    yield held, 10.0
    if not held() and any(s.alive() and s.stopped_at is None for s in w.sites):
        w.note("old_copy_not_held")
    yield 0.5
    w.hub.kill()
    w.windows.append((begin, now(), "backup"))
    shutil.rmtree(copy, ignore_errors=True)
    w.hub.begin()


def copy_run(src, dst):
    def copy(a, b):
        return os.link(a, b) if f"{os.sep}blobs{os.sep}" in a else shutil.copy2(a, b)
    shutil.copytree(src, dst, copy_function=copy, symlinks=True)


def rollback(w):
    s = w.status()
    if s is None or s["head"] < 3 or s["complete"]:
        return
    begin = now()
    parent = [v["parent"] for v in s["versions"] if v["version"] == s["head"]]
    answer = w.post("/v1/operator/rollback", {"version": parent[0]}) if parent else None
    w.windows.append((begin, now(), "rollback"))
    w.fault("rollback", version=parent[0] if parent else None, said=bool(answer))
    yield 0.1


# ---- the server of its journal, with --postgres ----------------------------------------------------------------
def server_goes(w, kind, number, seconds):
    """Gone, with whatever was under way; the hub has to stay, and to go on when it is back."""
    w.fault(kind)
    w.server.stop(number)
    yield w.rng.uniform(0, seconds)
    yield w.server.back, 60.0
    if not w.server.ready():
        w.break_(f"{kind}: the server did not come back within 60 s; see {w.server.log}")
    if w.hub.ended() is not None:
        w.break_(f"{kind} ended the hub with {w.hub.ended()}")
        w.hub.begin()


def restart_server(w):
    yield from server_goes(w, "restart_server", signal.SIGINT, 1.0)


def kill_server(w):
    yield from server_goes(w, "kill_server", signal.SIGKILL, ttls(w))


def crash_server(w):
    yield from server_goes(w, "crash_server", signal.SIGQUIT, 0.5)


def end_sessions(w):
    """The hub's connection alone, maybe within a transaction."""
    for _ in range(w.rng.randint(1, 4)):
        w.fault("end_sessions")
        w.server.end_sessions()
        yield w.rng.uniform(0.05, 0.6)
    if w.hub.ended() is not None:
        w.break_(f"the end of its session ended the hub with {w.hub.ended()}")
        w.hub.begin()


# ---- a site --------------------------------------------------------------------------------------------------
def kill_site(w, s):
    w.fault("kill_site", site=s.name)
    s.kill()
    yield w.rng.uniform(*w.args.away)
    s.begin()


def kill_site_at_a_point(w, s):
    point = w.rng.choice(SITE_POINTS)
    s.kill()
    s.begin({"BERINGIA_FAULT": f"{point}:{w.rng.randint(1, 5)}"})
    yield (lambda: s.ended() is not None), 6.0
    hit = s.ended() is not None
    w.fault("kill_site_at_a_point" if hit else "kill_site", site=s.name, point=point, hit=hit)
    s.kill()
    yield w.rng.uniform(*w.args.away)
    s.begin()


def freeze_site(w, s):
    w.fault("freeze_site", site=s.name)
    s.signal(signal.SIGSTOP)
    yield outage(w)
    s.signal(signal.SIGCONT)


def job_limit(w, s):
    """As Slurm ends a job: SIGTERM, a short grace, SIGKILL."""
    w.fault("term_then_kill", site=s.name)
    s.signal(signal.SIGTERM)
    yield (lambda: s.ended() is not None), w.rng.uniform(0.05, 1.5)
    s.kill()
    yield w.rng.uniform(*w.args.away)
    s.begin()


def cut_link(w, s):
    way = w.rng.choice(("up", "down", "both"))
    w.fault("cut_both_ways" if way == "both" else "cut_one_way", site=s.name, way=way)
    s.link.say(f"cut {way}")
    yield outage(w)
    s.link.say("heal")


def slow_link(w, s):
    """An upload takes longer than a lease lives."""
    w.fault("slow_link", site=s.name)
    s.link.say(f"rate {max(8, int(w.delta_bytes * 8 / 1000 / ttls(w, 1.5, 3)))}kbit")
    yield 3 * outage(w) if w.args.per_hour else ttls(w, 3, 6)
    s.link.say("rate 10gbit")


def reset_in_a_body(w, s):
    for _ in range(w.rng.randint(1, 3)):
        w.fault("reset_in_a_body", site=s.name)
        s.link.say(f"reset after {w.rng.randrange(1, 2 * w.delta_bytes)}")
        yield w.rng.uniform(0.3, 2.0)


def refuse_connections(w, s):
    w.fault("refused", site=s.name)
    s.link.say("refuse on")
    s.link.say("reset all")
    yield outage(w)
    s.link.say("refuse off")


def full_disk_site(w, s):
    w.fault("full_site", site=s.name)
    w.resize(s.disk, used_bytes(s.disk) + w.rng.choice((4096, w.delta_bytes // 2)))
    yield ttls(w)
    w.resize(s.disk, w.site_disk_bytes)
    if s.ended() is not None:
        w.break_(f"a full disk ended site {s.name} with {s.ended()}")
        s.begin()


def bad_disk_site(w, s):
    call = w.rng.choice(("fsync", "write", "rename"))
    w.fault("eio_site", site=s.name, call=call)
    write_file(s.rules, f"fail {s.state} {call} EIO p=0.3\nseed {w.rng.randrange(1, 1 << 30)}\n")
    yield ttls(w, 0.5, 2)
    write_file(s.rules, "")
    code = s.ended()
    if code is not None:
        w.note("site_ended_on_a_bad_disk", site=s.name, code=code)
        if code < 0:
            w.break_(f"a bad disk ended site {s.name} with signal {-code}")
        s.begin()


def bend_site_clock(w, s):
    how = w.rng.choice(("day", "fast", "slow", "asleep"))
    w.fault("clock_site", site=s.name, how=how)
    s.bent = True
    text = {"day": "realtime 86400 1\n", "fast": "monotonic 0 3\n", "slow": "monotonic 0 0.3\n",
            "asleep": f"monotonic {ttls(w, 1, 20):.1f} 1\n"}
    write_file(s.clock, text[how])
    yield ttls(w)
    if how != "asleep":  # a jump forwards stays: back again would be what no kernel does
        write_file(s.clock, "realtime 0 1\nmonotonic 0 1\n")


def twin(w, s):
    """A job that was requeued while its first copy still runs, with a copy of its state. One of them must go."""
    copy = s.state + "-twin"
    shutil.rmtree(copy, ignore_errors=True)
    copy_live(s.state, copy)
    w.fault("twin", site=s.name)
    t = Site.__new__(Site)
    t.__dict__.update(s.__dict__)
    t.state, t.child, t.lives = copy, None, []
    t.begin()
    yield (lambda: s.ended() is not None), 8 * w.args.ttl
    if s.ended() is None:
        w.note("twin_not_fenced", site=s.name)
    elif s.ended() != 16:
        w.break_(f"site {s.name}, whose twin joined, ended with {s.ended()}, not with FENCED")
    yield ttls(w, 0.5, 2)
    s.kill()
    t.kill()
    s.lives.append([max(s.lives[-1][1], t.lives[0][0]), t.lives[0][1], 0.0])  # one place, two processes
    if w.rng.random() < 0.5:  # the twin's directory is the site's from now on
        shutil.rmtree(s.state, ignore_errors=True)
        os.rename(copy, s.state)
    else:
        shutil.rmtree(copy, ignore_errors=True)
    s.begin()


def copy_live(src, dst):
    """As a person copies a directory whose owner still writes: what vanishes meanwhile is not copied."""
    os.makedirs(dst)
    for base, dirs, files in os.walk(src):
        here = os.path.join(dst, os.path.relpath(base, src))
        os.makedirs(here, exist_ok=True)
        for name in files:
            try:
                shutil.copy2(os.path.join(base, name), os.path.join(here, name))
            except FileNotFoundError:
                pass


def old_state(w, s):
    """The site's file system goes back to an older state: the site must not train into what others have now."""
    copy = s.state + "-old"
    shutil.rmtree(copy, ignore_errors=True)
    copy_live(s.state, copy)
    yield ttls(w, 1, 4)
    w.fault("old_state", site=s.name)
    s.kill()
    shutil.rmtree(s.state)
    os.rename(copy, s.state)
    s.begin()


def lost_state(w, s):
    w.fault("lost_state", site=s.name)
    s.kill()
    shutil.rmtree(s.state, ignore_errors=True)
    yield w.rng.uniform(*w.args.away)
    s.begin()


def leave_for_ever(w, s):
    """Gone without a word; later a site with a name that nobody knows joins."""
    w.fault("leave_for_ever", site=s.name)
    s.kill()
    s.wanted = False
    shutil.rmtree(s.state, ignore_errors=True)
    yield ttls(w, 0, 2)
    names = sum(1 for x in w.sites) + 1
    fresh = Site(w, f"late{names}")
    w.fault("late_joiner", site=fresh.name)
    w.sites.append(fresh)
    fresh.begin()


# ---- the tables: act, weight, needs ----------------------------------------------------------------------------
HUB = {
    "kill_hub": (kill_hub, 3), "kill_hub_at_a_point": (kill_hub_at_a_point, 3), "restart_hub": (restart_hub, 1),
    "freeze_hub": (freeze_hub, 2), "power_cut_hub": (cut_hub_power, 2), "eio_hub": (bad_disk_hub, 1.5),
    "full_hub": (full_disk_hub, 1), "clock_hub": (bend_hub_clock, 1), "second_hub": (second_hub, 1),
    "hub_from_backup": (old_copy_of_hub, 0.7), "rollback": (rollback, 0.5),
}
SERVER = {"restart_server": (restart_server, 2), "kill_server": (kill_server, 2), "crash_server": (crash_server, 1),
          "end_sessions": (end_sessions, 3)}
SITE = {
    "kill_site": (kill_site, 4), "kill_site_at_a_point": (kill_site_at_a_point, 3), "freeze_site": (freeze_site, 3),
    "term_then_kill": (job_limit, 3), "cut_link": (cut_link, 4), "slow_link": (slow_link, 2),
    "reset_in_a_body": (reset_in_a_body, 3), "refused": (refuse_connections, 1), "full_site": (full_disk_site, 2),
    "eio_site": (bad_disk_site, 2), "clock_site": (bend_site_clock, 2), "twin": (twin, 1.5), "old_state": (old_state, 1.5),
    "lost_state": (lost_state, 1), "leave_for_ever": (leave_for_ever, 0.6),
}
# What happens to real allocations, with how often: jobs end and die, links are cut and slow, now and then the hub; a disk is
# lost in one case of thirty. Without an operator's acts and broken clocks. For the share of useful work.
USUAL = {"kill_hub": 1.5, "restart_hub": 1, "freeze_hub": 1.5, "kill_site": 5, "term_then_kill": 5, "freeze_site": 2,
         "cut_link": 4, "slow_link": 2, "reset_in_a_body": 3, "refused": 1, "lost_state": 0.5, "leave_for_ever": 0.4}
NEED_SHIMS = ("power_cut_hub", "eio_hub", "clock_hub", "eio_site", "clock_site")


class Storm:
    """Begins acts at random moments and carries them on; step() is called often."""

    def __init__(self, world, gap, kinds=None):
        self.w, self.gap = world, gap
        self.running = []  # [generator, owner, due or (condition, until)]
        self.next_at = now() + world.rng.expovariate(1 / gap)
        self.begun = {}
        if not world.preload:
            for k in NEED_SHIMS:
                world.skipped[k] = "no preloads under a sanitizer"
        able = [k for k in [*HUB, *SITE] if (kinds is None or k in kinds) and k not in world.skipped]
        if world.server is not None:  # a copy of the run's directory is no copy of the journal then
            able = [k for k in [*able, *SERVER] if k != "hub_from_backup" and (kinds is None or k in kinds)]
        own = kinds if isinstance(kinds, dict) else {}
        self.weights = {k: own.get(k) or (HUB.get(k) or SITE.get(k) or SERVER.get(k))[1] for k in able}
        self.seek_fresh = not own  # a kind that was not there yet comes first: a short campaign sees many

    def step(self, more=True):
        for entry in list(self.running):
            self.carry_on(entry)
        if more and now() >= self.next_at:
            self.next_at = now() + self.w.rng.expovariate(1 / self.gap)
            self.begin()

    def carry_on(self, entry):
        act, owner, due = entry
        if isinstance(due, tuple):
            if not due[0]() and now() < due[1]:
                return
        elif now() < due:
            return
        try:
            wish = next(act)
            entry[2] = (wish[0], now() + wish[1]) if isinstance(wish, tuple) else now() + wish
        except StopIteration:
            owner.busy = False
            self.running.remove(entry)
            self.w.note("over", site=None if owner is self.w.hub else owner.name)

    def begin(self):
        w = self.w
        fresh = [k for k in self.weights if k not in self.begun]
        fresh = [k for k in fresh if k in SERVER] or fresh  # what a storm with a server is for comes before all else
        for _ in range(8):
            kind = w.rng.choice(fresh) if self.seek_fresh and fresh and w.rng.random() < 0.5 else \
                w.rng.choices(list(self.weights), self.weights.values())[0]
            owner = self.owner(kind)
            if owner is not None:
                break
        else:
            return
        self.begun[kind] = self.begun.get(kind, 0) + 1
        owner.busy = True
        of_hub = HUB.get(kind) or SERVER.get(kind)
        act = of_hub[0](w) if of_hub else SITE[kind][0](w, owner)
        entry = [act, owner, 0.0]
        self.running.append(entry)
        self.carry_on(entry)

    def owner(self, kind):
        w = self.w
        if kind in HUB or kind in SERVER:
            return w.hub if w.hub.alive() and not w.hub.busy else None
        able = [s for s in w.sites if s.alive() and not s.busy and s.wanted and os.path.isdir(s.state)
                and (kind != "full_site" or s.disk)]
        return w.rng.choice(able) if able else None
