# SPDX-License-Identifier: Apache-2.0
"""What beringia.torch knows about weights: names, where they are, and the optimizer's state beside them. Private."""
import json
import re
from typing import Any, Callable, Dict, List, Optional, Sequence, Tuple

import torch
import torch.distributed as dist

from . import ModelError, UsageError, _tell

# Kept from job to job as vectors of the size of the weights: optimizer -> names of its state.
MOMENTS = {"Adam": ("exp_avg", "exp_avg_sq"), "AdamW": ("exp_avg", "exp_avg_sq"), "SGD": ("momentum_buffer",)}
WRAPPERS = re.compile(r"(^|(?<=\.))(module|_fsdp_wrapped_module|_fpw_module|_orig_mod|_checkpoint_wrapped_module)\.")


# ---- Names --------------------------------------------------------------------------------------------------------
def canonical_tensors(model_json: str) -> List[Tuple[str, Tuple[int, ...]]]:
    """Names and shapes of a run's parameters in the order of its weights vector: those of Hugging Face's Qwen3.
    Empty where the run was made from a weights file alone (model_json is "{}")."""
    m = json.loads(model_json)
    if not m:
        return []
    hidden, inner, d = m["hidden_size"], m["intermediate_size"], m["head_dim"]
    q, kv = m["num_attention_heads"] * d, m["num_key_value_heads"] * d
    out = [("model.embed_tokens.weight", (m["vocab_size"], hidden))]
    for i in range(m["num_hidden_layers"]):
        p = f"model.layers.{i}."
        out += [(p + "input_layernorm.weight", (hidden,)), (p + "self_attn.q_proj.weight", (q, hidden)),
                (p + "self_attn.k_proj.weight", (kv, hidden)), (p + "self_attn.v_proj.weight", (kv, hidden)),
                (p + "self_attn.o_proj.weight", (hidden, q)), (p + "self_attn.q_norm.weight", (d,)),
                (p + "self_attn.k_norm.weight", (d,)), (p + "post_attention_layernorm.weight", (hidden,)),
                (p + "mlp.gate_proj.weight", (inner, hidden)), (p + "mlp.up_proj.weight", (inner, hidden)),
                (p + "mlp.down_proj.weight", (hidden, inner))]
    out.append(("model.norm.weight", (hidden,)))
    if not m["tie_word_embeddings"]:
        out.append(("lm_head.weight", (m["vocab_size"], hidden)))
    return out


def own_parameters(model: torch.nn.Module, rename: Optional[Callable[[str], str]]) -> Dict[str, torch.nn.Parameter]:
    """Parameters by clean names; a parameter that is used twice comes once."""
    out: Dict[str, torch.nn.Parameter] = {}
    for name, p in model.named_parameters():
        name = WRAPPERS.sub("", name)
        name = rename(name) if rename else name
        if name in out:
            raise ModelError(f"two parameters are both called {name}; mend `rename`", 24)
        out[name] = p
    return out


def match(table: Sequence[Tuple[str, Tuple[int, ...]]], have: Dict[str, torch.nn.Parameter]) -> None:
    """The model's parameters are the run's, or the sentence says which one is not."""
    for name, shape in table:
        if name not in have:
            raise ModelError(f"the model has no parameter {name}, which the run has; `rename` maps your names to the "
                             "run's (those of Hugging Face's Qwen3)", 24)
        if tuple(have[name].shape) != tuple(shape):
            raise ModelError(f"{name}: is {list(have[name].shape)} here and {list(shape)} in the run; build the model "
                             "from the run's config.json (the hub's /v1/run, field model_json)", 24)
    extra = sorted(set(have) - {name for name, _ in table})
    if extra:
        hint = "; the run ties lm_head to the embeddings: tie them here too" if extra == ["lm_head.weight"] else ""
        raise ModelError(f"the model has a parameter {extra[0]}, which the run does not have{hint}", 24)


def overlap(parameters: Dict[str, torch.nn.Parameter]) -> None:
    """Two parameters in one memory would be torn apart without a word."""
    spans = []
    for name, p in parameters.items():
        if p.numel() and p.device.type != "meta":
            last = sum((n - 1) * s for n, s in zip(p.shape, p.stride()))
            spans.append((str(p.device), p.data_ptr(), p.data_ptr() + (last + 1) * p.element_size(), name))
    spans.sort()
    for a, b in zip(spans, spans[1:]):
        if a[0] == b[0] and b[1] < a[2]:
            raise ModelError(f"{a[3]} and {b[3]} share memory: make them one parameter (then it counts once), or two "
                             "of their own (p.data = p.data.clone())", 24)


