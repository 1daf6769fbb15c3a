# SPDX-License-Identifier: Apache-2.0
# timeout: 3600
"""A PyTorch loop through its life, against a live hub: workers of a DataLoader, accumulation, weights that live elsewhere
(the path of a GPU, without one), bf16 with f32 masters, SIGTERM, kill -9, exceptions, a loss that is no number, an end
without close. What must hold: every position once, state comes back, each misuse is a clear exception."""
import json
import os
import re
import signal
import subprocess
import sys
import threading

import torch
from torch.utils.data import DataLoader

import kit
from kit import begin, finish, log_of, say, start, wait_for

import beringia
import beringia.torch
from beringia import ModelError, UsageError
from model import Qwen3, decayed


BETAS = (0.9, 0.95)  # the run's. With PyTorch's own the hub refuses the larger steps, which come when a loss falls fast


def config():
    with open(kit.TINY, encoding="utf-8") as f:
        return json.load(f)


def whole_run(keep, name, *words, chars=60000, **more):
    c = begin(name, kit.pack(chars), **more)
    keep(c)
    start(c, "p", "--model", kit.TINY, *words)
    finish(c)
    return c


def last_loss(c):
    found = re.findall(r"^step \d+ loss ([0-9.]+)", log_of(c, "p"), re.M)
    return float(found[0]), float(found[-1])


def workers_and_accumulation(keep):
    c = whole_run(keep, "workers", "--workers", 2, "--batch", 2, "--accumulate", 4)
    first, last = last_loss(c)
    say("loop_with_workers_and_accumulation", last < first - 1 and "complete=True" in log_of(c, "p"), (first, last))


def weights_elsewhere(keep):
    c = whole_run(keep, "elsewhere", "--elsewhere", settings={"outer.steps": 20})
    first, last = last_loss(c)
    copies = int(re.search(r"copies=(\d+)", log_of(c, "p")).group(1))
    rounds = len(re.findall(r"ev=handed_in", log_of(c, "p")))
    saved = len(re.findall(r"ev=rebased", log_of(c, "p")))
    print(f"elsewhere copies={copies} handed_in={rounds} rebased={saved}")
    say("loop_with_weights_elsewhere_learns", last < first - 1, (first, last))
    # One out at each hand-in, one out and one in at each rebase, a first one in, and local checkpoints once a second.
    say("loop_copies_the_model_only_where_something_is_due", copies <= rounds + 2 * saved + 30, (copies, rounds, saved))


def bf16_with_masters(keep):
    c = whole_run(keep, "bf16", "--dtype", "bfloat16")
    first, last = last_loss(c)
    say("loop_in_bf16_with_f32_masters", last < first - 1, (first, last))


def weights_gathered_and_spread(keep):
    """The path of FSDP (gather, hand in, spread) over two ranks that have the whole model each, for PyTorch 1.13, which
    shards on CUDA only. test_fsdp.py has the real one."""
    c = begin("sharded", kit.pack(60000))
    keep(c)
    start(c, "p", "--model", kit.TINY, "--batch", 4, "--sharded", ranks=2)
    finish(c)
    first, last = last_loss(c)
    say("loop_weights_gathered_and_spread_over_ranks", last < first - 1, (first, last))


def ends_and_comes_back(keep):
    """SIGTERM, then kill -9, then to the end: the same optimizer state goes on."""
    c = begin("back", kit.pack(160000))
    keep(c)
    for i, sig in enumerate((kit.TERM, kit.KILL)):
        p = start(c, "p", "--model", kit.TINY, "--workers", i * 2, "--nap", 0.05)
        wait_for("some steps", lambda n=i: log_of(c, "p").count("step 30 ") > n, kit.LONG, each=c.check_processes)
        p.send_signal(sig)
        code = p.wait(timeout=kit.LONG)
        c.sites.pop("p")
        if sig == kit.TERM:
            say("loop_sigterm_ends_in_good_order", code == 0 and "draining=True" in log_of(c, "p"), code)
    start(c, "p", "--model", kit.TINY)
    finish(c)
    joined = [tuple(map(int, x)) for x in re.findall(r"joined rank=0 steps=(\d+) moments=(\d+)", log_of(c, "p"))]
    good = len(joined) == 3 and joined[0] == (0, 0) and 30 <= joined[1][0] and joined[1][0] < joined[2][0] and \
        all(s == m for s, m in joined)
    say("loop_comes_back_with_its_moments_after_sigterm_and_kill_9", good, joined)


