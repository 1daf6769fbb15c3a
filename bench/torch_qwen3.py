#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Training steps of a Qwen3 model in plain PyTorch, for bench/train: the same weights, ids and optimizer
settings as `beringia bench train --weights --ids`, and the same last line of key=value."""
import argparse
import json
import math
import struct
import time

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F


class Norm(nn.Module):
    def __init__(self, n, eps):
        super().__init__()
        self.weight, self.eps = nn.Parameter(torch.ones(n)), eps

    def forward(self, x):
        v = x.float()
        return (v * torch.rsqrt(v.pow(2).mean(-1, keepdim=True) + self.eps)).to(x.dtype) * self.weight


class Attention(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.c, C, D = c, c["hidden_size"], c["head_dim"]
        H, K = c["num_attention_heads"], c["num_key_value_heads"]
        self.q_proj, self.k_proj = nn.Linear(C, H * D, bias=False), nn.Linear(C, K * D, bias=False)
        self.v_proj, self.o_proj = nn.Linear(C, K * D, bias=False), nn.Linear(H * D, C, bias=False)
        self.q_norm, self.k_norm = Norm(D, c["rms_norm_eps"]), Norm(D, c["rms_norm_eps"])

    def forward(self, x, cos, sin, mask):
        B, T, _ = x.shape
        D, H, K = self.c["head_dim"], self.c["num_attention_heads"], self.c["num_key_value_heads"]

        def turn(y):
            a, b = y.chunk(2, -1)
            return y * cos + torch.cat((-b, a), -1) * sin
        q = turn(self.q_norm(self.q_proj(x).view(B, T, H, D)).transpose(1, 2))
        k = turn(self.k_norm(self.k_proj(x).view(B, T, K, D)).transpose(1, 2))
        v = self.v_proj(x).view(B, T, K, D).transpose(1, 2)
        k, v = k.repeat_interleave(H // K, 1), v.repeat_interleave(H // K, 1)
        w = torch.softmax((q @ k.transpose(-1, -2) / math.sqrt(D) + mask).float(), -1).to(v.dtype)
        return self.o_proj((w @ v).transpose(1, 2).reshape(B, T, H * D))


class Mlp(nn.Module):
    def __init__(self, c):
        super().__init__()
        C, N = c["hidden_size"], c["intermediate_size"]
        self.gate_proj, self.up_proj = nn.Linear(C, N, bias=False), nn.Linear(C, N, bias=False)
        self.down_proj = nn.Linear(N, C, bias=False)

    def forward(self, x):
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class Layer(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.input_layernorm = Norm(c["hidden_size"], c["rms_norm_eps"])
        self.post_attention_layernorm = Norm(c["hidden_size"], c["rms_norm_eps"])
        self.self_attn, self.mlp = Attention(c), Mlp(c)

    def forward(self, x, cos, sin, mask):
        x = x + self.self_attn(self.input_layernorm(x), cos, sin, mask)
        return x + self.mlp(self.post_attention_layernorm(x))


class Model(nn.Module):
    def __init__(self, c, T):
        super().__init__()
        self.embed_tokens = nn.Embedding(c["vocab_size"], c["hidden_size"])
        self.layers = nn.ModuleList(Layer(c) for _ in range(c["num_hidden_layers"]))
        self.norm, D = Norm(c["hidden_size"], c["rms_norm_eps"]), c["head_dim"]
        angle = torch.outer(torch.arange(T).double(),
                            c["rope_theta"] ** (-torch.arange(0, D, 2).double() / D)).float()
        angle = torch.cat((angle, angle), -1)
        self.cos, self.sin = angle.cos(), angle.sin()
        self.mask = torch.full((T, T), float("-inf")).triu(1)

    def forward(self, x, y):
        h = self.embed_tokens(x)
        for layer in self.layers:
            h = layer(h, self.cos, self.sin, self.mask)
        logits = F.linear(self.norm(h), self.embed_tokens.weight).float()
        return F.cross_entropy(logits.view(-1, logits.shape[-1]), y.reshape(-1))


def load(model, path):
    with open(path, "rb") as f:
        head = json.loads(f.read(struct.unpack("<Q", f.read(8))[0]))
        data = f.read()
    with torch.no_grad():
        for name, p in model.named_parameters():
            t = head["model." + name]
            a, b = t["data_offsets"]
            p.copy_(torch.from_numpy(np.frombuffer(data[a:b], "<f4").reshape(t["shape"]).copy()))


def main():
    p = argparse.ArgumentParser()
    for name, kind in (("dir", str), ("ids", str), ("threads", int), ("steps", int),
                       ("batch", int), ("seq-len", int), ("precision", str)):
        p.add_argument("--" + name, type=kind, required=True)
    p.add_argument("--foreach", action="store_true")
    a = p.parse_args()
    torch.set_num_threads(a.threads)
    c = json.load(open(a.dir + "/config.json"))
    model = Model(c, a.seq_len)
    load(model, a.dir + "/model.safetensors")
    decayed = [q for q in model.parameters() if q.dim() > 1]
    others = [q for q in model.parameters() if q.dim() < 2]
    groups = [{"params": decayed, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}]
    opt = torch.optim.AdamW(groups, lr=1e-3, betas=(0.9, 0.95), eps=1e-8, foreach=a.foreach)
    ids = torch.from_numpy(np.fromfile(a.ids, "<i4").astype(np.int64)).view(-1, a.seq_len + 1)
    wall, cpu, losses, at = [], [], [], 0
    for _ in range(a.steps + 1):
        rows = torch.stack([ids[(at + i) % len(ids)] for i in range(a.batch)])
        at += a.batch
        t0, c0 = time.perf_counter(), time.process_time()
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=a.precision == "bf16"):
            loss = model(rows[:, :-1], rows[:, 1:])
        opt.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        opt.step()
        wall.append(time.perf_counter() - t0)
        cpu.append(time.process_time() - c0)
        losses.append(loss.item())
    best = min(wall[1:])
    print(f"tokens_s={a.batch * a.seq_len / best:.1f} step_s={best:.4f} cpu_s={min(cpu[1:]):.4f} "
          f"first_loss={losses[0]:.7f} last_loss={losses[-1]:.7f}")


main()
