"""Plans: which words of which shards go where, against numpy's own indexing."""

import itertools
import math

import numpy as np
import pytest
from growth import growth
from hypothesis import given, settings
from hypothesis import strategies as st
from restore.build_store import take

from alpha_mpi.errors import Refused
from alpha_mpi.format import Place, ShardRecord, piece_ints, piece_of
from alpha_mpi.model import Schema
from alpha_mpi.model.layout import grid, rows, shares
from alpha_mpi.model.pieces import Box, Interval, size
from alpha_mpi.restore.plan import Held, Need, plan

PLACE = (Place(1, 1, 0),)
DIGEST = "xxh3-128:" + 32 * "0"


def record(ordinal, owner, piece, words, itemsize=8):
    return ShardRecord(ordinal, owner, piece_ints(piece), words * itemsize, DIGEST, PLACE)


def regions(shape, kind="array", format="int64"):
    return Schema.of([("w", kind, format, shape)]).regions


def carry_out(made, shape):
    """Carry a plan out with numpy alone; return the flattened words of each need."""
    array = np.arange(1, math.prod(shape) + 1).reshape(shape)
    got = [np.zeros(size(need.piece), dtype=np.int64) for need in made.needs]
    for read in made.reads:
        source = take(array, piece_of(read.record.piece))
        for copy in read.copies:
            if copy.blocks is None:
                got[copy.need][:] = source
                continue
            for b in copy.blocks:
                view = [
                    np.ndarray(b.shape, np.int64, words, at * 8, tuple(s * 8 for s in strides))
                    for words, at, strides in (
                        (got[copy.need], b.destination, b.destination_strides),
                        (source, b.source, b.source_strides),
                    )
                ]
                assert not view[0].any()
                view[0][...] = view[1]
    return got, [take(array, need.piece) for need in made.needs]


@st.composite
def partitions(draw, shape):
    """Cut a shape at random into intervals, or into boxes by recursive cuts."""
    total = math.prod(shape)
    if draw(st.booleans()):
        cuts = sorted({0, total, *draw(st.lists(st.integers(0, total), max_size=5))})
        return [Interval(a, b) for a, b in itertools.pairwise(cuts)]
    done = [Box((0,) * len(shape), shape)]
    for _ in range(draw(st.integers(0, 5))):
        box = done.pop(draw(st.integers(0, len(done) - 1)))
        axis = draw(st.integers(0, len(shape) - 1))
        at = draw(st.integers(box.starts[axis], box.stops[axis]))
        halves = [
            Box(box.starts, tuple(at if i == axis else n for i, n in enumerate(box.stops))),
            Box(tuple(at if i == axis else n for i, n in enumerate(box.starts)), box.stops),
        ]
        done += [b for b in halves if size(b)] or [box]
    return done


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_any_pieces_from_any_pieces(data):
    shape = data.draw(st.lists(st.integers(1, 6), min_size=1, max_size=3).map(tuple))
    saved, needed = data.draw(partitions(shape)), data.draw(partitions(shape))
    held = [Held(record(0, i, p, size(p)), i) for i, p in enumerate(saved)]
    made = plan([Need(0, None, p, i) for i, p in enumerate(needed)], held, regions(shape))
    for got, want in zip(*carry_out(made, shape), strict=True):
        assert (got == want).all()


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_a_missing_or_doubled_shard_is_refused_by_name(data):
    shape = data.draw(st.lists(st.integers(1, 6), min_size=1, max_size=3).map(tuple))
    saved = data.draw(partitions(shape))
    held = [Held(record(0, i, p, size(p)), i) for i, p in enumerate(saved)]
    at = data.draw(st.integers(0, len(held) - 1))
    missing = held[:at] + held[at + 1 :]
    for pieces in (saved, [Interval(0, math.prod(shape))]):
        with pytest.raises(Refused) as caught:
            plan([Need(0, None, p) for p in pieces], missing, regions(shape))
        assert (caught.value.code, caught.value.region) == ("incomplete-cover", "w")
    # Twice the same words, as another piece where one can be cut off.
    words = size(saved[at])
    twice = [*held, Held(record(0, 99, saved[at], words), 99)]
    with pytest.raises(Refused) as caught:
        plan([Need(0, None, Interval(0, math.prod(shape)))], twice, regions(shape))
    assert (caught.value.code, caught.value.region) == ("overlap", "w")


