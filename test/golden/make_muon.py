#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes muon-v1.txt: four steps of Muon (layers' matrices) with AdamW (the rest) in f64, for src/train/muon.c.
Standard library only; shares nothing with the C code but the formulas at the top of muon.c.

Run: python3 test/golden/make_muon.py > test/golden/muon-v1.txt
A released file is never changed: a new rule gets a new file.

The file: a title; the model's sizes; the settings; then lines of f32 bits in hexadecimal, all P elements in canonical
order: the first weights, four gradients, and (rounded to f32 at the end) weights, first and second moments."""
import math
import random
import struct

random.seed(20260711)
SIZES = dict(vocab_size=11, hidden_size=6, intermediate_size=9, num_hidden_layers=2, num_attention_heads=4,
             num_key_value_heads=1, head_dim=4)
SET = dict(lr=0.02, weight_decay=0.1, clip=1.5, beta1=0.9, beta2=0.95, eps=1e-8, momentum=0.9, lr_ratio=1.5)
STEPS = 4


def tensors():
    v, c, f, n = (SIZES[k] for k in ("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers"))
    q = SIZES["num_attention_heads"] * SIZES["head_dim"]
    k, d = SIZES["num_key_value_heads"] * SIZES["head_dim"], SIZES["head_dim"]
    out = [("adamw", (v, c))]
    for _ in range(n):
        out += [("adamw", (c,)), ("muon", (q, c)), ("muon", (k, c)), ("muon", (k, c)), ("muon", (c, q)), ("adamw", (d,)),
                ("adamw", (d,)), ("adamw", (c,)), ("muon", (f, c)), ("muon", (f, c)), ("muon", (c, f))]
    return out + [("adamw", (c,))]


def f32(x):
    return struct.unpack("<f", struct.pack("<f", x))[0]


def line(xs):
    return " ".join("%08x" % struct.unpack("<I", struct.pack("<f", x))[0] for x in xs)


def product(a, b):
    return [[math.fsum(x * y for x, y in zip(row, column)) for column in zip(*b)] for row in a]


def transposed(a):
    return [list(x) for x in zip(*a)]


def orthogonal(u):
    """Newton-Schulz with the quintic's coefficients; always from the left, whatever the shape."""
    size = math.sqrt(math.fsum(x * x for row in u for x in row))
    x = [[e / size for e in row] for row in u]
    for _ in range(5):
        gram = product(x, transposed(x))
        square = product(gram, gram)
        poly = [[-4.7750 * g + 2.0315 * s for g, s in zip(*rows)] for rows in zip(gram, square)]
        more = product(poly, x)
        x = [[3.4445 * e + m for e, m in zip(*rows)] for rows in zip(x, more)]
    return x


def step(kind, shape, theta, m, v, g, n):
    rate, decay = SET["lr"], SET["weight_decay"]
    if kind == "muon":
        rate, mu = rate * SET["lr_ratio"], SET["momentum"]
        m[:] = [mu * a + b for a, b in zip(m, g)]
        u = [b + mu * a for a, b in zip(m, g)]
        rows, columns = shape
        x = orthogonal([u[r * columns:(r + 1) * columns] for r in range(rows)])
        scale = 0.2 * math.sqrt(max(rows, columns))
        theta[:] = [(1 - rate * decay) * t - rate * scale * e for t, e in zip(theta, (e for row in x for e in row))]
        return
    b1, b2 = SET["beta1"], SET["beta2"]
    m[:] = [b1 * a + (1 - b1) * b for a, b in zip(m, g)]
    v[:] = [b2 * a + (1 - b2) * b * b for a, b in zip(v, g)]
    shrink = 1 - rate * decay if len(shape) == 2 else 1
    theta[:] = [shrink * t - rate * (a / (1 - b1 ** n)) / (math.sqrt(b / (1 - b2 ** n)) + SET["eps"])
                for t, a, b in zip(theta, m, v)]


def main():
    table = tensors()
    counts = [math.prod(shape) for _, shape in table]
    total = sum(counts)
    print("muon-v1")
    print(" ".join(str(x) for x in SIZES.values()))
    print(" ".join(float(x).hex() for x in SET.values()))
    theta = [f32(random.gauss(0, 0.1)) for _ in range(total)]
    m, v = [0.0] * total, [0.0] * total
    print(line(theta))
    for n in range(1, STEPS + 1):
        size = 1 if n % 2 else 0.02  # clipped and not clipped
        g = [f32(random.gauss(0, size)) for _ in range(total)]
        print(line(g))
        norm = math.sqrt(math.fsum(x * x for x in g))
        g = [x * min(1, SET["clip"] / (norm + 1e-6)) for x in g]
        at = 0
        for (kind, shape), count in zip(table, counts):
            part = [x[at:at + count] for x in (theta, m, v)]
            step(kind, shape, *part, g[at:at + count], n)
            theta[at:at + count], m[at:at + count], v[at:at + count] = part
            at += count
    for x in (theta, m, v):
        print(line(x))


main()