def exceptions(keep):
    c = begin("thrown", kit.pack(110000))
    keep(c)
    p = start(c, "p", "--model", kit.TINY, "--fail-at", 25)
    code = p.wait(timeout=kit.LONG)
    c.sites.pop("p")
    say("loop_an_exception_is_the_users", code == 1 and "KeyError: 'in the middle of a step'" in log_of(c, "p"), code)
    say("loop_an_exception_gives_the_segment_up", "ev=weights_reset" in log_of(c, "p"))
    p = start(c, "p", "--model", kit.TINY, "--nan-at", 15)
    code = p.wait(timeout=kit.LONG)
    c.sites.pop("p")
    say("loop_a_loss_that_is_no_number_is_told", code == 1 and "NonFiniteError: the loss is nan" in log_of(c, "p"), code)
    p = start(c, "p", "--model", kit.TINY, "--break-at", 12, "--fail-at", -2)
    code = p.wait(timeout=kit.LONG)
    c.sites.pop("p")
    p = start(c, "p", "--model", kit.TINY, "--nap", 0.05)
    wait_for("some steps", lambda: log_of(c, "p").count("step 10 ") > 3, kit.LONG, each=c.check_processes)
    p.send_signal(kit.INT)
    code = p.wait(timeout=kit.LONG)
    c.sites.pop("p")
    say("loop_ctrl_c_ends_it", code not in (0, None) and "KeyboardInterrupt" in log_of(c, "p"), code)
    start(c, "p", "--model", kit.TINY)
    finish(c)
    say("loop_and_the_audit_is_clean", True)


def interrupted_at_any_time(keep):
    """Ctrl-C while it joins, between two steps, in a worker's turn, while a contribution is on its way, and while close
    waits for a hub that does not answer. It always ends, soon, and nothing counts twice."""
    c = begin("interrupted", kit.pack(220000))
    keep(c)
    seen = {"at_once": lambda: os.path.exists(os.path.join(c.out, "site-p", "lock")),
            "as_it_joins": lambda: log_of(c, "p").count("joined rank=0") > len(codes) - 1,
            "in_its_loop": lambda: log_of(c, "p").count("step 10 ") > 0,
            "with_workers": lambda: log_of(c, "p").count("step 10 ") > 1,
            "while_it_hands_in": lambda: log_of(c, "p").count("ev=handed_in") > handed}
    codes = []
    for when, condition in seen.items():
        handed = log_of(c, "p").count("ev=handed_in") if codes else 0
        p = start(c, "p", "--model", kit.TINY, "--grace", 5, "--workers", 2 if when == "with_workers" else 0, "--nap", 0.05)
        wait_for(when, condition, kit.LONG, each=c.check_processes)
        p.send_signal(kit.INT)
        codes.append(p.wait(timeout=kit.LONG))
        c.sites.pop("p")
    say("loop_ctrl_c_ends_it_at_any_time", 0 not in codes, codes)
    p = start(c, "p", "--model", kit.TINY, "--grace", 5, "--nap", 0.05, "--tell")
    wait_for("steps that are not handed in", lambda: re.search(r"segment_steps=[2-5]\n$", log_of(c, "p")), kit.LONG,
             each=c.check_processes)
    c.hub.send_signal(signal.SIGSTOP)
    try:
        handed = log_of(c, "p").count("ev=handed_in")
        p.send_signal(kit.TERM)  # it closes, and nobody answers
        wait_for("its close", lambda: log_of(c, "p").count("ev=handed_in") > handed or p.poll() is not None, kit.LONG)
        p.send_signal(kit.INT)
        code = p.wait(timeout=kit.LONG)
    finally:
        c.hub.send_signal(signal.SIGCONT)
    c.sites.pop("p")
    say("loop_ctrl_c_in_close", code != 0, code)
    start(c, "p", "--model", kit.TINY)
    finish(c)
    say("loop_and_the_audit_is_clean_after_all_that", True)


