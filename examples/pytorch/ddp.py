# SPDX-License-Identifier: Apache-2.0
"""The joined loop with DistributedDataParallel, on GPUs where there are some:

    torchrun --nproc-per-node 4 ddp.py config.json        (under Slurm: examples/slurm)

Hub, name, data and state come from $BERINGIA_HUB, $BERINGIA_NAME, $BERINGIA_DATA, $BERINGIA_STATE. Every rank runs the
same lines; rank 0 alone speaks to the hub. For FSDP exchange the line that wraps the model, and wrap before the optimizer."""
import json
import os
import sys

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader

import beringia.torch
from model import Qwen3, decayed


def main(config):
    gpu = torch.cuda.is_available()
    dist.init_process_group("nccl" if gpu else "gloo")
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if gpu else torch.device("cpu")
    if gpu:
        torch.cuda.set_device(device)
    with open(config, encoding="utf-8") as f:
        model = DistributedDataParallel(Qwen3(json.load(f)).to(device))
    optimizer = torch.optim.AdamW(decayed(model, 0.1), lr=1e-3, betas=(0.9, 0.95))
    with beringia.torch.join(model, optimizer, batch_size=8, accumulate=2) as run:
        schedule = run.scheduler(optimizer)
        for batch in run.batches(DataLoader(run.dataset(), batch_size=None, num_workers=2, pin_memory=gpu)):
            with torch.autocast(device.type, torch.bfloat16, enabled=gpu):
                loss = model(batch.to(device, non_blocking=True))
            (loss / 2).backward()
            if not run.boundary:
                continue
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
            run.step(model, loss)
            schedule.step()


main(sys.argv[1])
