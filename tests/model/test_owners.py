"""Owners of words: the lookup agrees with asking every owner."""

import math

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from alpha_mpi.model.layout import grid, irregular, mesh, on, per_owner, replicated, rows, shares
from alpha_mpi.model.owners import writers
from alpha_mpi.model.pieces import Box, Interval


@st.composite
def cases(draw):
    """A shape, a rule of so many owners, and a piece that holds words."""
    shape = draw(st.lists(st.integers(1, 7), min_size=0, max_size=3).map(tuple))
    dims = draw(st.lists(st.integers(1, 4), min_size=1, max_size=3).map(tuple))
    kinds = ["shares", "mesh", "replicated", *(["rows", "grid"] if shape else [])]
    kind, n = draw(st.sampled_from(kinds)), draw(st.integers(1, 12))
    if kind == "rows":
        rule = rows(draw(st.integers(0, len(shape) - 1)))
    elif kind == "grid":
        dims = dims[: len(shape)]
        rule, n = grid(dims), math.prod(dims)
    elif kind == "mesh":
        axes = {f"axis{i}": d for i, d in enumerate(dims)}
        names = draw(st.permutations([*axes, None, None, None]))
        rule, n = mesh(axes, names[: draw(st.integers(0, len(shape)))]), math.prod(dims)
    else:
        rule = shares() if kind == "shares" else replicated()
    if draw(st.booleans()):
        owners = draw(st.permutations(range(n + 3)))[:n]
        rule, n = on(owners, rule), n + 3
    rule.check(shape, n)
    size = math.prod(shape)
    if not shape or draw(st.booleans()):
        a = draw(st.integers(0, size - 1))
        return shape, rule, n, Interval(a, draw(st.integers(a + 1, size)))
    starts = tuple(draw(st.integers(0, e - 1)) for e in shape)
    return (
        shape,
        rule,
        n,
        Box(starts, tuple(draw(st.integers(a + 1, e)) for a, e in zip(starts, shape, strict=True))),
    )


def words(piece, shape):
    numbers = np.arange(math.prod(shape)).reshape(shape)
    if isinstance(piece, Interval):
        return set(numbers.reshape(-1)[piece.start : piece.stop].tolist())
    at = tuple(slice(a, b) for a, b in zip(piece.starts, piece.stops, strict=True))
    return set(numbers[at].reshape(-1).tolist())


@settings(max_examples=400, deadline=None)
@given(cases())
def test_the_lookup_says_what_asking_every_owner_says(case):
    shape, rule, n, piece = case
    wanted, expected = words(piece, shape), set()
    for k in range(n):
        for held, writes in zip(rule.pieces(shape, n, k), rule.writes(shape, n, k), strict=True):
            if writes and words(held, shape) & wanted:
                expected.add(k)
    assert writers(rule, shape, n, piece) == expected


def test_what_no_rule_says():
    assert writers(irregular([]), (4,), 2, Interval(0, 4)) is None
    assert writers(per_owner(), (4,), 2, Interval(0, 4)) is None
    assert writers(shares(), (4,), 2, Interval(1, 1)) == frozenset()


def test_many_owners_are_not_asked_one_by_one():
    n = 10_000_000
    assert writers(shares(), (3 * n,), n, Interval(3_000, 3_007)) == {1000, 1001, 1002}
    assert writers(rows(), (n, 3), n, Box((5, 0), (7, 1))) == {5, 6}
    assert writers(grid((n, 2)), (n, 4), 2 * n, Box((5, 3), (7, 4))) == {11, 13}
    assert len(writers(shares(), (1000, 1000), 1_000_000, Box((0, 7), (1000, 8)))) == 1000
