"""The structs by which XLA calls redblue: equal to the header of the installed jaxlib, and refused in another form."""

import ctypes
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest

from redblue import RedblueError
from redblue.jax import abi

# The names of the structs in C
IN_C = {
    abi.Extension: "XLA_FFI_InternalExtension",
    abi.Version: "XLA_FFI_Api_Version",
    abi.Metadata: "XLA_FFI_Metadata",
    abi.MetadataExtension: "XLA_FFI_Metadata_Extension",
    abi.Api: "XLA_FFI_Api",
    abi.ErrorArguments: "XLA_FFI_Error_Create_Args",
    abi.Buffer: "XLA_FFI_Buffer",
    abi.Bytes: "XLA_FFI_ByteSpan",
    abi.Arguments: "XLA_FFI_Args",
    abi.Attributes: "XLA_FFI_Attrs",
    abi.Frame: "XLA_FFI_CallFrame",
}
EXTENSION_BEFORE = "XLA_FFI_Extension_Base"  # the name of abi.Extension in the headers of JAX 0.10 and older
EMBEDDED = abi.Version, abi.Arguments, abi.Attributes  # parts of other structs, so that their sizes must be exact


def c_program(header: str) -> str:
    """A C program that compiles only if each declared struct has the layout of the header, given as text."""
    lines = ["#include <stddef.h>", '#include "xla/ffi/api/c_api.h"']

    def same(condition: str) -> None:
        lines.append(f'_Static_assert({condition}, "{condition}");')

    older = {abi.Extension: EXTENSION_BEFORE} if EXTENSION_BEFORE in header else {}
    for struct, name in (IN_C | older).items():
        for field, kind in struct._fields_:
            same(f"offsetof({name}, {field}) == {getattr(struct, field).offset}")
            same(f"sizeof((({name}*)0)->{field}) == {ctypes.sizeof(kind)}")
        if struct in EMBEDDED:
            same(f"{name}_STRUCT_SIZE == {ctypes.sizeof(struct)}")
            same(f"sizeof({name}) == {ctypes.sizeof(struct)}")
    same(f"sizeof(XLA_FFI_Rets) == {ctypes.sizeof(abi.Arguments)}")
    same(f"offsetof(XLA_FFI_Rets, rets) == {abi.Arguments.args.offset}")
    same(f"XLA_FFI_API_MAJOR == {abi.MAJOR}")
    for constant, value in {
        "Extension_Metadata": abi.METADATA,
        "ExecutionStage_EXECUTE": abi.EXECUTE,
        "ArgType_BUFFER": abi.BUFFER,
        "RetType_BUFFER": abi.BUFFER,
        "AttrType_STRING": abi.STRING,
        "Error_Code_INVALID_ARGUMENT": abi.INVALID_ARGUMENT,
        "Error_Code_INTERNAL": abi.INTERNAL,
    }.items():
        same(f"XLA_FFI_{constant} == {value}")
    names = {"bool": "PRED", "bfloat16": "BF16", "int32": "S32", "int64": "S64"}
    for number, dtype in abi.XLA_DTYPES.items():
        default = dtype.name.replace("uint", "U").replace("float", "F")
        same(f"XLA_FFI_DataType_{names.get(dtype.name, default)} == {number}")
    return "\n".join(lines)


@pytest.mark.thorough
@pytest.mark.skipif(shutil.which("gcc") is None, reason="gcc is not installed: the structs are not compared with XLA's")
def test_the_structs_are_those_of_the_header(tmp_path):
    pytest.importorskip("jax.numpy")
    import jax

    source = tmp_path / "layout.c"

    def compiles(text):
        source.write_text(text)
        command = ["gcc", "-fsyntax-only", "-Wno-strict-prototypes", "-I", jax.ffi.include_dir(), str(source)]
        return subprocess.run(command, capture_output=True, text=True, check=False)

    header = Path(jax.ffi.include_dir(), "xla", "ffi", "api", "c_api.h").read_text(encoding="utf-8")
    program = c_program(header)
    result = compiles(program)
    assert result.returncode == 0, result.stderr
    assert program.count("_Static_assert") > 80
    right = f"offsetof(XLA_FFI_Buffer, data) == {abi.Buffer.data.offset}"
    assert right in program
    assert compiles(program.replace(right, "offsetof(XLA_FFI_Buffer, data) == 20")).returncode != 0


def test_the_version_is_read_from_the_header():
    assert abi.version_in("#define XLA_FFI_API_MAJOR 0\n#define XLA_FFI_API_MINOR 3\n") == (0, 3)
    assert abi.version_in("nothing") == (abi.UNSUPPORTED, abi.UNSUPPORTED)


# A call without XLA --------------------------------------------------------------------------------------------------


