# SPDX-License-Identifier: Apache-2.0
# timeout: 900
"""What run.step costs the loop while an upload runs: at most 1 % of a step of 200 ms, that is 2 ms. A model of 8 million
weights, contributions of 8 MB through a link of 2 MB/s, so that an upload is nearly always under way. Wall time is
judged by the median, because another program on the machine may take the processor in any step; the thread's own
processor time by its mean. Steps in which a contribution is cut or a version taken in are counted apart."""
import json
import os
import re
import socket
import statistics
import threading
import time

import torch

import kit
from kit import begin, say

import beringia
import beringia.torch
from model import Qwen3

STEP_S, RATE = 0.2, 2e6


class SlowLink:
    """Passes bytes on to the hub; those of long bodies at RATE bytes a second. busy(t): was one under way at t?"""

    def __init__(self, to):
        self.to, self.spans, self.server = to, [], socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self.server.getsockname()[1]}"
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self):
        while True:
            a, _ = self.server.accept()
            b = socket.create_connection(self.to)
            for x, y, slow in ((a, b, True), (b, a, False)):
                threading.Thread(target=self.pass_on, args=(x, y, slow), daemon=True).start()

    def pass_on(self, x, y, slow):
        try:
            while True:
                data = x.recv(20000)
                if not data:
                    break
                y.sendall(data)
                if slow and len(data) > 10000:  # a full piece of a contribution
                    now = time.monotonic()
                    self.spans.append((now - 0.02, now + len(data) / RATE + 0.02))
                    time.sleep(len(data) / RATE)
        except OSError:
            pass
        for s in (x, y):
            s.close()

    def busy(self, t):
        return any(a <= t <= b for a, b in self.spans)


def run_step_costs_less_than_1_percent_while_an_upload_runs(keep):
    with open(kit.TINY, encoding="utf-8") as f:
        config = dict(json.load(f), hidden_size=256, intermediate_size=1024, num_hidden_layers=8, num_attention_heads=8,
                      num_key_value_heads=4, head_dim=32)
    path = os.path.join(kit.SCRATCH, "model.json")
    os.makedirs(kit.SCRATCH, exist_ok=True)
    with open(path, "w", encoding="utf-8") as f:
        json.dump(config, f)
    c = begin("overhead", kit.pack(120000), {"outer.steps": 15, "lease.ttl": "30s"}, model=path)
    keep(c)
    beringia.log_level("error")
    host, port = re.match(r"http://([^:]+):(\d+)", c.url).groups()
    link = SlowLink((host, int(port)))
    model = Qwen3(config)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, betas=(0.9, 0.95))
    taken, figures = [], None
    with beringia.torch.join(model, optimizer, hub=link.url, name="o", data=c.data, state=os.path.join(c.out, "o"),
                             checkpoint_every=600.0) as run:
        schedule = run.scheduler(optimizer)
        began = time.monotonic()
        for batch in run.batches():
            with torch.no_grad():  # stands for a step of 200 ms: only what run.step does is measured
                model.model.norm.weight.add_(1e-5)
            time.sleep(STEP_S)
            before = run.figures()
            t, cpu = time.monotonic(), time.thread_time()
            run.step(model, 1.0)
            spent, cpu = time.monotonic() - t, time.thread_time() - cpu
            schedule.step()
            figures = run.figures()
            duty = figures.version != before.version or figures.segment_steps <= before.segment_steps
            taken.append((spent, cpu, duty, link.busy(t)))
            if time.monotonic() - began > 40:
                break
        copies = run._weights.copies
    plain = [x for x in taken if x[3] and not x[2]]
    duties = [x for x in taken if x[2]]
    wall, cpu = statistics.median(x[0] for x in plain), statistics.mean(x[1] for x in plain)
    rounds = max(1, len(duties))
    print(f"overhead parameters={run.settings.parameters} steps={len(taken)} uploading={len(plain)} "
          f"median_ms={1e3 * wall:.3f} mean_cpu_ms={1e3 * cpu:.3f} of_200_ms={100 * wall / STEP_S:.3f}% "
          f"cut_or_rebase={len(duties)} mean_ms={1e3 * sum(x[0] for x in duties) / rounds:.1f} copies={copies}")
    say("overhead_uploads_ran_meanwhile", len(plain) >= 30, (len(plain), len(taken)))
    say("overhead_run_step_is_at_most_1_percent", wall <= 0.01 * STEP_S and cpu <= 0.01 * STEP_S, (wall, cpu))
    say("overhead_python_copies_no_model", copies == 0, copies)


if __name__ == "__main__":
    raise SystemExit(kit.main([run_step_costs_less_than_1_percent_while_an_upload_runs]))
