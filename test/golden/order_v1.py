#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A second, independent reading of order version 1 (src/data/order.c).

  order_v1.py order-v1.txt    checks every line of the golden file, and each small case for being a bijection

A line: seed epoch samples block group position sample."""
import sys

M64 = (1 << 64) - 1
GOLDEN = 0x9E3779B97F4A7C15
TAIL = int.from_bytes(b"tail_blk", "big")


def fin(z):
    z &= M64
    z = ((z ^ z >> 30) * 0xBF58476D1CE4E5B9) & M64
    z = ((z ^ z >> 27) * 0x94D049BB133111EB) & M64
    return z ^ z >> 31


def round_hash(x, key):
    z = ((x ^ key) * 0xBF58476D1CE4E5B9) & M64
    return ((z ^ z >> 32) * 0x94D049BB133111EB & M64) >> 32


def feistel(x, n, key):
    bits = (n - 1).bit_length()
    lo, hi = bits - bits // 2, bits // 2
    while True:
        low, high = x & ((1 << lo) - 1), x >> lo
        for r in range(6):
            k = (key + (r + 1) * GOLDEN) & M64
            if r % 2 == 0:
                high ^= round_hash(low, k) & ((1 << hi) - 1)
            else:
                low ^= round_hash(high, k) & ((1 << lo) - 1)
        x = high << lo | low
        if x < n:
            return x


def sample(seed, epoch, n, block, group, p):
    block = block or max(1, min(1024, n // 16))
    group = group or 64
    outer = fin(fin(seed + GOLDEN) ^ fin(2 * GOLDEN + epoch))

    def inner(g):
        return fin(outer ^ fin(g + GOLDEN))

    blocks = n // block
    full = blocks * block
    if p >= full:
        return full + feistel(p - full, n - full, inner(TAIL))
    g, q = divmod(p, block * group)
    j = feistel(q, min(block * group, full - g * block * group), inner(g))
    slot, offset = g * group + j // block, j % block
    return feistel(slot, blocks, outer) * block + offset


def main():
    lines = 0
    for line in open(sys.argv[1], encoding="ascii"):
        if line.startswith("#"):
            continue
        seed, epoch, n, block, group, p, want = map(int, line.split())
        got = sample(seed, epoch, n, block, group, p)
        if got != want:
            sys.exit(f"{line.strip()}: this script says {got}")
        lines += 1
    for n in range(1, 70):
        assert sorted(sample(n, 1, n, 3, 2, p) for p in range(n)) == list(range(n))
    print(f"{lines} lines agree")


if __name__ == "__main__":
    main()
