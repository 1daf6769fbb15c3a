# SPDX-License-Identifier: Apache-2.0
"""A PyTorch trainer joins a run in a few lines:

    with beringia.torch.join(model, optimizer, hub="http://127.0.0.1:7070", name="alpha", data="data",
                             state="state-alpha", batch_size=8) as run:
        schedule = run.scheduler(optimizer)
        for batch in run.batches():               # int64 [batch_size, seq_len + 1]
            loss = ...                            # mean nats a token
            loss.backward()
            optimizer.step(); optimizer.zero_grad()
            run.step(model, loss)
            schedule.step()

What happens. The hub leases samples to this site; `batches` gives them out. A sample counts when `run.step` says that
its optimizer step is done, never when it is fetched. `run.step` also hands in what is due and takes in what other sites
did, between two steps and without waiting for the network. The loop ends when the run is complete, or when somebody asked
for it (SIGTERM, SIGUSR1, run.drain()).

Where the weights are. f32 parameters become views of one flat vector of all parameters in canonical order; on a CPU that
is the library's own, so nothing is ever copied. On a GPU the flat vector is on the device, and a pinned one of the
library's is filled when a contribution is cut: one copy of the model each way a round. Parameters of bf16 or f16 get f32
masters, which the optimizer is given in their place; what it makes of them is copied back after each of its steps. Under
FSDP and FSDP2 rank 0 has the whole vector on its CPU; full weights are gathered piece by piece when a contribution is
cut, and spread the same way when a version is taken in.

Several ranks (torch.distributed is initialised): all call the same things in the same order; rank 0 alone speaks to the
hub. Samples, the rate and the end are broadcast over a gloo group of its own, weights over the default group.

Python 3.9 or later; PyTorch 1.13 and 2.x."""
import atexit
import ctypes as c
import json
import math
import os
import signal
import threading
from collections import deque
from typing import Any, Callable, Dict, Iterator, List, Optional, Sequence, Tuple

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

from . import (CHANGED_RESET, CHANGED_WEIGHTS, COMPLETE, DRAIN, DUE_CHECKPOINT, DUE_WEIGHTS, GO, WAIT, Data, Error,
               FencedError, Figures, NonFiniteError, Settings, Site, UsageError, _ERRORS, _tell)
from ._sharded import ShardedMoments, ShardedWeights, sharded_of
from ._weights import Moments, Weights, canonical_tensors, match, overlap, own_parameters, use_masters

__all__ = ["join", "Run", "LeasedDataset", "Schedule", "canonical_tensors"]

# ---- Ranks --------------------------------------------------------------------------------------------------------------
class _Alone:
    rank, world = 0, 1

    def share(self, values: Optional[List[int]]) -> List[int]:
        return values or []


class _Ranks:
    """Small lists of numbers from rank 0 to all, over a gloo group of its own: no GPU stream waits for them."""

    def __init__(self) -> None:
        self.rank, self.world = dist.get_rank(), dist.get_world_size()
        self.group = dist.new_group(backend="gloo")

    def share(self, values: Optional[List[int]]) -> List[int]:
        head = torch.zeros(64, dtype=torch.int64, device="cpu")
        if self.rank == 0:
            head[0] = len(values)
            part = torch.tensor(values[:63], dtype=torch.int64, device="cpu")
            head[1:1 + len(part)] = part
        dist.broadcast(head, src=0, group=self.group)
        n = int(head[0])
        if n <= 63:
            return head[1:1 + n].tolist()
        rest = torch.tensor(values[63:] if self.rank == 0 else [0] * (n - 63), dtype=torch.int64, device="cpu")
        dist.broadcast(rest, src=0, group=self.group)
        return head[1:].tolist() + rest.tolist()


