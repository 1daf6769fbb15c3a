# SPDX-License-Identifier: Apache-2.0
"""A PyTorch site of the tests: Qwen3 of examples/pytorch in a run; hub, name, data and state come from the environment.
With RANK set it is one rank of a DistributedDataParallel job over gloo."""
import argparse
import json
import os
import signal
import sys
import time

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader

import beringia.torch
import cpu_fsdp
from model import Qwen3, decayed

p = argparse.ArgumentParser()
p.add_argument("--model", required=True)
p.add_argument("--batch", type=int, default=8)
p.add_argument("--accumulate", type=int, default=1)
p.add_argument("--workers", type=int, default=0)
p.add_argument("--steps", type=int, default=1 << 40, help="drain after so many")
p.add_argument("--dtype", default="float32")
p.add_argument("--warmup", type=int, default=20)
p.add_argument("--elsewhere", action="store_true", help="as if the weights were on a GPU")
p.add_argument("--sharded", action="store_true", help="the path of FSDP, over a model that every rank has whole")
p.add_argument("--fsdp", choices=("units", "orig", "parts"), help="FSDP, FSDP with use_orig_params, fully_shard")
p.add_argument("--decay", type=float, default=0.1)
p.add_argument("--grace", type=float, default=25.0)
p.add_argument("--fail-at", type=int, default=-1, help="raise in the middle of this step")
p.add_argument("--break-at", type=int, default=-1, help="the process ends without close at this step")
p.add_argument("--tell", action="store_true", help="say after each step how many are not handed in")
p.add_argument("--nan-at", type=int, default=-1)
p.add_argument("--nap", type=float, default=0.0, help="seconds a step takes longer")
p.add_argument("--pace", type=float, default=0.0, help="a step takes at least so many seconds")
a = p.parse_args()

if a.elsewhere:  # the path of a GPU, without one: home and the library's vector are two memories
    import beringia._weights as w
    before = w.Weights.__init__

    def init(self, names, parameters, speaks):
        before(self, names, parameters, speaks)
        self.elsewhere = True
        self.stage = torch.empty(self.total) if speaks else None
    w.Weights.__init__ = init

if a.sharded:
    class Whole(beringia._sharded.Parts):  # nothing of it is a DTensor
        def __init__(self, module):
            super().__init__(module, tuple, None)
    beringia.torch.sharded_of = Whole


def moments():
    """Of what is kept from job to job; where it is sharded all ranks call this."""
    if run._weights.sharded and run._moments:
        run._moments.read()
    return sum(float((x.double() ** 2).sum()) for x in run._moments.stages) if run._moments else 0.0


torch.manual_seed(int(os.environ.get("RANK", "0")) + 5)  # every rank begins with other weights: the run's come in
if "RANK" in os.environ:
    dist.init_process_group("gloo")
with open(a.model, encoding="utf-8") as f:
    model = Qwen3(json.load(f)).to(getattr(torch, a.dtype))
inner = model
if a.fsdp:
    model = cpu_fsdp.wrap(model, model.model.layers, a.fsdp)  # before the optimizer; its parameters have no shapes of their own to choose groups by
optimizer = torch.optim.AdamW(model.parameters() if a.fsdp else decayed(model, a.decay), lr=1.0, betas=(0.9, 0.95), eps=1e-8,
                              weight_decay=0.0)
if dist.is_initialized() and not a.fsdp:
    model = torch.nn.parallel.DistributedDataParallel(model)
run = beringia.torch.join(model, optimizer, batch_size=a.batch, accumulate=a.accumulate, checkpoint_every=1.0, timeout=5.0,
                          warmup_steps=a.warmup, grace=a.grace)
clip = getattr(model, "clip_grad_norm_", None) or (lambda norm: torch.nn.utils.clip_grad_norm_(model.parameters(), norm))
print(f"joined rank={run.rank} steps={run.figures().steps if run.rank == 0 else 0} "
      f"moments={run._moments.steps() if run._moments else 0} state={moments():.9e}", flush=True)
loader = DataLoader(run.dataset(), batch_size=None, num_workers=a.workers) if a.workers else None
step, began = 0, time.monotonic()
with run:
    schedule = run.scheduler(optimizer)
    for batch in run.batches(loader):
        assert batch.dtype == torch.int64 and batch.shape[1] == run.settings.seq_len + 1
        loss = model(batch)
        (loss * (cpu_fsdp.loss_share(a.fsdp) / a.accumulate)).backward()
        if step == a.fail_at:
            raise KeyError("in the middle of a step")
        if not run.boundary:
            continue
        clip(1.0)
        optimizer.step()
        optimizer.zero_grad()
        step += 1
        run.step(model, loss if step != a.nan_at else loss * float("nan"))
        schedule.step()
        if a.tell:
            print(f"segment_steps={run.figures().segment_steps}", flush=True)
        if step == a.break_at:
            sys.exit(0) if a.fail_at == -2 else os.kill(os.getpid(), signal.SIGKILL)
        if step >= a.steps:
            run.drain()
        time.sleep(a.nap + max(0.0, began + a.pace - time.monotonic()))
        began = time.monotonic()
        if step % 10 == 0:
            print(f"step {step} loss {loss.item():.4f} lr {run.lr:.6f}", flush=True)
print(f"end complete={run.complete} draining={run.draining} steps={step} copies={run._weights.copies} "
      f"state={sum(float((x.double() ** 2).sum()) for x in run._moments.stages) if run._moments else 0.0:.9e}", flush=True)
if a.dtype == "float32" and not run._weights.elsewhere:
    assert run._weights.copies == 0 and next(inner.parameters()).data_ptr() == run._weights.home.data_ptr()
