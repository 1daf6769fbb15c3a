# SPDX-License-Identifier: Apache-2.0
"""Runs of the laboratory: data, models, two processes side by side, and the file that remembers what was run."""
import concurrent.futures
import csv
import json
import os
import subprocess
import sys
import threading
import time

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
SEQ_LEN = 64
# name: (hidden, inner, layers, heads, key-value heads, head_dim); bytes for tokens, tied embeddings
SIZES = {"40k": (32, 88, 3, 4, 4, 8), "90k": (48, 128, 3, 3, 3, 16), "300k": (80, 208, 4, 5, 5, 16), "1m": (128, 344, 5, 8, 8, 16),
         "3m": (192, 512, 7, 6, 6, 32), "10m": (320, 864, 8, 10, 10, 32)}
RESULTS = ("nll", "nll_ema", "perplexity", "parameters", "tokens", "steps", "rounds", "cosine", "norm_ratio", "bytes_up_share",
           "lost_samples", "joins", "seconds", "curve")


class Failed(Exception):
    pass


class Lab:
    def __init__(self, a):
        self.a = a
        self.program = os.path.join(os.path.abspath(a.build), "bench", "quality_run")
        self.out = os.path.join(os.path.abspath(a.dir), a.size)
        self.data = os.path.join(os.path.abspath(a.dir), "data")
        self.model = os.path.join(self.out, "model.json")
        self.csv = os.path.join(self.out, "runs.csv")
        self.known, self.made, self.missing = {}, 0, 0
        self.lock = threading.Lock()
        self.pool = concurrent.futures.ThreadPoolExecutor(a.jobs)
        self.children, self.stopped = set(), False

    # ---- before the first run --------------------------------------------------------------------------
    def prepare(self):
        os.makedirs(self.out, exist_ok=True)
        if not self.a.table:
            self._pack()
        self._write_model()
        self._remember()

    def _pack(self):
        if os.path.exists(os.path.join(self.data, "manifest.json")):
            return
        files = self.a.text or self._fetch()
        done = subprocess.run([os.path.join(os.path.abspath(self.a.build), "beringia"), "pack", "--out", self.data,
                               "--tokenizer", "bytes", "--seq-len", str(SEQ_LEN), "--heldout", str(self.a.heldout), *files],
                              stdout=subprocess.DEVNULL, check=False)
        if done.returncode:
            raise Failed(f"{self.data}: beringia pack ended with {done.returncode}")

    def _fetch(self):
        text = os.path.join(os.path.abspath(self.a.dir), "text")
        done = subprocess.run([os.path.join(ROOT, "scripts", "text"), text, *(["--offline"] if self.a.offline else [])],
                              check=False)
        files = sorted(os.path.join(text, f) for f in os.listdir(text) if f.endswith(".txt")) if not done.returncode else []
        if not files:
            raise Failed(f"{text}: scripts/text brought no text; see its message above")
        return files

    def _write_model(self):
        hidden, inner, layers, heads, kv, dim = SIZES[self.a.size]
        model = {"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "vocab_size": 257, "hidden_size": hidden,
                 "intermediate_size": inner, "num_hidden_layers": layers, "num_attention_heads": heads,
                 "num_key_value_heads": kv, "head_dim": dim, "max_position_embeddings": 1024, "rms_norm_eps": 1e-6,
                 "rope_theta": 10000.0, "initializer_range": 0.02, "tie_word_embeddings": True, "hidden_act": "silu",
                 "attention_bias": False, "torch_dtype": "float32"}
        with open(self.model, "w", encoding="utf-8") as f:
            json.dump(model, f, indent=1)
        layer = hidden * dim * (2 * heads + 2 * kv) + 3 * hidden * inner + 2 * hidden + 2 * dim
        self.parameters = 257 * hidden + layers * layer + hidden
        self.tokens = int(self.parameters * self.a.tokens_per_parameter)

    def _remember(self):
        if not os.path.exists(self.csv):
            return
        with open(self.csv, newline="", encoding="utf-8") as f:
            for row in csv.DictReader(f):
                if all(row.get(k) not in (None, "") for k in ("settings", *RESULTS)) and row["curve"].endswith("]"):
                    self.known[row["settings"]] = row_of(row)
        self._end_line()

    def _end_line(self):
        """A row that a kill has torn must not swallow the next one."""
        with open(self.csv, "rb+") as f:
            if f.seek(0, os.SEEK_END) > 0:
                f.seek(-1, os.SEEK_END)
                if f.read(1) != b"\n":
                    f.write(b"\"\r\n" if self._quoted() else b"\r\n")

    def _quoted(self):
        with open(self.csv, encoding="utf-8") as f:
            return f.read().count('"') % 2 == 1

    # ---- runs ------------------------------------------------------------------------------------------
    def key(self, settings):
        s = {"tokens": self.tokens, "precision": self.a.precision, "curve_points": 8 if self.tokens >= 5e5 else 1, **settings}
        return " ".join(f"{k}={s[k]:g}" if isinstance(s[k], float) else f"{k}={s[k]}" for k in sorted(s))

    def all(self, many):
        """Results of these settings, in their order; None for what is not there and may not be run (--table)."""
        futures = {}
        for s in many:
            futures.setdefault(self.key(s), None)
        for k in futures:
            if k not in self.known and not self.a.table:
                futures[k] = self.pool.submit(self._run, k)
        for f in futures.values():
            if f:
                f.result()
        self.missing += sum(k not in self.known for k in futures)
        return [self.known.get(self.key(s)) for s in many]

    def _run(self, key):
        if self.stopped:
            raise Failed("stopped")
        p = subprocess.Popen([self.program, f"data={self.data}", f"model={self.model}", *key.split()],
                             stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        with self.lock:
            self.children.add(p)
        out, err = p.communicate()
        with self.lock:
            self.children.discard(p)
        if p.returncode == 19:  # a rate at which training diverges is a result too: nobody would take it
            result = dict.fromkeys(RESULTS, 0) | {"nll": 99.0, "perplexity": 9e42, "curve": []}
        elif p.returncode:
            raise Failed(f"{key}: ended with {p.returncode}: {err.strip()[-300:]}")
        else:
            result = json.loads(out)
        self._keep(key, result)

    def _keep(self, key, result):
        with self.lock:
            self.known[key] = result
            self.made += 1
            fresh = not os.path.exists(self.csv)
            with open(self.csv, "a", newline="", encoding="utf-8") as f:
                w = csv.writer(f)
                if fresh:
                    w.writerow(("settings", *RESULTS))
                w.writerow((key, *(json.dumps(result[k]) if k == "curve" else result[k] for k in RESULTS)))
                f.flush()
                os.fsync(f.fileno())
            print(f"{time.strftime('%H:%M:%S')}  perplexity {result['perplexity']:8.4f}  {result['seconds']:5.0f} s  "
                  f"{short(key)}", file=sys.stderr, flush=True)

    def stop(self):
        self.stopped = True
        self.pool.shutdown(wait=False, cancel_futures=True)
        with self.lock:
            for p in self.children:
                p.terminate()


def row_of(row):
    out = {k: float(row[k]) for k in RESULTS if k != "curve"}
    out["curve"] = json.loads(row["curve"])
    return out


def short(key):
    leave = ("tokens=", "precision=", "curve_points=")
    return " ".join(w for w in key.split() if not w.startswith(leave))