# ---- Samples --------------------------------------------------------------------------------------------------------------
class LeasedDataset(IterableDataset):
    """The batches of a run, as an IterableDataset: each element is int64 [batch_size, seq_len + 1], or what `collate` makes
    of the list of `source[i]`. Use it with DataLoader(dataset, batch_size=None, num_workers=...), and loop over
    run.batches(loader). Workers only read; the leases stay with the process that trains."""

    def __init__(self, run: "Run", source: Any = None, collate: Optional[Callable[[List[Any]], Any]] = None) -> None:
        self._run: Optional[Run] = run
        self._path, self._seq_len = run._data_path, run.settings.seq_len
        self._source, self._collate, self._data = source, collate, None
        self._pipes: Optional[List[Any]] = None

    def __getstate__(self) -> Dict[str, Any]:
        return dict(self.__dict__, _run=None, _data=None)

    def read(self, samples: Sequence[int]) -> Any:
        if self._source is not None:
            items = [self._source[i] for i in samples]
            return self._collate(items) if self._collate else torch.utils.data.default_collate(items)
        if self._data is None:
            if self._path is None:
                raise UsageError("join had no data set; give dataset(source=...)", 2)
            self._data = Data(self._path, trusted=True)
        rows = torch.empty((len(samples), self._seq_len + 1), dtype=torch.int32, device="cpu")  # the library writes there
        for row, i in zip(rows, samples):
            self._data.read_into(i, row.data_ptr())
        return self._collate(list(rows)) if self._collate else rows.long()

    def prepare(self, loader: DataLoader) -> None:
        """A pipe to each worker, before the workers start."""
        context = loader.multiprocessing_context or torch.multiprocessing.get_context()
        self._pipes = [context.Pipe(duplex=False) for _ in range(loader.num_workers)]

    def __iter__(self) -> Iterator[Any]:
        worker = get_worker_info()
        if worker is None:
            if self._run is None:
                raise UsageError("this copy of the data set has no run", 2)
            yield from self._run.batches(self)
            return
        if self._pipes is None:
            raise UsageError("workers have nobody to lease for them: loop over run.batches(loader), not over the "
                             "loader itself", 2)
        reader, parent = self._pipes[worker.id][0], os.getppid()
        while True:
            while not reader.poll(1.0):
                if os.getppid() != parent:
                    return  # the trainer was killed: nobody will write any more
            samples = reader.recv()
            if samples is None:
                return
            yield self.read(samples)


class Schedule:
    """The run's learning rate for an optimizer, with the face of LambdaLR: construct it before the loop, call step() after
    each run.step(). The rate follows the tokens of all sites, not the steps of this one. A group with another rate than
    the optimizer's default keeps that ratio."""

    def __init__(self, run: "Run", optimizer: torch.optim.Optimizer) -> None:
        self.run, self.optimizer = run, optimizer
        base = optimizer.defaults.get("lr") or 1.0
        for group in optimizer.param_groups:
            group.setdefault("initial_lr", group["lr"])
        self.ratios = [float(g["initial_lr"]) / float(base) for g in optimizer.param_groups]
        self.last_epoch = -1
        self.step()

    def get_last_lr(self) -> List[float]:
        return [float(g["lr"]) for g in self.optimizer.param_groups]

    get_lr = get_last_lr

    def step(self, epoch: Optional[int] = None) -> None:
        self.last_epoch += 1
        for group, ratio in zip(self.optimizer.param_groups, self.ratios):
            lr = self.run.lr * ratio
            if isinstance(group["lr"], torch.Tensor):
                group["lr"].fill_(lr)
            else:
                group["lr"] = lr

    def state_dict(self) -> Dict[str, Any]:
        return {"last_epoch": self.last_epoch}

    def load_state_dict(self, state: Dict[str, Any]) -> None:
        self.last_epoch = state["last_epoch"]


class _Step:
    """One optimizer step's samples: how many over all ranks, and this rank's micro-batches."""

    def __init__(self, samples: Sequence[int], rank: int, world: int, batch: int) -> None:
        self.count = len(samples)
        mine = list(samples) if self.count < world else list(samples[rank::world])
        self.micros = deque(mine[i:i + batch] for i in range(0, len(mine), batch))


