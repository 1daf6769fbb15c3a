#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Golden values for the trainer's whole-model test, by automatic differentiation in float64.

    make_qwen3.py DIR        writes DIR/qwen3_tied/ and DIR/qwen3_untied/

Each holds config.json, model.safetensors (weights, F32) and expected.safetensors: "ids" (I32,
[rows, T+1]), "grad.<name>" and "step.<name>" (weights after one clipped AdamW step) as F32, with the
loss, the gradient's norm and the step's settings as text in the metadata. The weights are rounded to
F32 before anything is computed, so both sides start from equal numbers.

Needs Debian's python3-torch. The model is written from its definition (pre-norm decoder, RMSNorm on
each query and key head before a half-split rotation, grouped key-value heads, gated SiLU), with einsum
and explicit loops over heads, so that it shares no layout trick with the C code.
"""
import json
import os
import struct
import sys

import numpy as np
import torch

COMMON = {
    "architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "hidden_act": "silu",
    "attention_bias": False, "attention_dropout": 0.0, "initializer_range": 0.02,
    "max_position_embeddings": 128, "rope_scaling": None, "torch_dtype": "float32",
    "use_cache": True, "use_sliding_window": False, "sliding_window": None,
}
# Odd sizes on purpose: nothing divides by a vector's width, and Q is wider than the hidden size.
CASES = {
    "qwen3_tied": (
        dict(COMMON, vocab_size=101, hidden_size=24, intermediate_size=37, num_hidden_layers=2,
             num_attention_heads=4, num_key_value_heads=2, head_dim=16, rms_norm_eps=1e-6,
             rope_theta=10000.0, tie_word_embeddings=True),
        dict(seed=3, rows=3, T=70)),
    "qwen3_untied": (
        dict(COMMON, vocab_size=83, hidden_size=22, intermediate_size=41, num_hidden_layers=3,
             num_attention_heads=6, num_key_value_heads=2, head_dim=10, rms_norm_eps=1e-5,
             rope_theta=1000000.0, tie_word_embeddings=False),
        dict(seed=4, rows=2, T=13)),
}
ADAMW = dict(lr=3e-3, beta1=0.9, beta2=0.95, eps=1e-8, weight_decay=0.1, clip=1.0)


def shapes(c):
    hidden, inner, d = c["hidden_size"], c["intermediate_size"], c["head_dim"]
    q, kv = c["num_attention_heads"] * d, c["num_key_value_heads"] * d
    out = {"model.embed_tokens.weight": (c["vocab_size"], hidden)}
    for i in range(c["num_hidden_layers"]):
        layer = {
            "input_layernorm": (hidden,), "self_attn.q_proj": (q, hidden),
            "self_attn.k_proj": (kv, hidden), "self_attn.v_proj": (kv, hidden),
            "self_attn.o_proj": (hidden, q), "self_attn.q_norm": (d,), "self_attn.k_norm": (d,),
            "post_attention_layernorm": (hidden,), "mlp.gate_proj": (inner, hidden),
            "mlp.up_proj": (inner, hidden), "mlp.down_proj": (hidden, inner),
        }
        for name, shape in layer.items():
            out[f"model.layers.{i}.{name}.weight"] = shape
    out["model.norm.weight"] = (hidden,)
    if not c["tie_word_embeddings"]:
        out["lm_head.weight"] = (c["vocab_size"], hidden)
    return out


def norm(x, weight, eps):
    return weight * x / torch.sqrt((x * x).mean(dim=-1, keepdim=True) + eps)


def rotate(x, theta):
    """x[rows, T, d]: the pair (i, i + d/2) turns by position * theta^(-2i/d)."""
    steps, d = x.shape[1], x.shape[2]
    rate = theta ** (-2.0 * torch.arange(d // 2, dtype=torch.float64) / d)
    angle = torch.outer(torch.arange(steps, dtype=torch.float64), rate)
    first, second = x[..., : d // 2], x[..., d // 2:]
    c, s = torch.cos(angle), torch.sin(angle)
    return torch.cat([first * c - second * s, second * c + first * s], dim=-1)


def attention(c, w, prefix, h):
    d, heads, kv = c["head_dim"], c["num_attention_heads"], c["num_key_value_heads"]
    steps, eps, out = h.shape[1], c["rms_norm_eps"], 0
    future = torch.ones(steps, steps, dtype=torch.bool).triu(diagonal=1)
    for i in range(heads):
        j = i // (heads // kv)

        def part(name, n):
            return torch.einsum("btc,dc->btd", h, w[prefix + name][n * d:(n + 1) * d])
        q = rotate(norm(part("q_proj.weight", i), w[prefix + "q_norm.weight"], eps), c["rope_theta"])
        k = rotate(norm(part("k_proj.weight", j), w[prefix + "k_norm.weight"], eps), c["rope_theta"])
        score = torch.einsum("bqd,bkd->bqk", q, k) / d ** 0.5
        seen = torch.softmax(score.masked_fill(future, float("-inf")), dim=-1)
        mixed = torch.einsum("bqk,bkd->bqd", seen, part("v_proj.weight", j))
        columns = w[prefix + "o_proj.weight"][:, i * d:(i + 1) * d]
        out = out + torch.einsum("bqd,cd->bqc", mixed, columns)
    return out


def mean_loss(c, w, ids):
    x = w["model.embed_tokens.weight"][ids[:, :-1]]
    for i in range(c["num_hidden_layers"]):
        p, eps = f"model.layers.{i}.", c["rms_norm_eps"]
        x = x + attention(c, w, p + "self_attn.", norm(x, w[p + "input_layernorm.weight"], eps))
        h = norm(x, w[p + "post_attention_layernorm.weight"], eps)
        gate, up = h @ w[p + "mlp.gate_proj.weight"].T, h @ w[p + "mlp.up_proj.weight"].T
        x = x + (gate * torch.sigmoid(gate) * up) @ w[p + "mlp.down_proj.weight"].T
    head = w["model.embed_tokens.weight" if c["tie_word_embeddings"] else "lm_head.weight"]
    logits = norm(x, w["model.norm.weight"], c["rms_norm_eps"]) @ head.T
    nll = torch.logsumexp(logits, dim=-1) - logits.gather(-1, ids[:, 1:, None])[..., 0]
    return nll.mean()


def first_step(w, grads, total):
    """AdamW from zero moments: after one step, m/(1-b1) = g and v/(1-b2) = g^2."""
    scale, out = min(1.0, ADAMW["clip"] / (total + 1e-6)), {}
    for name, weight in w.items():
        g = grads[name] * scale
        kept = weight * (1 - ADAMW["lr"] * ADAMW["weight_decay"]) if weight.ndim == 2 else weight
        out[name] = kept - ADAMW["lr"] * g / (g.abs() + ADAMW["eps"])
    return out


def write_safetensors(path, tensors, meta):
    head, blobs, at = {"__metadata__": meta}, [], 0
    for name, t in tensors.items():
        kind = "I32" if t.dtype == torch.int32 else "F32"
        raw = t.detach().numpy().astype("<i4" if kind == "I32" else "<f4").tobytes()
        head[name] = {"dtype": kind, "shape": list(t.shape), "data_offsets": [at, at + len(raw)]}
        blobs.append(raw)
        at += len(raw)
    text = json.dumps(head, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text + b"".join(blobs))


def make(out, c, seed, rows, T):
    rng = np.random.default_rng(seed)
    w = {}
    for name, shape in shapes(c).items():
        x = rng.standard_normal(shape)
        x = 1 + 0.2 * x if len(shape) == 1 else x * 0.25
        w[name] = torch.from_numpy(x.astype(np.float32)).double().requires_grad_(True)
    ids = torch.from_numpy(rng.integers(0, c["vocab_size"], (rows, T + 1)))
    loss = mean_loss(c, w, ids)
    loss.backward()
    grads = {n: t.grad for n, t in w.items()}
    plain = {n: t.detach() for n, t in w.items()}
    total = float(sum((g * g).sum() for g in grads.values())) ** 0.5
    expected = {"ids": ids.int()}
    expected.update({"grad." + n: g for n, g in grads.items()})
    expected.update({"step." + n: t for n, t in first_step(plain, grads, total).items()})
    meta = {"loss": repr(loss.item()), "norm": repr(total)}
    meta.update({k: repr(v) for k, v in ADAMW.items()})
    os.makedirs(out, exist_ok=True)
    with open(out + "/config.json", "w") as f:
        json.dump(c, f, indent=2)
        f.write("\n")
    write_safetensors(out + "/model.safetensors", plain, {"format": "pt"})
    write_safetensors(out + "/expected.safetensors", expected, meta)
    print(f"{out}: {sum(t.numel() for t in plain.values())} parameters, loss {loss.item():.9f}, "
          f"gradient norm {total:.6f}")


def main():
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    torch.set_num_threads(1)
    for name, (config, options) in CASES.items():
        make(os.path.join(sys.argv[1], name), config, **options)


if __name__ == "__main__":
    main()
