# SPDX-License-Identifier: Apache-2.0
"""From runs to a table, two pictures, and a verdict.

A gap is 100 (exp(loss - loss of the other arm) - 1), in per cent of perplexity, seed by seed; the interval is
Student's at 95 % over the seeds, and missing where there is one. What is promised of the campaign is asked of it at
three seeds; a QUICK run has one seed, a small model and a coarse search, and is asked for what it can carry."""
import math
import os

from curves import curves
from grid import PERIODS, batch
from runs import SEQ_LEN

T95 = {2: 12.706, 3: 4.303, 4: 3.182, 5: 2.776}
# name: (arm, what it is compared with, campaign's bound in %, QUICK's; None: told, not promised). QUICK's were set after
# one QUICK run, with room for the noise of a seed: they guard the code, and claim nothing about the method.
PROMISES = {
    "muon_over_adamw": ("muon-30", "central-adamw", -5.0, 0.0),
    "muon_over_muon": ("muon-30", "central-muon", 1.0, 6.0),
    "adamw_over_adamw": ("adamw-30", "central-adamw", 3.0, 15.0),
    "int4_delay_1": ("int4-delay-1", "muon-30", 0.5, 2.5),
    "topk": ("topk", "muon-30", 2.0, None),
    "history": ("history", "muon-30", 1.0, 3.0),
    "late": ("late", "muon-30", 1.0, 3.0),
    "speeds": ("speeds", "muon-30", 1.0, 3.0),
    "warm_5": ("warm-5", "adamw-30", None, None),
    "warm_10": ("warm-10", "adamw-30", None, None),
}
COLOURS = {"plain": "#b23a48", "adamw": "#3a6ea5", "muon": "#2a9d3a"}


def gap(arms, name, other):
    """(mean, half width or None), or None where a run is missing."""
    x, y = arms.get(name), arms.get(other)
    if not x or not y or not x.ready() or not y.ready():
        return None
    per = [100 * (math.exp(min(p["nll"] - q["nll"], 9)) - 1) for p, q in zip(x.rows, y.rows)]
    mean = sum(per) / len(per)
    if len(per) < 2:
        return mean, None
    sd = math.sqrt(sum((v - mean) ** 2 for v in per) / (len(per) - 1))
    return mean, T95.get(len(per), 2.6) * sd / math.sqrt(len(per))


def shown(g):
    if g is None:
        return "not run"
    return f"{g[0]:+.1f} %" + ("" if g[1] is None else f" ± {g[1]:.1f}")


def words(s):
    keep = ("lr", "eta", "mu", "steps", "codec", "down_codec", "delay", "events", "away", "speeds", "cadence_batch", "synchronous")
    return " ".join(f"{k}={s[k]:g}" if isinstance(s[k], float) else f"{k}={s[k]}" for k in keep if k in s)


def table(arms):
    out = ["| arm | perplexity | over central AdamW | over central Muon | rounds | cosine | settings |",
           "|---|---|---|---|---|---|---|"]
    for name, arm in arms.items():
        if not arm.ready():
            out.append(f"| {name} | not run | | | | | |")
            continue
        n = len(arm.rows)
        mean = {k: sum(r[k] for r in arm.rows) / n for k in ("nll", "rounds", "cosine")}
        out.append(f"| {name} | {math.exp(min(mean['nll'], 50)):.3f} | {shown(gap(arms, name, 'central-adamw'))} | "
                   f"{shown(gap(arms, name, 'central-muon'))} | {mean['rounds']:.0f} | {mean['cosine']:.2f} | "
                   f"{words(arm.settings)} |")
    return out


def by_period(arms):
    out = ["| H | plain recipe over central AdamW | ours, AdamW inside | ours, Muon inside | ours, Muon inside, over "
           "central Muon |", "|---|---|---|---|---|"]
    for h in PERIODS:
        cells = [shown(gap(arms, f"{kind}-{h}", "central-adamw")) for kind in ("plain", "adamw", "muon")]
        out.append(f"| {h} | {' | '.join(cells)} | {shown(gap(arms, f'muon-{h}', 'central-muon'))} |")
    return out


def against_steady(arms, names):
    out = ["| variant of muon-30 | perplexity against it | bytes up, of fp32 |", "|---|---|---|"]
    for n in names:
        if n in arms:
            share = arms[n].rows[0]["bytes_up_share"] if arms[n].ready() else 0
            out.append(f"| {n} | {shown(gap(arms, n, 'muon-30'))} | {100 * share:.1f} % |")
    return out


def warm_start(arms):
    out = ["| first share in synchronous rounds | perplexity against none | over central AdamW |", "|---|---|---|"]
    for n, share in (("adamw-30", "none"), ("warm-5", "5 %"), ("warm-10", "10 %")):
        if n in arms:
            out.append(f"| {share} | {shown(gap(arms, n, 'adamw-30'))} | {shown(gap(arms, n, 'central-adamw'))} |")
    return out


