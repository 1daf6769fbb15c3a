# SPDX-License-Identifier: Apache-2.0
"""Qwen3 in PyTorch, written from its equations, as an oracle for the native trainer.

    import qwen3
    model = qwen3.load(DIR)            # a directory in Hugging Face's form: config.json, safetensors, shards or not
    model.logits(ids)                  # ids[B, T] -> [B, T, vocab]
    model.loss(ids)                    # ids[B, T+1] -> mean of the B*T negative log likelihoods, in nats
    qwen3.save(model, DIR, torch.bfloat16, shards=3)
    qwen3.build(config, seed)          # a new one, N(0, initializer_range), norms 1

A model is a torch.nn.Module whose parameters have Hugging Face's names, so gradients and optimizers work as usual;
load(DIR, torch.float64) computes in double. Nothing here comes from the C code, and no fused operation is used; it runs on
Debian's python3-torch (1.13).

  x0 = E[ids]
  h  = norm(x; g) = g * x / sqrt(mean(x^2) + eps)
  q_i = R_t norm(W_q,i h; g_q)    k_j = R_t norm(W_k,j h; g_k)    v_j = W_v,j h     for each head; j = i / (heads / kv_heads)
  R_t turns the pairs (a, a + D/2) of a head by the angle t * theta^(-2a/D)
  x += W_o [softmax(q_i k_j^T / sqrt(D), causal) v_j]_i        x += W_down (silu(W_gate h') * W_up h'), h' = norm(x; g')
  logits = W_head norm(x; g_last), W_head = E where tied                    (Qwen3 technical report, arXiv 2505.09388)
"""
import json
import os
import struct

import numpy as np
import torch
from torch import nn
from torch.nn import functional

KINDS = {"F32": torch.float32, "BF16": torch.bfloat16, "F16": torch.float16, "F64": torch.float64}


# ---- Files -----------------------------------------------------------------------------------------------------------
def read_safetensors(path):
    """name -> tensor, in the type of the file."""
    with open(path, "rb") as f:
        raw = bytearray(f.read())
    size = struct.unpack_from("<Q", raw)[0]
    head, out = json.loads(raw[8:8 + size].decode()), {}
    for name, entry in head.items():
        if name == "__metadata__" or entry["dtype"] not in KINDS:
            continue
        begin, end = entry["data_offsets"]
        shape, kind = entry["shape"], KINDS[entry["dtype"]]
        part = torch.frombuffer(raw, dtype=torch.uint8, count=end - begin, offset=8 + size + begin).clone()
        out[name] = part.view(kind).reshape(shape) if end > begin else torch.zeros(shape, dtype=kind)
    return out


def write_safetensors(path, tensors):
    names = {v: k for k, v in KINDS.items()}
    head, blobs, at = {"__metadata__": {"format": "pt"}}, [], 0
    for name, t in tensors.items():
        t = t.detach().contiguous()
        raw = t.reshape(-1).view(torch.int16 if t.element_size() == 2 else t.dtype).numpy().tobytes()
        head[name] = {"dtype": names[t.dtype], "shape": list(t.shape), "data_offsets": [at, at + len(raw)]}
        blobs.append(raw)
        at += len(raw)
    text = json.dumps(head, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text)
        for raw in blobs:
            f.write(raw)


def read_weights(directory):
    single = os.path.join(directory, "model.safetensors")
    if os.path.exists(single):
        return read_safetensors(single)
    with open(single + ".index.json", encoding="utf-8") as f:
        where, out = json.load(f)["weight_map"], {}
    for file in sorted(set(where.values())):
        out.update(read_safetensors(os.path.join(directory, file)))
    if set(out) != set(where):
        raise ValueError(f"{directory}: index and files differ")
    return out


# ---- The model -------------------------------------------------------------------------------------------------------
class Norm(nn.Module):
    def __init__(self, width, eps):
        super().__init__()
        self.weight, self.eps = nn.Parameter(torch.ones(width)), eps

    def forward(self, x):
        return self.weight * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps))


