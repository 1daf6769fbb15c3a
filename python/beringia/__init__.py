# SPDX-License-Identifier: Apache-2.0
"""Beringia from Python: libberingia by ctypes, without any other package.

`beringia.torch` is what a PyTorch trainer wants; this module is the C API as it is, with exceptions in place of
statuses. include/beringia.h and libberingia(3) say what each call does; the names are the same.

    with beringia.Site(hub="http://127.0.0.1:7070", name="alpha", data="data", state="state-alpha") as site:
        site.join([("W", (257, 257))])
        while (samples := site.take(8, timeout=1.0)) is not None:  # () where there are none just now
            ...
            site.step(len(samples), loss)
            site.sync()

A site belongs to the thread that joined; everything raises `beringia.Error` or one of its children.
Times are seconds. Python 3.9 or later."""
import atexit
import ctypes as c
import os
import sys
import threading
import time
from typing import Any, Iterable, NamedTuple, Optional, Sequence, Set, Tuple

__all__ = ["Site", "Data", "Error", "UsageError", "ConfigError", "BusyError", "DataError", "NetError", "RefusedError",
           "FencedError", "NonFiniteError", "ModelError", "TimedOut", "AbiError", "Settings", "Figures",
           "CHANGED_WEIGHTS", "CHANGED_HANDED_IN", "CHANGED_RESET", "DUE_WEIGHTS", "DUE_CHECKPOINT",
           "GO", "WAIT", "DRAIN", "COMPLETE", "library_version", "log_level"]

GO, WAIT, DRAIN, COMPLETE = 0, -1, -2, -3
CHANGED_WEIGHTS, CHANGED_HANDED_IN, CHANGED_RESET = 1, 2, 4
DUE_WEIGHTS, DUE_CHECKPOINT = 1, 2
_NS = 1_000_000_000
_VERSION_MAJOR, _VERSION_MINOR = 0, 2


# ---- Errors ------------------------------------------------------------------------------------------------------
class Error(Exception):
    """A status of the library above 0: `status` is its number, the text its sentence."""

    def __init__(self, text: str, status: int = 1) -> None:
        super().__init__(text)
        self.status = status


class AbiError(Error, ImportError):
    """The libberingia that was found cannot be used by this file."""


class UsageError(Error, ValueError):
    """The call makes no sense here: joined twice, another thread, a forked child, a step without samples."""


class ConfigError(Error, ValueError):
    """A setting is wrong; the text names it."""


class BusyError(Error):
    """Another process uses the state directory."""


class DataError(Error):
    """The data set is damaged, or not the run's."""


class NetError(Error, OSError):
    """The hub cannot be reached."""


class RefusedError(Error):
    """The hub refused this site."""


class FencedError(Error):
    """Another process of this site took over; stop."""


class NonFiniteError(Error, ArithmeticError):
    """A loss or weight is not finite."""


class ModelError(Error, ValueError):
    """The model's tensors are not the run's."""


class TimedOut(Error, TimeoutError):
    """It did not happen within the time allowed."""


_ERRORS = {2: UsageError, 3: ConfigError, 4: DataError, 7: BusyError, 9: DataError, 10: DataError, 11: DataError,
           14: NetError, 15: RefusedError, 16: FencedError, 19: NonFiniteError, 24: ModelError, 26: TimedOut}


# ---- The structs of include/beringia.h -----------------------------------------------------------------------------
class _Options(c.Structure):
    _fields_ = [("struct_bytes", c.c_size_t), ("hub_url", c.c_char_p), ("site_name", c.c_char_p),
                ("state_dir", c.c_char_p), ("data_dir", c.c_char_p), ("data_trusted", c.c_int32),
                ("data_fingerprint", c.c_void_p), ("token_file", c.c_char_p), ("batch_samples", c.c_uint64),
                ("timeout_ns", c.c_int64), ("checkpoint_every_ns", c.c_int64), ("warmup_steps", c.c_uint64),
                ("seed", c.c_uint64), ("cancel", c.c_void_p), ("ca_file", c.c_char_p),
                ("fabric", c.c_char_p)]