class FakeXla:
    """A call frame in memory, and the errors that a handler has created."""

    def __init__(self, *arrays, stage=abi.EXECUTE):
        self.errors = []
        self.create = abi.CreateError(self._create)
        self.api = abi.Api(ctypes.sizeof(abi.Api), None, abi.Version(ctypes.sizeof(abi.Version), None, 0, 3))
        self.api.XLA_FFI_Error_Create = ctypes.cast(self.create, ctypes.c_void_p).value
        self.kept = arrays
        self.buffers = [self._buffer(x) for x in arrays]
        pointers = (ctypes.POINTER(abi.Buffer) * len(arrays))(*map(ctypes.pointer, self.buffers))
        self.types = (ctypes.c_int32 * len(arrays))(*[abi.BUFFER] * len(arrays))
        inputs = abi.Arguments(ctypes.sizeof(abi.Arguments), None, len(arrays), self.types, pointers)
        self.frame = abi.Frame(ctypes.sizeof(abi.Frame), None, ctypes.pointer(self.api), None, stage, inputs)
        self.frame.rets.struct_size = ctypes.sizeof(abi.Arguments)
        self.frame.attrs.struct_size = ctypes.sizeof(abi.Attributes)

    def _buffer(self, array):
        number = next(n for n, dtype in abi.XLA_DTYPES.items() if dtype == array.dtype)
        dims = (ctypes.c_int64 * array.ndim)(*array.shape)
        return abi.Buffer(ctypes.sizeof(abi.Buffer), None, number, array.ctypes.data, array.ndim, dims)

    def _create(self, arguments):
        self.errors.append((arguments.contents.errc, arguments.contents.message.decode()))
        return 1

    def call(self, compute=lambda call: None, version=(0, 3)):
        return abi.handler(compute, version)(ctypes.pointer(self.frame))


def test_a_handler_gets_the_arrays_themselves():
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    y = np.array(4.0)
    fake = FakeXla(x, y)

    def compute(call):
        assert call.arguments[0].shape == (2, 3)
        call.arguments[0][...] = 7
        assert call.arguments[1] == 4

    assert fake.call(compute) is None
    assert (x == 7).all()


@pytest.mark.parametrize(
    ("error", "code"), [(RedblueError("no"), 3), (KeyError("x"), 13), (KeyboardInterrupt(), 13)], ids=repr
)
def test_an_exception_becomes_an_error_of_xla(error, code):
    def compute(call):
        raise error

    fake = FakeXla()
    assert fake.call(compute) == 1
    assert fake.errors[0][0] == code
    assert fake.errors[0][1].startswith("redblue: ")


def change(path, value):
    """A function that sets one field of a fake frame."""

    def apply(fake):
        *parts, last = path.split(".")
        target = fake.frame
        for part in parts:
            target = getattr(target, part)
        setattr(target, last, value)

    return apply


@pytest.mark.parametrize(
    ("apply", "message"),
    [
        (change("struct_size", 8), "XLA_FFI_CallFrame of unknown form"),
        (change("args.struct_size", 48), "XLA_FFI_Args of unknown form"),
        (change("rets.struct_size", 0), "XLA_FFI_Rets of unknown form"),
        (change("attrs.struct_size", 40), "XLA_FFI_Attrs of unknown form"),
        (change("stage", 1), "XLA_FFI_ExecutionStage of unknown form"),
        (lambda fake: setattr(fake.buffers[0], "struct_size", 24), "XLA_FFI_Buffer of unknown form"),
        (lambda fake: setattr(fake.buffers[0], "dtype", 15), "XLA's number type 15, which redblue does not read"),
        (lambda fake: fake.types.__setitem__(0, 2), "XLA_FFI_ArgType of unknown form"),
    ],
)
def test_structs_of_another_form_are_refused(apply, message):
    fake = FakeXla(np.zeros(3, np.float32))
    apply(fake)
    assert fake.call() == 1
    assert message in fake.errors[0][1]


@pytest.mark.parametrize(
    ("api", "version", "expected"),
    [
        ((0, 3), (0, 1), (0, 3)),  # XLA's value is used
        ((0, 9), (0, 1), (0, 9)),
        (None, (0, 1), (0, 1)),
        ((1, 0), (1, 0), (-1, -1)),
        (None, (1, 0), (-1, -1)),
        (None, (-1, -1), (-1, -1)),
    ],
)
def test_a_handler_states_the_version_of_xla_or_one_that_no_xla_accepts(api, version, expected):
    fake = FakeXla()
    metadata = abi.Metadata(ctypes.sizeof(abi.Metadata))
    metadata.api_version.struct_size = ctypes.sizeof(abi.Version)
    extension = abi.MetadataExtension(
        abi.Extension(ctypes.sizeof(abi.Extension), abi.METADATA), ctypes.pointer(metadata)
    )
    fake.frame.extension_start = ctypes.cast(ctypes.pointer(extension), ctypes.POINTER(abi.Extension))
    if api is None:
        fake.frame.api = None
    else:
        fake.api.api_version.major_version, fake.api.api_version.minor_version = api
    assert fake.call(version=version) is None
    assert (metadata.api_version.major_version, metadata.api_version.minor_version) == expected


def test_calls_are_awaited_at_the_end_and_refused_after_it(monkeypatch):
    calls = abi.Calls()
    monkeypatch.setattr(abi, "QUIET_SECONDS", 0.001)
    with calls.running():
        pass
    calls.finish()
    with pytest.raises(RedblueError, match="the process ends"), calls.running():
        pass
