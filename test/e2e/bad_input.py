#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Bad input of every kind a person brings: a slip in a file or on the command line, a file that is missing, cut off or
another one's. What must hold: exactly one line on standard error that names the file or field, the exit status of
docs/exit-status.md, and nothing written or changed."""
import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys

BERINGIA, SCRATCH, ROOT = os.environ["BERINGIA"], os.environ["SCRATCH"], os.environ["ROOT"]
TINY = os.path.join(ROOT, "share", "models", "tiny.json")
FAILED = []


def path(*words):
    return os.path.join(SCRATCH, *words)


def beringia(*words):
    return subprocess.run([BERINGIA, *map(str, words)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                          timeout=60)


def tree(directory):
    """Every file with its hash, to see that a refusal left everything as it was."""
    seen = {}
    for where, _, names in os.walk(directory):
        for name in names:
            if name.endswith(("lock", "-wal", "-shm")):  # taken and given back by looking at it
                continue
            with open(os.path.join(where, name), "rb") as f:
                seen[os.path.join(where, name)] = hashlib.sha256(f.read()).hexdigest()
    return seen


def refused(name, status, names, *words):
    """The command must end with `status` and one line that holds every word of `names`."""
    before = tree(SCRATCH)
    done = beringia(*words)
    lines = [x for x in done.stderr.splitlines() if x.strip() and not x.startswith("ts=")]
    wrong = []
    if done.returncode != status:
        wrong.append(f"status {done.returncode} instead of {status}")
    if len(lines) != 1:
        wrong.append(f"{len(lines)} lines instead of 1")
    wrong += [f"does not name {n!r}" for n in names if n not in done.stderr]
    if tree(SCRATCH) != before:
        wrong.append("files have changed")
    if wrong:
        FAILED.append(name)
        print(f"FAIL bad_input_{name}\n  {'; '.join(wrong)}\n  $ beringia {' '.join(map(str, words))}\n  "
              + done.stderr.strip().replace("\n", "\n  "))
    else:
        print(f"ok bad_input_{name}")


def copied(name, source):
    target = path(name)
    shutil.copytree(source, target)
    return target


def edited_json(file, change):
    with open(file, encoding="utf-8") as f:
        content = json.load(f)
    change(content)
    with open(file, "w", encoding="utf-8") as f:
        json.dump(content, f)


def prepare():
    text = path("text.txt")
    with open(text, "w", encoding="utf-8") as f:
        for i in range(80):
            f.write(" ".join(f"word{(i * 7 + k * k) % 50}" for k in range(40)) + "\n<|endoftext|>\n")
    data = path("data")
    for words in (("pack", "--out", data, "--seq-len", "16", "--heldout", "0.1", text),
                  ("tokenizer", "train", "--vocab", "261", "--out", path("tok.json"), text),
                  ("pack", "--out", path("bpe"), "--tokenizer", path("tok.json"), "--seq-len", "16", text),
                  ("init", path("run"), "--model", TINY, "--data", data),
                  ("train", "--central", "--data", data, "--model", TINY, "--out", path("central"), "--tokens", "256",
                   "--batch", "2", "--threads", "1")):
        done = beringia(*words)
        if done.returncode != 0:
            raise SystemExit(f"FAIL bad_input_prepare\n  {done.stderr}")
    return text, data


def shortened():
    """A text that somebody truncates while it is packed: one line and E_IO, where it was SIGBUS and a core dump."""
    if os.environ.get("VARIANT", "release") in ("asan", "tsan"):
        return  # they keep that signal for themselves
    for mib in (16, 64, 256):  # until it is caught in the act
        text = path("shrinks.txt")
        with open(text, "wb") as f:
            for _ in range(mib):
                f.write(b"a line of some words that are packed\n" * (2**20 // 37))
        p = subprocess.Popen([BERINGIA, "pack", "--out", path("shrunk"), "--seq-len", "16", text],
                             stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        while p.poll() is None:
            with open(f"/proc/{p.pid}/maps", encoding="utf-8", errors="replace") as f:
                if "shrinks.txt" in f.read():
                    p.send_signal(signal.SIGSTOP)
                    break
        os.truncate(text, 0)
        if p.poll() is None:
            p.send_signal(signal.SIGCONT)
        said = p.communicate(timeout=60)[1]
        shutil.rmtree(path("shrunk"), ignore_errors=True)
        if p.returncode != 0:
            break
    lines = [x for x in said.splitlines() if not x.startswith("ts=")]
    good = p.returncode == 5 and len(lines) == 1 and "shrinks.txt" in lines[0]
    for name in os.listdir(SCRATCH):
        if "shr" in name:
            shutil.rmtree(path(name), ignore_errors=True)
    os.path.exists(text) and os.unlink(text)
    if not good:
        FAILED.append("text_that_becomes_shorter")
    print(f"{'ok' if good else 'FAIL'} bad_input_text_that_becomes_shorter" + ("" if good else f"\n  {p.returncode} {said}"))


def main():
    text, data = prepare()
    train = ("train", "--central", "--model", TINY, "--out", path("out"), "--tokens", "256", "--data")

    # The command line and settings.
    refused("unknown_command", 2, ["stauts"], "stauts")
    refused("unknown_option", 2, ["--otu"], "pack", "--otu", "x", text)
    refused("missing_text", 4, ["nowhere.txt"], "pack", "--out", path("new"), path("nowhere.txt"))
    refused("unknown_key", 3, ["outer.stps", "outer.steps"], "init", path("new"), "--model", TINY, "--data", data,
            "--set", "outer.stps=3")
    refused("wrong_type", 3, ["outer.steps"], "init", path("new"), "--model", TINY, "--data", data, "--set",
            "outer.steps=many")
    refused("value_without_unit", 3, ["lease.ttl"], "init", path("new"), "--model", TINY, "--data", data, "--set",
            "lease.ttl=30")

    # The model's description.
    model = path("model.json")
    shutil.copy(TINY, model)
    edited_json(model, lambda m: m.update(num_attention_heads="two"))
    refused("model_wrong_type", 24, [model, "num_attention_heads"], "init", path("new"), "--model", model, "--data", data)
    shutil.copy(TINY, model)
    edited_json(model, lambda m: m.update(architectures=["LlamaForCausalLM"], model_type="llama"))
    refused("model_other_architecture", 24, [model], "init", path("new"), "--model", model, "--data", data)
    refused("model_missing", 4, ["absent.json"], "init", path("new"), "--model", path("absent.json"), "--data", data)
    shutil.copy(TINY, model)
    edited_json(model, lambda m: m.update(vocab_size=100))
    refused("model_vocabulary_too_small", 11, ["vocab_size"], "init", path("new"), "--model", model, "--data", data)

    # The data set.
    refused("data_missing", 4, [path("no-data")], *train, path("no-data"))
    broken = copied("short-shard", data)
    shard = os.path.join(broken, "train-00000.tok")
    with open(shard, "r+b") as f:
        f.truncate(os.path.getsize(shard) - 6)
    refused("truncated_shard", 10, ["train-00000.tok"], *train, broken)
    broken = copied("altered-shard", data)
    with open(os.path.join(broken, "train-00000.tok"), "r+b") as f:
        f.seek(100)
        f.write(b"\x01")
    refused("altered_shard", 10, ["train-00000.tok"], *train, broken)
    broken = copied("other-manifest", data)
    edited_json(os.path.join(broken, "manifest.json"), lambda m: m["train"].update(samples=m["train"]["samples"] + 1))
    refused("manifest_does_not_match", 9, ["manifest.json"], *train, broken)
    broken = copied("key-manifest", data)
    edited_json(os.path.join(broken, "manifest.json"), lambda m: m.update(sequence_length=5))
    refused("manifest_unknown_key", 9, ["manifest.json", "sequence_length"], *train, broken)
    broken = copied("other-tokenizer", path("bpe"))
    edited_json(os.path.join(broken, "tokenizer.json"), lambda t: t["model"]["merges"].pop())
    refused("tokenizer_does_not_match", 11, ["tokenizer.json"], *train, broken)
    refused("data_of_another_tokenizer", 24, ["vocab"], *train, path("bpe"))

    # Weights and checkpoints.
    other = copied("other-weights", path("central"))
    config = os.path.join(other, "config.json")
    edited_json(config, lambda m: m.update(intermediate_size=96))
    refused("weights_of_another_model", 24, ["mlp"], "eval", other, "--data", data)
    cut = copied("cut-weights", path("central"))
    weights = os.path.join(cut, "model.safetensors")
    with open(weights, "r+b") as f:
        f.truncate(os.path.getsize(weights) - 100)
    refused("truncated_weights", 12, ["model.safetensors"], "eval", cut, "--data", data)
    refused("init_from_cut_weights", 12, ["model.safetensors"], "init", path("new"), "--model", TINY, "--data", data,
            "--weights", cut)
    refused("version_missing", 4, ["77"], "eval", path("run"), "--version", "77", "--data", data)

    # The run directory.
    refused("no_run", 4, [path("nothing")], "hub", path("nothing"))
    refused("init_over_a_run", 27, [path("run")], "init", path("run"), "--model", TINY, "--data", data)
    broken = copied("cut-head", path("run"))
    blobs = [os.path.join(w, n) for w, _, names in os.walk(os.path.join(broken, "blobs")) for n in names]
    with open(blobs[0], "r+b") as f:
        f.truncate(os.path.getsize(blobs[0]) - 8)
    refused("head_checkpoint_cut", 25, [os.path.basename(blobs[0])], "hub", broken, "--listen", "127.0.0.1:0")
    broken = copied("cut-journal", path("run"))
    with open(os.path.join(broken, "journal.db"), "r+b") as f:
        f.seek(0)
        f.write(b"not a database at all")
    refused("journal_damaged", 18, ["journal.db"], "hub", broken, "--listen", "127.0.0.1:0")
    shortened()
    return 1 if FAILED else 0


if __name__ == "__main__":
    sys.exit(main())
