# SPDX-License-Identifier: Apache-2.0
"""Weights that no rank has whole: FullyShardedDataParallel, and fully_shard (FSDP2, DTensor). Private.

Rank 0 alone has a vector of all parameters, the library's (`stage`, on the CPU, pinned where there is a GPU). It is
filled and emptied piece by piece, so that no device ever holds the whole model for it: one wrapped unit after another
under FSDP (summon_full_params), one parameter after another under FSDP2 (full_tensor). All of it is collective: every
rank calls the same things in the same order. The optimizer's state goes by torch.distributed.checkpoint.state_dict,
which knows both kinds."""
import contextlib
import math
import sys
from typing import Any, Callable, Dict, Iterator, List, Optional, Sequence, Set, Tuple

import torch
import torch.distributed as dist

from . import ModelError, UsageError, _tell
from ._weights import WRAPPERS, _stage, moment_names


# ---- The two kinds --------------------------------------------------------------------------------------------------
class Units:
    """FullyShardedDataParallel. PyTorch before 2.0 gathers from a root only: all units at once."""

    def __init__(self, model: torch.nn.Module, kind: type) -> None:
        self.model, self.kind = model, kind
        self.whole = int(torch.__version__.split(".")[0]) < 2

    def _units(self) -> Iterator[Tuple[str, torch.nn.Module]]:
        """Parents first: the first gathering decides which unit is the root."""
        yield "", self.model
        for name, module in self.model.named_modules():
            if name and isinstance(module, self.kind) and not self.whole:
                yield name + ".", module

    def _below(self, prefix: str, unit: torch.nn.Module) -> Iterator[Tuple[str, torch.Tensor]]:
        """The parameters of a gathered unit, those of units within it left out; a tied one comes once."""
        seen: Set[int] = set()
        waiting = [(prefix, unit)]
        while waiting:
            path, module = waiting.pop()
            for name, p in module.named_parameters(recurse=False):
                if "flat_param" not in name and id(p) not in seen:
                    seen.add(id(p))
                    yield path + name, p
            children = [(f"{path}{name}.", child) for name, child in module.named_children()
                        if self.whole or not isinstance(child, self.kind)]
            waiting.extend(reversed(children))

    def each(self, write: bool, everywhere: bool = True) -> Iterator[Tuple[str, torch.Tensor]]:
        """Every parameter with its full tensor; on ranks above 0 only `everywhere`."""
        for prefix, unit in self._units():
            gathered: Any = contextlib.nullcontext()
            if isinstance(unit, self.kind) or self.whole:
                gathered = self.kind.summon_full_params(unit, recurse=self.whole, writeback=write,
                                                        rank0_only=not everywhere)
            with gathered:
                yield from self._below(prefix, unit)

    @staticmethod
    def full(p: torch.Tensor) -> torch.Tensor:
        return p.detach()

    @staticmethod
    def put(p: torch.Tensor, full: torch.Tensor) -> None:
        p.copy_(full)

    @staticmethod
    def device(p: torch.Tensor) -> torch.device:
        return p.device


class Parts:
    """fully_shard: each parameter is a DTensor."""

    def __init__(self, model: torch.nn.Module, kind: type, distribute: Callable[..., Any]) -> None:
        self.model, self.kind, self.distribute = model, kind, distribute

    def each(self, write: bool, everywhere: bool = True) -> Iterator[Tuple[str, torch.Tensor]]:
        del write, everywhere
        yield from self.model.named_parameters()

    def full(self, p: torch.Tensor) -> torch.Tensor:
        return p.detach().to(self.device(p)).full_tensor() if isinstance(p, self.kind) else p.detach()

    def put(self, p: torch.Tensor, full: torch.Tensor) -> None:
        if not isinstance(p, self.kind):
            p.copy_(full)
            return
        mine = self.distribute(full, p.device_mesh, p.placements).to_local()
        p.to_local().copy_(mine)

    def device(self, p: torch.Tensor) -> torch.device:
        """Where collectives work: parameters that are offloaded to the CPU go through their mesh's device."""
        if not isinstance(p, self.kind) or p.device_mesh.device_type == p.device.type:
            return p.device
        return torch.device(p.device_mesh.device_type, torch.cuda.current_device())


def sharded_of(model: torch.nn.Module) -> Any:
    """What gathers this model's parameters, or None where every rank has them whole."""
    module = sys.modules.get("torch.distributed.fsdp")
    kind = getattr(module, "FullyShardedDataParallel", None) if module else None
    if kind is not None and any(isinstance(m, kind) for m in model.modules()):
        return Units(model, kind)
    for name in ("torch.distributed.tensor", "torch.distributed._tensor"):
        module = sys.modules.get(name)
        kind = getattr(module, "DTensor", None) if module else None
        if kind is not None and any(isinstance(p, kind) for p in model.parameters()):
            return Parts(model, kind, module.distribute_tensor)
    return None