def test_an_overlap_of_different_pieces_is_refused():
    held = [
        Held(record(0, 0, Interval(0, 6), 6), 0),
        Held(record(0, 1, Interval(5, 10), 5), 1),
    ]
    with pytest.raises(Refused) as caught:
        plan([Need(0, None, Interval(0, 10))], held, regions((10,)))
    assert caught.value.code == "overlap"


def test_missing_words_are_named():
    held = [Held(record(0, 0, Interval(0, 6), 6), 0), Held(record(0, 1, Interval(8, 10), 2), 1)]
    with pytest.raises(Refused, match="6, 8") as caught:
        plan([Need(0, None, Interval(2, 9))], held, regions((10,)))
    assert (caught.value.code, caught.value.region) == ("incomplete-cover", "w")


def test_per_owner_arrays_and_documents_go_by_owner():
    schema = Schema.of(
        [
            ("rng", "per-owner", "int64", (4,)),
            ("d", "document", "json", ()),
            ("o", "per-owner-document", "json", ()),
        ]
    ).regions
    held = [Held(record(0, k, None, 4), k) for k in range(3)]
    held += [Held(record(1, 0, None, 5), 0)]
    held += [Held(record(2, k, None, 3), k) for k in range(3)]
    made = plan([Need(0, 2, None), Need(1, None, None), Need(2, 1, None)], held, schema)
    assert [(r.record.ordinal, r.record.owner) for r in made.reads] == [(0, 2), (1, 0), (2, 1)]
    assert all(r.copies[0].blocks is None for r in made.reads)
    with pytest.raises(Refused, match="owner 7") as caught:
        plan([Need(0, 7, None)], held, schema)
    assert (caught.value.code, caught.value.region) == ("incomplete-cover", "rng")
    with pytest.raises(Refused) as caught:
        plan([Need(1, None, None)], [h for h in held if h.record.ordinal != 1], schema)
    assert (caught.value.code, caught.value.region) == ("incomplete-cover", "d")


def test_swapped_order_of_records_changes_nothing():
    shape = (12, 5)
    held = [Held(record(0, k, p, size(p)), k) for k in range(4) for p in rows().pieces(shape, 4, k)]
    needs = [Need(0, None, p) for k in range(3) for p in shares().pieces(shape, 3, k)]
    there, back = plan(needs, held, regions(shape)), plan(needs, held[::-1], regions(shape))
    key = lambda r: r.key  # noqa: E731
    assert sorted(there.reads, key=key) == sorted(back.reads, key=key)


def test_a_hundred_thousand_shards_are_planned_in_linear_time():
    # benchmarks/shards.py measures the seconds.
    def through(n):
        schema = Schema.of([("w", "array", "int64", (8 * n,)), ("v", "array", "int64", (n, 8))]).regions
        held = [Held(record(0, k, Interval(8 * k, 8 * k + 8), 8), k) for k in range(n // 2)]
        held += [Held(record(1, k, Box((k, 0), (k + 1, 8)), 8), k) for k in range(n // 2)]
        needs = [Need(h.record.ordinal, None, piece_of(h.record.piece)) for h in held]

        def call():
            assert len(plan(needs, held, schema).reads) == n

        return call

    assert growth(through, 10_000, 10) < 3


def test_a_grid_onto_rows_is_planned_without_looking_at_every_pair():
    def through(n):
        side, shape = n // 16, (128 * (n // 16), 4096)
        tiles = grid((side, 16))
        held = [Held(record(0, k, p, size(p)), k) for k in range(n) for p in tiles.pieces(shape, n, k)]
        needs = [Need(0, None, p) for k in range(side) for p in rows().pieces(shape, side, k)]

        def call():
            assert len(plan(needs, held, regions(shape)).reads) == n

        return call

    assert growth(through, 256, 8) < 3
