# SPDX-License-Identifier: Apache-2.0
"""Where the time of the sites went that gave no merged sample: by the fault it follows from, and by its form.

  idle      the process is there and trains nothing: `start` until it has its weights and its first sample behind it,
            `wait` after that (no lease, no hub, a duty)
  killed    trained, and not in the local checkpoint that the next process began with
  again     trained, and thrown away by a reset of the weights (a lease went to somebody else)
  refused   handed in, and the hub rejected or discarded it

All in seconds of a site's undisturbed training. A loss belongs to the act on this site or on the hub that is under way,
the site's own first, or else to the one that ended last; `calm` where none ended in the last FAR seconds. A figure to look
for causes with, not an oracle: a site's progress is told every quarter of a second."""
import calendar
import json
import re
import time

FAR = 15.0
FORMS = ("start", "wait", "killed", "again", "refused")
STAMP = re.compile(r"^ts=(\d+-\d+-\d+T\d+:\d+:\d+)\.(\d+)Z .* ev=(\w+) ?(.*)$")
OFFSET = time.time() - time.monotonic()


def acts(path):
    """[begin, end, kind, site or None], an act that did not end (or said nothing about it) ends at once."""
    out, open_ = [], {}
    with open(path, encoding="utf-8") as f:
        for line in f:
            a = json.loads(line)
            if a["act"] == "over":
                entry = open_.pop(a["site"], None)
                if entry:
                    entry[1] = a["t"]
                continue
            entry = [a["t"], a["t"], a["act"], a.get("site")]
            out.append(entry)
            if entry[3] not in open_:
                open_[entry[3]] = entry
    return out


class Blame:
    def __init__(self, path):
        self.acts = acts(path)

    def __call__(self, site, t):
        best, rank = "calm", (0, 0.0)
        for begin, end, kind, owner in self.acts:
            if begin > t + 0.05 or owner not in (None, site) or end < t - FAR:
                continue
            r = (3 if owner else 2, begin) if end >= t else (1, end)
            if r > rank:
                best, rank = kind, r
        return best


def notes(path):
    """(monotonic time, event, fields) of a site's log."""
    with open(path, encoding="utf-8", errors="replace") as f:
        for line in f:
            m = STAMP.match(line)
            if m:
                t = calendar.timegm(time.strptime(m[1], "%Y-%m-%dT%H:%M:%S")) + float("0." + m[2])
                yield t - OFFSET, m[3], dict(re.findall(r"(\w+)=(\S+)", m[4]))


# A log's stamps are cut to milliseconds: a process's first lines can seem older than the process.
STAMP_STEP = 0.005


class Owed:
    """Samples of a site, over its processes: trained in all, as a local checkpoint counts them, and staged."""

    def __init__(self):
        self.base = self.reached = self.staged = 0.0
        self.ended, self.fresh = None, False

    def ends(self, trained, t):
        self.reached, self.ended, self.fresh = self.base + trained, t, True

    def goes_on(self, at):
        """What the checkpoint does not have."""
        lost, self.base, self.fresh = self.reached - at, at, False
        return lost

    def begins_afresh(self):
        """Without a checkpoint all is gone that the hub has not got. Nothing where the process goes on."""
        if not self.fresh:
            return 0.0
        lost, self.base, self.staged, self.fresh = self.reached - self.staged, 0.0, 0.0, False
        return lost


class Losses:
    def __init__(self, acts_path, since, until, speed, batch):
        self.blame, self.since, self.until = Blame(acts_path), since, until
        self.speed, self.batch = speed, batch
        self.table = {}

    def add(self, site, t, form, seconds):
        if self.since <= t <= self.until and seconds > 0:
            row = self.table.setdefault(self.blame(site, t), dict.fromkeys(FORMS, 0.0))
            row[form] += seconds

    def idle(self, s):
        """Between two lines of progress: the time less the stops less what was trained."""
        held = [(b, e) for b, e in s.stops]
        last, first_sample = None, True
        for t, event, n in s.lines():
            if event == "begin":
                last, first_sample = (t, 0), True
                continue
            if last is None:
                continue
            stopped = sum(max(0.0, min(e, t) - max(b, last[0])) for b, e in held)
            lost = t - last[0] - stopped - (n - last[1]) / self.speed
            if lost > 0.5 / self.speed * self.batch:
                self.add(s.name, t, "start" if first_sample else "wait", lost)
            first_sample &= n == 0
            last = (t, n) if event != "end" else None

    def wasted(self, s):
        """From its log, and from what its progress had reached when each of its processes ended."""
        lives = sorted((b, e if e is not None else self.until) for b, e, _ in s.lives)
        trained = [0] * len(lives)
        for t, _, n in s.lines():
            for i, (b, e) in enumerate(lives):
                if b <= t <= e:
                    trained[i] = n
        owed, handed = Owed(), {}
        at = 0
        for t, event, fields in notes(s.log):
            while at + 1 < len(lives) and t + STAMP_STEP >= lives[at + 1][0]:
                owed.ends(trained[at], lives[at][1])
                at += 1
            if event == "restored":
                kept = owed.goes_on(float(fields["steps"]) * self.batch)
                self.add(s.name, owed.ended or t, "killed", kept / self.speed)
            elif event == "joined":
                self.add(s.name, owed.ended or t, "killed", owed.begins_afresh() / self.speed)
            elif event == "weights_reset":
                self.add(s.name, t, "again", float(fields["samples_again"]) / self.speed)
            elif event == "handed_in":
                handed[fields["did"]] = float(fields["samples"])
            elif event == "staged":
                owed.staged += handed.get(fields["did"], 0.0)
            elif event in ("contribution_rejected", "contribution_discarded", "contribution_lost"):
                self.add(s.name, t, "refused", handed.get(fields["did"], 0.0) / self.speed)
        if not s.wanted and at < len(trained):
            owed.ends(trained[at], lives[at][1])
            self.add(s.name, owed.ended, "killed", owed.begins_afresh() / self.speed)

    def lines(self, available):
        yield f"{'lost to':22}" + "".join(f"{form:>9}" for form in FORMS) + f"{'all':>9}{'share':>9}"
        total = dict.fromkeys(FORMS, 0.0)
        for kind, row in sorted(self.table.items(), key=lambda x: -sum(x[1].values())):
            for form in FORMS:
                total[form] += row[form]
            yield line(kind, row, available)
        yield line("all", total, available)


def line(kind, row, available):
    whole = sum(row.values())
    share = whole / available if available else 0.0
    return f"{kind:22}" + "".join(f"{row[form]:9.1f}" for form in FORMS) + f"{whole:9.1f}{share:9.4f}"


def tell(sites, acts_path, since, until, speed, batch, available):
    losses = Losses(acts_path, since, until, speed, batch)
    for s in sites:
        losses.idle(s)
        losses.wasted(s)
    return list(losses.lines(available))
