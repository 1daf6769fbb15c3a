#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Training against training: make test-curves.

    curves.py --build build/release [--steps 300]

PyTorch makes the first weights of a small Qwen3. Both sides then train on the same real text, in the same batches (the data
set's order, read and computed here a second time), with the same AdamW and schedule: `beringia train --central`, and
PyTorch's automatic differentiation and torch.optim.AdamW. Their held-out perplexities must stay within 0.5 % of each
other at every point of the curve, and must fall by far. Rounding differs, so the two drift apart slowly, as two runs of
PyTorch with other thread counts would. The last line is key=value; the status is 1 where a promise is broken."""
import argparse
import json
import math
import os
import shutil
import subprocess
import sys
import tempfile
import time

import numpy as np
import qwen3
import torch
from dataset import Dataset

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..")
CONFIG = {"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "hidden_size": 128, "intermediate_size": 384,
          "num_hidden_layers": 3, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 32,
          "max_position_embeddings": 512, "rms_norm_eps": 1e-6, "rope_theta": 1e6, "initializer_range": 0.02,
          "tie_word_embeddings": True, "vocab_size": 1536}
SEQ_LEN, BATCH, LR, FLOOR, WARMUP = 128, 8, 2e-3, 0.05, 0.05
NEAR = 0.005


def beringia(args, *words):
    done = subprocess.run([os.path.join(ROOT, args.build, "beringia"), *map(str, words)], stdout=subprocess.PIPE,
                          stderr=subprocess.PIPE, text=True)
    if done.returncode != 0:
        raise SystemExit(f"beringia {' '.join(map(str, words))}: {done.stderr.strip()}")
    return done.stdout


def rate(tokens, total):
    """Straight up over the warm-up, then half a cosine down to the floor (docs: beringia train --help)."""
    up = WARMUP * total
    if tokens < up:
        share = FLOOR + (1 - FLOOR)
        return LR * share * tokens / up
    return LR * (FLOOR + (1 - FLOOR) * (1 + math.cos(math.pi * (tokens - up) / (total - up))) / 2)


def heldout(model, rows):
    with torch.no_grad():
        parts = [model.loss(rows[i:i + 16]).double().item() * len(rows[i:i + 16]) for i in range(0, len(rows), 16)]
    return sum(parts) / len(rows)


def in_torch(args, start, data):
    """step -> held-out loss, and step -> training loss."""
    model = qwen3.load(start)
    optimizer = qwen3.adamw(model, LR)
    rows, total = torch.from_numpy(data.heldout), args.steps * BATCH * SEQ_LEN
    curve, losses, began = {}, {}, time.monotonic()
    for step in range(1, args.steps + 1):
        ids = torch.from_numpy(np.stack([data.at((step - 1) * BATCH + i) for i in range(BATCH)]))
        optimizer.zero_grad()
        loss = model.loss(ids)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for group in optimizer.param_groups:
            group["lr"] = rate(step * BATCH * SEQ_LEN, total)
        optimizer.step()
        losses[step] = loss.item()
        if step % args.every == 0:
            curve[step] = heldout(model, rows)
            print(f"  step {step}: PyTorch {curve[step]:.5f}  ({time.monotonic() - began:.0f} s)", flush=True)
    return curve, losses


def in_ours(args, start, data, out):
    log = out + ".csv"
    beringia(args, "train", "--central", "--data", data.directory, "--weights", start, "--out", out, "--tokens",
             args.steps * BATCH * SEQ_LEN, "--batch", BATCH, "--lr", LR, "--lr-min-ratio", FLOOR, "--log", log,
             "--eval-every", args.every)
    curve, losses = {}, {}
    with open(log, encoding="ascii") as f:
        names = f.readline().strip().split(",")
        for line in f:
            row = dict(zip(names, line.strip().split(",")))
            losses[int(row["step"])] = float(row["loss"])
            if row["heldout_loss"]:
                curve[int(row["step"])] = float(row["heldout_loss"])
    return curve, losses


def prepare(args, where):
    text, tok, data = os.path.join(ROOT, "share/text/moby-dick.txt"), f"{where}/tok.json", f"{where}/data"
    beringia(args, "tokenizer", "train", "--vocab", 1536, "--out", tok, text)
    beringia(args, "pack", "--out", data, "--tokenizer", tok, "--seq-len", SEQ_LEN, "--heldout", 0.03, text)
    qwen3.save(qwen3.build(CONFIG, 17), f"{where}/start")
    return Dataset(data)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", default="build/release")
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--every", type=int, default=25)
    args = parser.parse_args()
    torch.set_num_threads(len(os.sched_getaffinity(0)))
    where = tempfile.mkdtemp(prefix="brg-curves-")
    data = prepare(args, where)
    began = time.monotonic()
    ours, our_losses = in_ours(args, f"{where}/start", data, f"{where}/out")
    middle = time.monotonic()
    theirs, their_losses = in_torch(args, f"{where}/start", data)
    worst = 0.0
    for step in theirs:
        apart = abs(math.exp(ours[step] - theirs[step]) - 1)
        worst = max(worst, apart)
        print(f"  step {step}: held-out perplexity {math.exp(ours[step]):.4f} here, {math.exp(theirs[step]):.4f} in "
              f"PyTorch, {100 * apart:.4f} %")
    first = abs(our_losses[1] - their_losses[1])
    fell = math.exp(ours[args.steps]) < 0.5 * math.exp(our_losses[1])
    good = worst <= NEAR and first <= 1e-5 and fell and len(theirs) >= 4 and set(ours) >= set(theirs)
    print(f"test=curves steps={args.steps} parameters={sum(p.numel() for p in qwen3.load(where + '/start').parameters())} "
          f"perplexity_first={math.exp(our_losses[1]):.2f} perplexity_ours={math.exp(ours[args.steps]):.4f} "
          f"perplexity_torch={math.exp(theirs[args.steps]):.4f} apart_worst={worst:.6f} promise={NEAR} "
          f"first_loss_apart={first:.1e} seconds_ours={middle - began:.0f} seconds_torch={time.monotonic() - middle:.0f} "
          f"result={'ok' if good else 'FAILED'}")
    shutil.rmtree(where)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