class _Run(c.Structure):
    _fields_ = [("struct_bytes", c.c_size_t), ("parameters", c.c_uint64), ("positions", c.c_uint64),
                ("seq_len", c.c_uint64), ("vocab_size", c.c_uint64), ("epochs", c.c_uint64),
                ("steps_per_round", c.c_uint64), ("beta1", c.c_double), ("beta2", c.c_double), ("eps", c.c_double),
                ("weight_decay", c.c_double), ("clip", c.c_double), ("lr", c.c_double), ("optimizer", c.c_uint64),
                ("muon_momentum", c.c_double), ("muon_lr_ratio", c.c_double)]


class _Tensor(c.Structure):
    _fields_ = [("name", c.c_char_p), ("dims", c.c_uint32), ("shape", c.c_uint64 * 4)]


class _Array(c.Structure):
    _fields_ = [("name", c.c_char_p), ("data", c.c_void_p), ("count", c.c_uint64)]


class _Trainer(c.Structure):
    _fields_ = [("struct_bytes", c.c_size_t), ("tensors", c.POINTER(_Tensor)), ("tensors_count", c.c_size_t),
                ("weights", c.c_void_p), ("arrays", c.POINTER(_Array)), ("arrays_count", c.c_size_t),
                ("counters", c.c_void_p), ("counters_count", c.c_size_t), ("weights_elsewhere", c.c_int32),
                ("gradients", c.c_int32)]


class _Figures(c.Structure):
    _fields_ = [("struct_bytes", c.c_size_t), ("version", c.c_uint64), ("head", c.c_uint64),
                ("global_tokens", c.c_uint64), ("steps", c.c_uint64), ("samples", c.c_uint64), ("leased", c.c_uint64),
                ("segment_steps", c.c_uint64), ("steps_target", c.c_uint64), ("pending", c.c_uint64),
                ("merged", c.c_uint64), ("refused", c.c_uint64), ("tokens_per_s", c.c_double), ("loss", c.c_double),
                ("online", c.c_int32), ("joined", c.c_int32), ("draining", c.c_int32), ("complete", c.c_int32),
                ("state", c.c_char * 16), ("samples_target", c.c_uint64)]


class _DataFacts(c.Structure):
    _fields_ = [("struct_bytes", c.c_size_t), ("samples", c.c_uint64), ("heldout_samples", c.c_uint64),
                ("seq_len", c.c_uint64), ("vocab_size", c.c_uint64), ("fingerprint", c.c_uint8 * 32)]


class Settings(NamedTuple):
    """The run's settings, the same for every site; see struct brg_run. seq_len in tokens, lr is the peak; optimizer:
    0 AdamW, 1 Muon for the layers' matrices."""
    parameters: int
    positions: int
    seq_len: int
    vocab_size: int
    epochs: int
    steps_per_round: int
    beta1: float
    beta2: float
    eps: float
    weight_decay: float
    clip: float
    lr: float
    optimizer: int
    muon_momentum: float
    muon_lr_ratio: float


class Figures(NamedTuple):
    """How this site fares; see struct brg_figures. loss in nats a token, of the last step."""
    version: int
    head: int
    global_tokens: int
    steps: int
    samples: int
    leased: int
    segment_steps: int
    steps_target: int
    pending: int
    merged: int
    refused: int
    tokens_per_s: float
    loss: float
    online: bool
    joined: bool
    draining: bool
    complete: bool
    state: str
    samples_target: int


# ---- Finding and checking the library --------------------------------------------------------------------------------
_STRUCTS = {"brg_options": _Options, "brg_run": _Run, "brg_tensor": _Tensor, "brg_array": _Array,
            "brg_trainer": _Trainer, "brg_figures": _Figures, "brg_data_facts": _DataFacts}
