"""Every format's words become bytes and come back exactly, from memory of any layout."""

from __future__ import annotations

import importlib
import sys

import ml_dtypes
import numpy as np
import pytest

from alpha_mpi.errors import Refused
from alpha_mpi.model import formats
from alpha_mpi.model._words import first_match
from alpha_mpi.model.formats import (
    NAMES,
    by_name,
    fill,
    first_non_finite,
    non_finite_in,
    of_dtype,
    payload,
    words_of,
)


def bits(name: str, n: int, seed: int = 1) -> np.ndarray:
    """Words with every bit pattern the format has, not-a-number and signalling ones included."""
    format = by_name(name)
    rng = np.random.default_rng(seed)
    if name == "bool":
        return rng.integers(0, 2, n, np.uint8).view(np.bool_)
    return np.frombuffer(rng.bytes(n * format.itemsize), np.uint8).copy().view(format.dtype)


def raw(array: np.ndarray) -> bytes:
    return np.ascontiguousarray(array).tobytes()


def in_some_layout(words: np.ndarray, layout: str) -> np.ndarray:
    """The same logical 2-d array in another memory layout."""
    a = words.reshape(6, -1)
    if layout == "c":
        return a.copy()
    if layout == "fortran":
        return np.asfortranarray(a)
    if layout == "transposed":
        return np.ascontiguousarray(a.T).T
    if layout == "strided":
        wide = np.zeros((18, a.shape[1]), a.dtype)
        wide[::3] = a
        return wide[::3]
    if layout == "reversed":
        return np.ascontiguousarray(a[::-1, ::-1])[::-1, ::-1]
    if layout == "read-only":
        b = a.copy()
        b.flags.writeable = False
        return b
    if layout == "unaligned":
        store = np.zeros(a.nbytes + 1, np.uint8)
        b = store[1:].view(a.dtype).reshape(a.shape)
        b[...] = a
        return b
    assert layout == "swapped"
    return a.astype(a.dtype.newbyteorder(">"))


LAYOUTS = ("c", "fortran", "transposed", "strided", "reversed", "read-only", "unaligned", "swapped")


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", NAMES)
def test_r21_bytes_are_the_words_in_c_order_from_any_memory_layout(name: str, layout: str) -> None:
    words = bits(name, 48)
    array = in_some_layout(words, layout)
    before = raw(array)
    data = payload(array, by_name(name))
    assert bytes(data) == words.tobytes()
    assert data.readonly
    assert raw(array) == before


@pytest.mark.parametrize("layout", [x for x in LAYOUTS if x != "read-only"])
@pytest.mark.parametrize("name", NAMES)
def test_r21_filling_any_memory_layout_gives_the_same_values(name: str, layout: str) -> None:
    words = bits(name, 48)
    destination = in_some_layout(np.zeros_like(words), layout)
    where = destination.__array_interface__["data"][0]
    fill(destination, words.tobytes())
    assert destination.__array_interface__["data"][0] == where
    assert bytes(payload(destination, by_name(name))) == words.tobytes()


@pytest.mark.parametrize("name", NAMES)
def test_a_contiguous_array_is_not_copied(name: str) -> None:
    array = bits(name, 64)
    data = np.frombuffer(payload(array, by_name(name)), np.uint8)
    assert data.__array_interface__["data"][0] == array.__array_interface__["data"][0]


@pytest.mark.parametrize("shape", [(), (0,), (3, 0, 5), (1,), (1, 9, 4)])
@pytest.mark.parametrize("name", NAMES)
def test_small_and_empty_shapes(name: str, shape: tuple[int, ...]) -> None:
    format = by_name(name)
    array = bits(name, max(1, int(np.prod(shape))))[: int(np.prod(shape))].reshape(shape)
    again = np.zeros(shape, format.dtype)
    fill(again, payload(array, format))
    assert raw(again) == raw(array) and again.shape == shape
    assert len(words_of(payload(array, format), format)) == array.size


@pytest.mark.parametrize("name", NAMES)
def test_names_and_dtypes_agree(name: str) -> None:
    format = by_name(name)
    assert of_dtype(format.dtype) is format and str(format) == name
    assert format.itemsize == np.empty(1, format.dtype).itemsize
    assert format.floating == (name.startswith(("float", "bfloat", "complex")))


def test_two_byte_formats_are_never_taken_for_one_another() -> None:
    names = {of_dtype(d).name for d in (np.float16, ml_dtypes.bfloat16, np.uint16, np.int16)}
    assert names == {"float16", "bfloat16", "uint16", "int16"}
    with pytest.raises(Refused) as refusal:
        payload(np.zeros(3, np.float16), by_name("bfloat16"))
    assert refusal.value.code == "wrong-format"
    assert (refusal.value.expected, refusal.value.found) == ("bfloat16", "float16")


def test_every_spelling_of_an_integer_is_its_width() -> None:
    for char in "bhilqBHILQ?efdFD":
        for order in "<>=":
            assert of_dtype(np.dtype(char).newbyteorder(order)).name in NAMES
    assert of_dtype("q").name == of_dtype("l").name == "int64"


@pytest.mark.parametrize(
    ("dtype", "reason"),
    [
        ("O", "never pickled"),
        ("S4", "strings"),
        ("U4", "strings"),
        ("M8[s]", "times"),
        ("m8[s]", "times"),
        ("g", "machine to machine"),
        ("G", "machine to machine"),
        ([("x", "f4"), ("y", "i4")], "one region per field"),
        ("V2", "no fixed-width"),
        (ml_dtypes.int4, "no fixed-width"),
    ],
)
def test_dtypes_without_fixed_bits_are_refused_with_the_reason(dtype: object, reason: str) -> None:
    with pytest.raises(Refused, match=reason) as refusal:
        of_dtype(dtype)  # type: ignore[arg-type]
    assert refusal.value.code == "format"


