#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes outer-v1.txt: the reference for src/outer, computed twice, in f64 and with every operation
rounded to f32. Standard library only; shares nothing with the C code but the formulas of outer.h.

Run: python3 test/golden/make_outer.py > test/golden/outer-v1.txt
A released file is never changed: a new rule gets a new file.

Rounding the f64 result of one operation on two f32 numbers gives the f32 result exactly (53 bits are
more than twice 24 plus 2), so the f32 column holds the bits that every machine must produce."""
import math
import random
import struct

random.seed(20260101)
ETA, MU, M_REF, H_REF, LATE = 0.7, 0.9, 3.0, 30.0, 0.5


def f32(x):
    return struct.unpack("<f", struct.pack("<f", x))[0]


def bits(xs):
    return " ".join("%08x" % struct.unpack("<I", struct.pack("<f", x))[0] for x in xs)


def hexes(xs):
    return " ".join(float(x).hex() for x in xs)


def scalars(parts):
    """parts: (site, tokens, steps, late) in order. Gives the eight scalars and the weights."""
    fresh, late = {}, {}
    for site, n, s, is_late in parts:
        a = (late if is_late else fresh).setdefault(site, [0, 0])
        a[0] += n
        a[1] += s
    big_n = sum(n for n, _ in fresh.values())
    big_l = sum(n for n, _ in late.values())
    lead = fresh if big_n else late
    meff = sum(n for n, _ in lead.values()) ** 2 / sum(n * n for n, _ in lead.values()) if lead else 0.0
    eta_r = ETA * (meff / M_REF) ** (1 / 3) if lead else 0.0
    sbar = sum(n * s for n, s in fresh.values()) / big_n if big_n else 0.0
    phi = min(sbar / H_REF, 2.0)
    mu_r = MU ** phi
    kappa_r = MU * (1 - mu_r) / (1 - MU)
    weights = [LATE * n / (big_n + LATE * big_l) if is_late else fresh[site][0] / big_n
               for site, n, _, is_late in parts]
    return [eta_r, mu_r, kappa_r, phi, meff, sbar, float(big_n), float(big_l)], weights


def step(parts, p, weights, theta, m, deltas, r):
    """r rounds: f32 or identity."""
    eta, mu, kappa = r(p[0]), r(p[1]), r(p[2])
    out_theta, out_m = [], []
    for k in range(len(theta)):
        t, mm = theta[k], m[k]
        for is_late in (False, True):
            idx = [i for i, part in enumerate(parts) if part[3] == is_late]
            total = 0.0
            for i in idx:
                total = r(total + r(r(weights[i]) * deltas[i][k]))
            if not idx:
                continue
            if is_late:
                t = r(t - r(eta * total))
            else:
                mm = r(r(mu * mm) + total)
                t = r(t - r(eta * r(total + r(kappa * mm))))
        out_theta.append(t)
        out_m.append(mm)
    return out_theta, out_m


def case(name, parts, n=24):
    theta = [f32(random.gauss(0, 0.05)) for _ in range(n)]
    m = [f32(random.gauss(0, 0.01)) for _ in range(n)]
    deltas = [[f32(random.gauss(0, 0.003)) for _ in range(n)] for _ in parts]
    p, weights = scalars(parts)
    t32, m32 = step(parts, p, weights, theta, m, deltas, f32)
    t64, m64 = step(parts, p, weights, theta, m, deltas, lambda x: x)
    print("case", name, len(parts), n)
    for site, tokens, steps, is_late in parts:
        print(site, tokens, steps, int(is_late))
    print(hexes(p))
    print(hexes(weights))
    for row in [theta, m] + deltas + [t32, m32]:
        print(bits(row))
    print(hexes(t64))
    print(hexes(m64))


def half_even(x):
    return float(round(x))  # Python rounds halves to even


def codecs():
    xs = [f32(random.gauss(0, 0.01) * 10 ** random.randint(-3, 1)) for _ in range(128)]
    xs += [0.0] * 128
    ulp = 2.0 ** -20
    xs += [127 * ulp] + [f32((k - 31 + 0.5) * ulp) for k in range(63)] + [0.0] * 64  # ties
    xs += [f32(random.uniform(-1, 1)) for _ in range(20)] + [-0.0, 1e-42, f32(1.00390625), f32(1.01171875)]
    fp32 = b"".join(struct.pack("<f", x) for x in xs)
    bf16, bf16_back = b"", []
    for x in xs:
        b = struct.unpack("<I", struct.pack("<f", x))[0]
        low, b = b & 0xFFFF, b >> 16
        if low > 0x8000 or (low == 0x8000 and b & 1):
            b += 1
        bf16 += struct.pack("<H", b)
        bf16_back.append(struct.unpack("<f", struct.pack("<I", b << 16))[0])
    int8, int8_back = b"", []
    for at in range(0, len(xs), 128):
        block = xs[at:at + 128]
        scale = f32(max(abs(x) for x in block) / 127.0)
        qs = [int(half_even(f32(x / scale))) if scale else 0 for x in block]
        int8 += struct.pack("<f", scale) + struct.pack("%db" % len(qs), *qs)
        int8_back += [f32(q * scale) for q in qs]
    print("codecs", len(xs))
    print(bits(xs))
    for payload, back in ((fp32, xs), (bf16, bf16_back), (int8, int8_back)):
        print(len(payload), payload.hex())
        print(bits(back))


def header():
    did, base = bytes(range(16)), bytes(range(100, 132))
    raw = b"BRGDELT1" + struct.pack("<IIQQQQ", 3, 0, 596049920, 41, 123456789, 30) + did + base
    print("header", (raw + bytes(128 - len(raw))).hex())


def schedules():
    lr, floor, total, warm, decay = 3e-4, 0.1, 1e9, 5e7, 0.2
    print("schedules", hexes([lr, floor, total, warm, decay]))
    points = [0, 1, 2.5e7, 5e7, 5e7 + 1, 3e8, 5.25e8, 7.9e8, 8e8, 8.5e8, 9e8, 1e9, 2e9]
    print(len(points))
    for t in points:
        w = min(t / warm, 1)
        p = min(max((t - warm) / (total - warm), 0), 1)
        cosine = lr * w * (floor + (1 - floor) * 0.5 * (1 + math.cos(math.pi * p)))
        q = min(max((t - total * (1 - decay)) / (total * decay), 0), 1)
        wsd = lr * w * (1 - (1 - floor) * q)
        print(hexes([t, cosine, wsd, lr * w]))


print("outer-v1")
case("none", [])
case("one", [(1, 61440, 30, False)])
case("two", [(1, 61440, 30, False), (2, 30720, 15, False)])
case("five", [(1, 1000, 10, False), (2, 2000, 20, False), (5, 7000, 90, False), (6, 500, 30, False),
              (9, 3333, 31, False)])
case("late", [(1, 61440, 30, False), (2, 50000, 30, True), (3, 40000, 28, False)])
case("late_only", [(4, 5000, 30, True)])
case("late_two_only", [(4, 5000, 30, True), (5, 9000, 30, True)])
case("twice", [(1, 10000, 12, False), (1, 15000, 18, False), (2, 20000, 30, False)])
case("twice_and_late", [(1, 9000, 30, True), (1, 10000, 12, False), (1, 15000, 18, False),
                        (2, 20000, 30, False), (2, 100, 3, True)])
codecs()
header()
schedules()
print("end")
