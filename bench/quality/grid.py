# SPDX-License-Identifier: Apache-2.0
"""What is run, in which order: arms, the settings each is tuned over, and the seeds that confirm the best of them.

An arm is tuned at the first seed over its learning rate; the grid is made longer where its best end is its edge. Where
eta and mu are ours to choose, the rate is found with the first pair, the other pairs are tried at that rate, and a pair
that is better has its rate looked for again, beside the old one. A run that falls behind the best of its arm beyond what
can be made up is given up on the way (runs.bounds), in the central arms as in the others; what is reported are whole runs of
the best settings, at all seeds: with more than one, the first is the one that was tuned on, and the tables say so.

The order is that of what is asked first: central runs, three sites at H = 30, what is promised of them, then the rest."""
import math

PARTS = ("central", "plain", "over", "codec", "members", "levers", "warm")
PERIODS = (10, 30, 100)
BATCHES = {"40k": 2}  # rows of a site's step: the smallest model would have too few steps with as many as the others
BATCH = 4
SITES = {"sites": 3, "m_ref": 3}
PLAIN = {"eta": 0.7, "mu": 0.9, "optimizer": "adamw"}
# (eta, mu) that are tried; QUICK takes the first. Few rounds want less momentum, many small ones none (docs/quality.md).
OUTER = {("adamw", 10): ((1.0, 0.0), (0.5, 0.8), (0.7, 0.6)), ("adamw", 30): ((0.7, 0.7), (0.7, 0.8), (0.7, 0.9)),
         ("adamw", 100): ((0.7, 0.6), (0.7, 0.4), (0.7, 0.8)), ("muon", 10): ((1.0, 0.0), (0.7, 0.4), (0.7, 0.7)),
         ("muon", 30): ((0.7, 0.7), (0.7, 0.6), (0.7, 0.8)), ("muon", 100): ((0.7, 0.6), (0.7, 0.4), (0.7, 0.8))}
# Where the search for an arm's rate begins, as multiples of the central run's.
RATES = {("adamw", 10): (0.5, 1.0), ("adamw", 30): (0.5, 1.0), ("adamw", 100): (0.5, 1.0),
         ("muon", 10): (1.0, 2.0), ("muon", 30): (1.0, 2.0), ("muon", 100): (0.5, 1.0)}
# Rounds of topk cost a twentieth of int4's bytes, so that there may be three times as many of them.
TOPK = {"codec": "topk", "down_codec": "int4", "mu": 0.0, "eta": 1.0, "keep": 0.95}
HISTORY = "c0.2l,a0.4l,b0.4c,a0.4j,b0.7j,c0.7j"


def batch(a):
    return BATCHES.get(a.size, BATCH)


class Arm:
    def __init__(self, settings, rows):
        self.settings, self.rows = settings, rows

    def ready(self):
        return bool(self.rows) and all(self.rows)


def better(pairs):
    known = [(row["nll"], i) for i, (_, row) in enumerate(pairs) if row]
    return min(known)[1] if known else None


def tune(lab, base, rates, factor, stretch, rival=None):
    """The best rate of a geometric grid, which grows where the best is its edge. Gives settings and the row."""
    rates = sorted(rates)
    seen = {}
    for _ in range(stretch + 1):
        new = [r for r in rates if r not in seen]
        for r, row in zip(new, lab.all([{**base, "seed": 1, "lr": r} for r in new], rival)):
            seen[r] = row
        best = better([(r, seen[r]) for r in rates])
        if best is None:
            return None, None
        if not rival or seen[rates[best]]["nll"] < rival["nll"]:
            rival = seen[rates[best]]
        if 0 < best < len(rates) - 1:
            break
        edge = rates[0] / factor if best == 0 else rates[-1] * factor
        rates = sorted(rates + [float(f"{edge:.3g}")])
    best = better([(r, seen.get(r)) for r in rates])
    return {**base, "lr": rates[best]}, seen[rates[best]]


def confirm(lab, settings, seeds):
    if settings is None:
        return Arm(None, [])
    return Arm(settings, lab.all([{**settings, "seed": s} for s in range(1, seeds + 1)]))


def central(lab, a):
    """The settings of the tuned central runs: of one for a warm start alone, which has AdamW inside."""
    factor, stretch = (2.0, 2) if a.quick else (math.sqrt(2), 4)
    rates_of = {"adamw": (0.004, 0.008), "muon": (0.008, 0.016)}
    if a.parts == ["warm"]:
        del rates_of["muon"]
    return {f"central-{optimizer}": tune(lab, {"sites": 0, "batch": 3 * batch(a), "optimizer": optimizer}, rates, factor, stretch)[0]
            for optimizer, rates in rates_of.items()}


def plain(lab, a, lr):
    settings = [{**SITES, "batch": batch(a), **PLAIN, "steps": h, "lr": lr} for h in PERIODS]
    many = [{**s, "seed": n} for s in settings for n in range(1, a.seeds + 1)]
    rows = lab.all(many)
    return {f"plain-{h}": Arm(s, rows[i * a.seeds:(i + 1) * a.seeds])
            for i, (h, s) in enumerate(zip(PERIODS, settings))}


