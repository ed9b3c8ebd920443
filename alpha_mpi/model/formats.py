"""Formats: what the bits of one word mean.

A *format* is a number format by name: the fixed-width numbers of NumPy, ``bool``, ``complex64``
and ``complex128``, and ``bfloat16`` and the ``float8_*`` formats of ml_dtypes. A name says all:
two formats of the same width are never taken for one another. Bytes of a piece are its words in C
order, each little-endian (docs/format.md).
"""

from __future__ import annotations

import dataclasses
import functools
import importlib
import sys
from collections.abc import Iterator
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from ..errors import Refused

Array = npt.NDArray[Any]

#: The format of documents: canonical JSON bytes, not an array.
JSON = "json"

_NUMPY = (
    *("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
    *("float16", "float32", "float64", "complex64", "complex128"),
)
_ML_DTYPES = (
    *("bfloat16", "float8_e3m4", "float8_e4m3", "float8_e4m3b11fnuz", "float8_e4m3fn"),
    *("float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz", "float8_e8m0fnu"),
)
#: All names of formats of words.
NAMES = (*_NUMPY, *_ML_DTYPES)

#: Bytes looked at in one step where an array is scanned.
_STEP = 1 << 20


@dataclasses.dataclass(frozen=True)
class Format:
    """One number format. `dtype` is the native one in memory; `floating` says that words of it may
    be non-finite (complex ones included)."""

    name: str
    itemsize: int
    dtype: np.dtype[Any]
    floating: bool

    def __str__(self) -> str:
        return self.name

    @functools.cached_property
    def plain(self) -> np.dtype[Any] | None:
        """The native dtype, where words of it are one native number, little-endian as in a pack."""
        plain = sys.byteorder == "little" and self.name in _NUMPY and self.dtype.kind != "c"
        return self.dtype if plain else None


@functools.cache
def by_name(name: str) -> Format:
    """Return the format of this name.

    Raises `Refused`: ``format`` for an unknown name, ``missing-package`` where the installed
    ml_dtypes does not provide it.
    """
    if name in _NUMPY:
        dtype = np.dtype(name)
        return Format(name, dtype.itemsize, dtype, dtype.kind in "fc")
    if name in _ML_DTYPES:
        try:
            dtype = np.dtype(getattr(importlib.import_module("ml_dtypes"), name))
        except (ImportError, AttributeError) as error:
            raise Refused(
                "this number format needs a package: pip install -U ml_dtypes",
                code="missing-package",
                expected=f"ml_dtypes with {name}",
                found=error,
            ) from error
        return Format(name, dtype.itemsize, dtype, True)
    raise Refused("not a number format", code="format", expected="one of docs/format.md", found=name[:80])


def of_dtype(dtype: npt.DTypeLike) -> Format:
    """Return the format of a NumPy dtype in any byte order. Raises `Refused` (``format``)."""
    return _of_dtype(np.dtype(dtype))


@functools.lru_cache(maxsize=256)  # asked for every array of every save
def _of_dtype(d: np.dtype[Any]) -> Format:
    if d.type in (np.longdouble, np.clongdouble):
        raise _refused(d, "its bits differ from machine to machine; use float64 or complex128")
    if d.kind in "biufc":
        name = d.newbyteorder("=").name
        if name not in _NUMPY:  # another spelling of the same width, such as C's long long
            name = {"b": "bool", "i": "int", "u": "uint", "f": "float", "c": "complex"}[d.kind]
            name += "" if d.kind == "b" else str(8 * d.itemsize)
        if name in _NUMPY:
            return by_name(name)
    if d.name in _ML_DTYPES and d.type.__module__ == "ml_dtypes":
        return by_name(d.name)
    reasons = {
        "O": "Python objects have no fixed bytes and are never pickled; use a document",
        "S": "strings are not words; use a document",
        "U": "strings are not words; use a document",
        "T": "strings are not words; use a document",
        "M": "times are not words; view them as int64 and keep the unit in a document",
        "m": "times are not words; view them as int64 and keep the unit in a document",
    }
    if d.names is not None or d.subdtype is not None:
        raise _refused(d, "a structured array is several regions: declare one region per field")
    raise _refused(d, reasons.get(d.kind, "there is no fixed-width number format for it"))


def _refused(d: np.dtype[Any], why: str) -> Refused:
    return Refused(
        f"an array of this dtype cannot be a region: {why}",
        code="format",
        expected="bool or a fixed-width number",
        found=str(d)[:80],
    )


def payload(array: Array, format: Format) -> memoryview:
    """Return the bytes of a piece: its words in C order, little-endian.

    No copy is made of an array that lies in memory like that already; the bytes are then the
    array's own. The caller does not write to them.
    """
    if array.size == 0:
        _wire(array, format)
        return memoryview(b"")
    if array.dtype is format.plain and array.flags.c_contiguous:  # what nearly every array is
        return memoryview(array.data).cast("B").toreadonly()
    wire = _wire(array, format)
    flat = wire if wire.flags.c_contiguous else np.ascontiguousarray(wire)
    return memoryview(flat.reshape(-1).view(np.uint8).data).toreadonly()


def _wire(array: Array, format: Format) -> Array:
    """Return `array` as little-endian words, without a copy where it is so already."""
    if array.dtype == format.dtype and array.dtype.isnative and sys.byteorder == "little":
        return array
    if of_dtype(array.dtype).name != format.name:
        raise Refused(
            "an array has another number format",
            code="wrong-format",
            expected=format.name,
            found=of_dtype(array.dtype).name,
        )
    if format.name in _NUMPY:
        return array.astype(array.dtype.newbyteorder("<"), order="C", copy=False)
    bits = _bits(array.dtype)
    return array.view(bits).astype(bits.newbyteorder("<"), copy=False)


def _bits(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """Return the unsigned integers of the same width and byte order."""
    native = np.dtype(f"u{dtype.itemsize}")
    return native if dtype.isnative else native.newbyteorder("S")


def fill(destination: Array, data: memoryview | bytes) -> None:
    """Write little-endian words in C order into an array of any strides and byte order.

    Raises `ValueError` when the byte counts differ, `Refused` for an array without a format.
    """
    format = of_dtype(destination.dtype)
    if memoryview(data).nbytes != destination.size * format.itemsize:
        raise ValueError(f"{memoryview(data).nbytes} bytes for {destination.size} words of {format.name}")
    if destination.size:
        destination[...] = words_of(data, format).reshape(destination.shape)


def words_of(data: memoryview | bytes, format: Format) -> Array:
    """Return little-endian bytes as a 1-d array of words, without a copy on little-endian machines."""
    if memoryview(data).nbytes == 0:
        return np.empty(0, format.dtype)
    if format.plain is not None:
        return np.frombuffer(data, format.plain)
    if format.name in _NUMPY:
        return np.frombuffer(data, format.dtype.newbyteorder("<"))
    bits = np.dtype(f"u{format.itemsize}")
    return np.frombuffer(data, bits.newbyteorder("<")).astype(bits, copy=False).view(format.dtype)


@functools.cache
def _non_finite_bits(name: str) -> tuple[np.generic, np.generic]:
    """Return (mask, value) of an 8- or 16-bit format: words are non-finite where bits & mask == value.

    Read off the format itself, over all its bit patterns.
    """
    format = by_name(name)
    bits = np.dtype(f"u{format.itemsize}")
    every = np.arange(1 << (8 * format.itemsize), dtype=bits)
    codes = every[~np.isfinite(every.view(format.dtype).astype(np.float32))]
    value = np.bitwise_and.reduce(codes)
    mask = ~(np.bitwise_or.reduce(codes) ^ value)
    if not np.array_equal(np.flatnonzero((every & mask) == value), codes):
        raise AssertionError(f"the non-finite words of {name} are not one pattern of bits")
    return mask, value


def first_non_finite(array: Array) -> int | None:
    """Return the index, in C order, of the first word that is infinite or not a number, or None.

    Looks at 1 MiB at a time, while it is in cache; copies no array. Formats that hold no such word
    cost nothing.
    """
    format = of_dtype(array.dtype)
    if not format.floating or array.size == 0:
        return None
    narrow = format.itemsize <= 2
    native = np.dtype(f"u{format.itemsize}") if narrow else format.dtype
    if narrow:  # tested on their bits: NumPy widens these formats word by word
        array = array.view(_bits(array.dtype))
    at = 0
    for part in _steps(array, native):
        if narrow:
            mask, value = _non_finite_bits(format.name)
            found = (part & mask) == value
        else:
            found = np.isfinite(part)
            np.logical_not(found, out=found)
        if found.any():
            return at + int(found.argmax())
        at += len(part)
    return None


def _steps(array: Array, native: np.dtype[Any]) -> Iterator[Array]:
    """Yield the words of an array in C order as native 1-d arrays of at most about 1 MiB."""
    step = max(1, _STEP // array.dtype.itemsize)
    if array.flags.c_contiguous and array.dtype == native and array.flags.aligned:
        flat = array.reshape(-1)
        for i in range(0, len(flat), step):
            yield flat[i : i + step]
        return
    parts = np.nditer(
        array,
        flags=["external_loop", "buffered", "zerosize_ok"],
        op_flags=cast(Any, [["readonly", "aligned", "contig", "nbo"]]),
        op_dtypes=[native],
        order="C",
        buffersize=step,
        casting="equiv",
    )
    with parts:
        yield from cast(Iterator[Array], parts)
