"""Validation and applying: every byte is checked before anything is written."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from restore.build_store import build, take, values_of, write_pack

from alpha_mpi.errors import Refused
from alpha_mpi.format import piece_of
from alpha_mpi.model import formats
from alpha_mpi.model.layout import grid, per_owner, replicated, rows, shares
from alpha_mpi.model.pieces import local_shape
from alpha_mpi.protocol.hierarchy import Star, Tree
from alpha_mpi.restore.apply import apply
from alpha_mpi.restore.packs import Packs, opener
from alpha_mpi.restore.plan import Held, Need, plan
from alpha_mpi.restore.staging import Staging
from alpha_mpi.restore.validate import Target, position, validate
from alpha_mpi.store.durable import Directory


def helds_of(built):
    return [Held(r, role) for role, m in built.manifests.items() for r in m.shards]


def packs_of(built):
    return Packs(opener(Directory.open(built.path / "data")))


def restore(built, needs, targets, staging=1 << 30, between=None, give=None, finite=lambda ordinal: True):
    made = plan(needs, helds_of(built), built.schema.regions)
    checked = validate(made, packs_of(built), targets, Staging(staging), finite)
    if between:
        between(checked)
    got = {}
    if give is None:
        give = [
            None if t.array is not None else (lambda value, n=n: got.__setitem__(n, value))
            for n, t in enumerate(targets)
        ]
    apply(checked, give)
    return got


MIXED = [
    ("w", "array", "float32", (600, 1000)),
    ("small", "array", "float64", (40,)),
    ("m", "array", "int16", (300, 30, 7)),
    ("rng", "per-owner", "uint64", (5,)),
    ("d", "document", "json", ()),
    ("own", "per-owner-document", "json", ()),
    ("z", "array", "bfloat16", (1234,)),
]
RULES = [rows(), replicated(), grid((2, 2)), per_owner(), replicated(), per_owner(), shares()]


@pytest.fixture
def mixed(tmp_path):
    values = values_of(MIXED, 4)
    return build(tmp_path, MIXED, RULES, values), values


@pytest.mark.parametrize("staging", [1 << 30, 200_000, 0])
@pytest.mark.parametrize("in_place", [True, False])
@pytest.mark.parametrize("algorithm", ["xxh3-128", "blake3"])
def test_the_same_pieces_come_back(tmp_path, staging, in_place, algorithm):
    values = values_of(MIXED, 4)
    built = build(tmp_path, MIXED, RULES, values, algorithm=algorithm)
    needs, targets, want = [], [], []
    for region, rule, value in zip(built.schema.regions, RULES, values, strict=True):
        for k in range(4):
            if region.is_document or region.kind == "per-owner":
                own = region.kind.startswith("per-owner")
                needs.append(Need(region.ordinal, k if own else None, None))
                wanted = value[k] if own else value
                shape = region.shape
            else:
                [piece] = rule.pieces(region.shape, 4, k)
                needs.append(Need(region.ordinal, None, piece))
                wanted, shape = take(value, piece).reshape(local_shape(piece)), local_shape(piece)
            want.append(wanted)
            dtype = None if region.is_document else formats.by_name(region.format).dtype
            fill = in_place and not region.is_document
            targets.append(Target(np.zeros(shape, dtype) if fill else None, shape))
    got = restore(built, needs, targets, staging)
    for n, (target, wanted) in enumerate(zip(targets, want, strict=True)):
        value = target.array if target.array is not None else got[n]
        if isinstance(wanted, dict):
            assert value == wanted
        else:
            assert value.shape == wanted.shape and value.dtype == wanted.dtype
            assert value.tobytes() == wanted.tobytes()


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_pieces_of_another_placement(tmp_path_factory, data):
    shape = tuple(data.draw(st.lists(st.integers(1, 40), min_size=2, max_size=3)))
    saved = data.draw(st.sampled_from([rows(0), rows(1), shares(), grid((2, 2))]))
    needed = data.draw(st.sampled_from([rows(0), rows(1), shares(), grid((3,)), replicated()]))
    hierarchy = data.draw(st.sampled_from([Star(), Tree(2)]))
    staging = data.draw(st.sampled_from([1 << 30, 0]))
    order = data.draw(st.sampled_from(["C", "F", "strided", ">", "fresh"]))
    regions = [("w", "array", "float32", shape)]
    values = values_of(regions, 4)
    built = build(tmp_path_factory.mktemp("s"), regions, [saved], values, hierarchy=hierarchy)
    pieces = [p for k in range(3) for p in needed.pieces(shape, 3, k)]
    targets = []
    for piece in pieces:
        local = local_shape(piece)
        if order == "strided":
            array = np.zeros(tuple(2 * n for n in local), np.float32)[
                tuple(slice(None, None, 2) for _ in local)
            ]
        else:
            array = np.zeros(local, ">f4" if order == ">" else np.float32, order="F" if order == "F" else "C")
        targets.append(Target(None if order == "fresh" else array, local))
    got = restore(built, [Need(0, None, p) for p in pieces], targets, staging)
    for n, piece in enumerate(pieces):
        value = got[n] if order == "fresh" else targets[n].array
        assert (value.reshape(-1) == take(values[0], piece)).all()


@pytest.mark.parametrize("staging", [1 << 30, 5 << 20, 0])
def test_many_chunks_onto_other_pieces(tmp_path, staging):
    regions = [("w", "array", "float64", (1500, 1000))]  # 12 MB, 3 MB a shard
    values = values_of(regions, 4)
    built = build(tmp_path, regions, [rows()], values)
    pieces = [p for k in range(3) for p in rows(1).pieces((1500, 1000), 3, k)]
    targets = [Target(np.zeros(local_shape(p)), ()) for p in pieces]
    restore(built, [Need(0, None, p) for p in pieces], targets, staging)
    for target, piece in zip(targets, pieces, strict=True):
        assert (target.array.reshape(-1) == take(values[0], piece)).all()


def test_only_the_chunks_that_are_needed_are_read(tmp_path):
    regions = [("w", "array", "float64", (1 << 20,))]
    values = values_of(regions, 1)
    built = build(tmp_path, regions, [shares()], values, owners=1)
    pack = built.data_file(0, "pack")
    data = bytearray(pack.read_bytes())
    data[4096 + (5 << 20)] ^= 1  # chunk 5 of 8
    pack.write_bytes(data)
    from alpha_mpi.model.pieces import Interval

    per_chunk = (1 << 20) // 8
    fine = Interval(3, 5 * per_chunk)
    target = Target(np.zeros(fine.stop - fine.start), ())
    restore(built, [Need(0, None, fine)], [target])
    assert (target.array == values[0][fine.start : fine.stop]).all()
    with pytest.raises(Refused, match="chunk 5") as caught:
        restore(built, [Need(0, None, Interval(3, 5 * per_chunk + 1))], [Target(np.zeros(5 * per_chunk - 2))])
    assert caught.value.code == "corrupt-shard"


def flip(path, at):
    data = bytearray(path.read_bytes())
    data[at] ^= 0x10
    path.write_bytes(data)


def all_needs(built, values):
    """Every word of every role, as it was written."""
    needs, targets = [], []
    for held in helds_of(built):
        r = held.record
        region = built.schema.regions[r.ordinal]
        own = region.kind.startswith("per-owner")
        needs.append(Need(r.ordinal, r.owner if own else None, piece_of(r.piece)))
        if region.is_document:
            targets.append(Target())
            continue
        size = r.nbytes // formats.by_name(region.format).itemsize
        targets.append(Target(np.zeros(size, formats.by_name(region.format).dtype), (size,)))
    return needs, targets


@pytest.mark.parametrize("staging", [1 << 30, 0])
def test_any_flipped_byte_of_a_pack_is_found_before_anything_is_written(mixed, staging):
    built, values = mixed
    needs, targets = all_needs(built, values)
    rng = np.random.default_rng(1)
    for role in range(4):
        pack = built.data_file(role, "pack")
        good = pack.read_bytes()
        edges = [0, 100, 127, 128, len(good) - 1, len(good) - 40 * 7 - 1, len(good) - 40 * 7 - 70]
        for at in [*edges, *rng.integers(0, len(good), 12).tolist()]:
            flip(pack, at)
            with pytest.raises(Refused) as caught:
                restore(built, needs, targets, staging)
            assert caught.value.file == str(pack.relative_to(built.path)), at
            assert caught.value.code in ("corrupt-pack", "corrupt-shard", "format-version")
            pack.write_bytes(good)
    assert not any(np.any(t.array) for t in targets if t.array is not None)
    restore(
        built,
        needs,
        targets,
        staging,
        give=[None if t.array is not None else (lambda v: None) for t in targets],
    )
    assert all(np.any(t.array) for t in targets if t.array is not None)


@pytest.mark.parametrize("nbytes", [640, 3_000_000])
def test_words_that_are_not_finite_are_refused_with_their_index(tmp_path, nbytes):
    shape = (4, nbytes // 160, 10)
    for format, bad in (("float32", np.nan), ("complex128", complex(0, np.inf)), ("bfloat16", -np.inf)):
        regions = [("first", "array", "int8", (3,)), ("w", "array", format, shape)]
        values = values_of(regions, 4)
        index = (2, shape[1] - 1, 7)
        values[1][index] = bad
        built = build(tmp_path / format, regions, [replicated(), rows()], values)
        [piece] = rows().pieces(shape, 4, 2)
        target = Target(np.zeros(local_shape(piece), values[1].dtype))
        with pytest.raises(Refused) as caught:
            restore(built, [Need(1, None, piece)], [target])
        assert (caught.value.code, caught.value.region, caught.value.role) == ("non-finite", "w", 2)
        assert str(index) in caught.value.message
        restore(built, [Need(1, None, piece)], [target], finite=lambda ordinal: ordinal != 1)
        assert target.array.tobytes() == take(values[1], piece).tobytes()


def test_positions_are_global_indices():
    assert position((3, 7), (2, 5), 1) == (0, 4)
    assert position((2, 1, 2, 3, 5), (4, 6), 3) == (2, 2)
    assert position((), (2, 5), 7) == (1, 2)


def test_a_store_that_changes_after_validation_is_refused_where_it_is_read_again(tmp_path):
    regions = [("w", "array", "float32", (1_000_000,))]
    values = values_of(regions, 2)
    built = build(tmp_path, regions, [shares()], values, owners=2)
    [piece] = shares().pieces((1_000_000,), 2, 1)
    pack = built.data_file(1, "pack")
    good = pack.read_bytes()
    for staging, refused in ((0, True), (1 << 30, False)):
        target = Target(np.zeros(500_000, np.float32))

        def damage(checked):
            with pack.open("r+b") as file:
                file.seek(4096 + 5000)
                file.write(b"changed")

        if refused:
            with pytest.raises(Refused) as caught:
                restore(built, [Need(0, None, piece)], [target], staging, damage)
            assert caught.value.code == "changed-while-reading"
            assert caught.value.region == "w" and caught.value.file == str(pack.relative_to(built.path))
        else:
            restore(built, [Need(0, None, piece)], [target], staging, damage)
            assert (target.array == take(values[0], piece)).all()
        pack.write_bytes(good)


def test_another_place_of_the_same_shard_makes_damage_good(tmp_path):
    import shutil

    from alpha_mpi.format import Place, ShardRecord

    regions = [("w", "array", "float32", (1000,)), ("v", "array", "float32", (400_000,))]
    values = values_of(regions, 2)
    built = build(tmp_path, regions, [shares(), shares()], values, owners=2)
    copy = tmp_path / "data" / "e000001-000007" / "000"
    copy.mkdir(parents=True)
    helds = [
        Held(
            ShardRecord(r.ordinal, r.owner, r.piece, r.nbytes, r.digest, (*r.places, Place(1, 7, h.role))),
            h.role,
        )
        for h in helds_of(built)
        for r in [h.record]
    ]
    for role in range(2):
        shutil.copy(built.data_file(role, "pack"), copy)
    flip(built.data_file(0, "pack"), 4096 + 10)
    built.data_file(1, "pack").unlink()
    needs = [Need(h.record.ordinal, None, piece_of(h.record.piece)) for h in helds]
    targets = [Target(np.zeros(h.record.nbytes // 4, np.float32)) for h in helds]
    made = plan(needs, helds, built.schema.regions)
    checked = validate(made, packs_of(built), targets, Staging())
    assert sorted(c.code for c in checked.passed) == ["corrupt-shard", "missing-pack"]
    apply(checked, [None] * len(needs))
    for need, target in zip(needs, targets, strict=True):
        assert (target.array == take(values[need.ordinal], need.piece)).all()
    flip(copy / "000001.pack", 4096 + 10)
    with pytest.raises(Refused) as caught:
        validate(made, packs_of(built), targets, Staging())
    assert caught.value.code == "missing-pack"


def test_two_thousand_small_shards_are_read_in_few_reads(tmp_path, monkeypatch):
    from alpha_mpi.store import durable

    n = 2000
    regions = [(f"r{i}", "array", "float32", (4096,)) for i in range(n)]
    values = values_of(regions, 1)
    built = build(tmp_path, regions, [shares()] * n, values, owners=1)
    reads = []
    inner = durable.ReadFile.pread_into
    monkeypatch.setattr(
        durable.ReadFile, "pread_into", lambda self, b, o: (reads.append(len(b)), inner(self, b, o))[1]
    )
    needs = [Need(i, None, piece_of(r.record.piece)) for i, r in enumerate(helds_of(built))]
    targets = [Target(np.zeros(4096, np.float32)) for _ in range(n)]
    restore(built, needs, targets)
    assert all((t.array == v).all() for t, v in zip(targets, values, strict=True))
    assert len(reads) < 60, len(reads)


def test_a_document_that_is_no_document_is_refused(tmp_path):
    regions = [("d", "document", "json", ())]
    built = build(tmp_path, regions, [replicated()], [{"a": 1}], owners=1)
    schema = built.schema
    records = write_pack(
        tmp_path, built.manifests[0].prefix.attempt, 0, [(0, 0, None, b'{"a":1e5}')], schema, "xxh3-128"
    )
    made = plan([Need(0, None, None)], [Held(records[0], 0)], schema.regions)
    with pytest.raises(Refused) as caught:
        validate(made, packs_of(built), [Target()], Staging())
    assert (caught.value.code, caught.value.region) == ("corrupt-document", "d")
