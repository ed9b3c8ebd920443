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
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple, cast

import numpy as np
import numpy.typing as npt

from ..errors import Refused
from ._words import first_match

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


def memory_of(array: Array, format: Format) -> memoryview | None:
    """Return the array's own memory, read-only, where its words lie there as in a pack; else None."""
    if not array.flags.c_contiguous or not array.size:
        return None
    if array.dtype is format.plain:  # what nearly every array is: words that Python knows
        return array.data.cast("B").toreadonly()
    if array.dtype is format.dtype and sys.byteorder == "little":
        return memoryview(array.reshape(-1).view(np.uint8).data).toreadonly()
    return None


def payload(array: Array, format: Format) -> memoryview:
    """Return the bytes of a piece: its words in C order, little-endian.

    No copy is made of an array that lies in memory like that already; the bytes are then the
    array's own. The caller does not write to them.
    """
    memory = memory_of(array, format)
    if memory is not None:
        return memory
    if array.size == 0:
        _wire(array, format)
        return memoryview(b"")
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


class _Pattern(NamedTuple):
    """The non-finite words of a format: those with bits & mask == value, in words of `size` bytes."""

    size: int
    mask: int
    value: int

    def little(self) -> _Pattern:
        """Return the same for words that lie in memory little-endian, as in a pack."""
        size, *bits = self
        return _Pattern(size, *(int.from_bytes(b.to_bytes(size, "little"), sys.byteorder) for b in bits))


@functools.cache
def _non_finite(name: str) -> _Pattern:
    """Return the pattern of a format in the machine's byte order; of a complex one that of its parts.

    That of an 8- or 16-bit format is read off the format itself, over all its bit patterns.
    """
    format = by_name(name)
    size = format.itemsize // 2 if format.dtype.kind == "c" else format.itemsize
    if size > 2:
        exponent = 0x7F80_0000 if size == 4 else 0x7FF0_0000_0000_0000
        return _Pattern(size, exponent, exponent)
    bits = np.dtype(f"u{size}")
    every = np.arange(1 << (8 * size), dtype=bits)
    codes = every[~np.isfinite(every.view(format.dtype).astype(np.float32))]
    value = np.bitwise_and.reduce(codes)
    mask = ~(np.bitwise_or.reduce(codes) ^ value)
    if not np.array_equal(np.flatnonzero((every & mask) == value), codes):
        raise AssertionError(f"the non-finite words of {name} are not one pattern of bits")
    return _Pattern(size, int(mask), int(value))


@functools.cache
def _non_finite_wire(name: str) -> _Pattern:
    return _non_finite(name).little()


def non_finite_in(views: Sequence[memoryview | bytes], format: Format) -> tuple[int, int] | None:
    """Return (which buffer, which word of it) of the first word that is infinite or not a number.

    The buffers hold words as in a pack: little-endian, one after the other. None if every word is
    finite; formats that hold no other word cost nothing.
    """
    if not format.floating:
        return None
    size, mask, value = _non_finite_wire(format.name)
    found = first_match(views, size, mask, value)
    return None if found is None else (found[0], found[1] * size // format.itemsize)


def first_non_finite(array: Array) -> int | None:
    """Return the index, in C order, of the first word that is infinite or not a number, or None.

    Copies no array that is contiguous in the machine's byte order, and of others 1 MiB at a time.
    Formats that hold no such word cost nothing.
    """
    format = of_dtype(array.dtype)
    if not format.floating or array.size == 0:
        return None
    pattern = _non_finite(format.name)
    narrow = pattern.size <= 2
    native = np.dtype(f"u{format.itemsize}") if narrow else format.dtype
    if narrow:  # as plain integers: NumPy shows no buffer of the formats of ml_dtypes
        array = array.view(_bits(array.dtype))
    at = 0
    for part in _steps(array, native):
        found = first_match((part,), *pattern)
        if found is not None:
            return at + found[1] * pattern.size // format.itemsize
        at += len(part)
    return None


def _steps(array: Array, native: np.dtype[Any]) -> Iterator[Array]:
    """Yield the words of an array in C order as native 1-d arrays: one, or copies of about 1 MiB."""
    step = max(1, _STEP // array.dtype.itemsize)
    if array.flags.c_contiguous and array.dtype == native:
        yield array.reshape(-1)
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
