"""Gate: whatever pieces a region was saved in, any other pieces of it come back exactly.

On one host, without MPI: a store is built, its manifests are read, and needs of every kind are
planned, validated and filled in. The judge is NumPy slicing of the global array.
"""

import functools
import itertools
import math
import pathlib
import tempfile

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from restore.build_store import build, take, values_of

from alpha_mpi import digest
from alpha_mpi.errors import Refused
from alpha_mpi.format import pack
from alpha_mpi.format.manifest import piece_of
from alpha_mpi.model.formats import by_name
from alpha_mpi.model.layout import (
    On,
    grid,
    irregular,
    mesh,
    on,
    per_owner,
    replicated,
    rows,
    shares,
)
from alpha_mpi.model.pieces import Box, Interval, intersect, local_shape, size
from alpha_mpi.protocol.hierarchy import Star, Tree
from alpha_mpi.restore.apply import apply
from alpha_mpi.restore.generation import Generation
from alpha_mpi.restore.packs import Packs, opener
from alpha_mpi.restore.plan import Need, plan
from alpha_mpi.restore.staging import Staging
from alpha_mpi.restore.validate import Target, validate
from alpha_mpi.store.store import Store

FORMATS = ("float32", "float64", "bfloat16", "int8", "uint16", "float8_e4m3fn")


def saved(path, regions, rules, values, owners, hierarchy=None, pieces=None):
    """Build a generation; `pieces` are those of the irregular regions, by ordinal and owner."""
    return build(
        path, regions, rules, values, owners=owners, hierarchy=hierarchy or Star(), irregular=pieces or {}
    )


def read(path, needs, staging=1 << 20, in_place=True, without=(), twice=()):
    """Return the words of each need, in the piece's own shape.

    `without` leaves shards out, `twice` has some of them a second time.
    """
    with Store.open(path) as store:
        generation = Generation.open(store, 1, 1)
        helds = [held for i, held in enumerate(generation.helds()) if i not in without]
        helds += [helds[i] for i in twice]
        regions = generation.regions
        made = plan(needs, helds, regions)
        shapes = [regions[n.ordinal].shape if n.piece is None else local_shape(n.piece) for n in needs]
        arrays = [
            np.zeros(shape, by_name(regions[n.ordinal].format).dtype)
            for n, shape in zip(needs, shapes, strict=True)
        ]
        got = dict(enumerate(arrays)) if in_place else {}
        targets = [Target(a if in_place else None, a.shape) for a in arrays]
        checked = validate(made, Packs(opener(store.data)), targets, Staging(staging))
        give = [None if in_place else functools.partial(got.__setitem__, i) for i in range(len(needs))]
        apply(checked, give)
        return [got[i] for i in range(len(needs))]


@st.composite
def boxes(draw, box):
    """Cut a box at random, again and again: what remains is ragged, and some of it is empty."""
    done = [box]
    for _ in range(draw(st.integers(0, 5))):
        box = done.pop(draw(st.integers(0, len(done) - 1)))
        axis = draw(st.integers(0, len(box.starts) - 1))
        at = draw(st.integers(box.starts[axis], box.stops[axis]))
        done += [
            Box(box.starts, tuple(at if i == axis else n for i, n in enumerate(box.stops))),
            Box(tuple(at if i == axis else n for i, n in enumerate(box.starts)), box.stops),
        ]
    return done


@st.composite
def cuts(draw, shape):
    """Cut a shape at random: slabs of its first axis, each into intervals or into boxes."""
    if not shape:
        return draw(st.permutations([Interval(0, 0), Interval(0, 1), Interval(1, 1)]))
    each = math.prod(shape[1:])
    at = sorted({0, shape[0], *draw(st.lists(st.integers(0, shape[0]), max_size=2))})
    done = []
    for begin, end in itertools.pairwise(at):
        if draw(st.booleans()):
            done += draw(boxes(Box((begin, *(0,) * (len(shape) - 1)), (end, *shape[1:]))))
        else:
            inside = draw(st.lists(st.integers(begin * each, end * each), max_size=4))
            done += [
                Interval(a, b) for a, b in itertools.pairwise(sorted([begin * each, end * each, *inside]))
            ]
    return done


@st.composite
def sizes(draw, owners, axes):
    """Sizes of so many axes whose product is the number of owners."""
    dims = []
    for _ in range(axes - 1):
        dims.append(draw(st.sampled_from([d for d in range(1, owners + 1) if owners % d == 0])))
        owners //= dims[-1]
    return draw(st.permutations([*dims, owners]))