def without_close(keep):
    c = begin("unclosed", kit.pack(60000))
    keep(c)
    code = ("import sys, json, torch, beringia.torch\nfrom model import Qwen3, decayed\n"
            "m = Qwen3(json.load(open(sys.argv[1])))\no = torch.optim.AdamW(decayed(m, 0.1), lr=1e-3, betas=(0.9, 0.95))\n"
            "r = beringia.torch.join(m, o)\ns = r.scheduler(o)\nfor n, b in enumerate(r.batches()):\n"
            "    l = m(b); l.backward(); o.step(); o.zero_grad(); r.step(m, l); s.step()\n    if n == 4: break\n")
    env = dict(os.environ, PYTHONPATH=os.pathsep.join(sys.path[:3]), BERINGIA_HUB=c.url, BERINGIA_NAME="u",
               BERINGIA_DATA=c.data, BERINGIA_STATE=os.path.join(c.out, "u"))
    done = subprocess.run([sys.executable, "-c", code, kit.TINY], env=env, capture_output=True, text=True, timeout=kit.LONG,
                          check=False)
    s = c.status()["counts"]
    say("loop_an_end_without_close_closes", done.returncode == 0 and "without closing" in done.stderr and
        s["staged"] + s["merged"] == 40, f"{s} {done.stderr[-300:]}")


def the_examples_run(keep):
    c = begin("examples", kit.pack(110000))
    keep(c)
    here = os.path.join(kit.ROOT, "examples", "pytorch")
    start(c, "j", kit.TINY, c.data, script=os.path.join(here, "joined.py"))
    start(c, "d", kit.TINY, ranks=2, script=os.path.join(here, "ddp.py"))
    finish(c)
    say("loop_the_examples_run", "step 10 loss" in log_of(c, "j") and "result=OK" in log_of(c, "d"))


# ---- In this process ------------------------------------------------------------------------------------------------
def raises(kind, words, act):
    try:
        act()
    except kind as e:
        return "" if words in str(e) else f"the words are: {e}"
    except BaseException as e:  # pylint: disable=broad-except
        return f"{type(e).__name__}: {e}"
    return "nothing was raised"


