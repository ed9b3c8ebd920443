"""Piece arithmetic against the plain truth: sets of words, and NumPy's own indexing."""

from __future__ import annotations

import math
from collections import Counter
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from alpha_mpi.errors import Refused
from alpha_mpi.model import pieces as P
from alpha_mpi.model.cover import check_cover
from alpha_mpi.model.pieces import Box, Interval, Piece, Shape

bounded = settings(
    derandomize=True, deadline=None, max_examples=200, suppress_health_check=[HealthCheck.filter_too_much]
)

shapes = st.lists(st.integers(0, 5), min_size=1, max_size=4).map(tuple)


def held(piece: Piece, shape: Shape) -> list[int]:
    """The words of a piece, in C order."""
    every = np.arange(math.prod(shape)).reshape(shape)
    if isinstance(piece, Interval):
        return every.reshape(-1)[piece.start : piece.stop].tolist()
    index = tuple(slice(a, b) for a, b in zip(piece.starts, piece.stops, strict=True))
    return every[index].reshape(-1).tolist()


def a_piece(draw: st.DrawFn, shape: Shape, inside: Piece | None = None) -> Piece:
    def ends(lo: int, hi: int) -> tuple[int, int]:
        return tuple(sorted((draw(st.integers(lo, hi)), draw(st.integers(lo, hi)))))

    if isinstance(inside, Interval):
        return Interval(*ends(inside.start, inside.stop))
    if inside is None and draw(st.booleans()):
        return Interval(*ends(0, math.prod(shape)))
    lo, hi = ((0,) * len(shape), shape) if inside is None else (inside.starts, inside.stops)
    bounds = [ends(a, b) for a, b in zip(lo, hi, strict=True)]
    return Box(tuple(a for a, _ in bounds), tuple(b for _, b in bounds))


@st.composite
def shape_and_pieces(draw: st.DrawFn, count: int = 2) -> tuple[Shape, list[Piece]]:
    shape = draw(shapes)
    return shape, [a_piece(draw, shape) for _ in range(count)]


@bounded
@given(shape_and_pieces())
def test_an_intersection_holds_the_words_of_both_in_order(case: tuple[Shape, list[Piece]]) -> None:
    shape, (a, b) = case
    parts = P.intersect(a, b, shape)
    words = [w for part in parts for w in held(part, shape)]
    assert words == sorted(set(held(a, shape)) & set(held(b, shape)))
    assert not any(P.is_empty(part) for part in parts)
    assert len(parts) <= max(1, 2 * len(shape) - 1)
    assert [w for part in P.intersect(b, a, shape) for w in held(part, shape)] == words


@bounded
@given(shape_and_pieces(1))
def test_sizes_starts_and_runs(case: tuple[Shape, list[Piece]]) -> None:
    shape, (piece,) = case
    words = held(piece, shape)
    P.check(piece, shape)
    assert P.size(piece) == len(words) == math.prod(P.local_shape(piece))
    assert P.is_empty(piece) == (not words)
    runs = list(P.runs(piece, shape))
    assert [w for at, n in runs for w in range(at, at + n)] == words
    if words:
        assert P.start(piece, shape) == words[0]
        assert all(a + n < b for (a, n), (b, _) in pairwise(runs)), "runs could be joined"


@bounded
@given(shapes.flatmap(lambda s: st.tuples(st.just(s), st.integers(0, 625), st.integers(0, 625))))
def test_an_interval_is_its_boxes(case: tuple[Shape, int, int]) -> None:
    shape, x, y = case
    n = math.prod(shape)
    interval = Interval(min(x, y, n), min(max(x, y), n))
    parts = P.boxes(interval, shape)
    assert [w for part in parts for w in held(part, shape)] == held(interval, shape)
    assert len(parts) <= max(1, 2 * len(shape) - 1)


@st.composite
def two_holders(draw: st.DrawFn) -> tuple[Shape, Piece, Piece, Piece]:
    shape = draw(shapes)
    a, b = a_piece(draw, shape), a_piece(draw, shape)
    both = P.intersect(a, b, shape)
    inner = a_piece(draw, shape, draw(st.sampled_from(both))) if both else Interval(0, 0)
    return shape, a, b, inner


@bounded
@given(two_holders())
def test_words_are_copied_from_one_holder_to_another_by_runs(case: tuple[Shape, Piece, Piece, Piece]) -> None:
    shape, a, b, inner = case
    if P.is_empty(inner):
        return
    source = np.array(held(a, shape))
    target = np.full(P.size(b), -1)
    froms, tos, lengths = P.zip_runs(P.runs_within(inner, a, shape), P.runs_within(inner, b, shape))
    for f, t, n in zip(froms.tolist(), tos.tolist(), lengths.tolist(), strict=True):
        assert n > 0
        target[t : t + n] = source[f : f + n]
    expected = [w if w in set(held(inner, shape)) else -1 for w in held(b, shape)]
    assert target.tolist() == expected
    if isinstance(inner, Box) and isinstance(a, Box):
        local = source.reshape(P.local_shape(a))
        assert local[P.slices(inner, a)].reshape(-1).tolist() == held(inner, shape)


