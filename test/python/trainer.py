# SPDX-License-Identifier: Apache-2.0
"""A PyTorch site of the tests: Qwen3 of examples/pytorch in a run; hub, name, data and state come from the environment.
With RANK set it is one rank of a DistributedDataParallel job over gloo."""
import argparse
import contextlib
import json
import os
import signal
import sys
import time

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader

import beringia.torch
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
p.add_argument("--fail-at", type=int, default=-1, help="raise in the middle of this step")
p.add_argument("--break-at", type=int, default=-1, help="the process ends without close at this step")
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

if a.sharded:  # FSDP itself wants CUDA; what is done around it does not
    class Whole:
        @staticmethod
        def summon_full_params(module, writeback):
            return contextlib.nullcontext()
    beringia.torch.fsdp_of = lambda module: Whole

torch.manual_seed(int(os.environ.get("RANK", "0")) + 5)  # every rank begins with other weights: the run's come in
if "RANK" in os.environ:
    dist.init_process_group("gloo")
with open(a.model, encoding="utf-8") as f:
    model = Qwen3(json.load(f)).to(getattr(torch, a.dtype))
inner = model
optimizer = torch.optim.AdamW(decayed(model, 0.1), lr=1.0, betas=(0.9, 0.95), eps=1e-8)
if dist.is_initialized():
    model = torch.nn.parallel.DistributedDataParallel(model)
run = beringia.torch.join(model, optimizer, batch_size=a.batch, accumulate=a.accumulate, checkpoint_every=1.0, timeout=5.0,
                          warmup_steps=a.warmup)
print(f"joined rank={run.rank} steps={run.figures().steps if run.rank == 0 else 0} moments={run._moments.steps() if run._moments else 0}", flush=True)
loader = DataLoader(run.dataset(), batch_size=None, num_workers=a.workers) if a.workers else None
step, began = 0, time.monotonic()
with run:
    schedule = run.scheduler(optimizer)
    for batch in run.batches(loader):
        assert batch.dtype == torch.int64 and batch.shape[1] == run.settings.seq_len + 1
        loss = model(batch)
        (loss / a.accumulate).backward()
        if step == a.fail_at:
            raise KeyError("in the middle of a step")
        if not run.boundary:
            continue
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        step += 1
        run.step(model, loss if step != a.nan_at else loss * float("nan"))
        schedule.step()
        if step == a.break_at:
            sys.exit(0) if a.fail_at == -2 else os.kill(os.getpid(), signal.SIGKILL)
        if step >= a.steps:
            run.drain()
        time.sleep(a.nap + max(0.0, began + a.pace - time.monotonic()))
        began = time.monotonic()
        if step % 10 == 0:
            print(f"step {step} loss {loss.item():.4f} lr {run.lr:.6f}", flush=True)
print(f"end complete={run.complete} draining={run.draining} steps={step} copies={run._weights.copies}", flush=True)
if a.dtype == "float32" and not a.elsewhere and not a.sharded:
    assert run._weights.copies == 0 and next(inner.parameters()).data_ptr() == run._weights.home.data_ptr()
