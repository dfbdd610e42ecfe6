"""Checkpoints of an MPI program into memory that outlives the process.

    import ftd, numpy

    state = ftd.protect(step=0, field=numpy.zeros((64, 64)))    # what a restarted rank needs
    version = ftd.restore()                                     # after a failure: as it was; None: begin from the start
    while state.step < 1000:
        compute(state.field)
        state.step += 1
        if state.step % 100 == 0:
            ftd.checkpoint(state.step)
    ftd.finalize()

Under `ftrun --ft=reinit python3 -m mpi4py program.py` this program goes on from its newest checkpoint when any of its ranks dies.
Without ftd it runs as well; its checkpoints then protect nothing, and rank 0 says so once on stderr. Neither MPI nor mpi4py nor
numpy is needed; no function calls MPI, and none is a barrier: take a checkpoint at the same place of the loop in every rank, where
no message is under way. The checkpoints end with the job, however it ends.

Protected is what the attributes of `ftd.state` are when `checkpoint` is called, whatever has become of them since `protect`:
numbers, lists that have grown, objects of your own, all that `pickle` knows. The memory of arrays is copied as it is: a numpy array
(of numbers, without gaps), `bytearray`, `array.array`, and a `memoryview` of anything else that can be written.

`restore` makes the attributes what they were, also their sizes. An array (or `bytearray`, …) that has the same form as it had in the
version is filled where it is; all other attributes are new objects: use `state.walkers` after `restore`, not a name that was given
to it before. What several attributes share is shared afterwards; two arrays that overlap are two arrays.

A call that fails raises `Error`, with the library's sentence; stderr says more.
"""

import array
import ctypes
import enum
import io
import operator
import pathlib
import pickle
import struct
import sys
import types

__all__ = ["Code", "Error", "State", "checkpoint", "due", "finalize", "on_checkpoint", "protect", "restore", "state"]


class Code(enum.IntEnum):
    """What went wrong, by ft.h's numbers."""

    ORDER = 2
    ARGUMENT = 3
    SIZE = 4
    VERSION = 5
    MEMORY = 6
    TIMEOUT = 7
    AGENT = 8
    MIXED = 9
    REFUSED = 10
    ARENA = 11
    CHILD = 12
    INTERNAL = 13


class Error(Exception):
    """A call that failed: the older checkpoints are whole all the same. `code` is one of `Code`."""

    code = None


class State(types.SimpleNamespace):
    """Holds what is protected, as its attributes. There is one: `ftd.state`."""


# What `protect` returns.
state = State()

_NOTHING_TO_RESTORE = 1
# C parts of the program have the numbers below.
_FIRST_ID = 1 << 30
_HEAD = struct.Struct("<8sQQ")
_MAGIC = b"ftd.py 1"
# Numbers of regions: the head has a fixed size and tells those of the next two; the table tells all others.
_OF_HEAD, _OF_TABLE, _OF_STREAM, _OF_MEMORY = range(4)
# A smaller array within an object is pickled with it: a region of its own would cost more.
_SMALL = 1 << 16


def _load():
    """The library of this installation; of a module that was copied elsewhere the one that the dynamic linker finds."""
    name = "libftd_client.so.0"
    beside = pathlib.Path(__file__).resolve().parent / "../../../lib" / name
    try:
        library = ctypes.CDLL(str(beside) if beside.exists() else name)
    except OSError as error:
        raise ImportError(f"the module ftd needs {name}, and cannot load it: {error}. Use the module where `make install` has put it, "
                          "or name the library's directory in LD_LIBRARY_PATH") from error
    library.ft_strerror.restype = ctypes.c_char_p
    # Without these Python passes 32 bits where the library reads 64.
    library.ft_protect.argtypes = [ctypes.c_int, ctypes.c_void_p, ctypes.c_size_t]
    library.ft_checkpoint.argtypes = [ctypes.c_uint64]
    return library


_library = _load()
_calls = []


def _error(code, sentence):
    error = Error(sentence)
    error.code = code
    return error


def _call(name, *arguments, well=()):
    """Calls the library."""
    code = getattr(_library, name)(*arguments)
    if code != 0 and code not in well:
        raise _error(Code(code), f"{name}: {_library.ft_strerror(code).decode()}")
    return code