def test_an_unknown_name_is_refused() -> None:
    with pytest.raises(Refused) as refusal:
        by_name("float12")
    assert refusal.value.code == "format"


def test_a_format_whose_package_is_missing_is_refused_with_the_package(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def no_package(name: str) -> None:
        raise ImportError(name)

    by_name.cache_clear()
    monkeypatch.setattr(importlib, "import_module", no_package)
    try:
        assert by_name("float32").itemsize == 4
        with pytest.raises(Refused, match="ml_dtypes") as refusal:
            by_name("bfloat16")
        assert refusal.value.code == "missing-package"
    finally:
        monkeypatch.undo()
        by_name.cache_clear()


def test_arrays_of_more_than_two_gib_are_not_copied() -> None:
    array = np.zeros(2_200_000_000, np.uint8)  # pages that nobody touches cost nothing
    assert len(payload(array, by_name("uint8"))) == 2_200_000_000
    assert len(payload(array.view(np.float32), by_name("float32"))) == 2_200_000_000


def test_filling_with_another_number_of_bytes_is_an_error() -> None:
    with pytest.raises(ValueError, match="3 bytes"):
        fill(np.zeros(4, np.float32), b"abc")


FLOATS = [n for n in NAMES if by_name(n).floating]


@pytest.mark.parametrize("name", FLOATS)
def test_the_first_non_finite_word_is_found(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(formats, "_STEP", 64)  # many steps in a small array
    format = by_name(name)
    array = np.ones(1000, format.dtype)
    assert first_non_finite(array) is None
    for at in (999, 500, 64, 1, 0):
        array[at] = np.nan
        assert first_non_finite(array) == at
    grid = np.ones((25, 40), format.dtype)
    grid[3, 7] = np.nan
    assert first_non_finite(grid) == 127
    assert first_non_finite(np.asfortranarray(grid)) == 127
    assert first_non_finite(grid.T) == 7 * 25 + 3
    assert first_non_finite(grid[3:, 7:]) == 0


@pytest.mark.parametrize("name", FLOATS)
def test_non_finite_agrees_with_the_format_on_every_bit_pattern(name: str) -> None:
    format = by_name(name)
    if format.itemsize > 2:
        patterns = bits(name, 5000)
    else:
        patterns = np.arange(1 << (8 * format.itemsize), dtype=f"u{format.itemsize}").view(format.dtype)
    real = patterns.astype(np.float32) if format.itemsize <= 2 else patterns
    expected = ~np.isfinite(real)
    for i in np.random.default_rng(0).choice(len(patterns), 300):
        assert (first_non_finite(patterns[i : i + 1]) == 0) == expected[i]
    first = np.flatnonzero(expected)
    assert first_non_finite(patterns) == (first[0] if len(first) else None)
    assert first_non_finite(patterns[~expected]) is None


def test_non_finite_words_of_swapped_and_unaligned_arrays() -> None:
    for name in ("bfloat16", "float16", "float32", "float64", "complex64", "complex128"):
        array = np.ones(100, by_name(name).dtype)
        array[60] = -np.inf
        assert first_non_finite(array.astype(array.dtype.newbyteorder(">"))) == 60
        assert first_non_finite(in_some_layout(array[:96].copy(), "unaligned")) == 60
    assert first_non_finite(np.array([1 + 1j, complex(0, np.nan)])) == 1


def test_formats_without_non_finite_words_are_not_looked_at() -> None:
    assert first_non_finite(np.full(10, -1)) is None
    assert first_non_finite(np.ones(3, np.bool_)) is None
    assert first_non_finite(np.empty((0, 3))) is None
    assert first_non_finite(np.array(np.inf)) == 0


@pytest.mark.parametrize("name", NAMES)
def test_the_first_non_finite_word_of_many_buffers_is_found(name: str) -> None:
    format = by_name(name)
    arrays = [np.ones(n, format.dtype) for n in (0, 1, 33, 0, 5000, 7)]
    views = [payload(array, format) for array in arrays]
    assert non_finite_in(views, format) is None
    assert non_finite_in([], format) is None
    for i, at in ((5, 6), (4, 4999), (4, 1024), (4, 0), (2, 32), (1, 0)):
        arrays[i][at] = np.nan if format.floating else 0
        assert non_finite_in(views, format) == ((i, at) if format.floating else None)


@pytest.mark.parametrize("name", FLOATS)
def test_looking_at_buffers_agrees_with_the_format(name: str) -> None:
    format, patterns = by_name(name), bits(name, 300)
    for i in range(len(patterns)):
        one = patterns[i : i + 1]
        found = non_finite_in([payload(one, format)], format)
        real = one.astype(np.float32) if format.itemsize <= 2 else one
        assert (found is None) == bool(np.isfinite(real).all()), one


def test_matches_are_looked_for_in_words_of_four_sizes() -> None:
    data = bytes(range(1, 17))
    little = sys.byteorder
    for size in (1, 2, 4, 8):
        for at in range(16 // size):
            word = int.from_bytes(data[at * size : (at + 1) * size], little)
            mask = (1 << 8 * size) - 1
            assert first_match([b"", data], size, mask, word) == (1, at)
            assert first_match([memoryview(data)[: at * size + size - 1]], size, mask, word) is None
    for size in (0, 3, 16, -1):
        with pytest.raises(ValueError, match="no words of"):
            first_match([data], size, 0, 0)
    with pytest.raises(TypeError):
        first_match(["text"], 4, 0, 0)
    with pytest.raises((BufferError, ValueError)):
        first_match([np.ones((4, 4))[:, 1]], 8, 0, 0)
