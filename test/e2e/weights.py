#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# timeout: 200
"""Weights in and out: `beringia init --weights` and `beringia export` against readers and writers of their own.

What goes wrong with formats: a tensor in the wrong place, a rounding that is off by one, a shard that is forgotten, a
damaged file that loads, a file that is replaced, a copy that needs as much memory as the model. What must hold: every
number arrives as the format defines it, in whatever form it came and goes; what is wrong is refused by the names of
tensor and file; an export is there completely or not at all."""
import json
import os
import random
import shutil
import struct
import subprocess
import sys

BERINGIA, SCRATCH = os.environ["BERINGIA"], os.environ["SCRATCH"]
CONFIG = {"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "vocab_size": 260, "hidden_size": 24,
          "intermediate_size": 40, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
          "head_dim": 8, "max_position_embeddings": 64, "rms_norm_eps": 1e-6, "rope_theta": 10000.0,
          "tie_word_embeddings": True}
WIDTH = {"F32": 4, "BF16": 2, "F16": 2}
FAILED = []


def path(*words):
    return os.path.join(SCRATCH, *words)


def beringia(*words, status=0):
    done = subprocess.run([BERINGIA, *map(str, words)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                          timeout=100)
    if done.returncode != status:
        raise AssertionError(f"status {done.returncode}, not {status}: beringia {' '.join(map(str, words))}\n{done.stderr}")
    return done.stderr if status else done.stdout


# ---- Numbers and files, written from the formats' definitions --------------------------------------------------------
def encode(kind, values):
    if kind == "F32":
        return struct.pack(f"<{len(values)}f", *values)
    if kind == "F16":
        return struct.pack(f"<{len(values)}e", *values)  # Python rounds to nearest even
    out = []
    for bits in struct.unpack(f"<{len(values)}I", struct.pack(f"<{len(values)}f", *values)):
        out.append((bits + 0x7FFF + (bits >> 16 & 1)) >> 16)
    return struct.pack(f"<{len(values)}H", *out)


def decode(kind, raw):
    n = len(raw) // WIDTH[kind]
    if kind == "BF16":
        raw = struct.pack(f"<{n}I", *(x << 16 for x in struct.unpack(f"<{n}H", raw)))
    return list(struct.unpack(f"<{n}{'e' if kind == 'F16' else 'f'}", raw))


def write_safetensors(file, tensors, meta=None, change=None):
    head, blobs, at = {"__metadata__": meta or {"format": "pt"}}, [], 0
    for name, (kind, shape, values) in tensors.items():
        raw = encode(kind, values)
        head[name] = {"dtype": kind, "shape": shape, "data_offsets": [at, at + len(raw)]}
        blobs.append(raw)
        at += len(raw)
    if change:
        change(head)
    text = json.dumps(head).encode()
    with open(file, "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text + b"".join(blobs))


def read_safetensors(file):
    with open(file, "rb") as f:
        raw = f.read()
    n = struct.unpack_from("<Q", raw)[0]
    head, out = json.loads(raw[8:8 + n]), {}
    for name, t in head.items():
        if name != "__metadata__" and t["dtype"] in WIDTH:
            begin, end = t["data_offsets"]
            out[name] = (t["dtype"], t["shape"], raw[8 + n + begin:8 + n + end])
    return out


def read_directory(directory):
    index = os.path.join(directory, "model.safetensors.index.json")
    if not os.path.exists(index):
        return read_safetensors(os.path.join(directory, "model.safetensors"))
    with open(index, encoding="utf-8") as f:
        where = json.load(f)
    out = {}
    for file in sorted(set(where["weight_map"].values())):
        for name, t in read_safetensors(os.path.join(directory, file)).items():
            if where["weight_map"][name] != file or name in out:
                raise AssertionError(f"{name}: not where the index says")
            out[name] = t
    if sum(len(t[2]) for t in out.values()) != where["metadata"]["total_size"]:
        raise AssertionError("total_size is not the sum")
    return out


def shapes(c):
    hidden, inner, d = c["hidden_size"], c["intermediate_size"], c["head_dim"]
    q, kv = c["num_attention_heads"] * d, c["num_key_value_heads"] * d
    out = {"model.embed_tokens.weight": [c["vocab_size"], hidden]}
    for i in range(c["num_hidden_layers"]):
        for name, shape in {"input_layernorm": [hidden], "self_attn.q_proj": [q, hidden],
                            "self_attn.k_proj": [kv, hidden], "self_attn.v_proj": [kv, hidden],
                            "self_attn.o_proj": [hidden, q], "self_attn.q_norm": [d], "self_attn.k_norm": [d],
                            "post_attention_layernorm": [hidden], "mlp.gate_proj": [inner, hidden],
                            "mlp.up_proj": [inner, hidden], "mlp.down_proj": [hidden, inner]}.items():
            out[f"model.layers.{i}.{name}.weight"] = shape
    out["model.norm.weight"] = [hidden]
    if not c["tie_word_embeddings"]:
        out["lm_head.weight"] = [c["vocab_size"], hidden]
    return out


def count(shape):
    n = 1
    for x in shape:
        n *= x
    return n


def model(seed, kind, tied):
    """The tensors of a random model: name -> (type, shape, numbers that f32 holds)."""
    rng, out = random.Random(seed), {}
    for name, shape in shapes(dict(CONFIG, tie_word_embeddings=tied)).items():
        values = [(1.0 if len(shape) == 1 else 0.0) + rng.gauss(0, 0.1) for _ in range(count(shape))]
        out[name] = (kind, shape, decode("F32", encode("F32", values)))
    return out


def write_model(directory, tensors, tied, shards=1, config=None):
    os.makedirs(directory)
    with open(os.path.join(directory, "config.json"), "w", encoding="utf-8") as f:
        json.dump(dict(CONFIG, tie_word_embeddings=tied, **(config or {})), f)
    if shards == 1:
        write_safetensors(os.path.join(directory, "model.safetensors"), tensors)
        return
    names, where = list(tensors), {}
    random.Random(shards).shuffle(names)  # shards need not follow the model's order
    for i in range(shards):
        file = f"model-{i + 1:05}-of-{shards:05}.safetensors"
        part = {n: tensors[n] for n in names[i::shards]}
        where.update(dict.fromkeys(part, file))
        write_safetensors(os.path.join(directory, file), part)
    with open(os.path.join(directory, "model.safetensors.index.json"), "w", encoding="utf-8") as f:
        json.dump({"metadata": {"total_size": 0}, "weight_map": where}, f)


# ---- GGUF ------------------------------------------------------------------------------------------------------------
def read_gguf(file):
    with open(file, "rb") as f:
        raw = f.read()
    at = 4

    def take(form):
        nonlocal at
        value = struct.unpack_from("<" + form, raw, at)[0]
        at += struct.calcsize("<" + form)
        return value

    def text():
        nonlocal at
        n = take("Q")
        at += n
        return raw[at - n:at].decode()

    def value(kind):
        if kind == 9:
            inner, n = take("I"), take("Q")
            return [value(inner) for _ in range(n)]
        return text() if kind == 8 else take({4: "I", 5: "i", 6: "f", 7: "?"}[kind])

    if raw[:4] != b"GGUF" or take("I") != 3:
        raise AssertionError("no GGUF of version 3")
    tensors_count, pairs = take("Q"), {}
    for _ in range(take("Q")):
        key = text()
        pairs[key] = value(take("I"))
    infos = []
    for _ in range(tensors_count):
        name = text()
        shape = [take("Q") for _ in range(take("I"))][::-1]
        infos.append((name, shape, {0: "F32", 1: "F16", 30: "BF16"}[take("I")], take("Q")))
    at += -at % 32
    out, expected = {}, 0
    for name, shape, kind, offset in infos:
        size = count(shape) * WIDTH[kind]
        if offset != expected:
            raise AssertionError(f"{name}: offset {offset} instead of {expected}")
        expected = offset + size + -size % 32
        out[name] = (kind, shape, raw[at + offset:at + offset + size])
    if at + expected != len(raw):
        raise AssertionError("the file does not end with its last tensor")
    return pairs, out


def gguf_name(name):
    words = {"input_layernorm": "attn_norm", "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k",
             "self_attn.v_proj": "attn_v", "self_attn.o_proj": "attn_output", "self_attn.q_norm": "attn_q_norm",
             "self_attn.k_norm": "attn_k_norm", "post_attention_layernorm": "ffn_norm", "mlp.gate_proj": "ffn_gate",
             "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down"}
    if not name.startswith("model.layers."):
        return {"model.embed_tokens.weight": "token_embd.weight", "model.norm.weight": "output_norm.weight",
                "lm_head.weight": "output.weight"}[name]
    _, _, layer, rest = name.split(".", 3)
    return f"blk.{layer}.{words[rest[:-len('.weight')]]}.weight"


# ---- Tests -----------------------------------------------------------------------------------------------------------
def same(what, got, tensors, kind, rename=lambda n: n, vectors=None):
    if set(got) != {rename(n) for n in tensors}:
        raise AssertionError(f"{what}: tensors differ: {sorted(set(got) ^ {rename(n) for n in tensors})[:4]}")
    for name, (_, shape, values) in tensors.items():
        want = vectors if vectors and len(shape) == 1 else kind
        if got[rename(name)] != (want, shape, encode(want, values)):
            raise AssertionError(f"{what}: {name} is not what was written")


def prepare():
    with open(path("text.txt"), "w", encoding="utf-8") as f:
        for i in range(60):
            f.write(" ".join(f"word{(i * 7 + k * k) % 50}" for k in range(30)) + "\n<|endoftext|>\n")
    beringia("pack", "--out", path("data"), "--seq-len", 16, "--heldout", 0.1, path("text.txt"))
    beringia("tokenizer", "train", "--vocab", 260, "--out", path("tok.json"), path("text.txt"))
    beringia("pack", "--out", path("bpe"), "--tokenizer", path("tok.json"), "--seq-len", 16, path("text.txt"))


def round_trips():
    """In: three types, one file or shards, tied or not; out: again, from the run and from the directory."""
    ways = [("F32", 1, True), ("BF16", 3, False), ("F16", 2, True), ("F32", 4, False), ("BF16", 1, True), ("F16", 1, False)]
    for number, (kind, shards, tied) in enumerate(ways):
        name = f"{kind}-{shards}-{'tied' if tied else 'untied'}"
        tensors = model(number, kind, tied)
        held = {n: ("F32", s, decode(k, encode(k, v))) for n, (k, s, v) in tensors.items()}  # what the file says
        write_model(path("in", name), tensors, tied, shards)
        beringia("init", path("run", name), "--weights", path("in", name), "--data", path("data"))
        for out in ("f32", "bf16", "f16"):
            size = ["--shard-size", "20k"] if (number + len(out)) % 2 else []
            to = path("out", f"{name}-{out}")
            os.makedirs(path("out"), exist_ok=True)
            beringia("export", path("run", name), "--version", "head" if size else 0, "--out", to, "--dtype", out, *size)
            same(name + " to " + out, read_directory(to), held, out.upper())
            if bool(size) != os.path.exists(os.path.join(to, "model.safetensors.index.json")):
                raise AssertionError(f"{to}: one file and shards are mixed up")
            with open(os.path.join(to, "config.json"), encoding="utf-8") as f:
                config = json.load(f)
            wrong = [k for k in CONFIG if k != "tie_word_embeddings" and config[k] != CONFIG[k]]
            if wrong or config["tie_word_embeddings"] != tied or config["eos_token_id"] != 256:
                raise AssertionError(f"{to}/config.json: {wrong}, {config}")
            if config["torch_dtype"] != {"f32": "float32", "bf16": "bfloat16", "f16": "float16"}[out]:
                raise AssertionError(f"{to}/config.json: torch_dtype")
        again = path("out", name + "-again")
        beringia("export", path("in", name), "--out", again)
        same(name + " from the directory", read_directory(again), held, "F32")
        losses = [json.loads(beringia("eval", d, "--data", path("data"), "--json"))["nll"]
                  for d in (path("run", name), path("in", name), again, path("out", f"{name}-f32"))]
        if len(set(losses)) != 1:
            raise AssertionError(f"{name}: one model has losses {losses}")
        for out in ("f32", "bf16", "f16"):
            file = path("out", f"{name}-{out}.gguf")
            beringia("export", path("run", name), "--out", file, "--format", "gguf", "--dtype", out)
            pairs, got = read_gguf(file)
            same(f"{name} to GGUF {out}", got, held, out.upper(), gguf_name, "F32")
            wish = {"general.architecture": "qwen3", "qwen3.block_count": 2, "qwen3.attention.head_count_kv": 2,
                    "qwen3.attention.key_length": 8, "qwen3.rope.freq_base": 10000.0, "qwen3.context_length": 64,
                    "general.file_type": {"f32": 0, "f16": 1, "bf16": 32}[out], "tokenizer.ggml.eos_token_id": 256}
            wrong = {k: pairs.get(k) for k in wish if pairs.get(k) != wish[k]}
            if wrong or len(pairs["tokenizer.ggml.tokens"]) != 260 or pairs["tokenizer.ggml.tokens"][97] != "a":
                raise AssertionError(f"{file}: {wrong}")


def with_a_tokenizer():
    beringia("init", path("bpe-run"), "--model", write_config("bpe.json", {}), "--data", path("bpe"))
    beringia("export", path("bpe-run"), "--out", path("bpe-out"))
    with open(path("bpe", "tokenizer.json"), "rb") as a, open(path("bpe-out", "tokenizer.json"), "rb") as b:
        if a.read() != b.read():
            raise AssertionError("tokenizer.json is not the data set's")
    beringia("export", path("bpe-run"), "--out", path("bpe-gguf"), "--format", "gguf")
    pairs, _ = read_gguf(path("bpe-gguf", "model.gguf"))
    with open(path("tok.json"), encoding="utf-8") as f:
        tokenizer = json.load(f)
    merges = [m if isinstance(m, str) else " ".join(m) for m in tokenizer["model"]["merges"]]
    if pairs["tokenizer.ggml.merges"] != merges or pairs["tokenizer.ggml.pre"] != "qwen2":
        raise AssertionError("merges or pre-tokenizer differ")
    for token, number in tokenizer["model"]["vocab"].items():
        if pairs["tokenizer.ggml.tokens"][number] != token or pairs["tokenizer.ggml.token_type"][number] != 1:
            raise AssertionError(f"token {token!r} differs")
    # it comes back, and other data does not go with it
    beringia("init", path("bpe-again"), "--weights", path("bpe-out"), "--data", path("bpe"))
    other = dict(tokenizer, model=dict(tokenizer["model"], merges=tokenizer["model"]["merges"][:-1]))
    del other["model"]["vocab"][max(tokenizer["model"]["vocab"], key=tokenizer["model"]["vocab"].get)]
    other["added_tokens"][0]["id"] -= 1
    if "<|endoftext|>" in other["model"]["vocab"]:
        other["model"]["vocab"]["<|endoftext|>"] -= 1
    strange = shutil.copytree(path("bpe-out"), path("strange"))
    with open(os.path.join(strange, "tokenizer.json"), "w", encoding="utf-8") as f:
        json.dump(other, f)
    said = beringia("init", path("new"), "--weights", strange, "--data", path("bpe"), status=11)
    if "strange/tokenizer.json" not in said:
        raise AssertionError(said)
    # a pattern that llama.cpp has no name for
    other = json.loads(json.dumps(tokenizer))
    other["pre_tokenizer"] = {"type": "Sequence", "pretokenizers": [
        {"type": "Split", "pattern": {"Regex": "\\s+"}, "behavior": "Isolated", "invert": False},
        {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": False}]}
    with open(os.path.join(strange, "tokenizer.json"), "w", encoding="utf-8") as f:
        json.dump(other, f)
    said = beringia("export", strange, "--out", path("new.gguf"), "--format", "gguf", status=11)
    if "pre_tokenizer" not in said or os.path.exists(path("new.gguf")):
        raise AssertionError(said)


def write_config(name, change):
    with open(path(name), "w", encoding="utf-8") as f:
        json.dump(dict(CONFIG, **change), f)
    return path(name)


def central():
    """What `beringia train` writes can be exported, and trained on from."""
    beringia("train", "--central", "--data", path("data"), "--model", write_config("c.json", {}), "--out",
             path("central"), "--tokens", 512, "--threads", 1)
    beringia("export", path("central"), "--out", path("central-bf16"), "--dtype", "bf16")
    beringia("export", path("central"), "--out", path("central.gguf"), "--format", "gguf")
    beringia("train", "--central", "--data", path("data"), "--weights", path("central-bf16"), "--out",
             path("central-2"), "--tokens", 512, "--threads", 1)
    a, b = read_directory(path("central")), read_gguf(path("central.gguf"))[1]
    if any(b[gguf_name(n)] != t for n, t in a.items()):
        raise AssertionError("GGUF differs from the trained weights")


def refused(directory, status, *names, command="init"):
    before = sorted(os.listdir(SCRATCH))
    words = (["init", path("new"), "--weights", directory, "--data", path("data")] if command == "init"
             else ["export", directory, "--out", path("new")])
    said = beringia(*words, status=status)
    missing = [n for n in names if n not in said]
    if missing or said.count("\n") != 1 or sorted(os.listdir(SCRATCH)) != before:
        raise AssertionError(f"{directory}: does not name {missing}, or left something behind:\n{said}")


def bad_directories():
    good, where = model(1, "F32", True), path("bad")
    o = "model.layers.1.self_attn.o_proj.weight"

    def single(name, change=None, head=None, config=None):
        tensors = dict(good)
        if change:
            change(tensors)
        write_model(os.path.join(where, name), tensors, True, 1, config)
        if head:
            write_safetensors(os.path.join(where, name, "model.safetensors"), tensors, None, head)
        return os.path.join(where, name)

    def put(name, value):
        return lambda tensors: tensors.__setitem__(name, value)

    def span(begin, end):
        return lambda head: head[o].update(data_offsets=[head[o]["data_offsets"][0] + begin,
                                                         head[o]["data_offsets"][1] + end])
    refused(single("missing", lambda t: t.pop(o)), 24, o, "missing/model.safetensors")
    refused(single("unknown", put("model.layers.2.mlp.up_proj.weight", ("F32", [1], [0.0]))), 24,
            "model.layers.2.mlp.up_proj.weight", "unknown/model.safetensors")
    refused(single("misshapen", put(o, ("F32", [32, 24], good[o][2]))), 24, o, "misshapen/model.safetensors")
    refused(single("nan", put(o, ("F32", good[o][1], good[o][2][:-1] + [float("nan")]))), 19, o, "767", "nan/model.safetensors")
    refused(single("infinite", put(o, ("F16", good[o][1], [float("inf")] + good[o][2][1:]))), 19, o, "element 0")
    refused(single("overlapping", head=span(-4, -4)), 12, o, "overlapping/model.safetensors")
    refused(single("gap", head=span(4, 4)), 12, o, "gap/model.safetensors")
    refused(single("size", head=lambda h: h[o].update(shape=[24, 33])), 12, o, "size/model.safetensors")
    refused(single("type", head=lambda h: h[o].update(dtype="F8_E4M3")), 12, o, "type/model.safetensors")
    cut = single("cut")
    with open(os.path.join(cut, "model.safetensors"), "r+b") as f:
        f.truncate(os.path.getsize(f.name) - 1)
    refused(cut, 12, "cut/model.safetensors", "model.norm.weight")
    double = single("double")
    with open(os.path.join(double, "model.safetensors"), "r+b") as f:
        text = f.read()
        f.seek(0)
        f.write(text.replace(b"model.layers.0.mlp.gate_proj.weight", b"model.layers.0.mlp.down_proj.weight"))
    refused(double, 12, "model.layers.0.mlp.down_proj.weight", "double/model.safetensors")
    refused(single("other", config={"model_type": "llama"}), 24, "other/config.json", "model_type", command="export")
    empty = path("empty")
    os.makedirs(empty)
    refused(empty, 4, "empty/config.json")
    shutil.copy(os.path.join(double, "config.json"), empty)
    refused(empty, 4, "model.safetensors.index.json")
    shards = os.path.join(where, "shards")
    write_model(shards, good, True, 3)
    index = os.path.join(shards, "model.safetensors.index.json")
    with open(index, encoding="utf-8") as f:
        content = json.load(f)
    one, two = content["weight_map"][o], sorted(set(content["weight_map"].values()) - {content["weight_map"][o]})[0]

    def edited(change, *names, status=12):
        edit = json.loads(json.dumps(content))
        change(edit["weight_map"])
        with open(index, "w", encoding="utf-8") as f:
            json.dump(edit, f)
        refused(shards, status, *names)
        refused(shards, status, *names, command="export")
    edited(lambda m: m.pop(o), o, one)
    edited(lambda m: m.update({o: two}), o, two)
    edited(lambda m: m.update({"model.layers.7.x.weight": two}), "model.layers.7.x.weight", two)
    edited(lambda m: m.update({o: "../" + one}), o, "model.safetensors.index.json")
    os.rename(os.path.join(shards, two), os.path.join(shards, "away"))
    edited(lambda m: None, two, status=4)
    write_model(path("mute"), good, True)
    said = beringia("export", path("mute"), "--out", path("new.gguf"), "--format", "gguf", status=4)
    if "mute/tokenizer.json" not in said or os.path.exists(path("new.gguf")):
        raise AssertionError(said)
    # --model and the directory's config.json
    said = beringia("init", path("new"), "--weights", double, "--data", path("data"), "--model",
                    write_config("wide.json", {"rope_theta": 5e5}), status=24)
    if "rope_theta" not in said:
        raise AssertionError(said)


def never_replaced_never_damaged():
    beringia("init", path("r"), "--model", write_config("m.json", {}), "--data", path("data"))
    beringia("export", path("r"), "--out", path("full"))
    beringia("export", path("r"), "--out", path("full"), status=27)
    beringia("export", path("r"), "--out", path("full") + "/", status=27)
    with open(path("kept.gguf"), "w", encoding="utf-8") as f:
        f.write("mine")
    beringia("export", path("r"), "--out", path("kept.gguf"), "--format", "gguf", status=27)
    beringia("export", path("r"), "--out", path("kept.gguf"), status=27)
    with open(path("kept.gguf"), encoding="utf-8") as f:
        if f.read() != "mine":
            raise AssertionError("a file was replaced")
    os.makedirs(path("hollow"))
    beringia("export", path("r"), "--out", path("hollow"))
    beringia("export", path("r"), "--out", path("nowhere", "deep"), status=0)
    # a bit that turned in the checkpoint, which is finite still
    blob = next(os.path.join(w, n) for w, _, names in os.walk(path("r", "blobs")) for n in names)
    with open(blob, "r+b") as f:
        n = struct.unpack("<Q", f.read(8))[0]
        f.seek(8 + n + 400)
        byte = f.read(1)[0]
        f.seek(8 + n + 400)
        f.write(bytes([byte ^ 1]))
    for words in (["--out", path("turned")], ["--out", path("turned.gguf"), "--format", "gguf"]):
        said = beringia("export", path("r"), *words, status=25)
        if os.path.basename(blob) not in said and "0.safetensors" not in said:
            raise AssertionError(said)
    # f16 ends at 65504
    big = model(2, "F32", True)
    name = "model.layers.0.mlp.up_proj.weight"
    big[name][2][17] = 65520.0
    write_model(path("big"), big, True)
    said = beringia("export", path("big"), "--out", path("turned"), "--dtype", "f16", status=19)
    if name not in said or "17" not in said:
        raise AssertionError(said)
    big[name][2][17] = 65519.0
    write_safetensors(path("big", "model.safetensors"), big)
    beringia("export", path("big"), "--out", path("fits"), "--dtype", "f16")
    left = [n for n in os.listdir(SCRATCH) if "partial" in n or n.startswith("turned")]
    if left:
        raise AssertionError(f"left behind: {left}")


def own_model():
    """A trainer of somebody's own: the run knows tensors, and no Qwen3."""
    rng = random.Random(9)
    tensors = {"w": ("F32", [3, 5, 2], [rng.random() for _ in range(30)]), "b": ("F32", [7], [rng.random() for _ in range(7)])}
    write_safetensors(path("own.safetensors"), tensors)
    beringia("init", path("own"), "--weights-file", path("own.safetensors"), "--data", path("data"))
    beringia("export", path("own"), "--out", path("own-out"), "--dtype", "bf16")
    same("own", read_directory(path("own-out")), tensors, "BF16")
    beringia("export", path("own"), "--out", path("own.gguf"), "--format", "gguf", status=24)


def memory():
    """The copy of a model of 48 MB, within far less."""
    beringia("init", path("large"), "--data", path("data"), "--model",
             write_config("large.json", {"vocab_size": 1200, "hidden_size": 512, "intermediate_size": 2048,
                                         "num_hidden_layers": 3, "num_attention_heads": 8, "head_dim": 64,
                                         "num_key_value_heads": 4}))
    for words in (["--out", path("large-hf")], ["--out", path("large.gguf"), "--format", "gguf"]):
        pid = os.spawnv(os.P_NOWAIT, BERINGIA, [BERINGIA, "export", path("large"), *words])
        _, status, usage = os.wait4(pid, 0)
        if status != 0 or usage.ru_maxrss > 24 * 1024:
            raise AssertionError(f"status {status}, {usage.ru_maxrss} kB of memory")


def main():
    prepare()
    tests = [round_trips, with_a_tokenizer, central, bad_directories, never_replaced_never_damaged, own_model]
    if os.environ.get("VARIANT", "release") == "release":
        tests.append(memory)
    else:
        print("skip weights_memory: sanitizers have memory of their own")
    for test in tests:
        try:
            test()
            print(f"ok weights_{test.__name__}", flush=True)
        except (AssertionError, subprocess.TimeoutExpired, OSError, KeyError, struct.error) as e:
            FAILED.append(test.__name__)
            print(f"FAIL weights_{test.__name__}\n  " + f"{type(e).__name__}: {e}".replace("\n", "\n  "), flush=True)
    return 1 if FAILED else 0


if __name__ == "__main__":
    sys.exit(main())