@ctypes.CFUNCTYPE(None, ctypes.c_void_p)
def _empty(_):
    """What was printed before a version is out before the version counts."""
    for stream in (sys.stdout, sys.stderr, sys.__stdout__, sys.__stderr__):
        try:
            stream.flush()
        except (AttributeError, OSError, ValueError):
            # There is none, or it is closed; what cannot be written is the program's to notice.
            pass


# Also where a C part of the program takes the checkpoints.
_call("ft_on_checkpoint", _empty, None)


def protect(**things):
    """Joins the job, gives `ftd.state` these attributes, and returns it.

    May be called again, for more. `state.name = value` protects as well, and `del state.name` takes out.
    """
    _call("ft_init", ctypes.byref(ctypes.c_int()))
    vars(state).update(things)
    return state


def on_checkpoint(call):
    """Has `call()` called at the beginning of each `checkpoint`, the last one first; returns it, and so can be a decorator.

    It flushes files of the program's own, for example, and notes their lengths in the state. What it raises, `checkpoint` raises,
    and takes none.
    """
    if call not in _calls:
        _calls.append(call)
    return call


def checkpoint(version):
    """Takes a checkpoint of `ftd.state`; versions increase.

    What was printed to sys.stdout and sys.stderr before is written when the version counts. It copies, and the rest goes on behind;
    it waits only while all three places that a rank has hold versions that must be kept. In a restarted process `restore` comes
    first.
    """
    version = operator.index(version)
    if not 0 <= version < 1 << 64:
        raise _error(Code.ARGUMENT, f"version {version} is not between 0 and 2**64 - 1: nothing was written")
    for call in reversed(_calls):
        call()
    memory, stream, buffers = _pickled(vars(state))
    forms = [(name, _form(value)) for name, value in memory.items()]
    table = pickle.dumps((forms, [buffer.nbytes for buffer in buffers]))
    head = _HEAD.pack(_MAGIC, len(table), stream.nbytes)
    regions = [bytearray(head), bytearray(table), stream, *memory.values(), *buffers]
    _with_regions(dict(enumerate(regions)), "ft_checkpoint", version)


def restore():
    """Makes `ftd.state` what it was in the newest version that is complete for all ranks, and returns that version's number.

    None, and nothing is changed, when there is none: the program begins from the start. Not after `checkpoint`.
    """
    head = bytearray(_HEAD.size)
    version = _take({_OF_HEAD: head})
    if version is None:
        return None
    magic, *sizes = _HEAD.unpack(head)
    if magic != _MAGIC:
        raise _error(Code.MIXED, f"version {version} was written by another release of the module ftd: nothing was restored")
    table, stream = map(bytearray, sizes)
    _take({_OF_TABLE: table, _OF_STREAM: stream})
    forms, lengths = pickle.loads(table)
    memory = _room(version, forms)
    buffers = [bytearray(length) for length in lengths]
    _take(dict(enumerate([*memory, *buffers], _OF_MEMORY)))
    things = _Unpickler(stream, memory, buffers).load()
    vars(state).clear()
    vars(state).update(things)
    return version


def due():
    """Whether a checkpoint is worth its cost now (Young/Daly, from the measured cost and failure rate). False without ftd.

    Every rank must ask equally often, at the same places of its loop.
    """
    yes = ctypes.c_int()
    _call("ft_checkpoint_due", ctypes.byref(yes))
    return bool(yes.value)


def finalize():
    """Ends the use of the module, when this rank has taken its last checkpoint. The checkpoints stay: if another rank fails later,
    this one is restored from them too.
    """
    _call("ft_finalize")


def _form(value):
    """What it takes to make it again, of a value whose memory is copied as it is; None for one that is pickled."""
    kind = type(value)
    if kind is bytearray:
        return "bytearray", len(value)
    if kind is array.array:
        return "array", value.typecode, len(value)
    if kind is memoryview and not value.readonly and value.c_contiguous:
        return "memoryview", value.nbytes
    numpy = sys.modules.get("numpy")
    if numpy is not None and kind is numpy.ndarray and value.flags.writeable and value.flags.forc and not value.dtype.hasobject:
        return "numpy", value.shape, value.dtype, "C" if value.flags.c_contiguous else "F"
    return None