# ---- The run ----------------------------------------------------------------------------------------------------------------
class Run:
    """A model's part in a run; `join` makes it. Use it as a context manager: an exception in the body gives the samples in
    hand back uncounted and the work since the last hand-in up, because nobody knows what it interrupted.

    settings: the run's, see beringia.Settings. lr: the rate for the next step. boundary: whether the batch that was given
    out last completes an optimizer step. complete, draining: why the loop ended."""

    def __init__(self, model: torch.nn.Module, optimizer: Optional[torch.optim.Optimizer], words: Dict[str, Any]) -> None:
        self._model, self._optimizer, self._site = model, optimizer, None
        self._handlers: Dict[int, Any] = {}
        self._ranks = _Ranks() if dist.is_available() and dist.is_initialized() else _Alone()
        self.rank, self.world = self._ranks.rank, self._ranks.world
        self._speaks = self.rank == 0
        self._batch, self._accumulate = words.pop("batch_size"), words.pop("accumulate")
        self._rename, self._signals = words.pop("rename"), words.pop("signals")
        self._grace, self._data_path = words.pop("grace"), words.get("data")
        self._outstanding: "deque[_Step]" = deque()
        self._sizes: "deque[int]" = deque()
        self._feed: Optional[Callable[[Sequence[int]], None]] = None
        self._depth, self._skip, self._in_hand, self._in_sync = 1, 0, 0, False
        self._loss: Any = None
        self._warned, self._lr_before = False, 0.0
        self._counters = (c.c_uint64 * 1)()
        self.lr, self.boundary, self.complete, self.draining, self.closed = 0.0, False, False, False, False
        self._open(words)

    # -- joining -----------------------------------------------------------------------------------------------------
    def _together(self, act: Callable[[], List[int]]) -> List[int]:
        """act() on rank 0 alone; its numbers, or its failure, on all ranks."""
        failure: Optional[Exception] = None
        values: Optional[List[int]] = None
        if self._speaks:
            try:
                values = [0, *act()]
            except Exception as e:  # pylint: disable=broad-except    (of any kind: the other ranks are waiting)
                failure = e
                text = f"{'' if isinstance(e, Error) else type(e).__name__ + ': '}{e}".encode()[:2000]
                values = [getattr(e, "status", 0) or 1, *text]
        if self.world > 1:
            values = self._ranks.share(values)
        if failure is not None:
            raise failure
        if values[0] != 0:
            raise _ERRORS.get(values[0], Error)("rank 0: " + bytes(values[1:]).decode(errors="replace"), values[0])
        return values[1:]

    def _open(self, words: Dict[str, Any]) -> None:
        words["batch_samples"] = self._batch * self._accumulate * self.world
        facts: Dict[str, Any] = {}

        def act() -> List[int]:
            self._site = Site(**words)
            self._site.grace = self._grace
            self._install_signals()
            text = json.dumps({"settings": list(self._site.settings), "model": self._site.model_json})
            return list(text.encode())
        try:
            self._install_signals_elsewhere()
            facts = json.loads(bytes(self._together(act)))
            self.settings, self.model_json = Settings(*facts["settings"]), facts["model"]
            self._join()
        except BaseException:
            self._uninstall_signals()
            if self._site is not None and self._site.is_open:
                try:
                    self._site.close(0.0)
                except Error:
                    pass
            raise

    def _arrange(self) -> List[Tuple[str, Tuple[int, ...]]]:
        kind = sharded_of(self._model)
        table = canonical_tensors(self.model_json)
        if kind is not None:
            self._weights: Any = ShardedWeights(kind, self._rename, self._speaks)
            have = {n: torch.empty(s, device="meta") for n, s in self._weights.shapes.items()}
        else:
            have = own_parameters(self._model, self._rename)
        table = table or [(n, tuple(p.shape)) for n, p in have.items()]
        match(table, have)
        self._moments: Any = None
        if kind is not None:
            self._weights.arrange([n for n, _ in table])
            if self._optimizer is not None:
                self._moments = ShardedMoments(self._model, self._optimizer, self._weights, self._speaks)
            return table
        overlap(have)
        self._weights = Weights([n for n, _ in table], [have[n] for n, _ in table], self._speaks)
        if self._weights.masters:
            if self._optimizer is None:
                raise UsageError("parameters below f32 need f32 masters: give join the optimizer", 2)
            use_masters(self._optimizer, self._weights)
        if self._optimizer is not None:
            self._moments = Moments(self._optimizer, self._weights, self._speaks)
        return table

    def _join(self) -> None:
        table = self._arrange()

        def act() -> List[int]:
            arrays = []
            if self._moments:
                arrays = [(n, s.data_ptr(), s.numel()) for n, s in zip(self._moments.names, self._moments.stages)]
            status = self._site.join(table, self._weights.stage.data_ptr(), arrays, self._counters,
                                     elsewhere=self._weights.elsewhere)
            return [status, self._counters[0], _bits(self._site.lr)]
        status, steps, lr = self._together(act)
        self.lr, self.complete, self.draining = _float(lr), status == COMPLETE, status == DRAIN
        self._look_at_the_betas()
        if status == GO:
            self._take_in()
            if self._moments:
                self._moments.write(steps)
                for a in self._moments.arrays if self.world > 1 else ():
                    dist.broadcast(a, src=0)

    def _take_in(self) -> None:
        """What is in the library's vector goes to the model, on every rank."""
        if self._weights.sharded or self.world == 1:
            self._weights.write(True)
            return
        if self._speaks and self._weights.elsewhere:
            self._weights.write(True)
        self._weights.spread(None)
        self._weights.write(False)

    # -- signals ------------------------------------------------------------------------------------------------------
    def _install_signals_elsewhere(self) -> None:
        if not self._speaks:  # rank 0 decides; the others only must not die of it
            self._install_signals()

    def _install_signals(self) -> None:
        if threading.current_thread() is not threading.main_thread():
            return  # only the main thread may; the program can call run.drain() itself
        for name in self._signals:
            number = getattr(signal, "SIG" + name)
            self._handlers[number] = signal.signal(number, lambda *_: self.drain())

    def _uninstall_signals(self) -> None:
        for number, before in self._handlers.items():
            signal.signal(number, before if before is not None else signal.SIG_DFL)
        self._handlers = {}

    # -- samples ------------------------------------------------------------------------------------------------------
    def dataset(self, source: Any = None, collate: Optional[Callable[[List[Any]], Any]] = None) -> LeasedDataset:
        """The run's batches as an IterableDataset. source: a map-style data set of one's own with the run's samples in the
        run's order, in place of the packed one; collate: makes a batch of a list of them."""
        return LeasedDataset(self, source, collate)

    def batches(self, loader: Any = None) -> Iterator[Any]:
        """Batches until the run is complete or somebody asked to stop: loader is a LeasedDataset, a DataLoader over one
        (with workers, if you like), or nothing for the packed data set. Every batch must be followed by run.step, or
        all of an accumulation's batches by one (see `boundary`)."""
        self._alive()
        self._whole()
        dataset = loader.dataset if isinstance(loader, DataLoader) else loader or self.dataset()
        if not isinstance(dataset, LeasedDataset):
            raise UsageError("batches wants run.dataset(), or a DataLoader over it", 2)
        workers = loader.num_workers if isinstance(loader, DataLoader) else 0
        if isinstance(loader, DataLoader) and loader.batch_size is not None:
            raise UsageError("DataLoader(run.dataset(), batch_size=None, ...): the elements are batches already", 2)
        if workers and loader.persistent_workers:
            raise UsageError("persistent_workers outlive the leases; leave it off", 2)
        ready: Optional[Iterator[Any]] = None
        self._feed, self._depth = None, 1
        self._begin_again()
        if workers:
            dataset.prepare(loader)
            ready, turn = iter(loader), [0]

            def feed(samples: Sequence[int]) -> None:
                dataset._pipes[turn[0] % workers][1].send(list(samples))
                turn[0] += 1
            self._feed = feed
            self._depth = max(1, math.ceil(workers * (loader.prefetch_factor or 2) / self._accumulate))
        try:
            while self._pump():
                step = self._outstanding[0]
                while step.micros:
                    for _ in range(self._skip if ready is not None else 0):
                        next(ready)  # given back meanwhile
                        self._skip -= 1
                    samples = step.micros.popleft()
                    batch = next(ready) if ready is not None else dataset.read(samples)
                    if not step.micros:
                        self._outstanding.popleft()
                        self._in_hand += step.count
                    self.boundary = not step.micros
                    yield batch
        finally:
            for _, writer in (dataset._pipes or []) if workers else ():
                writer.send(None)
        # Whoever asks for the next batch is not in the middle of an optimizer step: what was never stepped is given back.
        self._in_hand = 0

    def _begin_again(self) -> None:
        """What an earlier loop had in stock was given to its workers, or to nobody where Ctrl-C came in between: it is put
        back, and comes again."""
        self._outstanding.clear()
        self._skip = self._in_hand = 0
        self.boundary = False
        if self._speaks:
            self._site.untake()

    def _pump(self) -> bool:
        """Samples ahead of need; True where a batch can be given out."""
        while True:
            self._alive()
            if self.draining:
                return False
            values = self._together(self._lease)
            status, lr, at = values[0], values[1], 2
            self.lr = _float(lr)
            while at < len(values):
                n = values[at]
                self._add(values[at + 1:at + 1 + n])
                at += 1 + n
            self.complete, self.draining = status == COMPLETE, status == DRAIN
            if status in (DRAIN, COMPLETE):
                return False  # what is taken and not stepped goes back in close()
            if self._outstanding:
                return True
            if self._in_hand:
                raise UsageError(f"{self._in_hand} samples were given out without run.step, and there are no more to "
                                 "complete an accumulation with; step where run.boundary is true", 2)
            self._sync()

    def _lease(self) -> List[int]:
        """Rank 0: as many steps' samples as fit ahead."""
        out: List[int] = []
        ahead, status, world = len(self._outstanding), GO, self.world
        while ahead < self._depth:
            wait = 0.0 if ahead or self._in_hand else 0.2
            status, samples = self._site.take_status(self._batch * self._accumulate * world, wait)
            if status != GO:
                break
            # What cannot be shared out evenly is a step of its own, in which all ranks have the same samples.
            even = len(samples) - len(samples) % world
            for part in (samples[:even], samples[even:]):
                if part:
                    out += [len(part), *part]
                    ahead += 1
        if status == WAIT and ahead:
            status = GO
        return [status, _bits(self._site.lr), *out]

    def _add(self, samples: Sequence[int]) -> None:
        step = _Step(samples, self.rank, self.world, self._batch)
        self._outstanding.append(step)
        for micro in step.micros if self._feed else ():
            self._feed(micro)

    # -- the step -----------------------------------------------------------------------------------------------------
    def step(self, model: torch.nn.Module, loss: Any, skipped: Optional[str] = None) -> None:
        """The optimizer step over all batches since the last call is done. loss: the mean over its tokens in nats, a number
        or a tensor (on a GPU it is read one step later, so that nothing waits); with accumulation the mean of the
        micro-batches' (the last one's does too: it is only shown). With `skipped`, one word, it was not
        done and the weights are as before: the samples are listed as skipped for good.

        Takes part in collectives where there are several ranks. Never waits for the network.
        NonFiniteError: the loss is not a number; the weights are not trusted any more, leave the `with` block."""
        self._alive()
        self._whole()
        if model is not self._model and model is not getattr(self._model, "module", None):
            raise UsageError("this is not the model that joined", 2)
        if not self._in_hand:
            raise UsageError("run.step without a whole batch from run.batches; step where run.boundary is true", 2)
        self._weights.check()
        value = self._read_loss(loss) if skipped is None else 0.0
        if not math.isfinite(value):
            raise NonFiniteError(f"the loss is {value}: the step may have spoilt the weights. What was learned since the "
                                 "last hand-in is given up when the `with` block ends; start again with the same state "
                                 "directory, with a lower rate if it happens again", 19)
        if self._moments:
            self._moments.adopt()
            if self._speaks and not self._weights.elsewhere:
                self._counters[0] = self._moments.steps()
        count = self._in_hand

        def done() -> None:
            try:
                self._site.step(count, value, skipped)
            except UsageError:  # refused before anything was touched: another thread, a forked child
                self._in_sync, self._in_hand = False, count
                raise
        self._in_hand = 0
        self._sync(done)
        self._look_at_the_rate()

    def _read_loss(self, loss: Any) -> float:
        if not isinstance(loss, torch.Tensor):
            return float(loss)
        if loss.device.type == "cpu":
            return float(loss.detach())
        now = loss.detach().to("cpu", non_blocking=True)
        mark = torch.cuda.Event() if loss.device.type == "cuda" else None
        if mark is not None:
            mark.record()
        before, self._loss = self._loss or (now, mark), (now, mark)
        if before[1] is not None:
            before[1].synchronize()  # a step ago: done long since
        return float(before[0])

    def _look_at_the_betas(self) -> None:
        """The hub refuses a step that is larger than AdamW's can be with the run's betas. With others it takes the small ones
        of a beginning, and refuses later: so it is told here and not there."""
        if self._optimizer is None or not self._speaks or self.settings.beta2 <= 0:
            return
        wanted = (self.settings.beta1, self.settings.beta2)
        for group in self._optimizer.param_groups:
            used = tuple(float(x) for x in group.get("betas", wanted))
            if max(abs(u - w) for u, w in zip(used, wanted)) > 1e-6:
                _tell(f"the optimizer's betas are {used}, the run's are {wanted}: give it betas={wanted}, or the hub may refuse "
                      "what is handed in")
                return

    def _look_at_the_rate(self) -> None:
        if self._warned or self._optimizer is None:
            return
        self._warned = True
        used, wanted = float(self._optimizer.param_groups[0]["lr"]), self._lr_before
        if wanted > 0 and abs(used - wanted) > 0.02 * wanted:
            _tell(f"the optimizer's rate is {used:g}, the run's is {wanted:g}: use run.scheduler(optimizer), or the hub may "
                  "refuse what is handed in")

    def _sync(self, first: Optional[Callable[[], None]] = None) -> None:
        """brg_step, brg_sync, and what follows from them for the weights, on all ranks."""
        w, self._lr_before = self._weights, self.lr

        def act() -> List[int]:
            if first:
                first()
            due = self._site.due() if w.elsewhere else 0
            changed = self._site.sync() if not due else 0
            return [due, changed, _bits(self._site.lr)]

        def act_late() -> List[int]:
            return [self._site.sync(), _bits(self._site.lr)]
        self._in_sync = True
        due, changed, lr = self._together(act)
        if due:
            self._fill(due)
            changed, lr = self._together(act_late)
        self.lr = _float(lr)
        if changed & CHANGED_WEIGHTS:
            self._take_in()
        if changed & CHANGED_RESET:
            self._give_back()
        self._in_sync = False

    def _fill(self, due: int) -> None:
        """The library's vectors get what the model has. Collective where the weights are sharded."""
        takes_part = self._speaks or self._weights.sharded
        if due & DUE_WEIGHTS and takes_part:
            self._weights.read()
        if due & DUE_CHECKPOINT and takes_part and self._moments:
            self._moments.read()
            self._counters[0] = self._moments.steps()  # here and not at each step: on a GPU it may wait for it

    def _give_back(self) -> None:
        """Work was refused: what is in stock comes again, in another order."""
        if self._feed:
            self._skip += sum(len(s.micros) for s in self._outstanding)
        for s in self._outstanding:
            s.micros.clear()
        self._outstanding.clear()
        if self._speaks:
            self._site.untake()

    # -- looking -------------------------------------------------------------------------------------------------------
    def scheduler(self, optimizer: torch.optim.Optimizer) -> Schedule:
        """The run's learning rate for this optimizer."""
        return Schedule(self, optimizer)

    def figures(self) -> Figures:
        """How this site fares. Rank 0 only."""
        return self._site.figures()

    def state_dict(self) -> Dict[str, torch.Tensor]:
        """The local f32 weights by canonical names: views, not copies. They change with each step. Not under FSDP."""
        if self._weights.sharded:
            raise UsageError("under FSDP use its own state_dict", 2)
        return dict(zip(self._weights.names, self._weights.views))

    def load_state_dict(self, state: Dict[str, torch.Tensor]) -> None:
        """Not wanted during a run: weights come from the hub."""
        raise UsageError("a run's weights come from its hub; begin a run with them: beringia init --weights", 2)

    def _alive(self) -> None:
        if self.closed:
            raise UsageError("this run is closed", 2)

    def _whole(self) -> None:
        if self._in_sync:
            raise UsageError("the last run.step did not come to its end, so nobody knows what of it was done: leave the `with` "
                             "block and join again; what was learned since the last hand-in is given up, its samples come "
                             "again", 2)

    # -- the end --------------------------------------------------------------------------------------------------------
    def drain(self) -> None:
        """Asks for an early end: the loop ends before its next batch. Any thread, signal handlers; any rank, but only
        rank 0's word counts."""
        if self._site is not None:
            self._site.drain()

    def close(self, timeout: Optional[float] = None) -> None:
        """Hands in the last segment, gives the rest back, leaves. Twice is fine. All ranks call it. Rank 0 waits for up to
        `timeout` seconds (default: `grace` of join); TimedOut where work stays in the state directory."""
        self._close(self._in_hand > 0 or self._in_sync, timeout)

    def _close(self, give_up: bool, timeout: Optional[float] = None) -> None:
        if self.closed:
            return
        if self._site is not None and self._site._pid != os.getpid():
            return  # a forked child: the run is its parent's
        self.closed = True
        self._uninstall_signals()
        _forget(self)
        if not give_up and self._weights.elsewhere:
            self._fill(DUE_WEIGHTS | DUE_CHECKPOINT)
        if not self._speaks:
            return
        site = self._site
        if site.is_open and site.weights_address is not None:
            try:
                if give_up:
                    site.reset()
                site.untake()
            except Error:
                pass  # another thread, or the site is broken: close says it
        site.close(timeout)

    def close_at_exit(self) -> None:
        _tell("the program ends without closing its run; closing it now")
        try:
            self._close(self._in_hand > 0 or self._in_sync or self.world > 1, min(self._grace, 10.0))
        except Error as e:
            _tell(str(e))

    def __enter__(self) -> "Run":
        return self

    def __exit__(self, kind: Any, value: Any, trace: Any) -> None:
        if kind is None:
            self.close()
            return
        try:
            self._close(self._in_hand > 0 or self._in_sync or self.world > 1)
        except Error as e:
            if not isinstance(value, FencedError):
                _tell(str(e))


