# SPDX-License-Identifier: Apache-2.0
"""An exported model in PyTorch, without other packages: load.py DIR [DATA] (DIR: beringia export; DATA: beringia pack).

Where the safetensors package is at hand, safetensors.torch.load_file does what `read` does here."""
import json
import math
import os
import sys

import torch

import beringia
from model import Qwen3

DTYPES = {"F32": torch.float32, "BF16": torch.bfloat16, "F16": torch.float16}


def read(path):
    """name -> tensor. The file: 8 bytes, length of the header; the header, JSON; the numbers."""
    with open(path, "rb") as f:
        header = json.loads(f.read(int.from_bytes(f.read(8), "little")))
        data = bytearray(f.read())
    header.pop("__metadata__", None)
    return {name: torch.frombuffer(data, dtype=DTYPES[t["dtype"]], offset=t["data_offsets"][0],
                                   count=math.prod(t["shape"])).view(t["shape"]) for name, t in header.items()}


def load(path):
    model = Qwen3(json.load(open(os.path.join(path, "config.json"))))
    index = os.path.join(path, "model.safetensors.index.json")
    files = set(json.load(open(index))["weight_map"].values()) if os.path.exists(index) else {"model.safetensors"}
    tensors = {name: t for f in files for name, t in read(os.path.join(path, f)).items()}
    absent, unknown = model.load_state_dict(tensors, strict=False)
    if unknown or set(absent) - {"lm_head.weight"}:  # a tied head is the embeddings, and not in the file
        sys.exit(f"{path}: missing {absent}, unknown {unknown}")
    return model.eval()


def heldout(model, path):
    """Mean nats a token over the data set's held-out samples."""
    data = beringia.Data(path)
    row = torch.empty(1, data.seq_len + 1, dtype=torch.int32)
    total = 0.0
    with torch.no_grad():
        for i in range(data.heldout_samples):
            data.read_into(i, row.data_ptr(), heldout=True)
            total += model(row.long()).item()
    return total / data.heldout_samples


if __name__ == "__main__":
    trained = load(sys.argv[1])
    print(f"{sum(p.numel() for p in trained.parameters())} parameters")
    if len(sys.argv) > 2:
        print(f"held-out loss {heldout(trained, sys.argv[2]):.6f}")
