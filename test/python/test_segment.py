# SPDX-License-Identifier: Apache-2.0
# timeout: 3600
"""From the same weights, positions and settings in f32, 50 steps in PyTorch and 50 in C: the deltas must point the same way,
cosine at least 0.999. Two runs of equal seed, with eta 1, mu 0 and the fp32 codec, so version 1 minus version 0 is the
delta itself. This holds names, order and shapes, the order of samples, AdamW, clipping and the rate together."""
import os

import torch

import kit
from kit import begin, say, start, wait_for

PLAIN = {"outer.eta": 1, "outer.mu": 0, "outer.m_ref": 1, "outer.codec": "fp32", "outer.steps": 1000, "lease.ttl": "1h",
         "lease.heartbeat": "5m", "train.schedule": "constant", "train.lr": 0.002, "train.warmup_tokens": 5120,
         "lease.samples_max": 512, "lease.samples_min": 512}


def delta(c):
    v = [os.path.join(c.run_dir, "versions", f"{i}.safetensors") for i in (0, 1)]
    wait_for("version 1", lambda: os.path.exists(v[1]), 30)
    return kit.theta(v[0]), kit.theta(v[1]) - kit.theta(v[0])


def segment_of_50_steps_is_the_same(keep):
    data = kit.pack(60000)
    native = begin("native", data, PLAIN, native={"a": ["--steps", 50, "--micro-batch", 8]})
    keep(native)
    native.start_site("a")
    native.wait_sites()
    torched = begin("torched", data, PLAIN)
    keep(torched)
    start(torched, "a", "--model", kit.TINY, "--steps", 50)
    kit.wait_sites(torched)
    (from_c, d_c), (from_t, d_t) = delta(native), delta(torched)
    say("segment_begins_with_the_same_weights", torch.equal(from_c, from_t))
    cosine = float(torch.dot(d_c, d_t) / (d_c.norm() * d_t.norm()))
    gap = float((d_c - d_t).norm() / d_c.norm())
    print(f"segment steps=50 parameters={len(d_c)} norm={float(d_c.norm()):.4f} cosine={cosine:.7f} gap={gap:.2e}")
    say("segment_cosine_is_at_least_0.999", cosine >= 0.999 and float(d_c.norm()) > 0.1, cosine)
    a, b = native.audit()["merged"], torched.audit()["merged"]
    say("segment_counts_are_the_same", a == b == 400, f"{a} and {b}")


if __name__ == "__main__":
    raise SystemExit(kit.main([segment_of_50_steps_is_the_same]))