# ---- Where the weights are -------------------------------------------------------------------------------------------
class Weights:
    """The flat f32 vector of all parameters, and its relation to the model.

    home: [P] f32, on the parameters' device; f32 parameters are views of it, others have masters that are.
    stage: [P] f32 on the CPU, the library's; the same memory as home where home is on the CPU."""
    sharded = False

    def __init__(self, names: Sequence[str], parameters: Sequence[torch.nn.Parameter], speaks: bool) -> None:
        devices = {p.device for p in parameters}
        if len(devices) != 1:
            raise ModelError(f"the parameters are on several devices ({', '.join(sorted(map(str, devices)))}); FSDP and "
                             "one device a rank are supported", 24)
        self.names, self.parameters, self.device = list(names), list(parameters), devices.pop()
        if self.device.type == "meta":
            raise ModelError("the parameters are on the meta device, without memory: model.to_empty(device=...) before join "
                             "(their values come from the run)", 24)
        self.sizes = [p.numel() for p in parameters]
        self.total = sum(self.sizes)
        self.home = torch.empty(self.total, dtype=torch.float32, device=self.device)
        self.masters: List[Tuple[torch.nn.Parameter, torch.nn.Parameter]] = []
        self.views: List[torch.Tensor] = []
        at = 0
        with torch.no_grad():
            for p, n in zip(self.parameters, self.sizes):
                if not p.dtype.is_floating_point:
                    raise ModelError(f"a parameter is of {p.dtype}; want float32, bfloat16 or float16", 24)
                view = self.home[at:at + n].view(p.shape)
                view.copy_(p.detach())
                self.views.append(view)
                at += n
                if p.dtype == torch.float32:
                    p.data = view
                else:
                    self.masters.append((p, torch.nn.Parameter(view, requires_grad=p.requires_grad)))
        self.elsewhere = self.device.type != "cpu"
        self.stage = self.home if not self.elsewhere else _stage(self.total) if speaks else None
        self.copies = 0  # of the whole model, for those who count

    def read(self) -> None:
        """home -> stage."""
        if self.elsewhere:
            self.copies += 1
            self.stage.copy_(self.home)

    def write(self, from_stage: bool) -> None:
        """stage -> home -> what the model computes with."""
        if self.elsewhere and from_stage:
            self.copies += 1
            self.home.copy_(self.stage)
        self.lower()

    def lower(self) -> None:
        with torch.no_grad():
            for p, master in self.masters:
                p.copy_(master)

    def spread(self, group: Any) -> None:
        dist.broadcast(self.home, src=0, group=group)

    def check(self) -> None:
        """The model still computes with this memory."""
        for name, p, view in zip(self.names, self.parameters, self.views):
            if p.shape != view.shape:
                raise UsageError(f"{name}: was {list(view.shape)} when it joined and is {list(p.shape)} now; a model "
                                 "keeps its shapes during a run", 2)
            if p.dtype == torch.float32 and p.data_ptr() != view.data_ptr():
                raise UsageError(f"{name}: its memory was exchanged after join (model.to(), p.data = ...); do that "
                                 "before join", 2)


def _stage(n: int) -> torch.Tensor:
    """Of the CPU whatever torch.set_default_device says; pinned where a GPU copies from and to it."""
    return torch.empty(n, dtype=torch.float32, device="cpu", pin_memory=torch.cuda.is_available())


# ---- The optimizer's state ---------------------------------------------------------------------------------------------
def moment_names(optimizer: torch.optim.Optimizer) -> Tuple[str, ...]:
    """Of the state that is kept from job to job; says so where it is not for this optimizer. By PyTorch's own classes:
    another library's AdamW has another state."""
    kind = type(optimizer)
    names: Tuple[str, ...] = MOMENTS.get(kind.__name__, ()) if kind is getattr(torch.optim, kind.__name__, None) else ()
    if kind is torch.optim.SGD and not all(g["momentum"] for g in optimizer.param_groups):
        return ()  # there is none
    if not names:
        _tell(f"the state of {kind.__module__}.{kind.__name__} is not kept from job to job; that of PyTorch's Adam, AdamW and "
              "SGD is")
    elif any(g.get("amsgrad") for g in optimizer.param_groups):
        names += ("max_exp_avg_sq",)
    return names


