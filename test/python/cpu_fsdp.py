# SPDX-License-Identifier: Apache-2.0
"""FSDP on CPUs, for tests: PyTorch 2.6 can, with a little help. `python3 cpu_fsdp.py KIND` tries it and says why not."""
import os
import sys
import tempfile

import torch
import torch.distributed as dist


def wrap(model, layers, kind):
    """Each of the layers (a ModuleList within the model) is a unit, the rest is the root's. kind: "units" (flat parameters),
    "orig" (use_orig_params), "parts" (fully_shard)."""
    import torch.distributed.fsdp as fsdp
    if kind == "parts":
        _help_fully_shard()
        mesh = dist.device_mesh.init_device_mesh("cpu", (dist.get_world_size(),))
        # Gathered once a step: on CPUs 2.6 counts a second gathering, in backward, as a change of what forward has saved.
        for layer in layers:
            fsdp.fully_shard(layer, mesh=mesh, reshard_after_forward=False)
        return fsdp.fully_shard(model, mesh=mesh, reshard_after_forward=False)

    def one(x):
        return fsdp.FullyShardedDataParallel(x, use_orig_params=kind == "orig", device_id=torch.device("cpu"))
    for n, layer in enumerate(layers):
        layers[n] = one(layer)
    return one(model)


def loss_share(kind):
    """gloo of 2.6 adds up what fully_shard asks it to average."""
    return 1.0 / dist.get_world_size() if kind == "parts" else 1.0


def _help_fully_shard():
    """torch.cpu.Stream has no events in 2.6; on a CPU everything is done when it is asked for."""
    class Event:
        def wait(self, stream=None):
            pass
    if not hasattr(torch.cpu.Stream, "record_event"):
        torch.cpu.Stream.record_event = lambda self, event=None: event or Event()
        torch.cpu.Stream.wait_event = lambda self, event: None


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as d:
        dist.init_process_group("gloo", init_method="file://" + os.path.join(d, "meet"), rank=0, world_size=1)
        m = torch.nn.Sequential(torch.nn.Linear(3, 3))
        m = wrap(m, m, sys.argv[1])
        m(torch.ones(1, 3)).sum().backward()