def over(lab, a, lr, optimizer, h):
    """Settings of ours at one H: the rate, and in the campaign eta and mu with it. lr: where the search begins."""
    factor = 2.0 if a.quick else math.sqrt(2)
    wide = not a.quick or h == 30
    pairs = OUTER[optimizer, h][:1 if a.quick else None]
    base = {**SITES, "batch": batch(a), "optimizer": optimizer, "steps": h}
    first = {**base, "eta": pairs[0][0], "mu": pairs[0][1]}
    rates = RATES[optimizer, h] if wide else (OTHER_H[optimizer, h],)
    best, row = tune(lab, first, [float(f"{lr * r:.3g}") for r in rates], factor, (1 if a.quick else 4) if wide else 0)
    if best is None or len(pairs) == 1:
        return best
    others = [{**best, "eta": eta, "mu": mu} for eta, mu in pairs[1:]]
    rows = lab.all([{**o, "seed": 1} for o in others], row)
    found = better([(best, row), *zip(others, rows)])
    if found == 0:
        return best
    other, row = others[found - 1], rows[found - 1]
    around = [float(f"{best['lr'] * f:.3g}") for f in (1 / factor, factor)]
    return tune(lab, other, [around[0], best["lr"], around[1]], factor, 1, row)[0]


OTHER_H = {("muon", 10): 1.5, ("muon", 100): 0.7, ("adamw", 10): 1.0, ("adamw", 100): 1.0}  # QUICK: of H = 30's rate


def variants(lab, a, base, table):
    names = list(table)
    lab.all([{**base, **table[n], "seed": 1} for n in names])  # one seed of each before another of any
    rows = lab.all([{**base, **table[n], "seed": s} for n in names for s in range(1, a.seeds + 1)])
    rows = [{**r, "nll": r["nll_ema"]} if r and r["nll_ema"] else r for r in rows]  # where a mean was kept, it is meant
    return {n: Arm({**base, **table[n]}, rows[i * a.seeds:(i + 1) * a.seeds]) for i, n in enumerate(names)}


def codec(a):
    """What is promised, and in the campaign what else is told."""
    asked = {"int4-delay-1": {"codec": "int4", "down_codec": "int4", "delay": 1},
             "topk": {**TOPK, "steps": 10}}
    told = {"int8-blocking": {"codec": "int8"}, "int4-blocking": {"codec": "int4", "down_codec": "int4"},
            "int4-delay-3": {"codec": "int4", "down_codec": "int4", "delay": 3},
            "int4-delay-5": {"codec": "int4", "down_codec": "int4", "delay": 5},
            "fp32-delay-3": {"delay": 3}, "topk-30": TOPK, "topk-mu": {"codec": "topk", "keep": 0.95}}
    return asked, {} if a.quick else told


def members(a):
    asked = {"history": {"events": HISTORY}, "late": {"away": "c", "events": "c0.3j"},
             "speeds": {"speeds": "1:2:4", "cadence_batch": 1}}
    return asked, {} if a.quick else {"speeds-steps": {"speeds": "1:2:4"}}


def levers(a, base):
    """Options of the outer step (docs/outer.md), one at a time; the campaign's alone."""
    if a.quick:
        return {}
    return {"radial": {"radial": 1, "eta": float(f"{base['eta'] / 1.5:.3g}")}, "last-mean": {"last_mean": 1},
            "plain-mean": {"outer": "plain"}, "ramp": {"steps_first": 5}, "ema": {"ema": 0.9},
            "muon-ratio-2": {"lr": float(f"{base['lr'] / 2:.3g}"), "lr_ratio": 2.0}, "wsd": {"schedule": "wsd"}}


def warm():
    """A warm start: the first share of the tokens in synchronous rounds (docs/outer.md), at the rate found without it."""
    return {"warm-5": {"synchronous": 0.05}, "warm-10": {"synchronous": 0.1}}


def play(lab, a):
    tuned = central(lab, a)
    if any(s is None for s in tuned.values()):
        return {n: Arm(None, []) for n in tuned}
    lr = {o: tuned[f"central-{o}"]["lr"] for o in ("adamw", "muon") if f"central-{o}" in tuned}
    several = {"over", "codec", "members", "levers"} & set(a.parts)
    if several:
        tuned["muon-30"] = over(lab, a, lr["muon"], "muon", 30)
    if {"over", "warm"} & set(a.parts):
        tuned["adamw-30"] = over(lab, a, lr["adamw"], "adamw", 30)
    arms = {n: confirm(lab, s, a.seeds) for n, s in tuned.items()}
    base = tuned.get("muon-30")
    tables = [t for part, t in (("codec", codec(a)), ("members", members(a))) if part in a.parts and base]
    for asked, _ in tables:
        arms |= variants(lab, a, base, asked)
    if "warm" in a.parts and tuned["adamw-30"]:
        arms |= variants(lab, a, tuned["adamw-30"], warm())
    if "plain" in a.parts:
        arms |= plain(lab, a, lr["adamw"])
    for h in (10, 100) if "over" in a.parts else ():
        for optimizer in ("muon", "adamw"):
            at = tuned[f"{optimizer}-30"]
            begin = at["lr"] if a.quick and at else lr[optimizer]
            arms[f"{optimizer}-{h}"] = confirm(lab, over(lab, a, begin, optimizer, h), a.seeds)
    told = {n: s for _, t in tables for n, s in t.items()} | (levers(a, base) if "levers" in a.parts and base else {})
    arms |= variants(lab, a, base, told) if told else {}
    first = [f"central-{o}" for o in ("adamw", "muon")] + [f"{k}-{h}" for k in ("plain", "muon", "adamw") for h in PERIODS]
    return {n: arms[n] for n in [*(n for n in first if n in arms), *(n for n in arms if n not in first)]}
