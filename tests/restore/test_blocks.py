"""Blocks: parts of pieces as strides, against numpy's own indexing."""

import math

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from alpha_mpi.model.pieces import Box, Interval
from alpha_mpi.restore import blocks


@st.composite
def pieces(draw, shape):
    size = math.prod(shape)
    if draw(st.booleans()):
        a, b = sorted((draw(st.integers(0, size)), draw(st.integers(0, size))))
        return Interval(a, b)
    bounds = [sorted((draw(st.integers(0, n)), draw(st.integers(0, n)))) for n in shape]
    return Box(tuple(a for a, _ in bounds), tuple(b for _, b in bounds))


def local(array, piece):
    """The flattened words of a piece, by numpy."""
    if isinstance(piece, Interval):
        return array.reshape(-1)[piece.start : piece.stop].copy()
    index = tuple(slice(a, b) for a, b in zip(piece.starts, piece.stops, strict=True))
    return array[index].reshape(-1).copy()


def view(words, shape, offset, strides):
    return np.ndarray(
        shape,
        words.dtype,
        words,
        offset * words.itemsize,
        tuple(s * words.itemsize for s in strides),
    )


shapes = st.lists(st.integers(1, 5), min_size=1, max_size=4).map(tuple)


@settings(max_examples=400, deadline=None)
@given(st.data())
def test_shared_words_equal_numpys(data):
    shape = data.draw(shapes)
    held, needed = data.draw(pieces(shape)), data.draw(pieces(shape))
    array = np.arange(1, math.prod(shape) + 1).reshape(shape)
    source, want = local(array, held), local(array, needed)
    want[~np.isin(want, source)] = 0
    got = np.zeros_like(want)
    for part, block in blocks.shared(held, needed, shape):
        assert block.words == len(local(array, part))
        to = view(got, block.shape, block.destination, block.destination_strides)
        assert not to.any(), "no word is copied twice"
        to[...] = view(source, block.shape, block.source, block.source_strides)
    assert (got == want).all()


@settings(max_examples=400, deadline=None)
@given(st.data())
def test_clipped_parts_are_the_words_of_the_range(data):
    shape = data.draw(shapes)
    held, needed = data.draw(pieces(shape)), data.draw(pieces(shape))
    found = blocks.shared(held, needed, shape)
    array = np.arange(1, math.prod(shape) + 1).reshape(shape)
    source = local(array, held)
    start, stop = sorted((data.draw(st.integers(0, len(source))), data.draw(st.integers(0, len(source)))))
    clipped = source.copy()
    clipped[:start] = 0
    clipped[stop:] = 0
    for _, block in found:
        want = np.zeros(len(local(array, needed)), dtype=array.dtype)
        view(want, block.shape, block.destination, block.destination_strides)[...] = view(
            clipped, block.shape, block.source, block.source_strides
        )
        got = np.zeros_like(want)
        for part in blocks.clip(block, start, stop):
            assert start <= part.source and part.stop <= stop
            view(got, part.shape, part.destination, part.destination_strides)[...] = view(
                source, part.shape, part.source, part.source_strides
            )
        assert (got == want).all()


@settings(max_examples=400, deadline=None)
@given(st.data())
def test_touched_parts_are_those_that_hold_words(data):
    shape = data.draw(shapes)
    held, needed = data.draw(pieces(shape)), data.draw(pieces(shape))
    step = data.draw(st.integers(1, 9))
    found = [block for _, block in blocks.shared(held, needed, shape)]
    source = np.zeros(len(local(np.empty(shape), held)), dtype=int)
    for block in found:
        view(source, block.shape, block.source, block.source_strides)[...] = 1
    assert blocks.touched(found, step) == sorted({i // step for i in np.flatnonzero(source).tolist()})


def test_a_wide_box_is_one_block_and_its_clip_a_few():
    shape = (1_000_000, 64, 64)
    held, needed = Box((0, 0, 0), shape), Box((10, 3, 5), (900_000, 60, 9))
    [(_, block)] = blocks.shared(held, needed, shape)
    assert block.words == (900_000 - 10) * 57 * 4
    parts = list(blocks.clip(block, 1_000_003, 500_000_007))
    assert len(parts) <= 5
    assert sum(p.words for p in parts) > 20_000_000
