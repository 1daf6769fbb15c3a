#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes outer-v2.txt: the options of the outer step over several rounds each, in f64 and with every operation rounded
to f32. Standard library only; shares nothing with the C code but the formulas of the head of src/outer/rule.c.

Run: python3 test/golden/make_outer_v2.py > test/golden/outer-v2.txt
A released file is never changed: a new rule gets a new file.

The delayed rule is computed here as arXiv 2401.09135 writes it, with a momentum and a separate sum of gradients, and the
radial mean from the vectors themselves, so neither repeats what the C code does."""
import math
import random
import struct

random.seed(20261129)
ETA, MU, M_REF, H_REF, LATE = 0.7, 0.9, 3.0, 30.0, 0.5
KINDS = {"nesterov": 0, "plain": 1, "delayed": 2}


def f32(x):
    return struct.unpack("<f", struct.pack("<f", x))[0]


def bits(xs):
    return " ".join("%08x" % struct.unpack("<I", struct.pack("<f", x))[0] for x in xs)


def hexes(xs):
    return " ".join(float(x).hex() for x in xs)


def by_site(parts, late):
    sites = {}
    for site, n, s, k in parts:
        if (k > 0) == late:
            a = sites.setdefault(site, [0, 0])
            a[0] += n
            a[1] += s
    return sites


def scalars(rule, past, parts, last, restart):
    fresh, late = by_site(parts, False), by_site(parts, True)
    big_n = sum(n for n, _ in fresh.values())
    lead = fresh if big_n else late
    meff = sum(n for n, _ in lead.values()) ** 2 / sum(n * n for n, _ in lead.values())
    sbar = sum(n * s for n, s in fresh.values()) / big_n if big_n else 0.0
    phi = min(sbar / H_REF, 2.0)
    mean = rule["last"] and last
    share, mu_r, kappa_r = 1.0, 1.0, 0.0
    if mean or rule["kind"] == "plain":
        eta_r = 1.0
        if big_n:
            mu_r = 0.0
    elif rule["kind"] == "delayed":
        eta_r, before = ETA, 0 if restart else past["arrivals"]
        if fresh:
            mu_r = 1.0 if before else MU
            kappa_r = MU if before + len(fresh) >= rule["delay"] else 0.0
            share = min(len(fresh) / rule["delay"], 1.0)
    else:
        eta_r = ETA if rule["radial"] else ETA * (meff / M_REF) ** (1 / 3)
        if big_n:
            mu_r = MU ** phi
            kappa_r = MU * (1 - mu_r) / (1 - MU)
    if restart and big_n:
        mu_r = 0.0
    lw = [LATE * math.exp(-rule["decay"] * (k - 1)) * n if k > 0 else 0.0 for _, n, _, k in parts]
    big_l = sum(n for n, _ in late.values())
    weights = [lw[i] / (big_n + sum(lw)) if p[3] > 0 else share * fresh[p[0]][0] / big_n for i, p in enumerate(parts)]
    ema = min(1.0, max((1 - rule["ema"]) * phi, phi / (past["work"] + phi))) if rule["ema"] and phi else 0.0
    past["arrivals"] = 0 if kappa_r > 0 else past["arrivals"] + len(fresh)
    past["work"] += phi
    radial = bool(rule["radial"] and big_n and not mean)
    return [eta_r, mu_r, kappa_r, phi, meff, sbar, float(big_n), float(big_l)], weights, radial, ema


def radial_factors(spans, parts, weights, deltas):
    """For each tensor the factor of each part, from the vectors."""
    out, begin = [], 0
    for end, plain in spans:
        row = list(weights)
        sites = {}
        for i, p in enumerate(parts):
            if p[3] == 0:
                v = sites.setdefault(p[0], [weights[i], [0.0] * (end - begin)])
                v[1] = [a + b for a, b in zip(v[1], deltas[i][begin:end])]
        if not plain and sites:
            norms = {s: math.sqrt(sum(x * x for x in v)) for s, (_, v) in sites.items()}
            u = [sum(w * v[k] / norms[s] for s, (w, v) in sites.items() if norms[s]) for k in range(end - begin)]
            u_norm = math.sqrt(sum(x * x for x in u))
            length = sum(w * norms[s] for s, (w, _) in sites.items())
            for i, p in enumerate(parts):
                if p[3] == 0:
                    ok = norms[p[0]] and u_norm
                    row[i] = length * weights[i] / (norms[p[0]] * u_norm) if ok else 0.0
        out.append(row)
        begin = end
    return out


def step(spans, parts, p, factors, weights, ema, state, deltas, r):
    eta, mu, kappa = r(p[0]), r(p[1]), r(p[2])
    span = 0
    for k in range(len(state["theta"])):
        if k == spans[span][0]:
            span += 1
        t, m = state["theta"][k], state["m"][k]
        for late in (False, True):
            idx = [i for i, part in enumerate(parts) if (part[3] > 0) == late]
            total = 0.0
            for i in idx:
                total = r(total + r(r(weights[i] if late else factors[span][i]) * deltas[i][k]))
            if not idx:
                continue
            if late:
                t = r(t - r(eta * total))
            else:
                m = r(r(mu * m) + total)
                t = r(t - r(eta * r(total + r(kappa * m))))
        state["theta"][k], state["m"][k] = t, m
        e = state["ema"][k]
        state["ema"][k] = t if ema >= 1 else r(e + r(r(ema) * r(t - e)))


def case(name, rounds, spans=((20, False),), **options):
    rule = dict(kind="nesterov", delay=1, radial=0, last=0, decay=0.0, ema=0.0, **{})
    rule.update(options)
    n = spans[-1][0]
    theta = [f32(random.gauss(0, 0.05)) for _ in range(n)]
    m = [f32(random.gauss(0, 0.01)) for _ in range(n)]
    s32 = dict(theta=list(theta), m=list(m), ema=list(theta))
    s64 = dict(theta=list(theta), m=list(m), ema=list(theta))
    print("case", name, KINDS[rule["kind"]], rule["delay"], rule["radial"], rule["last"], float(rule["decay"]).hex(),
          float(rule["ema"]).hex(), n, len(spans), len(rounds))
    print(" ".join("%d %d" % (end, int(plain)) for end, plain in spans))
    print(bits(theta))
    print(bits(m))
    past = dict(arrivals=0, work=0.0)
    slow = dict(m=list(m), total=[0.0] * n)  # the paper's two vectors
    for parts, last, restart in rounds:
        deltas = [[f32(random.gauss(0, 0.003)) for _ in range(n)] for _ in parts]
        p, weights, radial, ema = scalars(rule, past, parts, last, restart)
        factors = radial_factors(spans, parts, weights, deltas) if radial else [weights] * len(spans)
        step(spans, parts, p, factors, weights, ema, s32, deltas, f32)
        step(spans, parts, p, factors, weights, ema, s64, deltas, lambda x: x)
        if name == "delayed":
            for k in range(n):  # the same by the paper: the arrivals of this round as one g/N
                slow["total"][k] += sum(w * d[k] for w, d in zip(weights, deltas))
            if p[2] > 0:
                slow["m"] = [MU * a + b for a, b in zip(slow["m"], slow["total"])]
                slow["total"] = [0.0] * n
                assert all(abs(a - b) < 1e-12 for a, b in zip(slow["m"], s64["m"]))
        print("round", len(parts), int(last), int(restart), int(radial), float(ema).hex())
        for site, tokens, steps, late in parts:
            print(site, tokens, steps, late)
        print(hexes(p))
        print(hexes(weights))
        for row in deltas + [s32["theta"], s32["m"], s32["ema"]]:
            print(bits(row))
        for row in (s64["theta"], s64["m"], s64["ema"]):
            print(hexes(row))


A, B, C = (1, 61440, 30, 0), (2, 30720, 15, 0), (5, 40960, 40, 0)
print("outer-v2")
case("plain", [([A, B], 0, 0), ([C], 0, 0), ([A, (2, 9000, 30, 1)], 0, 0)], kind="plain")
case("late_decay", [([A, (2, 20000, 30, 1), (5, 30000, 30, 3)], 0, 0), ([(2, 20000, 30, 2)], 0, 0)], decay=0.7)
case("delayed", [([A], 0, 0), ([B], 0, 0), ([C], 0, 0), ([A, B], 0, 0), ([A, B, C], 0, 0), ([(1, 5, 5, 1)], 0, 0),
                 ([B], 0, 0)], kind="delayed", delay=3)
case("last", [([A, B], 0, 0), ([B, C], 1, 0)], last=1)
case("restart", [([A, B], 0, 1), ([A, B], 0, 0)])
case("delayed_restart", [([A], 0, 0), ([B], 0, 1), ([C], 0, 0), ([A], 0, 0)], kind="delayed", delay=3)
case("ema", [([A, B], 0, 0), ([A], 0, 0), ([(1, 5, 5, 1)], 0, 0), ([A, B, C], 0, 0), ([B], 0, 0)], ema=0.6)
case("radial", [([A, B, C], 0, 0), ([(1, 100, 10, 0), (1, 200, 20, 0), B], 0, 0), ([A, (2, 9000, 30, 1)], 0, 0)],
     spans=((7, False), (12, True), (13, False), (40, False)), radial=1)
case("radial_last_ema", [([A, B], 0, 0), ([A, B, C], 1, 0)], spans=((9, True), (30, False)), radial=1, last=1, ema=0.9)
print("end")