@st.composite
def layouts(draw, shape, owners):
    """Any regular layout of a shape over so many owners."""
    kinds = ["shares", "replicated", "mesh", "on", *(["rows", "grid"] if shape else [])]
    kind = draw(st.sampled_from(kinds))
    if kind == "rows":
        return rows(draw(st.integers(0, len(shape) - 1)))
    if kind == "grid":
        return grid(draw(sizes(owners, draw(st.integers(1, len(shape))))))
    if kind == "mesh":
        axes = dict(zip("abc", draw(sizes(owners, draw(st.integers(1, 3)))), strict=False))
        split = draw(st.permutations([*axes, None, None]))[: draw(st.integers(0, len(shape)))]
        return mesh(axes, split)
    if kind == "on":
        some = draw(st.permutations(range(owners)))[: draw(st.integers(1, owners))]
        inner = draw(layouts(shape, len(some)).filter(lambda rule: not isinstance(rule, On)))
        return on(some, inner)
    return shares() if kind == "shares" else replicated()


@st.composite
def generations(draw):
    """Regions of random shapes and formats, dealt by random layouts or cut and dealt at random.

    What is wanted of each: pieces cut at random, or what a random owner of another number of owners
    holds in a random layout, or what one owner had of its own.
    """
    owners, others = draw(st.integers(1, 6)), draw(st.integers(1, 6))
    regions, rules, dealt, needs = [], [], {}, []
    for ordinal in range(draw(st.integers(1, 3))):
        shape = draw(st.lists(st.integers(0, 6), max_size=3).map(tuple))
        kind = draw(st.sampled_from(["regular", "regular", "irregular", "irregular", "per-owner"]))
        word = "per-owner" if kind == "per-owner" else "array"
        regions.append((f"region {ordinal}", word, draw(st.sampled_from(FORMATS)), shape))
        if kind == "per-owner":
            rules.append(per_owner())
            if math.prod(shape):
                needs += [Need(ordinal, k, None) for k in range(owners) if draw(st.booleans())]
            continue
        if kind == "regular":
            rules.append(draw(layouts(shape, owners)))
        else:
            rules.append(irregular([]))
            dealt[ordinal] = [[] for _ in range(owners)]
            for piece in draw(cuts(shape)):
                if size(piece):
                    dealt[ordinal][draw(st.integers(0, owners - 1))].append(piece)
        if draw(st.booleans()):
            wanted = [p for p in draw(cuts(shape)) if size(p) and draw(st.booleans())]
        else:
            wanted = draw(layouts(shape, others)).pieces(shape, others, draw(st.integers(0, others - 1)))
        needs += [Need(ordinal, None, p) for p in wanted]
    hierarchy = draw(st.sampled_from([Star(), Tree(1), Tree(2), Tree(4)]))
    return regions, rules, owners, dealt, hierarchy, needs


SETTINGS = settings(max_examples=120, deadline=None, suppress_health_check=list(HealthCheck))


@SETTINGS
@given(generations(), st.booleans(), st.sampled_from([0, 100, 1 << 20]))
def test_what_arrives_is_the_slice_of_the_global_array(case, in_place, staging):
    regions, rules, owners, dealt, hierarchy, needs = case
    values = values_of(regions, owners, seed=owners)
    with tempfile.TemporaryDirectory(prefix="am-regions-") as path:
        here, there = pathlib.Path(path, "here"), pathlib.Path(path, "there")
        saved(here, regions, rules, values, owners, hierarchy, dealt)
        here.rename(there)
        got = read(there, needs, staging, in_place)
    for array, need in zip(got, needs, strict=True):
        expected = values[need.ordinal]
        if need.piece is None:
            expected = expected[need.owner]
        else:
            expected = take(expected, need.piece).reshape(local_shape(need.piece))
        assert array.dtype == expected.dtype and array.tobytes() == expected.tobytes()


