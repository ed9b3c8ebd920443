"""DLPack: reading a producer's capsule, so that an array is taken whatever its library and dtype.

The capsule is never consumed: it stays the owner of the memory, and whoever drops it last lets the
producer have it back. Layout and codes: dlpack.h of DLPack 1.1 (dmlc.github.io/dlpack).
"""

from __future__ import annotations

import ctypes
from typing import Any, NamedTuple

import numpy as np

from ..errors import Refused
from ..model.formats import by_name
from .runtime import c_strides

#: The newest version that is asked for and understood: (major, minor).
VERSION = (1, 1)
_READ_ONLY, _COPIED = 1, 2

#: Names of number formats by (code, bits).
_NAMES: dict[tuple[int, int], str] = {
    **{(0, bits): f"int{bits}" for bits in (8, 16, 32, 64)},
    **{(1, bits): f"uint{bits}" for bits in (8, 16, 32, 64)},
    **{(2, bits): f"float{bits}" for bits in (16, 32, 64)},
    (4, 16): "bfloat16",
    (5, 64): "complex64",
    (5, 128): "complex128",
    (6, 8): "bool",
    (7, 8): "float8_e3m4",
    (8, 8): "float8_e4m3",
    (9, 8): "float8_e4m3b11fnuz",
    (10, 8): "float8_e4m3fn",
    (11, 8): "float8_e4m3fnuz",
    (12, 8): "float8_e5m2",
    (13, 8): "float8_e5m2fnuz",
    (14, 8): "float8_e8m0fnu",
}


class _Tensor(ctypes.Structure):
    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    )


class Managed(ctypes.Structure):
    """``DLManagedTensor``, in capsules named ``dltensor``."""

    _fields_ = (("tensor", _Tensor), ("context", ctypes.c_void_p), ("deleter", ctypes.c_void_p))


class Versioned(ctypes.Structure):
    """``DLManagedTensorVersioned``, in capsules named ``dltensor_versioned``."""

    _fields_ = (
        ("major", ctypes.c_uint32),
        ("minor", ctypes.c_uint32),
        ("context", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p),
        ("flags", ctypes.c_uint64),
        ("tensor", _Tensor),
    )


class Exported(NamedTuple):
    """What a capsule says: strides in bytes, and whether its memory is the array's own to be filled."""

    pointer: int
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    device: int
    writable: bool


_valid = ctypes.pythonapi.PyCapsule_IsValid
_valid.argtypes, _valid.restype = (ctypes.py_object, ctypes.c_char_p), ctypes.c_int
_pointer = ctypes.pythonapi.PyCapsule_GetPointer
_pointer.argtypes, _pointer.restype = (ctypes.py_object, ctypes.c_char_p), ctypes.c_void_p


def exported(value: Any, stream: int) -> tuple[Exported, Any]:
    """Ask a producer for its array, told that the stream of number `stream` will use it.

    Called with the array's device current. Returns what the capsule says, and the capsule, which
    must be kept as long as the words are used. Raises `Refused` (``format``), and what the producer
    raises.
    """
    try:
        capsule = value.__dlpack__(stream=stream, max_version=VERSION)
    except TypeError:  # a producer older than DLPack 1.0 knows no versions
        capsule = value.__dlpack__(stream=stream)
    return contents(capsule), capsule


def contents(capsule: Any) -> Exported:
    """Return what a capsule of either kind says, and leave it as it is. Raises `Refused` (``format``)."""
    writable = True
    if _valid(capsule, b"dltensor_versioned"):
        managed = Versioned.from_address(_pointer(capsule, b"dltensor_versioned"))
        if managed.major > VERSION[0]:  # nothing behind the version has the place we know
            raise _refused("a capsule of a newer DLPack", f"version {managed.major}.{managed.minor}")
        tensor = managed.tensor
        writable = not managed.flags & (_READ_ONLY | _COPIED)
    elif _valid(capsule, b"dltensor"):
        tensor = Managed.from_address(_pointer(capsule, b"dltensor")).tensor
    else:
        raise _refused("not a DLPack capsule, or one that was used", repr(capsule)[:80])
    name = _NAMES.get((tensor.code, tensor.bits))
    if name is None or tensor.lanes != 1:
        found = f"DLPack code {tensor.code}, {tensor.bits} bits, {tensor.lanes} lanes"
        raise _refused("an array on a GPU of a number format that is none of ours", found)
    dtype = np.dtype(by_name(name).dtype)
    shape = tuple(tensor.shape[i] for i in range(tensor.ndim))
    if tensor.strides:
        strides = tuple(tensor.strides[i] * dtype.itemsize for i in range(tensor.ndim))
    else:
        strides = c_strides(shape, dtype.itemsize)
    pointer = (tensor.data or 0) + tensor.byte_offset
    return Exported(pointer, dtype, shape, strides, tensor.device_id, writable)


def _refused(what: str, found: str) -> Refused:
    return Refused(what, code="format", expected=f"a capsule of DLPack {VERSION[0]}", found=found)
