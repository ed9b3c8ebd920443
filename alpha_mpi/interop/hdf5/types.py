"""Types: number formats as HDF5 types, and HDF5 types as formats.

A format is *expressed* where HDF5 converts its words to numbers: all of NumPy's, and the narrow
floats that follow IEEE 754's rules for infinities. The others (`fn`, `fnuz`, `e8m0fnu`) stand as
their *bits*, unsigned bytes, in a view, and as float32 in a copy, which holds each of their words.
"""

from __future__ import annotations

import functools
from typing import Any

import h5py
import numpy as np

from ...errors import Refused
from ...model.formats import NAMES, Format, by_name

#: Narrow floats that HDF5 can express: bits of the exponent, bits of the fraction, bias.
NARROW = {
    "bfloat16": (8, 7, 127),
    "float8_e3m4": (3, 4, 3),
    "float8_e4m3": (4, 3, 7),
    "float8_e5m2": (5, 2, 15),
}
#: How a dataset holds the words of a format.
WORDS, BITS, FLOAT32 = "words", "bits", "float32"


def is_expressed(format: str) -> bool:
    """Return whether HDF5 has numbers of this format."""
    return format in NARROW or not format.startswith("float8_")


@functools.cache
def type_of(format: str) -> Any:
    """Return the HDF5 type (little-endian) of the words of a format, or of its bits."""
    if format in NARROW:
        exponent, fraction, bias = NARROW[format]
        made = h5py.h5t.IEEE_F32LE.copy()
        made.set_fields(exponent + fraction, fraction, exponent, 0, fraction)
        made.set_size((1 + exponent + fraction) // 8)
        made.set_ebias(bias)
        return made
    if not is_expressed(format):
        return h5py.h5t.STD_U8LE
    dtype = np.dtype(format).newbyteorder("<")
    return h5py.h5t.py_create(dtype, logical=True)


def format_of(tid: Any) -> tuple[str, Any]:
    """Return (format, HDF5 type to read it with) of a dataset's type.

    Integers, floats and complex numbers of either byte order, h5py's booleans, and the narrow
    floats above. Raises `Refused` ``format`` for any other type.
    """
    for name in NAMES:
        if (name in NARROW or not name.startswith("float8_")) and tid.equal(type_of(name)):
            return name, type_of(name)
    try:
        dtype = tid.dtype
    except TypeError:
        raise Refused("an HDF5 type that NumPy does not have", code="format", found=str(tid)) from None
    if (
        dtype.kind in "iufc"
        and h5py.check_enum_dtype(dtype) is None
        and dtype.newbyteorder("=").name in NAMES
    ):
        swapped = h5py.h5t.py_create(dtype.newbyteorder(">"), logical=True)
        if tid.equal(swapped):
            name = dtype.newbyteorder("=").name
            return name, type_of(name)
    raise Refused(
        "an HDF5 type that is no number format",
        code="format",
        expected="a number, a bool, or bfloat16",
        found=str(dtype)[:80],
    )


def widened(array: Any) -> Any:
    """Return the words of a format that HDF5 does not express as float32, each exactly."""
    return np.asarray(array).astype(np.float32)


def narrowed(array: Any, format: Format) -> Any:
    """Return float32 words as the format they were widened from, each bit for bit.

    Raises `Refused` ``format`` for a number that the format does not have.
    """
    with np.errstate(all="ignore"):
        words = np.asarray(array, np.float32).astype(format.dtype)
        back = widened(words)
    same = (back == array) | (np.isnan(back) & np.isnan(array))
    if not bool(np.all(same)):
        raise Refused("numbers that the format does not have", code="format", expected=format.name)
    return words


@functools.cache
def itemsize(format: str) -> int:
    """Return the bytes of a word."""
    return by_name(format).itemsize
