#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Models that go out are read by others, and those of others come in: make test-models.

    models.py --build build/release [--only PART]       PART of a test's name

PyTorch: test/torch/qwen3.py, a Qwen3 written from its equations with a safetensors reader of its own, must find the mean
loss that `beringia eval` finds on the same tokens, within 1e-4, for tied and untied models in each type, one file or
shards; what PyTorch writes must come back from `init` and `export` bit by bit. llama.cpp: the npm prebuilt, installed into
build/llama, must find the same loss from a GGUF file of F32 within 1e-4, and the same tokens in a text that is in NFC.
The last line is key=value; the status is 1 where something does not hold, and where llama.cpp cannot be had: then nothing
of it was shown."""
import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile

import numpy as np
import qwen3
import torch
from dataset import Dataset

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..")
NEAR = 1e-4
CONFIG = {"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "hidden_size": 96, "intermediate_size": 256,
          "num_hidden_layers": 3, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 32,
          "max_position_embeddings": 512, "rms_norm_eps": 1e-6, "rope_theta": 1e6, "initializer_range": 0.02}
TEXT = "Call me Ishmael. Some years ago\u2014never mind how long precisely\u2014having 12,345 dollars in my purse,\n\n" \
       "  I'd thought I'LL sail; caf\u00e9 na\u00efve \u65e5\u672c\u8a9e \U0001f433!?  tab\tend \r\n  \n x"
TYPES = {"f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16}


class Failed(Exception):
    pass


class Test:
    def __init__(self, build, only):
        self.only = only
        self.beringia = os.path.join(ROOT, build, "beringia")
        self.dir = tempfile.mkdtemp(prefix="brg-models-")
        self.llama, self.why = None, ""
        done = subprocess.run([os.path.join(ROOT, "test/llama/deps"), os.path.join(ROOT, "build/llama")],
                              stdout=subprocess.PIPE, text=True)
        if done.returncode == 0:
            self.llama = done.stdout.split("\n")[0]
            shutil.copy(os.path.join(ROOT, "test/llama/nll.mjs"), self.llama)
        else:
            self.why = done.stdout.strip()
        self.worst, self.failed, self.passed = {"torch": 0.0, "llama": 0.0, "llama_bf16": 0.0}, 0, 0

    def path(self, *words):
        return os.path.join(self.dir, *words)

    def run(self, *words):
        done = subprocess.run([self.beringia, *map(str, words)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        if done.returncode != 0:
            raise Failed(f"beringia {' '.join(map(str, words))}: {done.stderr.strip()}")
        return done.stdout

    def near(self, what, kind, ours, theirs, most=NEAR):
        self.worst[kind] = max(self.worst[kind], abs(ours - theirs))
        print(f"  {what}: {ours:.7f}, {kind} {theirs:.7f}, off by {abs(ours - theirs):.2e}", flush=True)
        if not abs(ours - theirs) <= most:
            raise Failed(f"{what}: {ours} here, {theirs} there")

    def one(self, name, body):
        if self.only not in name:
            return
        try:
            body()
            self.passed += 1
            print(f"ok models_{name}", flush=True)
        except (Failed, ValueError, RuntimeError, KeyError, OSError) as e:
            self.failed += 1
            print(f"FAIL models_{name}\n  {type(e).__name__}: {e}", flush=True)

    # ---- What is tested ----------------------------------------------------------------------------------------------
    def prepare(self):
        with open(os.path.join(ROOT, "share/text/moby-dick.txt"), encoding="utf-8") as f:
            text = f.read()[:150000]
        with open(self.path("text.txt"), "w", encoding="utf-8") as f:
            f.write(text)
        self.run("tokenizer", "train", "--vocab", 1024, "--out", self.path("tok.json"), self.path("text.txt"))
        self.run("pack", "--out", self.path("data"), "--tokenizer", self.path("tok.json"), "--seq-len", 128, "--heldout",
                 0.1, self.path("text.txt"))
        self.data = Dataset(self.path("data"))
        print(f"  {len(self.data.train)} samples to train on, {len(self.data.heldout)} held out")
        if len(self.data.heldout) < 4:
            raise SystemExit("the held-out text is too short for this test")

    def train(self, name, tied):
        with open(self.path(name + ".json"), "w", encoding="utf-8") as f:
            json.dump(dict(CONFIG, vocab_size=1027, tie_word_embeddings=tied), f)  # three rows without a token
        self.run("train", "--central", "--data", self.path("data"), "--model", self.path(name + ".json"), "--out",
                 self.path(name), "--tokens", 12288, "--lr", "3e-3", "--seed", 7)

    def ours(self, directory):
        """Mean loss over the held-out samples, and over the ids of the first two."""
        rows = self.data.heldout
        np.append(rows[0, :-1], rows[1]).astype("<i4").tofile(self.path("ids"))
        heldout = json.loads(self.run("eval", directory, "--data", self.path("data"), "--json"))
        ids = json.loads(self.run("eval", directory, "--ids", self.path("ids"), "--seq-len", 128, "--json"))
        return heldout["nll"], ids["nll"]

    def torch_losses(self, directory):
        model, rows = qwen3.load(directory), torch.from_numpy(self.data.heldout)
        with torch.no_grad():
            heldout = sum(model.loss(rows[i:i + 1]).double().item() for i in range(len(rows))) / len(rows)
        return heldout, qwen3.mean_loss(model, np.fromfile(self.path("ids"), "<i4"), 128)

    def exported(self, name):
        for kind, shard in (("f32", "5G"), ("bf16", "100k"), ("f16", "5G"), ("f32", "300k")):
            out = self.path(f"{name}-{kind}-{shard}")
            self.run("export", self.path(name), "--out", out, "--dtype", kind, "--shard-size", shard)
            for what, ours, theirs in zip(("held out", "ids"), self.ours(out), self.torch_losses(out)):
                self.near(f"{name} as {kind}, shards of {shard}, {what}", "torch", ours, theirs)

    def from_a_run(self):
        """A run's version, not only what `train` wrote."""
        self.run("init", self.path("run"), "--weights", self.path("tied"), "--data", self.path("data"))
        self.run("export", self.path("run"), "--version", 0, "--out", self.path("run-out"))
        a, b = qwen3.read_weights(self.path("tied")), qwen3.read_weights(self.path("run-out"))
        if set(a) != set(b) or any(not torch.equal(a[n], b[n]) for n in a):
            raise Failed("the weights of version 0 are not those that the run began with")
        self.near("run, version 0", "torch", json.loads(self.run("eval", self.path("run"), "--data", self.path("data"),
                                                                  "--json"))["nll"], self.torch_losses(self.path("run-out"))[0])

    def imported(self):
        for number, (kind, shards, tied) in enumerate((k, s, t) for k in TYPES for s in (1, 3) for t in (True, False)):
            name = f"torch-{kind}-{shards}-{tied}"
            model = qwen3.build(dict(CONFIG, vocab_size=1027, tie_word_embeddings=tied), number, noise=0.1)
            qwen3.save(model, self.path(name), TYPES[kind], shards)
            self.run("init", self.path(name + "-run"), "--weights", self.path(name), "--data", self.path("data"))
            self.run("export", self.path(name + "-run"), "--out", self.path(name + "-out"), "--dtype", kind)
            a, b = qwen3.read_weights(self.path(name)), qwen3.read_weights(self.path(name + "-out"))
            if set(a) != set(b) or any(a[n].dtype != b[n].dtype or not torch.equal(a[n], b[n]) for n in a):
                raise Failed(f"{name}: the weights are not the same")
            self.near(name, "torch", self.ours(self.path(name))[0], self.torch_losses(self.path(name))[0])

    def ask_llama(self, gguf, rows, texts):
        job = self.path("job.json")
        with open(job, "w", encoding="utf-8") as f:
            json.dump({"model": gguf, "rows": [list(map(int, r)) for r in rows], "texts": texts}, f)
        done = subprocess.run(["node", "nll.mjs", job], cwd=self.llama, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                              text=True, timeout=600)
        if done.returncode != 0:
            raise Failed(f"llama.cpp cannot read {gguf}: {done.stderr[-1500:]}")
        return json.loads(done.stdout.strip().split("\n")[-1])

    def sharp(self):
        """Large weights: attention and rotation count for whole nats, so a mistake in them cannot hide."""
        config = dict(CONFIG, vocab_size=1027, tie_word_embeddings=False, initializer_range=0.15)
        qwen3.save(qwen3.build(config, 99, noise=0.3), self.path("sharp"))
        shutil.copy(self.path("tok.json"), self.path("sharp", "tokenizer.json"))
        self.run("export", self.path("sharp"), "--out", self.path("sharp-out"), "--shard-size", "1M")
        ours, theirs = self.ours(self.path("sharp-out"))[1], self.torch_losses(self.path("sharp-out"))[1]
        self.near("large weights", "torch", ours, theirs)
        other = qwen3.load(self.path("sharp"))
        other.config["rope_theta"] = 1e4
        wrong = qwen3.mean_loss(other, np.fromfile(self.path("ids"), "<i4"), 128)
        print(f"  with another rotation it would be {wrong:.4f}")
        if abs(wrong - ours) < 100 * NEAR:
            raise Failed("another rotation makes no difference: the comparison shows nothing")

    def in_llama(self, name, kinds=("f32", "bf16")):
        rows, ours = self.data.heldout[:2], self.ours(self.path(name))[1]
        for kind in kinds:
            most = NEAR if kind == "f32" else 10 * NEAR  # with bf16 llama.cpp rounds its activations too
            gguf = self.path(f"{name}-{kind}.gguf")
            self.run("export", self.path(name), "--out", gguf, "--format", "gguf", "--dtype", kind)
            answer = self.ask_llama(gguf, rows, [])
            self.near(f"{name}, GGUF {kind}", "llama" if kind == "f32" else "llama_bf16", ours, answer["nll"], most)

    def in_llama_bytes(self):
        """Plain bytes have no tokenizer file; the GGUF has one all the same."""
        self.run("pack", "--out", self.path("bytes"), "--seq-len", 64, "--heldout", 0.1, self.path("text.txt"))
        with open(self.path("bytes.json"), "w", encoding="utf-8") as f:
            json.dump(dict(CONFIG, vocab_size=257, tie_word_embeddings=True), f)
        self.run("init", self.path("bytes-run"), "--model", self.path("bytes.json"), "--data", self.path("bytes"))
        self.run("export", self.path("bytes-run"), "--out", self.path("bytes.gguf"), "--format", "gguf")
        answer = self.ask_llama(self.path("bytes.gguf"), [], [TEXT])
        if answer["tokens"][0] != list(TEXT.encode()):
            raise Failed(f"{TEXT!r} is {answer['tokens'][0]} for llama.cpp, and not its bytes")

    def tokens_in_llama(self):
        """A text's ids as `pack` writes them, and as llama.cpp finds them with the tokenizer inside the GGUF."""
        for number, text in enumerate((TEXT * 3, open(self.path("text.txt"), encoding="utf-8").read()[5000:9000])):
            file, out = self.path(f"piece{number}.txt"), self.path(f"piece{number}")
            with open(file, "w", encoding="utf-8", newline="") as f:
                f.write(text)
            self.run("pack", "--out", out, "--tokenizer", self.path("tok.json"), "--seq-len", 1, file)
            ids = [int(r[0]) for r in Dataset(out).train]
            theirs = self.ask_llama(self.path("tied-f32.gguf"), [], [text])["tokens"][0]
            if len(ids) < len(theirs) - 2 or ids[:len(theirs) - 2] != theirs[:-2]:
                at = next(i for i, (a, b) in enumerate(zip(ids, theirs)) if a != b)
                raise Failed(f"piece {number}: ids differ at {at}: {ids[at - 2:at + 4]} and {theirs[at - 2:at + 4]}")

    def all(self):
        self.prepare()
        for name in ("tied", "untied"):
            self.train(name, name == "tied")
            self.one("torch_reads_exports_" + name, lambda: self.exported(name))
        self.one("torch_reads_a_run", self.from_a_run)
        self.one("torch_large_weights", self.sharp)
        self.one("torch_writes_and_reads_again", self.imported)
        if self.llama is None:
            self.failed += 1
            print(f"FAIL models_llama\n  {self.why}", flush=True)
        else:
            self.one("llama_reads_gguf_tied", lambda: self.in_llama("tied"))
            self.one("llama_reads_gguf_untied", lambda: self.in_llama("untied"))
            self.one("llama_reads_gguf_large_weights", lambda: self.in_llama("sharp", ("f32",)))
            self.one("llama_finds_the_same_tokens", self.tokens_in_llama)
            self.one("llama_reads_bytes", self.in_llama_bytes)
        print(f"test=models torch_loss_worst={self.worst['torch']:.2e} llama_loss_worst={self.worst['llama']:.2e} "
              f"llama_bf16_loss_worst={self.worst['llama_bf16']:.2e} promise={NEAR} passed={self.passed} "
              f"failed={self.failed}")
        if self.failed == 0:
            shutil.rmtree(self.dir)
        else:
            print(f"kept: {self.dir}")
        return 1 if self.failed else 0


def main():
    args = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    args.add_argument("--build", default="build/release")
    args.add_argument("--only", default="")
    args = args.parse_args()
    torch.set_num_threads(1)  # the matrices are small, and the machine may have other work
    return Test(args.build, args.only).all()


if __name__ == "__main__":
    sys.exit(main())