class Moments:
    """AdamW's (Adam's, SGD's) state as flat vectors beside the weights, so that it outlives a job. Other optimizers work;
    their state begins anew with each job."""

    def __init__(self, optimizer: torch.optim.Optimizer, weights: Weights, speaks: bool) -> None:
        self.optimizer, self.stages = optimizer, []
        self.arrays: List[torch.Tensor] = []
        self.names = moment_names(optimizer)
        # Each parameter whose state is kept, and which parts of the vectors it is.
        self.places: List[Tuple[Any, Dict[str, torch.Tensor]]] = []
        if not self.names:
            return
        self.on: Any = "cpu"
        if any(g.get("capturable") or g.get("fused") for g in optimizer.param_groups):
            self.on = weights.device
        self.arrays = [torch.zeros(weights.total, dtype=torch.float32, device=weights.device) for _ in self.names]
        master_of = {id(p): m for p, m in weights.masters}
        mine = {id(p) for g in optimizer.param_groups for p in g["params"]}
        at = 0
        for p, n in zip(weights.parameters, weights.sizes):
            q = master_of.get(id(p), p)
            if id(p) in mine or id(q) in mine:
                if optimizer.state[q]:
                    raise UsageError("the optimizer has stepped already; join comes before the first step", 2)
                self.places.append((q, {name: a[at:at + n].view(p.shape) for name, a in zip(self.names, self.arrays)}))
                self._put(*self.places[-1])
            at += n
        if speaks:
            self.stages = [_stage(weights.total) if weights.elsewhere else a for a in self.arrays]
            self.read()  # a site without a checkpoint joins with what is there

    def _put(self, p: torch.Tensor, views: Dict[str, torch.Tensor]) -> None:
        state = self.optimizer.state[p]
        state.update(views)
        if "step" not in state and not isinstance(self.optimizer, torch.optim.SGD):
            state["step"] = torch.zeros((), dtype=torch.float32, device=self.on)

    def adopt(self) -> None:
        """Takes over a state that was put in the place of ours: by optimizer.load_state_dict after join."""
        p, views = self.places[0] if self.places else (None, {})
        if all(self.optimizer.state[p].get(name) is view for name, view in views.items()):
            return
        with torch.no_grad():
            for p, views in self.places:
                for name, view in views.items():
                    there = self.optimizer.state[p].get(name)
                    view.copy_(there if there is not None else torch.zeros_like(view))
                self._put(p, views)

    def steps(self) -> int:
        for q, _ in self.places[:1]:
            return int(self.optimizer.state[q].get("step", 0))
        return 0

    def read(self) -> None:
        for stage, a in zip(self.stages, self.arrays):
            if stage is not a:
                stage.copy_(a)

    def write(self, steps: int) -> None:
        for stage, a in zip(self.stages, self.arrays):
            if stage is not a:
                a.copy_(stage)
        for q, _ in self.places:
            if "step" in self.optimizer.state[q]:
                self.optimizer.state[q]["step"].fill_(float(steps))


def use_masters(optimizer: torch.optim.Optimizer, weights: Weights) -> None:
    """The optimizer steps f32 masters; gradients go there before its step, weights come back after it."""
    master_of = {id(p): m for p, m in weights.masters}
    for group in optimizer.param_groups:
        group["params"] = [master_of.get(id(p), p) for p in group["params"]]
    step, zero_grad = optimizer.step, optimizer.zero_grad

    def step_masters(*args: Any, **words: Any) -> Any:
        for p, m in weights.masters:
            m.grad = None if p.grad is None else p.grad.to(torch.float32)
        result = step(*args, **words)
        weights.lower()
        return result

    def zero_both(*args: Any, **words: Any) -> None:
        zero_grad(*args, **words)
        for p, _ in weights.masters:
            p.grad = None
    optimizer.step, optimizer.zero_grad = step_masters, zero_both  # type: ignore[method-assign]
