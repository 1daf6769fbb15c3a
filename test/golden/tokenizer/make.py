#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Makes the golden files of this directory, with the program (for training only) and the npm registry:

    test/golden/tokenizer/make.py build/release/beringia

  NAME-small.json   a tokenizer of about 700 ids in the form of NAME, its merges learnt from the sample text
  NAME-small.txt    texts and their ids by that file;   NAME.txt the same by the published file of NAME
  test/fuzz/seeds/tokenizer/NAME.json   the same form with 6 merges

A line of a .txt is: the text in hexadecimal ("-" where it is empty), after ">" what decoding gives where
that is another, then the ids. The ids are those of Hugging Face's Rust library; what decoding gives is
Python's: form C by unicodedata, ill-formed bytes by bytes.decode(errors="replace"). Without a normalizer
bytes that are no UTF-8 come back as they are, which the Rust library has no way to say; no such texts
stand in those files."""
import json
import os
import subprocess
import sys
import tempfile
import unicodedata

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(os.path.dirname(os.path.dirname(HERE)), "tokenizer"))
import published  # noqa: E402
import texts  # noqa: E402

LLAMA3 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|"
          r"\s+(?!\S)|\s+")
QWEN3 = LLAMA3.replace("{1,3}", "")


def level(**changes):
    return dict({"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": False}, **changes)


def split(pattern):
    return {"type": "Sequence", "pretokenizers": [
        {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}, level()]}


def added(names, start, **changes):
    return [dict({"id": start + i, "content": n, "single_word": False, "lstrip": False, "rstrip": False,
                  "normalized": False, "special": True}, **changes) for i, n in enumerate(names)]


def qwen3(vocab, merges):
    n = len(vocab)
    return {"version": "1.0", "truncation": None, "padding": None,
            "added_tokens": added(["<|endoftext|>", "<|im_start|>", "<|im_end|>"], n)
            + added(["<tool_call>", "</tool_call>", "<think>", "</think>"], n + 3, special=False),
            "normalizer": {"type": "NFC"}, "pre_tokenizer": split(QWEN3), "post_processor": level(),
            "decoder": level(),
            "model": {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": "",
                      "end_of_word_suffix": "", "fuse_unk": False, "byte_fallback": False, "ignore_merges": False,
                      "vocab": vocab, "merges": [m.split(" ") for m in merges]}}


def llama3(vocab, merges):
    """Entries that no merge makes, as ignore_merges wants them to be found, at the end of the vocabulary."""
    vocab = dict(vocab)
    for word in ("\u0120Ishmael", "whale", "\u0120leviathan", "\u00e4\u00b8\u0143\u00e6\u0138\u0129"):
        vocab.setdefault(word, len(vocab))
    n = len(vocab)
    bos = {"SpecialToken": {"id": "<|begin_of_text|>", "type_id": 0}}
    return {"version": "1.0", "truncation": None, "padding": None,
            "added_tokens": added(["<|begin_of_text|>", "<|end_of_text|>", "<|eot_id|>"], n),
            "normalizer": None, "pre_tokenizer": split(LLAMA3),
            "post_processor": {"type": "Sequence", "processors": [
                level(add_prefix_space=True, use_regex=True),
                {"type": "TemplateProcessing", "single": [bos, {"Sequence": {"id": "A", "type_id": 0}}],
                 "pair": [bos, {"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
                 "special_tokens": {"<|begin_of_text|>": {"id": "<|begin_of_text|>", "ids": [n],
                                                         "tokens": ["<|begin_of_text|>"]}}}]},
            "decoder": level(add_prefix_space=True, trim_offsets=True, use_regex=True),
            "model": {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None,
                      "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False, "ignore_merges": True,
                      "vocab": vocab, "merges": merges}}


def gpt2(vocab, merges):
    """The last entry of the vocabulary ends a text, and is an added token that is normalized."""
    vocab = dict(vocab)
    vocab["<|endoftext|>"] = len(vocab)
    out = published.gpt2(vocab, merges)
    out["added_tokens"][0]["id"] = len(vocab) - 1
    return out


def train(program, directory):
    out = os.path.join(directory, "trained.json")
    sample = os.path.join(published.ROOT, "share", "text", "README")
    corpus = os.path.join(directory, "corpus.txt")
    with open(corpus, "w", encoding="utf-8") as f:
        f.write(open(sample, encoding="utf-8").read())
        for name in ("README.md", "ARCHITECTURE.md", "docs/glossary.md", "docs/hacking.md"):
            f.write(open(os.path.join(published.ROOT, name), encoding="utf-8").read())
        f.write(" caf\u00e9 na\u00efve \u4e2d\u6587 \u4e2d\u6587 caf\u00e9 na\u00efve" * 20)
    subprocess.run([program, "tokenizer", "train", "--vocab", "700", "--out", out, corpus], check=True,
                   stdout=subprocess.DEVNULL)
    with open(out, encoding="utf-8") as f:
        model = json.load(f)["model"]
    return model["vocab"], model["merges"]


def hexed(b):
    return b.hex() or "-"


def pairs(tokenizer, out, count, seed):
    with open(tokenizer, encoding="utf-8") as f:
        conf = json.load(f)
    names = [a["content"] for a in conf["added_tokens"][:30]]
    raw = [t.encode() for t in texts.CHOSEN + texts.random_texts(count, seed, names)]
    if conf["normalizer"] is not None:
        raw += texts.ill_formed(60, seed)
    ids = published.peer_ids(tokenizer, [b.decode(errors="replace") for b in raw])
    lines = []
    form = conf["normalizer"] is not None
    for b, i in zip(raw, ids, strict=True):
        d = unicodedata.normalize("NFC", b.decode(errors="replace")).encode() if form else b
        lines.append(" ".join([hexed(b) + (">" + hexed(d) if d != b else "")] + [str(x) for x in i]) + "\n")
    with open(os.path.join(HERE, out), "w", encoding="ascii") as f:
        f.writelines(lines)
    print(out, len(lines))


def tiny(conf, out):
    """The same with 6 merges only: a seed for test/fuzz/fuzz_tokenizer.c."""
    model = conf["model"]
    names = sorted(model["vocab"], key=model["vocab"].get)
    kept = names[:262] + [a["content"] for a in conf["added_tokens"] if a["content"] in model["vocab"]]
    model["vocab"] = {n: i for i, n in enumerate(kept)}
    model["merges"] = [m for m in model["merges"] if "".join(m if isinstance(m, list) else m.split(" "))
                       in model["vocab"]]
    for i, a in enumerate(conf["added_tokens"]):
        a["id"] = model["vocab"].get(a["content"], len(kept) + i)
    for step in (conf["post_processor"] or {}).get("processors", []):
        for token in step.get("special_tokens", {}).values():
            token["ids"] = [a["id"] for a in conf["added_tokens"] if a["content"] == token["id"]]
    with open(os.path.join(published.ROOT, "test", "fuzz", "seeds", "tokenizer", out), "w", encoding="utf-8") as f:
        json.dump(conf, f, ensure_ascii=False, separators=(",", ":"))


def main():
    with tempfile.TemporaryDirectory() as directory:
        vocab, merges = train(sys.argv[1], directory)
    for name, make in (("qwen3", qwen3), ("llama3", llama3), ("gpt2", gpt2)):
        with open(published.small(name), "w", encoding="utf-8") as f:
            json.dump(make(vocab, merges), f, ensure_ascii=False, separators=(",", ":"))
            f.write("\n")
        with open(published.small(name), encoding="utf-8") as f:
            tiny(json.load(f), f"{name}.json")
        pairs(published.small(name), f"{name}-small.txt", 240, 1)
        pairs(published.get(name), f"{name}.txt", 240, 2)


if __name__ == "__main__":
    main()
