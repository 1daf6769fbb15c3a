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
STOPPED = 98.0  # nats, of a run that was given up; 99 where it diverged
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
        self.known, self.made, self.missing, self.given_up, self.seconds = {}, 0, 0, 0, 0.0
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

    def all(self, many, rival=None):
        """Results of these settings, in their order; None for what is not there and may not be run (--table).

        rival: a row of the same arm with another rate. A run that is worse than it beyond what can be made up (bounds)
        is given up on the way, and its loss is STOPPED; without a rival each is run to its end."""
        futures = {}
        stop = bounds(rival)
        for s in many:
            futures.setdefault(self.key(s), None)
        for k in futures:
            if not self.a.table and (k not in self.known or (rival is None and self.known[k]["nll"] == STOPPED)):
                futures[k] = self.pool.submit(self._run, k, stop)
        for f in futures.values():
            if f:
                f.result()
        self.missing += sum(k not in self.known for k in futures)
        return [self.known.get(self.key(s)) for s in many]

    def _run(self, key, stop):
        if self.stopped:
            raise Failed("stopped")
        p = subprocess.Popen([self.program, f"data={self.data}", f"model={self.model}", *key.split(), *stop],
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
        if result.get("stopped"):
            result |= {"nll": STOPPED, "perplexity": 3e42}
        self._keep(key, result)

    def _keep(self, key, result):
        with self.lock:
            self.known[key] = result
            self.made += 1
            self.given_up += result["nll"] == STOPPED
            self.seconds += result["seconds"]
            fresh = not os.path.exists(self.csv)
            with open(self.csv, "a", newline="", encoding="utf-8") as f:
                w = csv.writer(f)
                if fresh:
                    w.writerow(("settings", *RESULTS))
                w.writerow((key, *(json.dumps(result[k]) if k == "curve" else result[k] for k in RESULTS)))
                f.flush()
                os.fsync(f.fileno())
            what = {99.0: "diverges", STOPPED: "given up"}.get(result["nll"], f"{result['perplexity']:8.4f}")
            print(f"{time.strftime('%H:%M:%S')}  perplexity {what:>8}  {result['seconds']:5.0f} s  {short(key)}",
                  file=sys.stderr, flush=True)

    def stop(self):
        self.stopped = True
        self.pool.shutdown(wait=False, cancel_futures=True)
        with self.lock:
            for p in self.children:
                p.terminate()


def bounds(rival):
    """Where a run is given up: at a point of the curve behind the first fifth of the tokens at which it is worse than
    its rival by more than 0.03 nats and 0.2 for the share that is left. A large rate is worse than a small one on the
    way and better at the end, when both are annealed: what is left says how much of it may come back."""
    if not rival or not rival["curve"] or not rival["tokens"]:
        return []
    points = [(t / rival["tokens"], loss) for t, loss in rival["curve"]]
    # A round's end may come a little later than the rival's: the bound holds from its own point on.
    text = ",".join(f"{s - 1e-6:.6f}:{loss + 0.03 + 0.2 * (1 - s):.4f}" for s, loss in points if 0.2 <= s < 1)
    return [f"stop={text}"] if text else []


def row_of(row):
    out = {k: float(row[k]) for k in RESULTS if k != "curve"}
    out["curve"] = json.loads(row["curve"])
    return out


def short(key):
    leave = ("tokens=", "precision=", "curve_points=")
    return " ".join(w for w in key.split() if not w.startswith(leave))