def test_runs_of_a_whole_array() -> None:
    offsets, lengths = P.runs_within(Box((1, 0), (3, 4)), None, (5, 4))
    assert offsets.tolist() == [4] and lengths.tolist() == [8]
    with pytest.raises(ValueError, match="same number of words"):
        P.zip_runs((offsets, lengths), (offsets, lengths - 1))


def test_a_million_runs_are_made_at_once() -> None:
    at, length = P.run_starts(Box((0, 3), (1_000_000, 5)), (1_000_000, 7))
    assert isinstance(at, np.ndarray)  # no object per run
    assert len(at) == 1_000_000 and length == 2 and at[-1] == 999_999 * 7 + 3


def test_no_axes_and_the_whole() -> None:
    assert P.whole(()) == Interval(0, 1) and P.words(()) == 1
    assert P.whole((3, 0)) == Interval(0, 0)
    assert P.start(None, (3, 4)) == 0
    assert P.intersect(Interval(0, 1), Interval(0, 1), ()) == [Interval(0, 1)]
    assert str(Box((1, 2), (3, 4))) == "box [1:3, 2:4]" and str(Interval(1, 2)) == "words [1, 2)"


@pytest.mark.parametrize(
    "piece",
    [
        Interval(-1, 3),
        Interval(3, 2),
        Interval(0, 13),
        Box((0,), (3,)),
        Box((0, 0), (4, 4)),
        Box((2, 0), (1, 4)),
        Box((0, -1), (3, 4)),
        Box((0, 0), (3,)),
        Box((), ()),
    ],
)
def test_pieces_outside_the_region_are_refused(piece: Piece) -> None:
    for judge in (lambda: P.check(piece, (3, 4)), lambda: check_cover([piece], (3, 4))):
        with pytest.raises(Refused) as refusal:
            judge()
        assert refusal.value.code == "bad-piece"


def truth(pieces: list[Piece], shape: Shape) -> set[str]:
    counts = Counter(w for piece in pieces for w in held(piece, shape))
    faults = set()
    if any(n > 1 for n in counts.values()):
        faults.add("overlap")
    if len(counts) < math.prod(shape):
        faults.add("incomplete-cover")
    return faults


def verdict(pieces: list[Piece], shape: Shape) -> str | None:
    try:
        check_cover(pieces, shape)
    except Refused as refusal:
        return refusal.code
    return None


@st.composite
def tilings(draw: st.DrawFn) -> tuple[Shape, list[Piece]]:
    """A shape cut into boxes at random, some written as intervals, then perhaps one fault."""
    shape = draw(st.lists(st.integers(1, 6), min_size=1, max_size=4).map(tuple))
    pieces = [Box((0,) * len(shape), shape)]
    for _ in range(draw(st.integers(0, 12))):
        i = draw(st.integers(0, len(pieces) - 1))
        axis = draw(st.integers(0, len(shape) - 1))
        box = pieces[i]
        at = draw(st.integers(box.starts[axis], box.stops[axis]))
        left = Box(box.starts, (*box.stops[:axis], at, *box.stops[axis + 1 :]))
        right = Box((*box.starts[:axis], at, *box.starts[axis + 1 :]), box.stops)
        pieces[i : i + 1] = [left, right]
    found: list[Piece] = []
    for box in draw(st.permutations(pieces)):
        words = held(box, shape)
        run = words and words == list(range(words[0], words[-1] + 1))
        found.append(Interval(words[0], words[-1] + 1) if run and draw(st.booleans()) else box)
    fault = draw(st.sampled_from(["none", "none", "drop", "twice", "other", "shift"]))
    i = draw(st.integers(0, len(found) - 1))
    if fault == "drop":
        del found[i]
    elif fault == "twice":
        found.append(found[i])
    elif fault == "other":
        found[i] = a_piece(draw, shape)
    elif fault == "shift":
        found.append(a_piece(draw, shape))
    return shape, found


@settings(bounded, max_examples=600)
@given(tilings())
def test_exact_cover_is_decided_as_by_counting_words(case: tuple[Shape, list[Piece]]) -> None:
    shape, pieces = case
    faults = truth(pieces, shape)
    found = verdict(pieces, shape)
    assert (found is None) == (not faults)
    assert found is None or found in faults


@bounded
@given(shape_and_pieces(6))
def test_arbitrary_pieces_are_judged_as_by_counting_words(case: tuple[Shape, list[Piece]]) -> None:
    shape, pieces = case
    faults, found = truth(pieces, shape), verdict(pieces, shape)
    assert (found is None) == (not faults) and (found is None or found in faults)