def _made(kind, *form):
    """A value of that form; None of what only the program can make."""
    if kind == "bytearray":
        return bytearray(*form)
    if kind == "array":
        typecode, length = form
        return array.array(typecode, [0]) * length if typecode != "u" else array.array("u", "\0") * length
    if kind == "numpy":
        import numpy

        return numpy.empty(*form)
    return None


def _room(version, forms):
    """For each of these memory of that form: the program's own where it has it, else new one."""
    found, taken = [], set()
    for name, form in forms:
        value = vars(state).get(name)
        if id(value) in taken or _form(value) != form:
            value = _made(*form)
        if value is None:
            raise _error(Code.SIZE, f"state.{name} is a memoryview of {form[1]} bytes in version {version}, and only the program can make "
                                    "that: protect one of the same size before ftd.restore()")
        found.append(value)
        taken.add(id(value))
    return found


def _region(value):
    """Address and size of a value's memory, and what keeps both as they are."""
    if hasattr(value, "__array_interface__"):
        return value.__array_interface__["data"][0], value.nbytes, value
    size = memoryview(value).nbytes
    held = (ctypes.c_char * (size or 1)).from_buffer(value if size else bytearray(1))
    return ctypes.addressof(held), size, held


def _with_regions(regions, name, argument, well=()):
    """Calls the library while these regions, and no other ones of this module's, are protected."""
    held = []
    try:
        for number, value in regions.items():
            address, size, keep = _region(value)
            _call("ft_protect", _FIRST_ID + number, address, size)
            held.append((number, keep))
        return _call(name, argument, well=well)
    finally:
        # Until the next checkpoint the program may do with its memory what it likes.
        for number, _ in held:
            _library.ft_protect(_FIRST_ID + number, None, 0)


def _take(regions):
    """Fills these; the version that they are from, or None."""
    version = ctypes.c_uint64()
    if regions and _with_regions(regions, "ft_restore", ctypes.byref(version), well=[_NOTHING_TO_RESTORE]) != 0:
        return None
    return version.value


def _memory(number):
    """Stands in a pickled state for the attribute whose memory is a region."""
    raise NotImplementedError(f"region {number} is unpickled by ftd.restore() alone")


class _Pickler(pickle.Pickler):
    """Leaves out what is copied as memory; large arrays within other objects are regions as well."""

    def __init__(self, file, numbers, buffers):
        super().__init__(file, protocol=5, buffer_callback=self.apart)
        self.numbers, self.buffers = numbers, buffers

    def apart(self, buffer):
        """Whether it is pickled with the rest after all."""
        memory = buffer.raw()
        if memory.nbytes >= _SMALL:
            self.buffers.append(memory if not memory.readonly else memoryview(bytearray(memory)))
        return memory.nbytes < _SMALL

    def reducer_override(self, thing):
        if thing is state:
            return "state"
        number = self.numbers.get(id(thing))
        return NotImplemented if number is None else (_memory, (number,))


class _PicklerOfBytearrays(_Pickler):
    """Those have no reducer, and are asked for everything."""

    def persistent_id(self, thing):
        return self.numbers.get(id(thing)) if type(thing) is bytearray else None


class _Unpickler(pickle.Unpickler):
    """Puts memory where it was left out."""

    def __init__(self, stream, memory, buffers):
        super().__init__(io.BytesIO(stream), buffers=buffers)
        self.memory = memory

    def persistent_load(self, number):
        return self.memory[number]

    def find_class(self, module, name):
        return self.persistent_load if (module, name) == (__name__, "_memory") else super().find_class(module, name)


def _pickled(things):
    """Of these attributes those whose memory is copied, by name; all of them, pickled; and the large arrays within the others."""
    memory, numbers = {}, {}
    for name, value in things.items():
        if _form(value) is not None and id(value) not in numbers:
            numbers[id(value)] = len(memory)
            memory[name] = value
    kind = _PicklerOfBytearrays if any(type(value) is bytearray for value in memory.values()) else _Pickler

    def dump(what):
        file, buffers = io.BytesIO(), []
        kind(file, numbers, buffers).dump(what)
        return file.getbuffer(), buffers

    try:
        stream, buffers = dump(things)
    except Exception as error:
        for name, value in things.items():
            try:
                dump(value)
            except Exception as own:
                raise _error(Code.ARGUMENT, f"state.{name} cannot be pickled, and nothing was written: {own}") from error
        raise
    return memory, stream, buffers
