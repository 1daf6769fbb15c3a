#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes codecs-v2.txt: int4 and topk, computed from docs/store.md alone, with every operation rounded
to f32 where the format says so. Standard library only; shares nothing with the C code.

Run: python3 test/golden/make_codecs.py > test/golden/codecs-v2.txt
A released file is never changed: a new codec gets a new file.

Lines: "codec NAME COUNT", the elements, the bytes of the payload and its hex, the decoded elements."""
import random
import struct

random.seed(20261129)


def f32(x):
    return struct.unpack("<f", struct.pack("<f", x))[0]


def u32(x):
    return struct.unpack("<I", struct.pack("<f", x))[0]


def of_bf16(v):
    return struct.unpack("<f", struct.pack("<I", v << 16))[0]


def bits(xs):
    return " ".join("%08x" % u32(x) for x in xs)


def int4(xs):
    out, back = b"", []
    for at in range(0, len(xs), 64):
        block = xs[at:at + 64]
        scale = f32(max(abs(x) for x in block) / 7.0)
        code = 0 if scale < 2.0 ** -126 else (u32(scale) + 0xFFFF) >> 16
        scale = of_bf16(code)
        qs = [round(f32(x / scale)) if code else 0 for x in block]  # ties to even
        half = (len(block) + 1) // 2
        high = qs[half:] + [0] * (2 * half - len(block))
        out += struct.pack("<H", code) + bytes((a & 15) | (b & 15) << 4 for a, b in zip(qs[:half], high))
        back += [f32(q * scale) for q in qs]
    return out, back


def bf16_of(x):
    b = u32(f32(x))
    low, b = b & 0xFFFF, b >> 16
    return b + (low > 0x8000 or (low == 0x8000 and b & 1))


def topk(xs):
    out, back = b"", [0.0] * len(xs)
    for at in range(0, len(xs), 4096):
        block = xs[at:at + 4096]
        k = (len(block) + 63) // 64
        kept = sorted(sorted(range(len(block)), key=lambda i: (-abs(block[i]), i))[:k])
        total = high_sum = 0.0
        for i in kept:
            total += abs(block[i])
        mean, highs = total / k, 0
        for i in kept:
            if abs(block[i]) > mean:
                high_sum += abs(block[i])
                highs += 1
        high = high_sum / highs if highs else mean
        low_sum = total - high_sum
        low = (low_sum / (k - highs) if low_sum > 0 else 0.0) if highs < k else mean
        low = min(low, high)
        level = (bf16_of(low), bf16_of(high))
        codes = places = 0
        for j, i in enumerate(kept):
            up, negative = abs(block[i]) > mean, block[i] < 0
            codes |= (up | negative << 1) << 2 * j
            places |= i << 12 * j
            back[at + i] = of_bf16(level[up]) * (-1 if negative else 1)
        out += struct.pack("<HH", *level) + codes.to_bytes((k + 3) // 4, "little")
        out += places.to_bytes((12 * k + 7) // 8, "little")
    return out, back


def show(name, code, xs):
    payload, back = code(xs)
    print("codec", name, len(xs))
    print(bits(xs))
    print(len(payload), payload.hex())
    print(bits(back))


ulp = 2.0 ** -20
values = [f32(random.gauss(0, 1e-3)) for _ in range(256)]
values += [7 * ulp] + [f32((k - 3 + 0.5) * ulp) for k in range(7)] * 9  # ties
values += [0.0] * 64 + [f32(random.gauss(0, 2.0 ** -124)) for _ in range(64)] + [1e-42] * 64
values += [f32(random.uniform(-1, 1)) for _ in range(63)] + [-0.0, 1e30, -3e30] + [-1.0] * 9
for count in (len(values), 129, 65, 64, 2, 1):
    show("int4", int4, values[:count])
sparse = [0.0] * 4096
for i in (3, 77, 4095):
    sparse[i] = f32(random.gauss(0, 1))
equal = [f32(0.25)] * 100 + [f32(-0.25)] * 100 + [0.0] * 37
show("topk", topk, [f32(random.gauss(0, 1e-3)) for _ in range(4096)] + sparse + equal)
for count in (4096, 1000, 65, 64, 1):
    show("topk", topk, [f32(random.gauss(0, 3) ** 3) for _ in range(count)])