def bad_use(keep):
    c = begin("bad", kit.pack(60000))
    keep(c)
    beringia.log_level("error")

    def join(model, name="bad", optimizer=None, **words):
        return beringia.torch.join(model, optimizer, hub=c.url, name=name, data=c.data, batch_size=4,
                                   state=os.path.join(c.out, "site-" + name), **words)

    def told(name, kind, words, act):
        text = raises(kind, words, act)
        say("bad_use_" + name, not text, text)
    other = dict(config(), hidden_size=48)
    told("another_model", ModelError, "model.embed_tokens.weight: is [257, 48]", lambda: join(Qwen3(other)))
    told("another_depth", ModelError, "layers.1", lambda: join(Qwen3(dict(config(), num_hidden_layers=1))))
    told("an_untied_head", ModelError, "ties lm_head", lambda: join(Qwen3(dict(config(), tie_word_embeddings=False))))
    told("other_names", ModelError, "rename", lambda: join(torch.nn.Linear(3, 3)))
    m = Qwen3(config())
    a, b = m.model.layers[0].mlp, m.model.layers[1].mlp
    b.gate_proj.weight.data = a.gate_proj.weight.data
    told("shared_memory", ModelError, "share memory", lambda: join(m))
    told("no_hub_given", UsageError, "BERINGIA_HUB", lambda: beringia.torch.join(m))
    told("bf16_without_optimizer", UsageError, "masters", lambda: join(Qwen3(config()).bfloat16()))
    m = Qwen3(config())
    o = torch.optim.AdamW(decayed(m, 0.1), lr=1e-3, betas=BETAS)
    w = m.model.layers[0].mlp.down_proj.weight
    w.data = w.data.t().contiguous().t()  # not contiguous; must come in right all the same
    run = join(m, optimizer=o)
    from_hub = kit.theta(os.path.join(c.run_dir, "versions", "0.safetensors"))
    have = torch.cat([x.flatten() for x in run.state_dict().values()])
    say("loop_non_contiguous_parameters_come_in_right", torch.equal(have, from_hub) and w.is_contiguous())
    say("loop_state_is_views_not_copies", run.state_dict()["model.norm.weight"].data_ptr() == m.model.norm.weight.data_ptr())
    told("join_twice", UsageError, "joined a run already", lambda: join(m, "bad2"))
    told("two_of_one_directory", beringia.BusyError, "", lambda: join(Qwen3(config())))
    told("a_step_without_a_batch", UsageError, "without a whole batch", lambda: run.step(m, 1.0))
    told("a_loader_that_batches", UsageError, "batch_size=None",
         lambda: next(run.batches(DataLoader(run.dataset(), batch_size=4))))
    told("somebody_elses_data_set", UsageError, "run.dataset()", lambda: next(run.batches(DataLoader([1, 2]))))
    told("workers_without_leases", UsageError, "run.batches(loader)",
         lambda: next(iter(DataLoader(run.dataset(), batch_size=None, num_workers=1))))
    told("weights_into_a_run", UsageError, "from its hub", lambda: run.load_state_dict({}))
    next(iter(run.batches()))
    told("another_model_at_step", UsageError, "not the model", lambda: run.step(torch.nn.Linear(2, 2), 1.0))
    keep_data = m.model.norm.weight.data
    m.model.norm.weight.data = keep_data.clone()
    told("memory_exchanged", UsageError, "model.norm.weight: its memory was exchanged", lambda: run.step(m, 1.0))
    m.model.norm.weight.data = torch.ones(3)
    told("a_shape_that_changed", UsageError, "was [32] when it joined and is [3]", lambda: run.step(m, 1.0))
    m.model.norm.weight.data = keep_data
    text = ["did not run"]
    t = threading.Thread(target=lambda: text.__setitem__(0, raises(UsageError, "thread", lambda: run.step(m, 1.0))))
    t.start()
    t.join()
    say("bad_use_another_thread", not text[0], text[0])
    child = os.fork()
    if child == 0:
        wrong = raises(UsageError, "fork", lambda: run.step(m, 1.0))
        run.close()
        os._exit(1 if wrong else 0)
    say("bad_use_a_forked_child", os.waitpid(child, 0)[1] == 0)
    run.close()
    run.close()
    told("closed", UsageError, "closed", lambda: run.step(m, 1.0))
    stepped = torch.optim.AdamW(m.parameters(), lr=1e-3)
    m(torch.zeros(1, 9, dtype=torch.long)).backward()
    stepped.step()
    told("an_optimizer_that_has_stepped", UsageError, "stepped already", lambda: join(m, "bad3", stepped))
    told("words_that_are_none", TypeError, "colour", lambda: join(m, "bad3", colour="red"))
    empty = Qwen3(config()).to("meta")
    empty.lm_head.weight = empty.model.embed_tokens.weight  # to() has untied them
    told("parameters_without_memory", ModelError, "meta device", lambda: join(empty, "bad3"))
    words, tell = [], beringia.torch._tell
    beringia.torch._tell = words.append
    for n, betas in enumerate((BETAS, (0.9, 0.999))):
        m = Qwen3(config())
        join(m, f"betas{n}", torch.optim.AdamW(decayed(m, 0.1), lr=1e-3, betas=betas)).close()
    beringia.torch._tell = tell
    say("bad_use_other_betas_are_told", len(words) == 1 and "(0.9, 0.999)" in words[0] and "betas=(0.9, 0.95)" in words[0], words)
    a = c.audit()
    say("bad_use_counts_nothing", a.get("lost", 1) == 0 and a.get("doubled", 1) == 0 and a["merged"] == 0, a)


def batches_of(run, count):
    for n, batch in enumerate(run.batches()):
        yield batch
        if n + 1 == count:
            return


def nan_parameters(keep):
    """A loss that looks well, over weights that are spoilt: nothing of it is handed in, and after the third time it is told."""
    c = begin("nan", kit.pack(60000))
    keep(c)
    m = Qwen3(config())
    text, resets = "nothing was raised", 0
    try:
        with beringia.torch.join(m, hub=c.url, name="n", data=c.data, state=os.path.join(c.out, "n"), batch_size=4) as run:
            for _ in run.batches():
                resets += bool(torch.isfinite(m.model.norm.weight).all())
                with torch.no_grad():
                    m.model.norm.weight.fill_(float("nan"))
                run.step(m, 1.0)
    except beringia.NonFiniteError as e:
        text = "" if e.status == 19 and "finite" in str(e) else str(e)
    s = c.status()["counts"]
    say("bad_use_parameters_that_are_no_numbers", not text and resets >= 3 and s["staged"] + s["merged"] == 0,
        (text, resets, s))