# ---- Weights -----------------------------------------------------------------------------------------------------------
class ShardedWeights:
    """The face of _weights.Weights. Nobody has a home; rank 0 has a stage; every change of it is collective."""
    sharded, elsewhere = True, True

    def __init__(self, kind: Any, rename: Optional[Callable[[str], str]], speaks: bool) -> None:
        self.kind, self.rename, self.speaks, self.copies = kind, rename, speaks, 0
        self.masters: List[Any] = []
        self.shapes: Dict[str, Tuple[int, ...]] = {}
        for name, p in kind.each(write=False):
            name = self.clean(name)
            if name in self.shapes:
                raise ModelError(f"two parameters are both called {name}; mend `rename`", 24)
            if p.dtype != torch.float32:
                raise ModelError(f"{name}: is of {p.dtype}; under FSDP keep the parameters in float32 and compute below it "
                                 "with a MixedPrecision policy (param_dtype=torch.bfloat16)", 24)
            self.shapes[name] = tuple(p.shape)
        self.names: List[str] = []
        self.stage: Optional[torch.Tensor] = None
        self.places: Dict[str, Tuple[int, int]] = {}
        self.total = 0

    def clean(self, name: str) -> str:
        name = WRAPPERS.sub("", name)
        return self.rename(name) if self.rename else name

    def arrange(self, names: Sequence[str]) -> None:
        self.names, at = list(names), 0
        for name in names:
            n = math.prod(self.shapes[name])
            self.places[name] = (at, at + n)
            at += n
        self.total = at
        self.stage = _stage(at) if self.speaks else None

    def piece(self, vector: torch.Tensor, name: str) -> torch.Tensor:
        at, end = self.places[name]
        return vector[at:end].view(self.shapes[name])

    def read(self) -> None:
        """The shards -> rank 0's stage."""
        self.copies += 1
        with torch.no_grad():
            for name, p in self.kind.each(write=False, everywhere=False):
                full = self.kind.full(p)
                if self.stage is not None:
                    self.piece(self.stage, self.clean(name)).copy_(full)

    def write(self, from_stage: bool) -> None:
        """Rank 0's stage -> every shard."""
        del from_stage
        self.copies += 1
        with torch.no_grad():
            for name, p in self.kind.each(write=True):
                name = self.clean(name)
                full = torch.empty(self.shapes[name], dtype=torch.float32, device=self.kind.device(p))
                if self.stage is not None:
                    full.copy_(self.piece(self.stage, name))
                dist.broadcast(full, src=0)
                self.kind.put(p, full)

    def check(self) -> None:
        pass


# ---- The optimizer's state ---------------------------------------------------------------------------------------------
def _state_dict_calls() -> Any:
    """torch.distributed.checkpoint.state_dict, where it can spread what rank 0 alone has (PyTorch 2.4)."""
    if tuple(int(x) for x in torch.__version__.split(".")[:2]) < (2, 4):
        return None
    from torch.distributed.checkpoint import state_dict
    return state_dict


class ShardedMoments:
    """The face of _weights.Moments. Rank 0 has the state as flat vectors; they are filled for a local checkpoint."""
    arrays: Sequence[torch.Tensor] = ()  # nobody has one beside its shards

    def __init__(self, model: torch.nn.Module, optimizer: torch.optim.Optimizer, weights: ShardedWeights,
                 speaks: bool) -> None:
        self.model, self.optimizer, self.weights, self.speaks = model, optimizer, weights, speaks
        if any(optimizer.state.values()):
            raise UsageError("the optimizer has stepped already; join comes before the first step", 2)
        self.calls = _state_dict_calls()
        self.names: Tuple[str, ...] = moment_names(optimizer) if self.calls else ()
        if self.calls is None and speaks:
            _tell("under FSDP the optimizer's state is kept from job to job with PyTorch 2.4 or later; this is "
                  f"{torch.__version__}, it begins anew")
        self.stages = [_stage(weights.total).zero_() for _ in self.names] if speaks else []

    def adopt(self) -> None:
        pass  # nothing of ours lies in the optimizer

    def steps(self) -> int:
        for state in self.optimizer.state.values():
            if "step" in state:
                return int(state["step"])
        return 0

    def _whole(self) -> Dict[str, Any]:
        """Names -> the state of that parameter, whole, on the CPU; rank 0 only, {} elsewhere."""
        # On CPUs offloading would copy nothing, and all states of use_orig_params were one buffer (seen in 2.6).
        offload = dist.get_backend() != "gloo" or any(p.device.type != "cpu" for p in self.model.parameters())
        options = self.calls.StateDictOptions(full_state_dict=True, cpu_offload=offload)
        whole = self.calls.get_optimizer_state_dict(self.model, self.optimizer, options=options)
        return whole if self.speaks else {}

    def read(self) -> None:
        if not self.names or not any(self.optimizer.state.values()):
            return
        whole = self._whole()
        for name, state in whole.get("state", {}).items():
            for moment, stage in zip(self.names, self.stages):
                if moment in state:
                    self.weights.piece(stage, self.weights.clean(name)).copy_(state[moment])

    def write(self, steps: int) -> None:
        """Rank 0's vectors -> every shard. A job that restored nothing begins with no state, as PyTorch does."""
        if not self.names or steps == 0:
            return
        whole = self._whole()  # made where there is none yet
        for name, state in whole.get("state", {}).items():
            for moment, stage in zip(self.names, self.stages):
                if moment in state:
                    state[moment].copy_(self.weights.piece(stage, self.weights.clean(name)))
            if "step" in state:
                state["step"] = torch.tensor(float(steps), device="cpu")
        options = self.calls.StateDictOptions(full_state_dict=True, broadcast_from_rank0=True)
        self.calls.set_optimizer_state_dict(self.model, self.optimizer, optim_state_dict=whole, options=options)
