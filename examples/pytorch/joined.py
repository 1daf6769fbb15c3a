# SPDX-License-Identifier: Apache-2.0
"""A plain PyTorch loop, as many have one: config.json and a file of 16-bit token ids (joined.py: what beringia pack made)"""
import json
import os
import sys

import torch
from torch.utils.data import DataLoader, Dataset

import beringia.torch
from model import Qwen3, decayed


class Tokens(Dataset):  # samples of T+1 tokens out of one file of 16-bit numbers
    def __init__(self, path, T):
        self.ids, self.T = torch.from_file(path, dtype=torch.int16, size=os.path.getsize(path) // 2), T

    def __len__(self):
        return (len(self.ids) - 1) // self.T

    def __getitem__(self, i):
        return self.ids[i * self.T:(i + 1) * self.T + 1].long()


def main(config, data):
    model = Qwen3(json.load(open(config)))
    optimizer = torch.optim.AdamW(decayed(model, 0.1), lr=1e-3, betas=(0.9, 0.95))
    run = beringia.torch.join(model, optimizer, data=data, batch_size=8)
    schedule = run.scheduler(optimizer)
    loader = DataLoader(run.dataset(), batch_size=None)
    for step, batch in enumerate(run.batches(loader)):
        loss = model(batch)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        run.step(model, loss)
        schedule.step()
        if step % 10 == 0:
            print(f"step {step} loss {loss.item():.3f}", flush=True)
    run.close()


main(*sys.argv[1:])
