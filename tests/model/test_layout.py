"""Rules: what each owner holds, who writes it, and that together they hold every word once."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from alpha_mpi.errors import Refused
from alpha_mpi.model.cover import check_cover
from alpha_mpi.model.layout import (
    Irregular,
    Rule,
    from_data,
    grid,
    held,
    irregular,
    layout_digest,
    mesh,
    on,
    per_owner,
    replicated,
    rows,
    share,
    share_of,
    shares,
    sorted_pieces,
)
from alpha_mpi.model.pieces import Box, Interval, Shape, words
from alpha_mpi.model.schema import Region

bounded = settings(derandomize=True, deadline=None, max_examples=300)


@bounded
@given(st.integers(0, 2000), st.integers(1, 60))
def test_shares_differ_by_at_most_one_and_larger_come_first(extent: int, n: int) -> None:
    bounds = [share(extent, n, k) for k in range(n)]
    assert bounds[0][0] == 0 and bounds[-1][1] == extent
    assert all(a[1] == b[0] for a, b in itertools.pairwise(bounds))
    sizes = [b - a for a, b in bounds]
    assert sizes == sorted(sizes, reverse=True) and max(sizes) - min(sizes) <= 1
    for word in range(0, extent, 7):
        a, b = bounds[share_of(extent, n, word)]
        assert a <= word < b


@st.composite
def rules(draw: st.DrawFn) -> tuple[Rule, Shape, int]:
    shape = draw(st.lists(st.integers(0, 7), min_size=0, max_size=3).map(tuple))
    kinds = ["replicated", "shares", "grid", "mesh"] + (["rows"] if shape else [])
    kind = draw(st.sampled_from(kinds))
    if kind == "grid":
        dims = draw(st.lists(st.integers(1, 4), min_size=0, max_size=len(shape)))
        rule, n = grid(dims), math.prod(dims)
    elif kind == "mesh":
        sizes = draw(st.lists(st.integers(1, 4), min_size=1, max_size=3))
        axes = dict(zip("abc", sizes, strict=False))
        names = draw(st.permutations(list(axes)))
        split = [draw(st.sampled_from([None, x])) for x in names[: len(shape)]]
        rule, n = mesh(axes, split), math.prod(sizes)
    else:
        n = draw(st.integers(1, 9))
        simple = {"replicated": replicated(), "shares": shares()}
        rule = simple[kind] if kind in simple else rows(draw(st.integers(0, len(shape) - 1)))
    if draw(st.booleans()):
        more = n + draw(st.integers(0, 4))
        rule, n = on(draw(st.permutations(range(more)))[:n], rule), more
    return rule, shape, n


@bounded
@given(rules())
def test_the_written_pieces_cover_every_word_once(case: tuple[Rule, Shape, int]) -> None:
    rule, shape, n = case
    rule.check(shape, n)
    written, owners = [], []
    for k in range(n):
        pieces = rule.pieces(shape, n, k)
        writes = rule.writes(shape, n, k)
        assert len(writes) == len(pieces)
        for piece, mine in zip(pieces, writes, strict=True):
            if mine:
                written.append(piece)
                owners.append(k)
    check_cover(written, shape, owners)
    if words(shape) == 0:
        assert written == []


@bounded
@given(rules())
def test_groups_hold_the_same_pieces_and_their_lowest_writes(case: tuple[Rule, Shape, int]) -> None:
    rule, shape, n = case
    for k in range(n):
        pieces, group = rule.pieces(shape, n, k), list(rule.group(shape, n, k))
        same = [j for j in range(n) if pieces and rule.pieces(shape, n, j) == pieces]
        assert group == same
        assert rule.writes(shape, n, k) == ((k == min(group),) if pieces else ())


@bounded
@given(rules())
def test_rules_come_back_from_their_data(case: tuple[Rule, Shape, int]) -> None:
    rule, shape, n = case
    again = from_data(rule.as_data())
    assert again == rule and again.as_data() == rule.as_data()
    assert [again.pieces(shape, n, k) for k in range(n)] == [rule.pieces(shape, n, k) for k in range(n)]
    assert layout_digest([rule], n, {"kind": "star"}) == layout_digest([again], n, {"kind": "star"})


def test_rows_are_boxes_of_one_axis() -> None:
    assert rows().bounds(65, 4, 0) == (0, 17) and rows().bounds(65, 4, 3) == (49, 65)
    assert rows(1).slices((3, 65), 4, 3) == (slice(0, 3), slice(49, 65))
    assert rows().pieces((65, 128), 4, 1) == (Box((17, 0), (33, 128)),)
    assert rows(1).pieces((65, 128), 4, 3) == (Box((0, 96), (65, 128)),)
    assert rows().pieces((1, 9, 4), 4, 1) == ()


def test_r07_six_words_over_four_owners_and_empty_shapes() -> None:
    assert [rows().pieces((6,), 4, k) for k in range(4)] == [
        (Box((0,), (2,)),),
        (Box((2,), (4,)),),
        (Box((4,), (5,)),),
        (Box((5,), (6,)),),
    ]
    assert [shares().pieces((6,), 9, k) for k in (5, 6)] == [(Interval(5, 6),), ()]
    for shape in ((0,), (3, 0, 5)):
        assert all(shares().pieces(shape, 4, k) == () for k in range(4))
        assert all(replicated().pieces(shape, 4, k) == () for k in range(4))
    assert replicated().pieces((), 4, 3) == (Interval(0, 1),)


def test_a_grid_may_be_shorter_than_the_rank() -> None:
    assert grid((2, 3)).pieces((4, 7, 5), 6, 4) == (Box((2, 3, 0), (4, 5, 5)),)


def test_a_mesh_numbers_owners_with_the_last_axis_fastest() -> None:
    rule = mesh({"data": 2, "model": 3}, (None, "model"))
    assert rule.coordinates(4) == {"data": 1, "model": 1}
    assert rule.pieces((4, 7), 6, 1) == rule.pieces((4, 7), 6, 4) == (Box((0, 3), (4, 5)),)
    assert rule.group((4, 7), 6, 4) == (1, 4)
    assert rule.writes((4, 7), 6, 1) == (True,) and rule.writes((4, 7), 6, 4) == (False,)
    both = mesh({"data": 2, "model": 3}, ("model", "data"))
    assert both.pieces((6, 4), 6, 5) == (Box((4, 2), (6, 4)),)
    assert both.group((6, 4), 6, 5) == (5,)


def test_on_deals_over_the_listed_owners_in_their_order() -> None:
    rule = on((5, 1), shares())
    assert rule.pieces((10,), 6, 5) == (Interval(0, 5),)
    assert rule.pieces((10,), 6, 1) == (Interval(5, 10),)
    assert rule.pieces((10,), 6, 0) == () and rule.group((10,), 6, 0) == ()
    copies = on((5, 1), replicated())
    assert list(copies.group((10,), 6, 5)) == [1, 5]
    assert copies.writes((10,), 6, 1) == (True,) and copies.writes((10,), 6, 5) == (False,)


def test_a_long_list_of_owners_is_written_as_ranges() -> None:
    rule = on(range(1000, 201_000), rows())
    assert rule.as_data() == {"of": {"axis": 0, "rule": "rows"}, "owners": [[1000, 201_000]], "rule": "on"}
    assert from_data(rule.as_data()) == rule
    assert rule.pieces((400_000, 2), 300_000, 200_999) == (Box((399_998, 0), (400_000, 2)),)


def test_numpy_integers_are_numbers() -> None:
    rule = on(np.array([0, 1, 2, 3]), grid(np.array([2, 2])))
    assert rule == on((0, 1, 2, 3), grid((2, 2)))
    layout_digest([rule, rows(np.int64(1)), mesh({"a": np.int32(2)}, ("a",))], 4, {"kind": "star"})


@pytest.mark.parametrize(
    ("rule", "shape", "n", "message"),
    [
        (rows(1), (5,), 2, "axis"),
        (rows(), (), 2, "axis"),
        (grid((2, 2)), (4, 4), 5, "another number of owners"),
        (grid((2, 2)), (4,), 4, "more dimensions"),
        (mesh({"a": 2, "b": 2}, ("a",)), (4,), 5, "another number of owners"),
        (mesh({"a": 2}, (None, "a")), (4,), 2, "more axes"),
        (on((0, 7), shares()), (4,), 7, "does not exist"),
        (on((0, 1), grid((3,))), (4,), 4, "another number of owners"),
        (shares(), (4,), 0, "at least one owner"),
    ],
)
def test_what_a_rule_cannot_deal_is_refused(rule: Rule, shape: Shape, n: int, message: str) -> None:
    with pytest.raises(Refused, match=message) as refusal:
        rule.check(shape, n)
    assert refusal.value.code == "layout"


@pytest.mark.parametrize(
    "make",
    [
        lambda: rows(-1),
        lambda: rows(0.5),  # type: ignore[arg-type]
        lambda: grid((2, 0)),
        lambda: grid((2, 1.5)),  # type: ignore[list-item]
        lambda: mesh({"a": 0}, ()),
        lambda: mesh({"": 2}, ()),
        lambda: mesh({"a": 2}, ("b",)),
        lambda: mesh({"a": 2}, ("a", "a")),
        lambda: on((), shares()),
        lambda: on((1, 1), shares()),
        lambda: on((-1, 1), shares()),
        lambda: on((0, 1), per_owner()),
        lambda: on((0, 1), irregular([])),
        lambda: on((0, 1), on((0, 1), shares())),
        lambda: on((0, 1), "shares"),  # type: ignore[arg-type]
        lambda: irregular([Interval(0, 3)]).pieces((3,), 2, 0),
        lambda: irregular([Interval(0, 3)]).writes((3,), 2, 0),
        lambda: Irregular().current((3,)),
        lambda: irregular([(0, 3)]).current((3,)),  # type: ignore[list-item]
    ],
)
def test_arguments_that_make_no_rule_are_refused(make: object) -> None:
    with pytest.raises(Refused) as refusal:
        make()  # type: ignore[operator]
    assert refusal.value.code == "layout"


def test_irregular_pieces_are_read_anew_and_judged() -> None:
    mine = [Box((2, 0), (3, 4)), Interval(0, 0), Interval(np.int64(0), np.int64(4))]
    rule = irregular(lambda: mine)
    region = Region(0, "w", "array", "float32", (3, 4))
    assert rule.current((3, 4)) == tuple(mine)
    assert all(type(x) is int for x in (rule.current((3, 4))[2].start, rule.current((3, 4))[2].stop))
    assert held(region, rule, 5, 2) == (Interval(0, 4), Box((2, 0), (3, 4)))
    mine.append(Interval(4, 8))
    assert len(held(region, rule, 5, 2)) == 3
    mine.append(Interval(4, 13))
    with pytest.raises(Refused) as refusal:
        rule.current((3, 4))
    assert refusal.value.code == "bad-piece"
    assert rule == Irregular() and from_data(rule.as_data()) == rule


def test_documents_and_per_owner_regions_are_held_whole() -> None:
    assert held(Region(0, "d", "document", "json", ()), replicated(), 4, 3) == (None,)
    assert held(Region(0, "r", "per-owner-document", "json", ()), per_owner(), 4, 3) == (None,)
    assert held(Region(0, "p", "per-owner", "int8", (3,)), per_owner(), 4, 3) == (None,)
    assert held(Region(0, "p", "per-owner", "int8", (0,)), per_owner(), 4, 3) == ()
    assert per_owner().group((3,), 4, 2) == (2,) and per_owner().writes((3,), 4, 2) == (True,)
    assert sorted_pieces([Interval(3, 4), Interval(2, 2), Interval(0, 1)], (9,)) == [
        Interval(0, 1),
        Interval(3, 4),
    ]


def test_the_layout_digest_depends_on_rules_owners_and_hierarchy_alone() -> None:
    tree = {"fan_out": 4, "kind": "tree"}
    digests = {
        layout_digest([rows()], 4, tree),
        layout_digest([rows(1)], 4, tree),
        layout_digest([rows()], 5, tree),
        layout_digest([rows()], 4, {"kind": "star"}),
        layout_digest([rows(), rows()], 4, tree),
        layout_digest([rows()], 4, tree, "sha256"),
    }
    assert len(digests) == 6
    a, b = irregular([Interval(0, 1)]), irregular([])
    assert layout_digest([a], 4, tree) == layout_digest([b], 4, tree)


@pytest.mark.parametrize(
    "data",
    [
        None,
        [],
        "shares",
        {},
        {"rule": "os.system"},
        {"rule": 3},
        {"rule": ["rows"]},
        {"rule": "shares", "axis": 0},
        {"rule": "rows"},
        {"rule": "rows", "axis": -1},
        {"rule": "rows", "axis": True},
        {"rule": "rows", "axis": 10**6},
        {"rule": "grid", "dims": 4},
        {"rule": "grid", "dims": [2, "2"]},
        {"rule": "grid", "dims": [1] * 33},
        {"rule": "mesh", "axes": [["a", 2]], "split": ["b"]},
        {"rule": "mesh", "axes": [["a", 2, 3]], "split": []},
        {"rule": "mesh", "axes": [[2, 2]], "split": []},
        {"rule": "mesh", "axes": [["a", 2]], "split": [3]},
        {"rule": "mesh", "axes": {"a": 2}, "split": []},
        {"rule": "on", "owners": [[0, 1 << 50]], "of": {"rule": "shares"}},
        {"rule": "on", "owners": [[2, 2]], "of": {"rule": "shares"}},
        {"rule": "on", "owners": [[0, 2], [1, 3]], "of": {"rule": "shares"}},
        {"rule": "on", "owners": [0, 1], "of": {"rule": "shares"}},
        {
            "rule": "on",
            "owners": [[0, 2]],
            "of": {"rule": "on", "owners": [[0, 2]], "of": {"rule": "shares"}},
        },
        {"rule": "on", "owners": [[0, 2]], "of": {"rule": "irregular"}},
    ],
)
def test_data_that_are_no_rule_are_refused(data: object) -> None:
    with pytest.raises(Refused) as refusal:
        from_data(data)
    assert refusal.value.code == "layout"


@pytest.mark.parametrize(
    ("rule", "shape", "n"),
    [
        (rows(), (5, 3), 4),
        (rows(1), (5, 3), 7),
        (grid((2, 3)), (5, 7, 2), 6),
        (mesh({"data": 2, "model": 3}, (None, "model")), (4, 8), 6),
        (replicated(), (3, 2), 5),
    ],
)
def test_slices_are_the_index_of_the_words_held(rule: Rule, shape: Shape, n: int) -> None:
    whole = np.arange(math.prod(shape)).reshape(shape)
    for k in range(n):
        mine = whole[rule.slices(shape, n, k)]
        held = rule.pieces(shape, n, k)
        if not held:
            assert mine.size == 0
            continue
        (piece,) = held
        expected = (
            whole.reshape(-1)[piece.start : piece.stop] if isinstance(piece, Interval) else whole[box(piece)]
        )
        assert mine.reshape(-1).tolist() == expected.reshape(-1).tolist()


def box(piece: Box) -> tuple[slice, ...]:
    return tuple(slice(a, b) for a, b in zip(piece.starts, piece.stops, strict=True))


@pytest.mark.parametrize("rule", [shares(), on([0], rows()), irregular(list)])
def test_what_is_not_one_box_has_no_slices(rule: Rule) -> None:
    with pytest.raises(Refused, match="not one box") as caught:
        rule.slices((4, 4), 2, 0)
    assert caught.value.code == "layout"
    with pytest.raises(Refused):
        grid((2, 2)).slices((4, 4), 3, 0)
