"""The binary interface of XLA's foreign functions: a Python function as a handler that XLA calls.

XLA passes a call as C structs, which XLA's header `xla/ffi/api/c_api.h` defines (jax.ffi.include_dir() has it). The
classes here declare the fields that a handler reads, in the order of the header; a test compares their offsets with the
header. Every struct begins with its size, so a handler can refuse a struct of another layout.

A handler may be called from any thread of XLA. Python's ctypes takes the interpreter's lock for it.
"""

from __future__ import annotations

import ctypes
import math
import re
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from ctypes import POINTER, c_char_p, c_int, c_int32, c_int64, c_size_t, c_uint32, c_void_p
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np

from redblue.base.errors import RedblueError

MAJOR = 0  # the version of the interface that the structs declare; minor versions only add fields
METADATA = 1  # the type of the extension by which XLA asks for a handler's version
EXECUTE = 3  # the stage in which a handler computes
BUFFER, STRING = 1, 4  # types of an argument or result, and of an attribute
INVALID_ARGUMENT, INTERNAL = 3, 13  # error codes
QUIET_SECONDS = 0.1  # after so long without a call, no further call is expected
UNSUPPORTED = -1  # a version that no XLA has

# The number types of XLA that redblue reads
XLA_DTYPES = {
    1: np.dtype(np.bool_),
    4: np.dtype(np.int32),
    5: np.dtype(np.int64),
    8: np.dtype(np.uint32),
    9: np.dtype(np.uint64),
    10: np.dtype(np.float16),
    11: np.dtype(np.float32),
    12: np.dtype(np.float64),
    16: np.dtype(ml_dtypes.bfloat16),
}


class Extension(ctypes.Structure):
    _fields_ = (("struct_size", c_size_t), ("type", c_int), ("next", c_void_p))


class Version(ctypes.Structure):
    _fields_ = (
        ("struct_size", c_size_t),
        ("extension_start", c_void_p),
        ("major_version", c_int),
        ("minor_version", c_int),
    )


class Metadata(ctypes.Structure):
    _fields_ = (("struct_size", c_size_t), ("api_version", Version), ("traits", c_uint32))


class MetadataExtension(ctypes.Structure):
    _fields_ = (("extension_base", Extension), ("metadata", POINTER(Metadata)))


class Api(ctypes.Structure):
    _fields_ = (
        ("struct_size", c_size_t),
        ("extension_start", c_void_p),
        ("api_version", Version),
        ("internal_api", c_void_p),
        ("XLA_FFI_Error_Create", c_void_p),
    )


class ErrorArguments(ctypes.Structure):
    _fields_ = (
        ("struct_size", c_size_t),
        ("extension_start", c_void_p),
        ("message", c_char_p),
        ("errc", c_int),
    )


class Buffer(ctypes.Structure):
    _fields_ = (
        ("struct_size", c_size_t),
        ("extension_start", c_void_p),
        ("dtype", c_int),
        ("data", c_void_p),
        ("rank", c_int64),
        ("dims", POINTER(c_int64)),
    )


class Bytes(ctypes.Structure):
    _fields_ = (("ptr", c_void_p), ("len", c_size_t))


class Arguments(ctypes.Structure):
    """The arguments of a call; its results have the same layout."""

    _fields_ = (
        ("struct_size", c_size_t),
        ("extension_start", c_void_p),
        ("size", c_int64),
        ("types", POINTER(c_int32)),
        ("args", POINTER(POINTER(Buffer))),
    )


class Attributes(ctypes.Structure):
    _fields_ = (
        ("struct_size", c_size_t),
        ("extension_start", c_void_p),
        ("size", c_int64),
        ("types", POINTER(c_int32)),
        ("names", POINTER(POINTER(Bytes))),
        ("attrs", POINTER(POINTER(Bytes))),
    )


class Frame(ctypes.Structure):
    """One call of a handler."""

    _fields_ = (
        ("struct_size", c_size_t),
        ("extension_start", POINTER(Extension)),
        ("api", POINTER(Api)),
        ("ctx", c_void_p),
        ("stage", c_int),
        ("args", Arguments),
        ("rets", Arguments),
        ("attrs", Attributes),
    )


Handler = ctypes.CFUNCTYPE(c_void_p, POINTER(Frame))
CreateError = ctypes.CFUNCTYPE(c_void_p, POINTER(ErrorArguments))


class Call(NamedTuple):
    """The arrays and attributes of one call; the arrays are XLA's memory."""

    arguments: Sequence[np.ndarray]
    results: Sequence[np.ndarray]
    attributes: Mapping[str, bytes]


def version_in(header: str) -> tuple[int, int]:
    """The version of the interface that the text of XLA's header states."""
    numbers = dict(re.findall(r"#define XLA_FFI_API_(MAJOR|MINOR) (\d+)", header))
    return int(numbers.get("MAJOR", UNSUPPORTED)), int(numbers.get("MINOR", UNSUPPORTED))