_P = c.c_void_p
_FUNCTIONS = {  # name: (result, arguments)
    "brg_version": (c.c_char_p, []), "brg_struct_bytes": (c.c_size_t, [c.c_char_p]),
    "brg_options_init_bytes": (None, [c.POINTER(_Options), c.c_size_t]),
    "brg_log_level": (c.c_int, [c.c_char_p]), "brg_status_name": (c.c_char_p, [c.c_int]),
    "brg_status_sentence": (c.c_char_p, [c.c_int]),
    "brg_open": (c.c_int, [c.POINTER(_Options), c.c_int64, c.POINTER(_P), c.c_char_p, c.c_size_t]),
    "brg_model_json": (c.c_char_p, [_P]), "brg_run": (c.c_int, [_P, c.POINTER(_Run)]),
    "brg_join": (c.c_int, [_P, c.POINTER(_Trainer), c.c_int64]), "brg_weights": (_P, [_P]),
    "brg_take": (c.c_int, [_P, c.c_uint64, c.c_int64, c.POINTER(c.c_uint64), c.POINTER(c.c_uint32),
                           c.POINTER(c.c_uint64)]),
    "brg_untake": (c.c_int, [_P]), "brg_sample": (c.c_int, [_P, c.c_uint64, _P]), "brg_lr": (c.c_double, [_P]),
    "brg_step": (c.c_int, [_P, c.c_uint64, c.c_double, c.c_char_p]),
    "brg_due": (c.c_int, [_P, c.POINTER(c.c_int)]), "brg_sync": (c.c_int, [_P, c.POINTER(c.c_int)]),
    "brg_reset": (c.c_int, [_P]), "brg_checkpoint": (c.c_int, [_P]),
    "brg_status": (c.c_int, [_P, c.POINTER(_Figures)]), "brg_why": (c.c_char_p, [_P]), "brg_drain": (None, [_P]),
    "brg_close": (c.c_int, [_P, c.c_int64]),
    "brg_data_open": (c.c_int, [c.c_char_p, c.c_int, c.POINTER(_P), c.c_char_p, c.c_size_t]),
    "brg_data_facts": (c.c_int, [_P, c.POINTER(_DataFacts)]),
    "brg_data_sample": (c.c_int, [_P, c.c_uint64, _P]), "brg_data_heldout_sample": (c.c_int, [_P, c.c_uint64, _P]),
    "brg_data_close": (None, [_P]),
}


def _candidates() -> Iterable[str]:
    """Where the library may be: told by $BERINGIA_LIBRARY, beside this file, in the source tree, known to ld.so."""
    here = os.path.dirname(os.path.abspath(__file__))
    told = os.environ.get("BERINGIA_LIBRARY")
    if told:
        yield told
        return
    for path in (os.path.join(here, "libberingia.so.0"),
                 os.path.join(os.path.dirname(os.path.dirname(here)), "build", "release", "libberingia.so")):
        if os.path.exists(path):
            yield path
    yield "libberingia.so.0"


def _check(lib: c.CDLL, path: str) -> None:
    """The ABI self-check: version, names, and the sizes of all structs, before anything is called with them."""
    missing = [name for name in _FUNCTIONS if not hasattr(lib, name)]
    if missing:
        raise AbiError(f"{path}: has no {missing[0]}; this binding needs libberingia {_VERSION_MAJOR}.{_VERSION_MINOR} "
                       "or later of the same soname: install it, or name it in BERINGIA_LIBRARY")
    for name, (result, arguments) in _FUNCTIONS.items():
        function = getattr(lib, name)
        function.restype, function.argtypes = result, arguments
    version = lib.brg_version().decode()
    major, minor = (int(x) for x in version.split(".")[:2])
    if major != _VERSION_MAJOR or minor < _VERSION_MINOR:
        raise AbiError(f"{path}: is version {version}, wanted is {_VERSION_MAJOR}.{_VERSION_MINOR} or a later "
                       f"{_VERSION_MAJOR}.x")
    for name, struct in _STRUCTS.items():
        there, here = lib.brg_struct_bytes(name.encode()), c.sizeof(struct)
        fixed = name in ("brg_tensor", "brg_array")
        if there < here or (fixed and there != here):
            raise AbiError(f"{path}: struct {name} has {there} bytes there and {here} here; the library and this file "
                           "are not of one build")


