# SPDX-License-Identifier: Apache-2.0
"""Qwen3 in plain PyTorch, with the names and shapes of Hugging Face's: what a trainer of one's own may look like. Where the
`transformers` package is at hand, Qwen3ForCausalLM(Qwen3Config(**config)) does instead.

model = Qwen3(json.load(open("config.json")));  loss = model(batch) with batch int64 [B, T+1]: mean nats a token."""
import torch
from torch import nn
from torch.nn import functional as F


class RMSNorm(nn.Module):
    def __init__(self, n: int, eps: float) -> None:
        super().__init__()
        self.weight, self.eps = nn.Parameter(torch.ones(n)), eps

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.weight * x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps)


class Attention(nn.Module):
    def __init__(self, c: dict) -> None:
        super().__init__()
        hidden, self.d = c["hidden_size"], c["head_dim"]
        self.heads, self.kv, self.theta = c["num_attention_heads"], c["num_key_value_heads"], c["rope_theta"]
        self.q_proj = nn.Linear(hidden, self.heads * self.d, bias=False)
        self.k_proj = nn.Linear(hidden, self.kv * self.d, bias=False)
        self.v_proj = nn.Linear(hidden, self.kv * self.d, bias=False)
        self.o_proj = nn.Linear(self.heads * self.d, hidden, bias=False)
        self.q_norm, self.k_norm = RMSNorm(self.d, c["rms_norm_eps"]), RMSNorm(self.d, c["rms_norm_eps"])

    def rotate(self, x: torch.Tensor) -> torch.Tensor:  # [B, heads, T, d]
        half = self.d // 2
        rate = self.theta ** (-torch.arange(half, dtype=torch.float64, device=x.device) / half)
        angle = torch.outer(torch.arange(x.shape[2], dtype=torch.float64, device=x.device), rate)
        cos, sin = angle.cos().to(x.dtype), angle.sin().to(x.dtype)
        a, b = x[..., :half], x[..., half:]
        return torch.cat((a * cos - b * sin, b * cos + a * sin), -1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:  # [B, T, hidden]
        B, T, _ = x.shape
        q = self.rotate(self.q_norm(self.q_proj(x).view(B, T, self.heads, self.d)).transpose(1, 2))
        k = self.rotate(self.k_norm(self.k_proj(x).view(B, T, self.kv, self.d)).transpose(1, 2))
        v = self.v_proj(x).view(B, T, self.kv, self.d).transpose(1, 2)
        k, v = (t.repeat_interleave(self.heads // self.kv, 1) for t in (k, v))
        future = torch.ones(T, T, dtype=torch.bool, device=x.device).triu(1)
        score = (q @ k.transpose(-1, -2) / self.d ** 0.5).masked_fill(future, float("-inf"))
        return self.o_proj((score.softmax(-1) @ v).transpose(1, 2).reshape(B, T, -1))


class MLP(nn.Module):
    def __init__(self, c: dict) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(c["hidden_size"], c["intermediate_size"], bias=False)
        self.up_proj = nn.Linear(c["hidden_size"], c["intermediate_size"], bias=False)
        self.down_proj = nn.Linear(c["intermediate_size"], c["hidden_size"], bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class Layer(nn.Module):
    def __init__(self, c: dict) -> None:
        super().__init__()
        self.input_layernorm = RMSNorm(c["hidden_size"], c["rms_norm_eps"])
        self.self_attn = Attention(c)
        self.post_attention_layernorm = RMSNorm(c["hidden_size"], c["rms_norm_eps"])
        self.mlp = MLP(c)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.self_attn(self.input_layernorm(x))
        return x + self.mlp(self.post_attention_layernorm(x))


class Decoder(nn.Module):
    def __init__(self, c: dict) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(c["vocab_size"], c["hidden_size"])
        self.layers = nn.ModuleList(Layer(c) for _ in range(c["num_hidden_layers"]))
        self.norm = RMSNorm(c["hidden_size"], c["rms_norm_eps"])

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.embed_tokens(ids)
        for layer in self.layers:
            x = layer(x)
        return self.norm(x)


class Qwen3(nn.Module):
    def __init__(self, config: dict) -> None:
        super().__init__()
        self.model = Decoder(config)
        self.lm_head = nn.Linear(config["hidden_size"], config["vocab_size"], bias=False)
        for module in self.modules():
            if isinstance(module, (nn.Linear, nn.Embedding)):
                nn.init.normal_(module.weight, std=config["initializer_range"])
        if config["tie_word_embeddings"]:
            self.lm_head.weight = self.model.embed_tokens.weight

    def forward(self, batch: torch.Tensor) -> torch.Tensor:  # int64 [B, T+1]
        logits = self.lm_head(self.model(batch[:, :-1]))
        return F.cross_entropy(logits.flatten(0, 1).float(), batch[:, 1:].flatten())


def decayed(model: nn.Module, decay: float) -> list:
    """AdamW's groups as the native trainer has them: matrices decay, norms do not."""
    ps = list(model.parameters())
    return [{"params": [p for p in ps if p.dim() > 1], "weight_decay": decay},
            {"params": [p for p in ps if p.dim() == 1], "weight_decay": 0.0}]