# ---- The end of the interpreter ----------------------------------------------------------------------------------------
_runs: List[Run] = []


def _forget(run: Run) -> None:
    if run in _runs:
        _runs.remove(run)


def _at_exit() -> None:
    for run in list(_runs):
        if run._site is None or run._site._pid == os.getpid():
            run.close_at_exit()


atexit.register(_at_exit)  # registered behind beringia's own, so it runs before that


# ---- Small things ---------------------------------------------------------------------------------------------------------
def _bits(x: float) -> int:
    return c.c_int64.from_buffer_copy(c.c_double(x)).value


def _float(x: int) -> float:
    return c.c_double.from_buffer_copy(c.c_int64(x)).value


def join(model: torch.nn.Module, optimizer: Optional[torch.optim.Optimizer] = None, *, hub: Optional[str] = None,
         name: Optional[str] = None, data: Optional[str] = None, state: Optional[str] = None, batch_size: int = 8,
         accumulate: int = 1, rename: Optional[Callable[[str], str]] = None, grace: float = 25.0,
         signals: Sequence[str] = ("TERM", "USR1"), **words: Any) -> Run:
    """Joins a run with this model; waits for the hub. Every rank calls it, after model and optimizer are on their devices
    and wrapped (DDP, FSDP), before the first step.

    model        its parameters must be the run's, by Hugging Face's names; `rename` maps others to them. The run's
                 weights are copied into it: those that it had are gone.
    optimizer    Adam's, AdamW's and SGD's state is kept from job to job; needed for parameters below f32
    hub, name, data, state   as for `beringia site`; default: $BERINGIA_HUB, $BERINGIA_NAME, $BERINGIA_DATA,
                 $BERINGIA_STATE
    batch_size   samples of a micro-batch on one rank; an optimizer step has batch_size * accumulate * ranks
    grace        seconds that close() waits for the last hand-in
    signals      these end the loop in good order (main thread only). Ctrl-C is not among them and raises KeyboardInterrupt,
                 wherever it comes in; with "INT" it ends the loop like the others.
    words        more for beringia.Site: token_file, timeout, checkpoint_every, warmup_steps, seed, trust_data,
                 fingerprint, open_timeout, ca_file

    The library writes a line an event to standard error; beringia.log_level("warn") leaves troubles only.

    Raises a beringia.Error: ModelError, DataError, BusyError, ConfigError, NetError, RefusedError, FencedError, TimedOut."""
    given = {"hub": hub, "name": name, "data": data, "state": state}
    for key, value in given.items():
        given[key] = value if value is not None else os.environ.get("BERINGIA_" + key.upper())
        if given[key] is None and not (key == "data" and words.get("fingerprint")):
            raise UsageError(f"{key} is missing: give join {key}=..., or set BERINGIA_{key.upper()}", 2)
    if batch_size < 1 or accumulate < 1:
        raise UsageError("batch_size and accumulate are at least 1", 2)
    if any(r._model is model for r in _runs):
        raise UsageError("this model has joined a run already; close that one first", 2)
    run = Run(model, optimizer, dict(given, batch_size=batch_size, accumulate=accumulate, rename=rename, grace=grace,
                                     signals=signals, **words))
    _runs.append(run)
    return run