def other_optimizers(keep):
    """PyTorch's others train as well, their state begins anew; a state that is loaded after join is taken over."""
    c = begin("optimizers", kit.pack(60000), {"train.beta2": 0})
    keep(c)
    state = os.path.join(c.out, "o")

    def joined(make):
        m = Qwen3(config())
        o = make(m.parameters())
        return m, o, beringia.torch.join(m, o, hub=c.url, name="o", data=c.data, state=state, batch_size=4)

    def step(m, o, run, batch):
        loss = m(batch)
        loss.backward()
        o.step()
        o.zero_grad()
        run.step(m, loss)
    for make in (torch.optim.RMSprop, torch.optim.Adagrad, torch.optim.Adamax, lambda p: torch.optim.SGD(p, lr=1e-3),
                 lambda p: torch.optim.SGD(p, lr=1e-3, momentum=0.9)):
        m, o, run = joined(make)
        with run:
            for batch in batches_of(run, 3):
                step(m, o, run, batch)
        say(f"loop_with_{type(o).__name__}{'_and_momentum' if o.param_groups[0].get('momentum') else ''}",
            run._site.is_open is False)
    m, o, run = joined(lambda p: torch.optim.AdamW(p, lr=1e-3))
    loaded = torch.optim.AdamW(Qwen3(config()).parameters(), lr=1e-3)
    with run:
        for n, batch in enumerate(batches_of(run, 4)):
            if n == 2:  # half-way, the state of another optimizer: of one that made 7 steps
                for group in loaded.param_groups:
                    for p in group["params"]:
                        loaded.state[p] = {"step": torch.tensor(7.0), "exp_avg": torch.full_like(p, 0.25),
                                           "exp_avg_sq": torch.full_like(p, 0.5)}
                o.load_state_dict(loaded.state_dict())
            step(m, o, run, batch)
        first = next(iter(m.parameters()))
        views = run._moments.arrays[1][:first.numel()].view(first.shape)
        good = o.state[first]["exp_avg_sq"].data_ptr() == views.data_ptr() and float(views.mean()) > 0.4
    m, o, run = joined(lambda p: torch.optim.AdamW(p, lr=1e-3))
    with run:
        good = good and run._moments.steps() == 9 and float(run._moments.arrays[1].mean()) > 0.3
        say("loop_a_state_that_is_loaded_after_join_is_kept", good, (run._moments.steps(), run._moments.arrays[1].mean()))


class Own(torch.utils.data.Dataset):
    """A data set of the trainer's own, in the order of the packed one."""

    def __init__(self, path, wrong=-1, dies=False):
        self.data, self.wrong, self.dies, self.served = beringia.Data(path, trusted=True), wrong, dies, 0

    def __len__(self):
        return self.data.samples

    def __getitem__(self, i):
        self.served += 1
        if self.served == self.wrong:
            if self.dies:
                os.kill(os.getpid(), signal.SIGKILL)
            raise ValueError("this sample cannot be read")
        return {"ids": torch.tensor(list(self.data.sample(i)))}


def data_sets_of_ones_own(keep):
    """source= and collate=, with workers; a sample that cannot be read, and a worker that is killed, end the loop with the
    loader's own exception: what was not stepped comes again."""
    c = begin("own", kit.pack(60000))
    keep(c)
    m = Qwen3(config())

    def loop(workers, **words):
        o = torch.optim.AdamW(decayed(m, 0.1), lr=1e-3, betas=BETAS)
        with beringia.torch.join(m, o, hub=c.url, name="d", data=c.data, state=os.path.join(c.out, "d"), batch_size=4) as run:
            schedule = run.scheduler(o)
            dataset = run.dataset(Own(c.data, **words), collate=lambda rows: torch.stack([r["ids"] for r in rows]))
            for batch in run.batches(DataLoader(dataset, batch_size=None, num_workers=workers)):
                loss = m(batch)
                loss.backward()
                o.step()
                o.zero_grad()
                run.step(m, loss)
                schedule.step()
    for name, workers, kind, words in (("cannot_be_read", 0, ValueError, {"wrong": 30}),
                                       ("cannot_be_read_by_a_worker", 2, ValueError, {"wrong": 30}),
                                       ("kills_its_worker", 2, RuntimeError, {"wrong": 30, "dies": True})):
        text = raises(kind, "", lambda w=workers, x=words: loop(w, **x))
        say("loop_a_sample_that_" + name, not text, text)
    loop(2)
    finish(c)
    say("loop_with_a_data_set_of_its_own", True)