def _load() -> c.CDLL:
    tried = []
    for path in _candidates():
        try:
            lib = c.CDLL(path)
        except OSError as e:
            tried.append(f"{path} ({e})")
            continue
        _check(lib, path)
        return lib
    raise AbiError("libberingia is not found: run make install, or set BERINGIA_LIBRARY to libberingia.so; tried "
                   + "; ".join(tried))


_lib = _load()


def _raise(status: int, text: Optional[str]) -> None:
    name = _lib.brg_status_name(status).decode()
    sentence = text or _lib.brg_status_sentence(status).decode()
    raise _ERRORS.get(status, Error)(f"{sentence} [{name}]", status)


def _ns(seconds: Optional[float], what: str = "timeout") -> int:
    """None and inf: for ever. Beyond what 63 bits of nanoseconds hold is for ever too."""
    if seconds is None:
        return -1
    if not isinstance(seconds, (int, float)) or not seconds >= 0:
        raise ConfigError(f"{what}: want seconds, 0 or more, or None for ever; is {seconds!r}", 3)
    return int(seconds * _NS) if seconds < (1 << 63) / _NS else -1


def _text(value: Any, what: str) -> bytes:
    """A string or path for the library, which would read a NUL as its end."""
    if not isinstance(value, (str, bytes, os.PathLike)):
        raise ConfigError(f"{what}: want a string or a path; is {value!r}", 3)
    out = os.fsencode(value)
    if b"\0" in out:
        raise ConfigError(f"{what}: has a NUL character in it", 3)
    return out


def _count(value: Any, what: str, least: int = 0, most: int = (1 << 63) - 1) -> int:
    """ctypes would take -1 for 2**64 - 1 without a word."""
    if isinstance(value, bool) or not hasattr(value, "__index__") or not least <= value.__index__() <= most:
        raise UsageError(f"{what}: want a whole number from {least} to {most}; is {value!r}", 2)
    return value.__index__()


def _tell(text: str) -> None:
    """A line for the person, where there is somebody to read it; also at the end of the interpreter, and in a child."""
    if sys.stderr is not None:
        try:
            os.write(2, f"beringia: {text}\n".encode(errors="replace"))
        except OSError:
            pass


def library_version() -> str:
    """The version of the library that is loaded, "0.3.0"."""
    return _lib.brg_version().decode()


def log_level(name: str) -> None:
    """error, warn, info, debug or trace, for the whole process; lines go to standard error."""
    status = _lib.brg_log_level(_text(name, "level"))
    if status != GO:
        _raise(status, "want error, warn, info, debug or trace")


# ---- A data set ------------------------------------------------------------------------------------------------------
class Data:
    """A packed data set, without a site. It can be pickled, and used by forked children and every thread."""

    def __init__(self, path: str, trusted: bool = False) -> None:
        self._h = None
        self.path = os.fspath(path)
        self._h = _P()
        why = c.create_string_buffer(600)
        status = _lib.brg_data_open(_text(self.path, "path"), int(trusted), c.byref(self._h), why, len(why))
        if status != GO:
            self._h = None
            _raise(status, why.value.decode(errors="replace"))
        facts = _DataFacts(struct_bytes=c.sizeof(_DataFacts))
        _lib.brg_data_facts(self._h, c.byref(facts))
        self.samples, self.heldout_samples = facts.samples, facts.heldout_samples
        self.seq_len, self.vocab_size = facts.seq_len, facts.vocab_size
        self.fingerprint = bytes(facts.fingerprint)

    def __reduce__(self):
        return (Data, (self.path, True))

    def read_into(self, sample: int, address: int, heldout: bool = False) -> None:
        """Writes seq_len + 1 int32 tokens to this address."""
        function = _lib.brg_data_heldout_sample if heldout else _lib.brg_data_sample
        status = function(self._h, _count(sample, "sample"), address)
        if status != GO:
            _raise(status, _lib.brg_why(None).decode())

    def sample(self, sample: int, heldout: bool = False) -> Sequence[int]:
        """seq_len + 1 tokens: inputs and, shifted by one, targets."""
        out = (c.c_int32 * (self.seq_len + 1))()
        self.read_into(sample, c.addressof(out), heldout)
        return out

    def close(self) -> None:
        if getattr(self, "_h", None):
            _lib.brg_data_close(self._h)
        self._h = None

    __del__ = close


