"""fill(r, u): the words every scenario saves and expects back, bit for bit.

Word i of region r at update u has the low bits of a fixed 64-bit mix of (r, u, i), as the region's
format; where a float format's exponent would be all ones it is cleared, so every word is finite.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from alpha_mpi.model import formats

_BITS = {
    "float16": (0x7C00, 16),
    "bfloat16": (0x7F80, 16),
    "float32": (0x7F800000, 32),
    "float64": (0x7FF0000000000000, 64),
    "complex64": (0x7F800000, 32),
    "complex128": (0x7FF0000000000000, 64),
}


def mix(x: np.ndarray) -> np.ndarray:
    """Return a fixed 64-bit mix of each word (the finaliser of SplitMix64, Steele et al. 2014)."""
    with np.errstate(over="ignore"):
        x = x + np.uint64(0x9E3779B97F4A7C15)
        x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return x ^ (x >> np.uint64(31))


def fill(region: str, update: int, shape: tuple[int, ...], dtype: Any) -> np.ndarray:
    """Return the whole region at an update."""
    format = formats.of_dtype(dtype)
    size = int(np.prod(shape, dtype=np.int64))
    seed = np.uint64(
        int.from_bytes(region.encode("utf-8", "surrogatepass")[:64].ljust(8, b"\0"), "little") % (1 << 63)
    )
    with np.errstate(over="ignore"):
        base = mix(np.array([seed + np.uint64(update) * np.uint64(0x9E3779B9)], np.uint64))[0]
        pairs = 2 if format.name.startswith("complex") else 1
        words = mix(base + np.arange(size * pairs, dtype=np.uint64))
    if format.name == "bool":
        return (words & np.uint64(1)).astype(bool).reshape(shape)
    bits = 8 * format.itemsize // pairs
    words = (words & np.uint64((1 << bits) - 1)).astype(f"u{bits // 8}")
    if format.name in _BITS:
        exponent = words.dtype.type(_BITS[format.name][0])
        bad = (words & exponent) == exponent
        words[bad] &= ~exponent
    array = words.view(format.dtype).reshape(shape)
    if format.itemsize == 1 and format.floating:
        bits8 = array.reshape(-1).view(np.uint8)
        bad = ~np.isfinite(array.reshape(-1).astype(np.float32))
        bits8[bad] = 0x08 if format.name != "float8_e8m0fnu" else 0x7F
    return array


def same_bits(a: Any, b: Any) -> bool:
    """Return whether two arrays have the same format, shape and bits."""
    a, b = np.asarray(a), np.asarray(b)
    if a.dtype.newbyteorder("=") != b.dtype.newbyteorder("=") or a.shape != b.shape:
        return False
    return formats.payload(a, formats.of_dtype(a.dtype)) == formats.payload(b, formats.of_dtype(b.dtype))
