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
from alpha_mpi.model.layout import grid, irregular, mesh, replicated, rows, shares
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


def read(path, needs, staging=1 << 20, in_place=True, without=()):
    """Return the words of each need, in the piece's own shape; `without` leaves shards out."""
    with Store.open(path) as store:
        generation = Generation.open(store, 1, 1)
        helds = [held for i, held in enumerate(generation.helds()) if i not in without]
        regions = generation.regions
        made = plan(needs, helds, regions)
        arrays = [np.zeros(local_shape(n.piece), by_name(regions[n.ordinal].format).dtype) for n in needs]
        got = dict(enumerate(arrays)) if in_place else {}
        targets = [Target(a if in_place else None, a.shape) for a in arrays]
        checked = validate(made, Packs(opener(store.data)), targets, Staging(staging))
        give = [None if in_place else functools.partial(got.__setitem__, i) for i in range(len(needs))]
        apply(checked, give)
        return [got[i] for i in range(len(needs))]


@st.composite
def cuts(draw, shape):
    """Cut a shape at random into intervals, or into boxes by recursive cuts; some are empty."""
    total = math.prod(shape)
    if not shape or draw(st.booleans()):
        at = sorted([0, total, *draw(st.lists(st.integers(0, total), max_size=6))])
        return [Interval(a, b) for a, b in itertools.pairwise(at)]
    done = [Box((0,) * len(shape), shape)]
    for _ in range(draw(st.integers(0, 6))):
        box = done.pop(draw(st.integers(0, len(done) - 1)))
        axis = draw(st.integers(0, len(shape) - 1))
        at = draw(st.integers(box.starts[axis], box.stops[axis]))
        done += [
            Box(box.starts, tuple(at if i == axis else n for i, n in enumerate(box.stops))),
            Box(tuple(at if i == axis else n for i, n in enumerate(box.starts)), box.stops),
        ]
    return done


@st.composite
def generations(draw):
    """Regions of random shapes and formats, cut at random and dealt to random owners."""
    owners = draw(st.integers(1, 5))
    regions, rules, dealt = [], [], {}
    for ordinal in range(draw(st.integers(1, 3))):
        shape = draw(st.lists(st.integers(0, 6), max_size=3).map(tuple))
        regions.append((f"region {ordinal}", "array", draw(st.sampled_from(FORMATS)), shape))
        kinds = ["irregular", "shares", "replicated", *(["rows"] if shape else [])]
        kind = draw(st.sampled_from(kinds))
        rules.append(
            {"shares": shares(), "replicated": replicated(), "rows": rows()}.get(kind, irregular([]))
        )
        if kind == "irregular":
            dealt[ordinal] = [[] for _ in range(owners)]
            for piece in draw(cuts(shape)):
                if size(piece):
                    dealt[ordinal][draw(st.integers(0, owners - 1))].append(piece)
    hierarchy = draw(st.sampled_from([Star(), Tree(1), Tree(2)]))
    needs = []
    for ordinal, (_, _, _, shape) in enumerate(regions):
        pieces = [p for p in draw(cuts(shape)) if size(p)]
        needs += [Need(ordinal, None, p) for p in pieces if draw(st.booleans())]
    return regions, rules, owners, dealt, hierarchy, needs


SETTINGS = settings(max_examples=120, deadline=None, suppress_health_check=list(HealthCheck))


@SETTINGS
@given(generations(), st.booleans(), st.sampled_from([0, 100, 1 << 20]))
def test_what_arrives_is_the_slice_of_the_global_array(case, in_place, staging):
    regions, rules, owners, dealt, hierarchy, needs = case
    values = values_of(regions, owners, seed=owners)
    with tempfile.TemporaryDirectory(prefix="am-regions-") as path:
        saved(pathlib.Path(path), regions, rules, values, owners, hierarchy, dealt)
        got = read(path, needs, staging, in_place)
    for array, need in zip(got, needs, strict=True):
        expected = take(values[need.ordinal], need.piece).reshape(local_shape(need.piece))
        assert array.dtype == expected.dtype and array.tobytes() == expected.tobytes()


@SETTINGS
@given(generations(), st.data())
def test_a_shard_that_is_missing_is_missed_where_its_words_are_needed(case, data):
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
        hurt = [
            n
            for n in needs
            if n.ordinal == record.ordinal and intersect(n.piece, piece_of(record.piece), shape)
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