def handler(compute: Callable[[Call], None], version: tuple[int, int]) -> Any:
    """A C function for jax.ffi.pycapsule that calls `compute`. It must be kept as long as XLA may call it.

    XLA gets an exception as an error of the call, with its message. version: the version of XLA's interface in the
    installed header. The handler reports it to older versions of XLA, which do not pass their own version.
    """

    def handle(frame: Any) -> int | None:
        frame = frame.contents
        if frame.extension_start and frame.extension_start.contents.type == METADATA:
            _answer(frame, version)
            return None
        try:
            with _calls.running():
                compute(_call_of(frame))
        except RedblueError as error:
            return _error(frame, INVALID_ARGUMENT, f"redblue: {error}")
        except BaseException as error:  # no exception may pass through XLA's frames, not even KeyboardInterrupt
            return _error(frame, INTERNAL, f"redblue: {type(error).__name__}: {error}")
        return None

    return Handler(handle)


class Calls:
    """The calls that are running.

    A process aborts if a thread of XLA returns to Python after Python has ended.
    """

    def __init__(self) -> None:
        self._running: set[int] = set()  # threads
        self._last = -math.inf  # when the last call returned
        self._closed = False

    @contextmanager
    def running(self) -> Iterator[None]:
        """A context in which a call counts as running. Raises RedblueError after `finish`."""
        if self._closed:
            raise RedblueError("the process ends, so redblue takes no further calls")
        thread = threading.get_ident()
        self._running.add(thread)
        try:
            yield
        finally:
            self._last = time.monotonic()
            self._running.discard(thread)

    def finish(self) -> None:
        """Refuse new calls, which ends XLA's functions with an error, and wait until XLA makes no more calls."""
        self._closed = True
        while self._running or time.monotonic() - self._last < QUIET_SECONDS:
            time.sleep(QUIET_SECONDS / 10)


_calls = Calls()
finish = _calls.finish


def _answer(frame: Frame, version: tuple[int, int]) -> None:
    """Report XLA's own version, or, if its structs differ from this module's, a version that XLA refuses."""
    extension = ctypes.cast(frame.extension_start, POINTER(MetadataExtension)).contents
    metadata = extension.metadata.contents
    if metadata.struct_size < Metadata.traits.offset or metadata.api_version.struct_size != ctypes.sizeof(Version):
        return  # XLA then reads no version, and refuses the handler
    if frame.api:
        api = frame.api.contents
        version = api.api_version.major_version, api.api_version.minor_version
        if api.struct_size < ctypes.sizeof(Api) or api.api_version.struct_size != ctypes.sizeof(Version):
            version = UNSUPPORTED, UNSUPPORTED
    metadata.api_version.major_version, metadata.api_version.minor_version = (
        version if version[0] == MAJOR else (UNSUPPORTED, UNSUPPORTED)
    )


def _call_of(frame: Frame) -> Call:
    """The call in a frame. Raises RedblueError for structs of a layout that is not declared here."""
    _check("XLA_FFI_CallFrame", frame.struct_size >= ctypes.sizeof(Frame), frame.struct_size)
    for name, part in (("Args", frame.args), ("Rets", frame.rets), ("Attrs", frame.attrs)):
        _check(f"XLA_FFI_{name}", part.struct_size == ctypes.sizeof(part), part.struct_size)
    _check("XLA_FFI_ExecutionStage", frame.stage == EXECUTE, frame.stage)
    return Call(_arrays(frame.args), _arrays(frame.rets), _attributes(frame.attrs))


def _check(argument: str, known: bool, value: int) -> None:
    if not known:
        raise RedblueError(f"this jaxlib passes an {argument} of unknown form ({value}): install another jaxlib")


def _arrays(arguments: Arguments) -> list[np.ndarray]:
    """The arrays of all arguments or results."""
    arrays = []
    for i in range(arguments.size):
        _check("XLA_FFI_ArgType", arguments.types[i] == BUFFER, arguments.types[i])
        buffer = arguments.args[i].contents
        _check("XLA_FFI_Buffer", buffer.struct_size >= ctypes.sizeof(Buffer), buffer.struct_size)
        dtype = XLA_DTYPES.get(buffer.dtype)
        if dtype is None:
            known = ", ".join(known_dtype.name for known_dtype in XLA_DTYPES.values())
            raise RedblueError(
                f"an array has XLA's number type {buffer.dtype}, which redblue does not read: use astype for {known}"
            )
        shape = buffer.dims[: buffer.rank] if buffer.rank else ()
        arrays.append(_array(buffer.data, tuple(shape), dtype))
    return arrays


def _array(address: int | None, shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    """The contiguous array at an address."""
    size = dtype.itemsize
    for n in shape:
        size *= n
    if not size or not address:
        return np.empty(shape, dtype)
    memory: Any = (ctypes.c_char * size).from_address(address)
    return np.ndarray(shape, dtype, memory)


def _attributes(attributes: Attributes) -> dict[str, bytes]:
    """The attributes that are text, by name."""
    texts = {}
    for i in range(attributes.size):
        if attributes.types[i] == STRING:
            name, value = attributes.names[i].contents, attributes.attrs[i].contents
            texts[ctypes.string_at(name.ptr, name.len).decode()] = ctypes.string_at(value.ptr, value.len)
    return texts


def _error(frame: Frame, code: int, message: str) -> int | None:
    """An error for XLA, which destroys it."""
    create = CreateError(frame.api.contents.XLA_FFI_Error_Create)
    arguments = ErrorArguments(ctypes.sizeof(ErrorArguments), None, message.encode(), code)
    return create(ctypes.byref(arguments))