def judge(arms, quick):
    """Lines, the verdict's words, and the status: 1 broken, 2 something was not run."""
    lines, verdict, status = [], [], 0
    for name, (arm, other, full, coarse) in PROMISES.items():
        bound, g = (coarse if quick else full), gap(arms, arm, other)
        kept = g is not None and (bound is None or g[0] <= bound)
        verdict.append(f"{name}={'none' if g is None else f'{g[0]:.2f}'}")
        if bound is None:
            lines.append(f"told: {name}: {shown(g)}")
            continue
        lines.append(f"{'kept' if kept else 'not run' if g is None else 'BROKEN'}: {name}: {shown(g)}, "
                     f"at most {bound:+.1f} %")
        status = 1 if g is not None and not kept else status
        if g is None and status == 0:
            status = 2
    return lines, verdict, status


def pictures(lab, arms):
    bars(os.path.join(lab.out, "gap.svg"), arms)
    lines = [(n, c, [(t, loss) for t, loss in arms[n].rows[0]["curve"]])
             for n, c in (("central-adamw", "#222222"), ("central-muon", "#888888"), ("plain-30", COLOURS["plain"]),
                          ("adamw-30", COLOURS["adamw"]), ("muon-30", COLOURS["muon"]))
             if n in arms and arms[n].ready() and arms[n].rows[0]["curve"]]
    if lines:
        cut = [(n, c, [p for p in line if p[0] > 0.15 * lab.tokens]) for n, c, line in lines]
        curves(os.path.join(lab.out, "curves.svg"), f"Held-out loss, {lab.parameters:,} parameters, H = 30", cut)


def bars(path, arms):
    """Perplexity over the tuned central AdamW run: three recipes at three H."""
    values = [(h, kind, gap(arms, f"{kind}-{h}", "central-adamw")) for h in PERIODS for kind in COLOURS]
    values = [(h, kind, g) for h, kind, g in values if g]
    if not values:
        return
    high = max([5.0] + [g[0] + (g[1] or 0) for _, _, g in values])
    low = min([-5.0] + [g[0] - (g[1] or 0) for _, _, g in values])
    high, low = min(high, 60.0), max(low, -40.0)
    width, height, left, top, bottom = 760, 420, 60, 50, 60
    y = lambda v: top + (height - top - bottom) * (high - min(max(v, low), high)) / (high - low)  # noqa: E731
    out = [f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}" '
           'font-family="sans-serif" font-size="13"><rect width="100%" height="100%" fill="#fff"/>',
           f'<text x="{left}" y="26" font-size="17">Three sites: perplexity over the tuned central AdamW run, %</text>',
           f'<line x1="{left}" x2="{width - 20}" y1="{y(0):.1f}" y2="{y(0):.1f}" stroke="#444"/>']
    for i, (h, kind, g) in enumerate(values):
        x = left + 20 + PERIODS.index(h) * 220 + list(COLOURS).index(kind) * 60
        a, b = sorted((y(0), y(g[0])))
        out.append(f'<rect x="{x}" y="{a:.1f}" width="48" height="{max(b - a, 1):.1f}" fill="{COLOURS[kind]}"/>'
                   f'<text x="{x + 24}" y="{(a - 6 if g[0] >= 0 else b + 16):.1f}" text-anchor="middle">{g[0]:+.1f}</text>')
        if g[1]:
            out.append(f'<line x1="{x + 24}" x2="{x + 24}" y1="{y(g[0] - g[1]):.1f}" y2="{y(g[0] + g[1]):.1f}" '
                       'stroke="#000"/>')
    for h in PERIODS:
        out.append(f'<text x="{left + 104 + PERIODS.index(h) * 220}" y="{height - 34}" text-anchor="middle">H = {h}</text>')
    for i, (kind, name) in enumerate((("plain", "plain recipe"), ("adamw", "AdamW inside, tuned"),
                                      ("muon", "Muon inside, tuned"))):
        out.append(f'<rect x="{left + 20 + 220 * i}" y="{height - 24}" width="14" height="14" fill="{COLOURS[kind]}"/>'
                   f'<text x="{left + 40 + 220 * i}" y="{height - 12}">{name}</text>')
    out.append("</svg>")
    with open(path, "w", encoding="utf-8") as f:
        f.write("\n".join(out) + "\n")


def tell(lab, arms, a):
    pictures(lab, arms)
    lines, verdict, status = judge(arms, a.quick)
    one = next(iter(arms.values()))
    steps = one.rows[0]["steps"] if one.ready() else 0
    text = [f"{lab.parameters:,} parameters, {lab.tokens:,} tokens, {steps:.0f} steps of {3 * batch(a) * SEQ_LEN} tokens, "
            f"{a.seeds} seed{'s' if a.seeds > 1 else ' (no intervals)'}", ""]
    text += by_period(arms) + [""]
    text += against_steady(arms, [n for n in arms if n.split("-")[0] not in ("central", "plain", "adamw", "muon", "warm")]) + [""]
    text += warm_start(arms) + [""] if "warm-5" in arms else []
    text += table(arms) + [""] + lines
    return "\n".join(text) + "\n", " ".join(verdict), status