@SETTINGS
@given(generations(), st.data())
def test_what_does_not_cover_exactly_once_is_refused(case, data):
    regions, rules, owners, dealt, hierarchy, needs = case
    values = values_of(regions, owners, seed=owners)
    with tempfile.TemporaryDirectory(prefix="am-regions-") as path:
        built = saved(pathlib.Path(path), regions, rules, values, owners, hierarchy, dealt)
        with Store.open(path) as store:
            helds = Generation.open(store, 1, 1).helds()
        if not helds:
            return
        lost = data.draw(st.integers(0, len(helds) - 1))
        record = helds[lost].record
        shape = built.schema.regions[record.ordinal].shape
        piece = piece_of(record.piece)
        hurt = [
            n
            for n in needs
            if n.ordinal == record.ordinal
            and (n.owner == record.owner if n.piece is None else intersect(n.piece, piece, shape))
        ]
        if hurt:
            with pytest.raises(Refused) as caught:
                read(path, needs, without=(lost,))
            assert (caught.value.code, caught.value.region) == (
                "incomplete-cover",
                regions[record.ordinal][0],
            )
        else:
            read(path, needs, without=(lost,))
        with pytest.raises(Refused) as caught:
            read(path, needs, twice=(lost,))
        assert (caught.value.code, caught.value.region) == ("overlap", regions[record.ordinal][0])


def test_one_piece_to_two_and_two_to_one(tmp_path):
    regions = [("w", "array", "float32", (10, 3)), ("v", "array", "float32", (10, 3))]
    values = values_of(regions, 2)
    halves = [Interval(0, 13), Interval(13, 30)]
    pieces = {0: [[Interval(0, 30)], []], 1: [[halves[0]], [halves[1]]]}
    saved(tmp_path, regions, [irregular([])] * 2, values, 2, pieces=pieces)
    needs = [*(Need(0, None, p) for p in halves), Need(1, None, Interval(0, 30))]
    for in_place in (True, False):
        one, two, joined = read(tmp_path, needs, in_place=in_place)
        assert np.concatenate([one, two]).tobytes() == values[0].tobytes()
        assert joined.tobytes() == values[1].tobytes()


def test_swapped_offsets_in_a_pack_change_nothing(tmp_path):
    regions = [("w", "array", "float32", (8, 5)), ("v", "array", "float32", (8, 5))]
    values = values_of(regions, 4)
    saved(tmp_path, regions, [rows(), rows()], values, 4)
    (file,) = tmp_path.rglob("*.pack")
    data = bytearray(file.read_bytes())
    header = pack.open_header(bytes(data[: pack.HEADER]), "p", len(data))
    end = header.directory_offset + header.directory_nbytes
    directory = np.frombuffer(data[header.directory_offset : end], pack.ENTRY).copy()
    old, nbytes = directory["offset"].copy(), int(directory["nbytes"][0])
    assert len(directory) == 8 and (directory["nbytes"] == nbytes).all()
    directory["offset"] = old[[3, 7, 1, 0, 6, 2, 5, 4]]
    for before, after in zip(old.tolist(), directory["offset"].tolist(), strict=True):
        data[after : after + nbytes] = file.read_bytes()[before : before + nbytes]
    raw = directory.tobytes()
    data[header.directory_offset : end] = raw
    data[64:96] = digest.raw(raw).ljust(32, b"\0")
    data[96 : pack.HEADER] = digest.raw(bytes(data[:96])).ljust(32, b"\0")
    file.write_bytes(data)
    needs = [Need(o, None, p) for o in (0, 1) for k in range(3) for p in shares().pieces((8, 5), 3, k)]
    for array, need in zip(read(tmp_path, needs), needs, strict=True):
        assert array.tobytes() == take(values[need.ordinal], need.piece).tobytes()


@pytest.mark.parametrize("before", ["rows", "shares", "grid", "mesh"])
@pytest.mark.parametrize("after", ["rows", "shares", "grid", "mesh"])
def test_large_shards_from_a_moved_store(tmp_path, before, after):
    # Shards of several chunks, of which some hold no word that is needed.
    shape = (60, 70, 150)
    layouts = {
        "rows": lambda n: rows(1),
        "shares": lambda n: shares(),
        "grid": lambda n: grid((2, n // 2)) if n % 2 == 0 else grid((1, n)),
        "mesh": lambda n: mesh({"a": 1, "b": n}, (None, "a", "b")),
    }
    regions = [("w", "array", "float64", shape)]
    values = values_of(regions, 4)
    saved(tmp_path / "here", regions, [layouts[before](2)], values, 2, Tree(2))
    (tmp_path / "here").rename(tmp_path / "there")
    rule = layouts[after](3)
    needs = [Need(0, None, p) for k in range(3) for p in rule.pieces(shape, 3, k)]
    for staging in (0, 1 << 30):
        for array, need in zip(read(tmp_path / "there", needs, staging), needs, strict=True):
            assert array.tobytes() == take(values[0], need.piece).tobytes()