def loops_one_after_another(keep):
    """A loop that is left and begun again, with workers that had taken ahead; Ctrl-C where it hurts: between the lease and
    the stock, and in the middle of run.step. Who goes on all the same must not count what he did not train."""
    c = begin("again", kit.pack(60000))
    keep(c)
    m = Qwen3(config())
    o = torch.optim.AdamW(decayed(m, 0.1), lr=1e-3, betas=BETAS)
    with beringia.torch.join(m, o, hub=c.url, name="g", data=c.data, state=os.path.join(c.out, "g"), batch_size=4) as run:
        loader = DataLoader(run.dataset(), batch_size=None, num_workers=2)
        for _ in range(3):
            for n, batch in enumerate(run.batches(loader)):
                m(batch).backward()
                o.step()
                o.zero_grad()
                run.step(m, 1.0)
                if n == 2:
                    break
        say("loop_is_left_and_begun_again", run.figures().steps == 9, run.figures())
        seen, add, sync = [], run._add, run._site.sync

        def interrupted(*args):
            seen.extend(args)
            raise KeyboardInterrupt
        run._add = interrupted
        text = raises(KeyboardInterrupt, "", lambda: next(iter(run.batches())))
        run._add = lambda samples: (seen.append(list(samples)), add(samples))
        next(iter(run.batches()))
        say("loop_what_was_leased_and_lost_comes_again", not text and list(seen[0]) == seen[1], (text, seen))
        run._site.sync = interrupted
        text = raises(KeyboardInterrupt, "", lambda: run.step(m, 1.0))
        run._site.sync = sync
        text = text or raises(UsageError, "did not come to its end", lambda: run.step(m, 1.0))
        text = text or raises(UsageError, "did not come to its end", lambda: next(iter(run.batches())))
        say("bad_use_going_on_after_half_a_step", not text, text)
    with beringia.torch.join(m, torch.optim.AdamW(decayed(m, 0.1), lr=1e-3, betas=BETAS), hub=c.url, name="g", data=c.data,
                             state=os.path.join(c.out, "g"), batch_size=4) as run:
        for batch in run.batches():
            run.step(m, 1.0)
    finish(c)
    say("loop_and_the_audit_is_clean_after_half_a_step", True)


def default_device(keep):
    """torch.set_default_device of a program that wants its tensors elsewhere must not move the library's."""
    if not hasattr(torch, "set_default_device"):
        print(f"skip loop_under_another_default_device: PyTorch {torch.__version__} has no set_default_device")
        return
    c = begin("device", kit.pack(60000))
    keep(c)
    m = Qwen3(config())
    o = torch.optim.AdamW(m.parameters(), lr=1e-3, betas=BETAS)
    torch.set_default_device("meta")
    try:
        with beringia.torch.join(m, o, hub=c.url, name="d", data=c.data, state=os.path.join(c.out, "d"), batch_size=4) as run:
            for batch in batches_of(run, 3):
                good = batch.device.type == "cpu" and int(batch.max()) < 257
                run.step(m, 1.0)
    finally:
        torch.set_default_device("cpu")
    say("loop_under_another_default_device", good)


if __name__ == "__main__":
    raise SystemExit(kit.main([bad_use, nan_parameters, other_optimizers, data_sets_of_ones_own, loops_one_after_another,
                               default_device, interrupted_at_any_time, workers_and_accumulation, weights_elsewhere,
                               weights_gathered_and_spread, bf16_with_masters, ends_and_comes_back, exceptions,
                               without_close, the_examples_run]))
