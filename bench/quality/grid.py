# SPDX-License-Identifier: Apache-2.0
"""What is run: arms, the settings each is tuned over, and the seeds that confirm the best of them.

An arm is tuned at the first seed over its learning rate (and eta, mu where it is ours to choose); the grid is made
longer where its best end is its edge. What is reported are the runs of the best settings, at all seeds: with more
than one, the first is the one that was tuned on, and the tables say so."""
import math

PARTS = ("central", "plain", "over", "codec", "members", "levers")
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


def tune(lab, base, rates, factor, stretch):
    """The best rate of a geometric grid, which grows where the best is its edge. Gives settings and the row."""
    rates = sorted(rates)
    seen = {}
    for _ in range(stretch + 1):
        new = [r for r in rates if r not in seen]
        for r, row in zip(new, lab.all([{**base, "seed": 1, "lr": r} for r in new])):
            seen[r] = row
        best = better([(r, seen[r]) for r in rates])
        if best is None:
            return None, None
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
    factor, stretch = (2.0, 2) if a.quick else (math.sqrt(2), 4)
    arms = {}
    for optimizer, rates in (("adamw", (0.004, 0.008)), ("muon", (0.008, 0.016))):
        best, _ = tune(lab, {"sites": 0, "batch": 3 * batch(a), "optimizer": optimizer}, [float(r) for r in rates], factor, stretch)
        arms[f"central-{optimizer}"] = confirm(lab, best, a.seeds)
    return arms


def plain(lab, a, arms):
    settings = [{**SITES, "batch": batch(a), **PLAIN, "steps": h, "lr": arms["central-adamw"].settings["lr"]} for h in PERIODS]
    many = [{**s, "seed": n} for s in settings for n in range(1, a.seeds + 1)]
    rows = lab.all(many)
    return {f"plain-{h}": Arm(s, rows[i * a.seeds:(i + 1) * a.seeds])
            for i, (h, s) in enumerate(zip(PERIODS, settings))}


def over(lab, a, arms, optimizer):
    """Ours: the rate, and in the campaign eta and mu with it, at each H."""
    out = {}
    lr = arms[f"central-{optimizer}"].settings["lr"]
    for h in (30, 10, 100):
        found = []
        wide = not a.quick or h == 30
        if not wide and out[f"{optimizer}-30"].settings:  # relative to what H = 30 found
            lr = out[f"{optimizer}-30"].settings["lr"]
        for eta, mu in OUTER[optimizer, h][:1 if a.quick else None]:
            base = {**SITES, "batch": batch(a), "optimizer": optimizer, "steps": h, "eta": eta, "mu": mu}
            rates = RATES[optimizer, h] if wide else (OTHER_H[optimizer, h],)
            found.append(tune(lab, base, [float(f"{lr * r:.3g}") for r in rates],
                              2.0 if a.quick else math.sqrt(2), (1 if a.quick else 4) if wide else 0))
        best = better(found)
        out[f"{optimizer}-{h}"] = confirm(lab, None if best is None else found[best][0], a.seeds)
    return out


OTHER_H = {("muon", 10): 1.5, ("muon", 100): 0.7, ("adamw", 10): 1.0, ("adamw", 100): 1.0}  # QUICK: of H = 30's rate


def variants(lab, a, base, table):
    names = list(table)
    rows = lab.all([{**base, **table[n], "seed": s} for n in names for s in range(1, a.seeds + 1)])
    rows = [{**r, "nll": r["nll_ema"]} if r and r["nll_ema"] else r for r in rows]  # where a mean was kept, it is meant
    return {n: Arm({**base, **table[n]}, rows[i * a.seeds:(i + 1) * a.seeds]) for i, n in enumerate(names)}


def codec(lab, a, arms):
    table = {"int4-delay-1": {"codec": "int4", "down_codec": "int4", "delay": 1}}
    if not a.quick:
        table |= {"int8-blocking": {"codec": "int8"}, "int4-blocking": {"codec": "int4", "down_codec": "int4"},
                  "int4-delay-3": {"codec": "int4", "down_codec": "int4", "delay": 3},
                  "int4-delay-5": {"codec": "int4", "down_codec": "int4", "delay": 5},
                  "fp32-delay-3": {"delay": 3}, "topk-mu": {"codec": "topk"}}
    table["topk"] = {"codec": "topk", "down_codec": "int4", "mu": 0.0, "eta": 1.0}
    return variants(lab, a, arms["muon-30"].settings, table)


def members(lab, a, arms):
    table = {"history": {"events": HISTORY}, "late": {"away": "c", "events": "c0.3j"},
             "speeds": {"speeds": "1:2:4", "cadence_batch": 1}}
    if not a.quick:
        table["speeds-steps"] = {"speeds": "1:2:4"}
    return variants(lab, a, arms["muon-30"].settings, table)


def levers(lab, a, arms):
    """Options of the outer step (docs/outer.md), one at a time; the campaign's alone."""
    base = arms["muon-30"].settings
    table = {"radial": {"radial": 1, "eta": float(f"{base['eta'] / 1.5:.3g}")}, "last-mean": {"last_mean": 1},
             "plain-mean": {"outer": "plain"}, "ramp": {"steps_first": 5}, "ema": {"ema": 0.9},
             "muon-ratio-2": {"lr": float(f"{base['lr'] / 2:.3g}"), "lr_ratio": 2.0}, "wsd": {"schedule": "wsd"}}
    return variants(lab, a, base, table)


def play(lab, a):
    arms = central(lab, a)
    if any(not x.settings for x in arms.values()):
        return arms
    if "plain" in a.parts:
        arms |= plain(lab, a, arms)
    if {"over", "codec", "members", "levers"} & set(a.parts):
        arms |= over(lab, a, arms, "muon")
    if arms.get("muon-30") and arms["muon-30"].settings:
        if "codec" in a.parts:
            arms |= codec(lab, a, arms)
        if "members" in a.parts:
            arms |= members(lab, a, arms)
        if "levers" in a.parts and not a.quick:
            arms |= levers(lab, a, arms)
    if "over" in a.parts:
        arms |= over(lab, a, arms, "adamw")
    return arms