def pinwheel(n: int) -> tuple[Shape, list[Piece]]:
    """n x n pinwheels of five boxes each: no straight cut inside one misses every box."""
    wheel = [((0, 0), (2, 1)), ((0, 1), (1, 3)), ((1, 2), (3, 3)), ((2, 0), (3, 2)), ((1, 1), (2, 2))]
    pieces: list[Piece] = []
    for i in range(n):
        for j in range(n):
            at = np.array([3 * i, 3 * j])
            pieces += [Box(tuple((at + a).tolist()), tuple((at + b).tolist())) for a, b in wheel]
    return (3 * n, 3 * n), pieces


def bricks(n: int) -> tuple[Shape, list[Piece]]:
    """A wall whose rows are shifted by half a brick."""
    pieces: list[Piece] = []
    for row in range(n):
        cuts = [0, *range(1 + row % 2, 2 * n, 2), 2 * n]
        pieces += [Box((row, a), (row + 1, b)) for a, b in pairwise(cuts)]
    return (n, 2 * n), pieces


def test_tilings_without_a_straight_cut() -> None:
    shape, pieces = pinwheel(6)
    assert verdict(pieces, shape) is None
    assert verdict(pieces[:-1], shape) == "incomplete-cover"
    assert verdict([*pieces, pieces[77]], shape) == "overlap"
    assert verdict(*reversed(bricks(9))) is None


@pytest.mark.parametrize("make", ["rows", "grid", "cube", "bricks", "pinwheel", "intervals", "columns"])
def test_a_large_cover_is_decided_in_time(make: str) -> None:
    """Quadratic time would take hours here: the time limit of every test stands in its way."""
    n = 20_000
    if make == "rows":
        shape, pieces = (n, 7), [Box((i, 0), (i + 1, 7)) for i in range(n)]
    elif make == "columns":
        shape, pieces = (7, n), [Box((0, i), (7, i + 1)) for i in range(n)]
    elif make == "grid":
        shape, pieces = (140, 140), [Box((i, j), (i + 1, j + 1)) for i in range(140) for j in range(140)]
    elif make == "cube":
        cells = np.ndindex(27, 27, 27)
        shape, pieces = (27, 27, 27), [Box(c, tuple(x + 1 for x in c)) for c in cells]
    elif make == "bricks":
        shape, pieces = bricks(200)
    elif make == "pinwheel":
        shape, pieces = pinwheel(60)
    else:
        shape, pieces = (n,), [Interval(i, i + 1) for i in range(n)]
    order = np.random.default_rng(0).permutation(len(pieces))
    shuffled = [pieces[i] for i in order]
    assert verdict(shuffled, shape) is None
    assert verdict(shuffled[:-1], shape) == "incomplete-cover"
    assert verdict([*shuffled, shuffled[9]], shape) == "overlap"
    assert verdict([*shuffled[:-1], shuffled[9]], shape) in ("overlap", "incomplete-cover")


def test_many_large_overlapping_pieces_are_refused_in_time() -> None:
    rng = np.random.default_rng(1)
    lo = rng.integers(0, 500, (20_000, 3))
    hi = lo + rng.integers(1, 500, (20_000, 3))
    pieces: list[Piece] = [Box(tuple(a), tuple(b)) for a, b in zip(lo.tolist(), hi.tolist(), strict=True)]
    assert verdict(pieces, (1000, 1000, 1000)) in ("overlap", "incomplete-cover")


def test_a_refusal_names_owners_and_words() -> None:
    pieces: list[Piece] = [Interval(0, 5), Interval(4, 10)]
    with pytest.raises(Refused) as refusal:
        check_cover(pieces, (10,), owners=[3, 8], region="w")
    assert "owners 3 and 8" in str(refusal.value)
    assert (refusal.value.role, refusal.value.region) == (8, "w")
    with pytest.raises(Refused, match=r"nobody holds words \[5, 6\)") as refusal:
        check_cover([Interval(0, 5), Interval(6, 10)], (10,))
    with pytest.raises(Refused, match=r"nobody holds box \[1:2, 2:3\]"):
        check_cover([Box((0, 0), (1, 3)), Box((1, 0), (2, 2)), Box((2, 0), (3, 3))], (3, 3))
    with pytest.raises(Refused, match="nobody holds"):
        check_cover([], (3, 3))
    with pytest.raises(Refused) as refusal:
        check_cover([Interval(0, 5), Interval(9, 11)], (10,), owners=[0, 1])
    assert (refusal.value.code, refusal.value.role) == ("bad-piece", 1)


def test_sizes_beyond_four_bytes_and_nothing_at_all() -> None:
    huge = (1 << 20, 1 << 20, 1 << 10)
    half = Box((0, 0, 0), (1 << 19, 1 << 20, 1 << 10))
    rest: Piece = Interval(1 << 49, 1 << 50)
    check_cover([half, rest], huge)
    with pytest.raises(Refused):
        check_cover([half, Interval((1 << 49) + 1, 1 << 50)], huge)
    check_cover([], (3, 0, 5))
    check_cover([Interval(0, 0), Box((0, 0, 0), (3, 0, 5))], (3, 0, 5))
    check_cover([Interval(0, 1)], ())