# ---- A site -----------------------------------------------------------------------------------------------------------
_open_sites: "Set[Site]" = set()  # a site that is not closed lives until the end


def _at_exit() -> None:
    for site in list(_open_sites):
        if site.is_open:
            site.close_at_exit()


atexit.register(_at_exit)


class Site:
    """One site of a run: brg_open in the constructor, brg_close in close(). See struct brg_options for the words.

    timeout: of the network, seconds; open_timeout: how long to wait for a hub, None for ever."""

    def __init__(self, hub: str, name: str, state: str, data: Optional[str] = None, *,
                 fingerprint: Optional[bytes] = None, batch_samples: int = 8, token_file: Optional[str] = None,
                 timeout: float = 30.0, checkpoint_every: float = 60.0, warmup_steps: int = 20, seed: int = 0,
                 trust_data: bool = False, open_timeout: Optional[float] = None,
                 ca_file: Optional[str] = None, fabric: Optional[str] = None) -> None:
        self._h, self._pid, self._keep = None, os.getpid(), []
        self.grace, self.complete, self.draining = 25.0, False, False
        self._cancel = c.c_int(0)
        o = _Options()
        _lib.brg_options_init_bytes(c.byref(o), c.sizeof(o))
        o.hub_url, o.site_name, o.state_dir = _text(hub, "hub"), _text(name, "name"), _text(state, "state")
        o.data_dir = _text(data, "data") if data is not None else None
        o.data_trusted = int(bool(trust_data))
        if fingerprint is not None and len(fingerprint) != 32:
            raise ConfigError(f"fingerprint: want the 32 bytes of Data.fingerprint; are {len(fingerprint)}", 3)
        mark = (c.c_uint8 * 32)(*fingerprint) if fingerprint is not None else None
        o.data_fingerprint = c.addressof(mark) if mark is not None else None
        o.token_file = _text(token_file, "token_file") if token_file is not None else None
        o.ca_file = _text(ca_file, "ca_file") if ca_file is not None else None
        o.fabric = _text(fabric, "fabric") if fabric is not None else None
        o.batch_samples = _count(batch_samples, "batch_samples", 1, 65536)
        o.warmup_steps, o.seed = _count(warmup_steps, "warmup_steps"), _count(seed, "seed")
        # None is no limit for the hub's answers either: the library's longest. Checkpoints: only at hand-ins.
        longest = (1 << 63) - 1
        o.timeout_ns = t if (t := _ns(timeout, "timeout")) >= 0 else longest
        o.checkpoint_every_ns = t if (t := _ns(checkpoint_every, "checkpoint_every")) >= 0 else longest
        o.cancel = c.addressof(self._cancel)
        self._open(o, open_timeout)
        _open_sites.add(self)
        r = _Run(struct_bytes=c.sizeof(_Run))
        self._good(_lib.brg_run(self._h, c.byref(r)))
        self.settings = Settings(*(getattr(r, n) for n in Settings._fields))
        self.model_json = _lib.brg_model_json(self._h).decode()
        self.weights_address: Optional[int] = None

    def _open(self, o: _Options, timeout: Optional[float]) -> None:
        """In a thread of its own, so that a Ctrl-C is heard while it waits; then it is cancelled."""
        why, handle, result, limit = c.create_string_buffer(600), _P(), [], _ns(timeout, "open_timeout")
        wait = threading.Thread(daemon=True, target=lambda: result.append(
            _lib.brg_open(c.byref(o), limit, c.byref(handle), why, len(why))))
        wait.start()
        try:
            while wait.is_alive():
                wait.join(0.2)
        except BaseException:
            self._cancel.value = 1
            wait.join()
            if result == [GO]:
                _lib.brg_close(handle, 0)
            raise
        if result == [DRAIN]:
            raise TimedOut("asked to stop while waiting for the hub", 26)
        if result != [GO]:
            _raise(result[0], why.value.decode(errors="replace"))
        self._h = handle

    @property
    def is_open(self) -> bool:
        return self._h is not None and self._pid == os.getpid()

    def _good(self, status: int) -> int:
        if status > 0:
            text = _lib.brg_why(self._h).decode(errors="replace") if self._h else ""
            _raise(status, text)
        return status

    def _live(self) -> c.c_void_p:
        if self._h is None:
            raise UsageError("this site is closed", 2)
        return self._h

    def join(self, tensors: Sequence[Tuple[str, Sequence[int]]], weights: Optional[int] = None,
             arrays: Sequence[Tuple[str, int, int]] = (), counters: Optional[c.Array] = None,
             elsewhere: bool = False, timeout: Optional[float] = None) -> int:
        """brg_join. tensors: (name, shape) in order; weights: address of that many float32, or None for the library's
        own (weights_address tells); arrays: (name, address, count); counters: an array of c_uint64. The caller keeps
        all of it alive until close(). Gives GO, DRAIN or COMPLETE; waits in short pieces, so Ctrl-C is heard."""
        table, lists = (_Tensor * len(tensors))(), (_Array * max(1, len(arrays)))()
        for t, (name, shape) in zip(table, tensors):
            if not 0 < len(shape) <= 4:
                raise ModelError(f"{name}: has {len(shape)} dimensions; a run's tensors have 1 to 4", 24)
            t.name, t.dims = _text(name, "a tensor's name"), len(shape)
            t.shape[:len(shape)] = [_count(n, f"{name}: a size", 1) for n in shape]
        for a, (name, address, count) in zip(lists, arrays):
            a.name, a.data, a.count = _text(name, "an array's name"), address, _count(count, f"{name}: count")
        trainer = _Trainer(struct_bytes=c.sizeof(_Trainer), tensors=table, tensors_count=len(tensors), weights=weights,
                           arrays=lists, arrays_count=len(arrays), weights_elsewhere=int(elsewhere),
                           counters=c.addressof(counters) if counters is not None else None,
                           counters_count=len(counters) if counters is not None else 0)
        self._keep.append(counters)
        left = timeout
        while True:
            wait = 0.2 if left is None else min(0.2, left)
            status = _lib.brg_join(self._live(), c.byref(trainer), _ns(wait))
            left = None if left is None else left - wait
            if status != 26 or (left is not None and left <= 0):
                break
        self._good(status)
        self.weights_address = _lib.brg_weights(self._h)
        self.complete = status == COMPLETE
        self.draining = status == DRAIN
        return status

    def take_status(self, want: int, timeout: Optional[float] = 0.0) -> Tuple[int, Sequence[int]]:
        """brg_take: (GO, samples), or (WAIT, DRAIN or COMPLETE, ()). Waits in short pieces, so Ctrl-C is heard."""
        want = _count(want, "want", 1, 65536)
        samples, count = (c.c_uint64 * want)(), c.c_uint64()
        _ns(timeout)
        left = float("inf") if timeout is None else timeout
        while True:
            wait, began = min(0.2, left), time.monotonic()
            status = self._good(_lib.brg_take(self._live(), want, _ns(wait), samples, None, c.byref(count)))
            spent = time.monotonic() - began
            left -= spent
            if status != WAIT or spent < wait or left <= 0:  # back early: sync has work
                break
        self.complete, self.draining = status == COMPLETE, status == DRAIN
        return status, list(samples[:count.value]) if status == GO else ()

    def take(self, want: int, timeout: Optional[float] = 0.2) -> Optional[Sequence[int]]:
        """The next samples; () where there are none now (call sync and take again); None at the end."""
        status, samples = self.take_status(want, timeout)
        return None if status in (DRAIN, COMPLETE) else samples

    def untake(self) -> None:
        self._good(_lib.brg_untake(self._live()))

    def sample(self, sample: int) -> Sequence[int]:
        """seq_len + 1 tokens."""
        out = (c.c_int32 * (self.settings.seq_len + 1))()
        self._good(_lib.brg_sample(self._live(), _count(sample, "sample"), out))
        return out

    @property
    def lr(self) -> float:
        """The rate for the next optimizer step, from the tokens of all sites."""
        return _lib.brg_lr(self._live())

    def step(self, count: int, loss: float, skipped: Optional[str] = None) -> None:
        """The optimizer step over the oldest `count` taken samples is done, or was skipped for a reason of one word."""
        reason = _text(skipped, "skipped") if skipped else None
        status = _lib.brg_step(self._live(), _count(count, "count"), float(loss), reason)
        if status != 20:  # too many skipped: logged, their samples come again
            self._good(status)

    def due(self) -> int:
        """What the next sync will need, where the weights live elsewhere: bits DUE_WEIGHTS, DUE_CHECKPOINT."""
        out = c.c_int()
        self._good(_lib.brg_due(self._live(), c.byref(out)))
        return out.value

    def sync(self) -> int:
        """Hands in, takes in, saves; never waits for the network. Bits CHANGED_..."""
        out = c.c_int()
        self._good(_lib.brg_sync(self._live(), c.byref(out)))
        return out.value

    def reset(self) -> None:
        """The weights are spoilt: the work since the last hand-in is thrown away; its samples come again."""
        self._good(_lib.brg_reset(self._live()))

    def checkpoint(self) -> None:
        self._good(_lib.brg_checkpoint(self._live()))

    def figures(self) -> Figures:
        f = _Figures(struct_bytes=c.sizeof(_Figures))
        self._good(_lib.brg_status(self._live(), c.byref(f)))
        values = [getattr(f, n) for n in Figures._fields]
        return Figures(*values[:13], *map(bool, values[13:17]), values[17].decode(), values[18])

    def drain(self) -> None:
        """Asks for an early end. Any thread, and signal handlers."""
        self._cancel.value = 1
        if self._h is not None:
            _lib.brg_drain(self._h)

    def close(self, timeout: Optional[float] = None) -> None:
        """Hands in the last segment and leaves; waits up to `timeout` seconds (default: self.grace). TimedOut where the
        state directory holds work that is not handed in: the next process goes on from there. Twice is fine."""
        if not self.is_open:
            return
        limit = _ns(self.grace if timeout is None else timeout)
        handle, self._h = self._h, None
        _open_sites.discard(self)
        status = _lib.brg_close(handle, limit)
        self._keep = []
        if status > 0:
            _raise(status, "the last work could not be handed in; it is in the state directory, start again with it"
                   if status == 26 else None)

    def close_at_exit(self) -> None:
        """The interpreter ends and nobody closed: as close(), told on standard error, without an exception."""
        _tell("the program ends without closing its site; closing it now")
        try:
            self.close(min(self.grace, 10.0))
        except Error as e:
            _tell(str(e))

    def __enter__(self) -> "Site":
        return self

    def __exit__(self, kind, value, trace) -> None:
        if kind is not None and self.is_open and self.weights_address is not None:
            try:
                self.reset()  # nobody knows in the middle of what the exception came
            except Error:
                pass
        if kind is None:
            self.close()
        else:
            try:
                self.close()
            except Error as e:
                _tell(str(e))