class Attention(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.heads, self.kv, self.width = c["num_attention_heads"], c["num_key_value_heads"], c["head_dim"]
        hidden, eps = c["hidden_size"], c["rms_norm_eps"]
        self.q_proj = nn.Linear(hidden, self.heads * self.width, bias=False)
        self.k_proj = nn.Linear(hidden, self.kv * self.width, bias=False)
        self.v_proj = nn.Linear(hidden, self.kv * self.width, bias=False)
        self.o_proj = nn.Linear(self.heads * self.width, hidden, bias=False)
        self.q_norm, self.k_norm = Norm(self.width, eps), Norm(self.width, eps)

    def split(self, x, heads):
        return x.view(x.shape[0], x.shape[1], heads, self.width)

    def forward(self, h, turn, mask):
        q = turn(self.q_norm(self.split(self.q_proj(h), self.heads)).transpose(1, 2))
        k = turn(self.k_norm(self.split(self.k_proj(h), self.kv)).transpose(1, 2))
        v = self.split(self.v_proj(h), self.kv).transpose(1, 2)
        group = self.heads // self.kv
        b, _, t, d = k.shape
        q = q.reshape(b, self.kv, group * t, d)  # the heads that share keys, one below the other
        score = (q @ k.transpose(2, 3)).view(b, self.kv, group, t, t) / d ** 0.5 + mask
        mixed = torch.softmax(score, -1).view(b, self.kv, group * t, t) @ v
        mixed = mixed.view(b, self.heads, t, d).transpose(1, 2).reshape(b, t, self.heads * d)
        return self.o_proj(mixed)


class Inner(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.gate_proj = nn.Linear(c["hidden_size"], c["intermediate_size"], bias=False)
        self.up_proj = nn.Linear(c["hidden_size"], c["intermediate_size"], bias=False)
        self.down_proj = nn.Linear(c["intermediate_size"], c["hidden_size"], bias=False)

    def forward(self, h):
        return self.down_proj(functional.silu(self.gate_proj(h)) * self.up_proj(h))


class Layer(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.input_layernorm = Norm(c["hidden_size"], c["rms_norm_eps"])
        self.self_attn = Attention(c)
        self.post_attention_layernorm = Norm(c["hidden_size"], c["rms_norm_eps"])
        self.mlp = Inner(c)

    def forward(self, x, turn, mask):
        x = x + self.self_attn(self.input_layernorm(x), turn, mask)
        return x + self.mlp(self.post_attention_layernorm(x))


class Trunk(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.embed_tokens = nn.Embedding(c["vocab_size"], c["hidden_size"])
        self.layers = nn.ModuleList(Layer(c) for _ in range(c["num_hidden_layers"]))
        self.norm = Norm(c["hidden_size"], c["rms_norm_eps"])


class Qwen3(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.config = config = dict(config)
        config.setdefault("head_dim", config["hidden_size"] // config["num_attention_heads"])
        if "rope_theta" not in config:  # newer files keep it one level down
            config["rope_theta"] = config["rope_parameters"]["rope_theta"]
        self.model = Trunk(config)
        if not config.get("tie_word_embeddings"):
            self.lm_head = nn.Linear(config["hidden_size"], config["vocab_size"], bias=False)

    def turner(self, steps, dtype):
        half = self.config["head_dim"] // 2
        rate = self.config["rope_theta"] ** (-torch.arange(half, dtype=torch.float64) / half)
        angle = torch.arange(steps, dtype=torch.float64)[:, None] * rate
        cos, sin = angle.cos().to(dtype), angle.sin().to(dtype)

        def turn(x):
            a, b = x[..., :half], x[..., half:]
            return torch.cat((a * cos - b * sin, b * cos + a * sin), -1)
        return turn

    def logits(self, ids):
        x = self.model.embed_tokens(ids)
        steps = ids.shape[1]
        turn = self.turner(steps, x.dtype)
        mask = torch.full((steps, steps), float("-inf"), dtype=x.dtype).triu(1)
        for layer in self.model.layers:
            x = layer(x, turn, mask)
        head = self.lm_head.weight if hasattr(self, "lm_head") else self.model.embed_tokens.weight
        return self.model.norm(x) @ head.T

    forward = logits

    def loss(self, ids):
        logits = self.logits(ids[:, :-1])
        return functional.cross_entropy(logits.reshape(-1, logits.shape[-1]), ids[:, 1:].reshape(-1))


def load(directory, dtype=torch.float32):
    with open(os.path.join(directory, "config.json"), encoding="utf-8") as f:
        model = Qwen3(json.load(f))
    weights = {name: t.to(dtype) for name, t in read_weights(directory).items()}
    model.to(dtype).load_state_dict(weights, strict=True)  # names and shapes of what is missing or too much
    return model


def build(config, seed, noise=0.0):
    """noise: of the norms' weights, which sharpens a test; 0 as published."""
    model, g = Qwen3(config), torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for p in model.parameters():
            x = torch.randn(p.shape, generator=g)
            p.copy_(1 + noise * x if p.ndim == 1 else config.get("initializer_range", 0.02) * x)
    return model


def save(model, directory, dtype=torch.float32, shards=1):
    os.makedirs(directory)
    with open(os.path.join(directory, "config.json"), "w", encoding="utf-8") as f:
        json.dump(model.config, f, indent=2)
    weights = {name: t.detach().to(dtype) for name, t in model.state_dict().items()}
    if shards == 1:
        write_safetensors(os.path.join(directory, "model.safetensors"), weights)
        return
    names, where = sorted(weights), {}
    for i in range(shards):
        file = f"model-{i + 1:05}-of-{shards:05}.safetensors"
        part = names[i * len(names) // shards:(i + 1) * len(names) // shards]
        write_safetensors(os.path.join(directory, file), {n: weights[n] for n in part})
        where.update(dict.fromkeys(part, file))
    total = sum(t.numel() * t.element_size() for t in weights.values())
    with open(os.path.join(directory, "model.safetensors.index.json"), "w", encoding="utf-8") as f:
        json.dump({"metadata": {"total_size": total}, "weight_map": where}, f, indent=2)


def adamw(model, lr, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.1):
    """torch's own AdamW with the trainer's groups: matrices decay, vectors do not."""
    matrices = [p for p in model.parameters() if p.ndim > 1]
    vectors = [p for p in model.parameters() if p.ndim == 1]
    return torch.optim.AdamW([{"params": matrices, "weight_decay": weight_decay},
                              {"params": vectors, "weight_decay": 0.0}], lr=lr, betas=betas, eps=eps)


def mean_loss(model, ids, seq_len, batch=8):
    """As `beringia eval --ids FILE --seq-len T`: pieces of T predictions that overlap by one id."""
    ids = np.asarray(ids, dtype=np.int64)
    rows = (len(ids) - 1) // seq_len
    pieces = torch.from_numpy(np.stack([ids[r * seq_len:r * seq_len + seq_len + 1] for r in range(rows)]))
    with torch.no_grad():
        total = sum(model.loss(pieces[i:i + batch]).double().item() * len(pieces[i:i + batch])
                    for i in range(0, rows, batch))
    return total / rows
