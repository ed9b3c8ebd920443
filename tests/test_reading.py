"""Reading: slices equal NumPy's, only what is behind them is read, and removal is told as such."""

import pathlib
import shutil
import subprocess
import sys
import threading

import ml_dtypes
import numpy as np
import pytest
from fill import fill, same_bits
from hypothesis import given, settings
from hypothesis import strategies as st
from restore.build_store import build, values_of

import alpha_mpi as am
from alpha_mpi.model import layout
from alpha_mpi.model.pieces import Box, Interval
from alpha_mpi.protocol import hierarchy as h
from alpha_mpi.restore import packs as packs_room
from alpha_mpi.restore import path as path_room
from alpha_mpi.store.store import Store

REGIONS = [
    ("rows", "array", "float32", (13, 6)),
    ("columns", "array", "float64", (3, 11)),
    ("flat", "array", "int16", (2, 5, 7)),
    ("grid", "array", "bfloat16", (6, 8, 2)),
    ("odd", "array", "uint8", (5, 9)),
    ("all", "array", "complex64", (17,)),
    ("one", "array", "float64", ()),
    ("none", "array", "float32", (0, 4)),
    ("own", "per-owner", "float8_e4m3fn", (3, 2)),
    ("count", "per-owner", "int64", ()),
    ("schedule", "document", "json", ()),
    ("rng", "per-owner-document", "json", ()),
]
IRREGULAR = {
    4: [
        [Interval(0, 4)],
        [Interval(4, 11), Box((3, 2), (5, 9))],
        [Box((2, 0), (3, 9))],
        [Box((3, 0), (5, 2)), Interval(11, 18)],
    ]
}


def rules():
    return [
        layout.rows(),
        layout.rows(1),
        layout.shares(),
        layout.grid((2, 2)),
        layout.irregular(()),
        *(layout.replicated(),) * 3,
        *(layout.per_owner(),) * 2,
        layout.replicated(),
        layout.per_owner(),
    ]


def made(path, hierarchy):
    values = values_of(REGIONS, 4)
    build(path, REGIONS, rules(), values, hierarchy=hierarchy, irregular=IRREGULAR)
    whole = {}
    for (name, kind, *_), value in zip(REGIONS, values, strict=True):
        whole[name] = np.stack(value) if kind == "per-owner" else value
    return whole


@pytest.fixture(scope="module", params=[h.Star(), h.Tree(2), h.Tree(1)], ids=["star", "tree2", "chain"])
def opened(request, tmp_path_factory):
    path = tmp_path_factory.mktemp("look") / "ckpt"
    values = made(path, request.param)
    with am.open(path) as reader:
        yield reader.latest(), values


ARRAYS = [r[0] for r in REGIONS if "document" not in r[1]]


@pytest.mark.parametrize("name", ARRAYS)
def test_an_array_as_a_whole(opened, name):
    generation, values = opened
    lazy = generation[name]
    assert same_bits(np.asarray(lazy), values[name])
    assert (lazy.shape, lazy.dtype) == (values[name].shape, values[name].dtype)
    assert (lazy.ndim, lazy.size, lazy.nbytes) == (
        values[name].ndim,
        values[name].size,
        values[name].nbytes,
    )
    assert lazy.format in repr(lazy)
    if values[name].ndim:
        assert len(lazy) == len(values[name])
        assert all(same_bits(a, b) for a, b in zip(lazy, values[name], strict=True))


def keys(shape):
    """Anything NumPy calls basic indexing, without new axes."""
    axes = [
        st.one_of(
            st.integers(-n, n - 1) if n else st.just(slice(None)),
            st.slices(n) if n else st.just(slice(None)),
        )
        for n in shape
    ]
    whole = st.tuples(*axes)
    cut = whole.flatmap(lambda k: st.integers(0, len(k)).map(lambda n: k[:n]))
    dots = whole.flatmap(
        lambda k: st.tuples(st.integers(0, len(k)), st.integers(0, len(k))).map(
            lambda ij: (*k[: min(ij)], Ellipsis, *k[max(ij) :])
        )
    )
    return st.one_of(whole, cut, dots)


@given(data=st.data())
@settings(max_examples=60, deadline=None)
def test_any_slice_is_numpys(opened, data):
    generation, values = opened
    name = data.draw(st.sampled_from(ARRAYS))
    key = data.draw(keys(values[name].shape))
    expected = values[name][key]
    found = generation[name][key]
    assert same_bits(found, expected)
    assert isinstance(found, np.ndarray) == isinstance(expected, np.ndarray)


@pytest.mark.parametrize(
    "key", [[0, 1], np.array([1]), None, True, 1.5, "a", (0, 0, 0), (..., ...), 13, -14, (slice(None), 6)]
)
def test_what_is_no_basic_index_of_it_is_an_index_error(opened, key):
    with pytest.raises(IndexError):
        opened[0]["rows"][key]


def test_what_a_generation_says(opened):
    generation, values = opened
    assert list(generation) == ARRAYS and len(generation) == len(ARRAYS)
    assert "rows" in generation and "schedule" not in generation and "x" not in generation
    with pytest.raises(KeyError, match=r"see \.documents"):
        generation["schedule"]
    assert dict(generation.documents) == {"schedule": values["schedule"], "rng": values["rng"]}
    assert "rng" in repr(generation.documents)
    assert (generation.moment.update, generation.owners, generation.name) == (10, 4, "e000001-000001")
    assert generation.learner == am.Learner("test") and generation.continues is None
    assert generation.contract.as_data()["placement"] == "free"
    text = repr(generation)
    assert "update 10" in text and "float32 (13, 6)" in text and "float8_e4m3fn (4, 3, 2)" in text
    assert generation["rows"].layout == {"axis": 0, "rule": "rows"}


def test_a_copy_cannot_be_avoided(opened):
    with pytest.raises(ValueError, match="copy"):
        opened[0]["rows"].__array__(copy=False)
    assert opened[0]["rows"].__array__(np.float64).dtype == np.float64
    with pytest.raises(TypeError):
        len(opened[0]["one"])


# ---------------------------------------------------------------- how much is read


def wide(path, owners=15):
    """A tree of many roles with one array by rows, and one document."""
    regions = [("w", "array", "float32", (60, 4)), ("b", "per-owner", "int32", (2,)), REGIONS[10]]
    rules = [layout.rows(), layout.per_owner(), layout.replicated()]
    values = values_of(regions, owners)
    build(path, regions, rules, values, owners=owners, hierarchy=h.Tree(2))
    return values


def test_only_manifests_on_the_way_are_read_and_each_once(tmp_path, monkeypatch):
    values = wide(tmp_path / "ckpt")
    read = []
    real = path_room.read_manifest
    from alpha_mpi.restore import generation as room

    monkeypatch.setattr(room, "read_manifest", lambda s, a, role: (read.append(role), real(s, a, role))[1])
    with am.open(tmp_path / "ckpt") as reader:
        generation = reader.latest()
        assert read == []
        assert same_bits(generation["w"][8:12], values[0][8:12])  # owner 2
        assert read == [1, 2]
        assert generation.documents["schedule"] == values[2]  # in the root
        assert same_bits(generation["b"][14], values[1][14])
        assert read == [1, 2, 8, 12, 14]
        assert same_bits(np.asarray(generation["w"]), values[0])
        assert sorted(read) == list(range(1, 15))
        generation["w"][::7]
        assert len(read) == 14


def test_words_that_a_rule_does_not_explain_are_found(tmp_path):
    """The layout rule says rows, but the records deal other pieces: the records decide."""
    regions = [("w", "array", "float32", (8, 2))]
    values = values_of(regions, 4)
    swapped = {0: [[Box((2 * k, 0), (2 * k + 2, 2))] for k in (3, 2, 1, 0)]}
    import restore.build_store as tool

    class Rows(type(layout.irregular(()))):
        def as_data(self):
            return {"axis": 0, "rule": "rows"}

    tool.build(tmp_path / "ckpt", regions, [Rows()], values, irregular=swapped, hierarchy=h.Tree(1))
    with am.open(tmp_path / "ckpt") as reader:
        assert same_bits(reader.latest()["w"][0:2], values[0][0:2])


@pytest.fixture(scope="module")
def large(tmp_path_factory):
    """A region of 64 MiB on one owner, saved by the library."""
    path = tmp_path_factory.mktemp("large") / "ckpt"
    array = np.arange(4096 * 4096, dtype=np.float32).reshape(4096, 4096)
    state = am.State()
    state.partition("w", array, shape=array.shape, layout=am.rows())
    with am.Checkpointer(path, state, visibility=0.0) as ckpt:
        ckpt.resume()
        ckpt.save(1)
    return path, array


def test_only_the_chunks_behind_a_slice_are_read(large, monkeypatch):
    path, array = large
    done = []
    real = packs_room.PackReader.read_into

    def read_into(self, buffer, offset):
        done.append(len(buffer))
        real(self, buffer, offset)

    monkeypatch.setattr(packs_room.PackReader, "read_into", read_into)
    with am.open(path) as reader:
        lazy = reader.latest()["w"]
        for key, most in (
            ((slice(64, 128),), 2 << 20),
            ((5, 7), 2 << 20),
            ((slice(None, None, 1024), 0), 5 << 20),
            ((slice(None, None, -2048), slice(0, 9, 4)), 3 << 20),
        ):
            done.clear()
            assert same_bits(lazy[key], array[key])
            assert 0 < sum(done) < most, key


def test_damage_behind_the_slice_is_refused_and_elsewhere_not_met(large, tmp_path):
    copy = pathlib.Path(shutil.copytree(large[0], tmp_path / "ckpt"))
    (pack,) = copy.rglob("*.pack")
    with pack.open("r+b") as file:
        file.seek(40 << 20)
        file.write(b"\xff\xfe\xfd\xfc")
    with am.open(copy) as reader:
        lazy = reader.latest()["w"]
        assert same_bits(lazy[:100], large[1][:100])
        with pytest.raises(am.Refused) as told:
            lazy[2500:2600]
    assert told.value.code == "corrupt-shard" and told.value.region == "w"


SPARSE = """
import pathlib, resource, sys
import numpy as np
import alpha_mpi as am
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
with am.open(sys.argv[1]) as reader:
    lazy = reader.latest()["w"]
    assert lazy.nbytes == 1 << 30, lazy
    part = lazy[::4096, ::16]
    assert part.shape == (64, 64) and not part.any()
    assert lazy[1000:1064].nbytes == 64 * 4096
    assert lazy[-1, -1] == 0
after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
assert after - before < 64 << 10, (before, after)
assert "mpi4py" not in sys.modules and "h5py" not in sys.modules
"""


def test_slices_of_a_region_of_a_gibibyte_need_little_memory(tmp_path):
    """Written with holes: 1 GiB of zeros costs the disk nothing, and its digests one chunk's."""
    sparse(tmp_path / "ckpt", (1 << 18, 1024))
    subprocess.run([sys.executable, "-c", SPARSE, str(tmp_path / "ckpt")], check=True, timeout=120)


def sparse(path, shape):
    """Build a store of one float32 region of zeros, its pack with a hole for the payload."""
    import restore.build_store as tool

    from alpha_mpi import digest
    from alpha_mpi.format import PackPlan, Place, ShardRecord, Slot
    from alpha_mpi.store import names

    nbytes = 4 * shape[0] * shape[1]
    algorithm = digest.DEFAULT
    table = digest.raw(bytes(digest.CHUNK), algorithm) * (nbytes // digest.CHUNK)
    plan = PackPlan.of([Slot(0, 0, 0, nbytes)], algorithm)

    def write_pack(path, attempt, role, shards, schema, algorithm):
        with (tool.directory(path, attempt, role) / names.pack(role)).open("wb") as file:
            file.write(plan.header)
            file.seek(plan.entries[0][2])
            file.write(table)
            file.seek(plan.directory_offset)
            file.write(plan.directory)
        named = digest.shard("float32", nbytes, table, algorithm)
        place = (Place(attempt.epoch, attempt.save, role),)
        return [ShardRecord(0, 0, (2, 0, 0, *shape), nbytes, named, place)]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tool, "write_pack", write_pack)
        patch.setattr(tool, "take", lambda array, piece: np.zeros(1, np.float32))
        regions = [("w", "array", "float32", shape)]
        zeros = np.broadcast_to(np.float32(0), shape)
        build(path, regions, [layout.rows()], [zeros], owners=1, hierarchy=h.Star())


# ---------------------------------------------------------------- a store that changes


def job(path, updates, keep=None, array=None):
    w = np.zeros((50, 3), ml_dtypes.bfloat16) if array is None else array
    state = am.State()
    state.partition("w", w, shape=w.shape, layout=am.rows())
    with am.Checkpointer(path, state, visibility=0.0, keep=keep) as ckpt:
        first = ckpt.resume().update
        for update in range(first + 1, first + updates + 1):
            w[...] = fill("w", update, w.shape, w.dtype)
            ckpt.save(update)


def test_generations_by_name_update_and_in_order(tmp_path):
    job(tmp_path / "ckpt", 3)
    job(tmp_path / "ckpt", 2)
    with am.open(tmp_path / "ckpt") as reader:
        names = ("e000001-000001", "e000001-000002", "e000001-000003", "e000002-000001", "e000002-000002")
        assert reader.generations == names and len(reader) == 5
        assert [g.moment.update for g in reader] == [1, 2, 3, 4, 5]
        assert reader.latest().name == reader["latest"].name == names[-1]
        assert [reader[k].name for k in ("u2", "2", 2, "e000001-000002")] == [names[1]] * 4
        assert "5 generations" in repr(reader) and reader.path == str(tmp_path / "ckpt")
        assert len(reader.id) == 32
        for word in ("u9", "e000001-000009", "e000003-000001"):
            with pytest.raises(am.Refused):
                reader[word]
            assert word not in reader
        for word in ("newest", "u-1", True, 1.5):
            with pytest.raises(KeyError) as told:
                reader[word]
            assert (told.value.code, word in reader) == ("argument", False)
        with pytest.raises(KeyError, match="expected u1, u2, u3, u4, u5") as told:
            reader["u9"]
        assert isinstance(told.value, am.Refused) and told.value.code == "no-generation"
        with pytest.raises(KeyError, match="e000002-000002"):
            reader["e000007-000001"]
        assert all(word in reader for word in ("latest", "u2", 2, names[1], reader["u2"].moment))
        assert reader[reader["u2"].moment].name == names[1]
        with pytest.raises(KeyError):
            reader[am.Moment(2, 2, 2)]  # of another epoch
        before = reader.latest()
        job(tmp_path / "ckpt", 1)
        assert reader.latest().moment.update == 6 and before.moment.update == 5


def test_names_that_a_generation_does_not_have(tmp_path):
    state = am.State()
    state.replicate("w", np.zeros(3))
    state.document("d", lambda: 1, lambda value: None)
    with am.Checkpointer(tmp_path / "ckpt", state) as ckpt:
        ckpt.resume()
        ckpt.save(1)
    with am.open(tmp_path / "ckpt") as reader:
        g = reader.latest()
        for told, there in ((lambda: g["v"], "w"), (lambda: g.documents["w"], "d"), (lambda: g[3], "w")):
            with pytest.raises(KeyError, match=f"expected {there}") as caught:
                told()
            assert isinstance(caught.value, am.Refused) and caught.value.code == "no-region"
        with pytest.raises(KeyError, match=r"\.documents"):
            g["d"]
        assert ("v" in g, g.get("v"), "d" in g, "d" in g.documents) == (False, None, False, True)


def test_an_array_without_an_axis_is_a_number(tmp_path):
    values = {"f": np.array(2.5), "i": np.array(3, np.int8), "c": np.array(1 + 2j), "no": np.array(False)}
    am.save(tmp_path / "ckpt", {**values, "many": np.ones((1, 2))})
    with am.open(tmp_path / "ckpt") as reader:
        g = reader.latest()
        assert (float(g["f"]), int(g["f"]), f"{g['f']:.3f}", bool(g["f"])) == (2.5, 2, "2.500", True)
        assert (range(5)[g["i"]], complex(g["c"]), bool(g["no"])) == (3, 1 + 2j, False)
        assert "not read" in f"{g['f']}"
        for number in (float, int, complex, range):
            with pytest.raises(TypeError):
                number(g["many"])
        with pytest.raises(TypeError):
            range(g["f"])
        with pytest.raises(ValueError, match="neither true nor false"):
            bool(g["many"])


def test_what_is_no_store_is_refused(tmp_path):
    for path in (tmp_path, tmp_path / "missing"):
        with pytest.raises(am.Refused):
            am.open(path)
    (tmp_path / "file").write_text("x")
    for path in (tmp_path / "file", tmp_path / "file" / "a" / "b"):
        for use in (am.open, am.load, lambda path: am.save(path, {})):
            with pytest.raises(am.Refused) as told:
                use(path)
            assert told.value.code == "not-a-directory"
            assert told.value.file == str(tmp_path / "file")  # who stands in the way
    store = tmp_path / "empty"
    Store.create_or_open(store, probe=False).close()
    with am.open(store) as reader:
        assert reader.generations == () and list(reader) == []
        with pytest.raises(am.Refused) as told:
            reader.latest()
    assert told.value.code == "no-generation"


def test_what_is_read_after_the_end_is_told_so(tmp_path):
    job(tmp_path / "ckpt", 1)
    with am.open(tmp_path / "ckpt") as reader:
        old = reader.latest()
    assert "closed" in repr(reader)
    for read in (lambda: old["w"][0], reader.latest, lambda: reader["u1"], lambda: list(reader)):
        with pytest.raises(am.Refused) as told:
            read()
        assert told.value.code == "closed"


def test_what_no_checkpointer_would_use_is_refused(tmp_path):
    state, w = am.State(), np.zeros(3)
    state.replicate("w", w)
    for wrong, word in (
        ({"learner": "mlp"}, "learner="),
        ({"contract": 3}, "contract="),
        ({"hierarchy": 2}, "found 2"),
    ):
        with pytest.raises(am.Refused, match=word):
            am.Checkpointer(tmp_path / "ckpt", state, **wrong)
    state.replicate("v", np.zeros(3))  # none was made yet
    with am.Checkpointer(tmp_path / "ckpt", state), pytest.raises(am.Refused) as told:
        state.replicate("late", np.zeros(3))
    assert (told.value.code, told.value.region) == ("late-region", "late")


def test_a_generation_removed_meanwhile_is_told_as_removed(tmp_path):
    job(tmp_path / "ckpt", 1)
    with am.open(tmp_path / "ckpt") as reader:
        old = reader.latest()
        array = old["w"]
        assert same_bits(array[3], fill("w", 1, (50, 3), ml_dtypes.bfloat16)[3])
        job(tmp_path / "ckpt", 2, keep=1)
        for read in (lambda: array[...], lambda: reader["e000001-000001"]):
            with pytest.raises(am.Refused) as told:
                read()
            assert told.value.code in ("removed-generation", "no-generation", "missing-root")
        assert [g.moment.update for g in reader] == [3]


def test_a_reader_beside_a_job_sees_exact_generations_or_a_clear_gone(tmp_path):
    path = tmp_path / "ckpt"
    job(path, 1, keep=1)
    failure, codes, seen = [], set(), 0

    def write():
        try:
            job(path, 40, keep=1)
        except BaseException as error:
            failure.append(error)

    writer = threading.Thread(target=write)
    writer.start()
    with am.open(path) as reader:
        while writer.is_alive() or not seen:
            try:
                generation = reader.latest()
                found = np.asarray(generation["w"])
            except am.Refused as error:
                codes.add(error.code)
                continue
            assert same_bits(found, fill("w", generation.moment.update, (50, 3), ml_dtypes.bfloat16))
            seen += 1
    writer.join()
    assert not failure and codes <= {"removed-generation", "no-generation", "missing-root"}, (failure, codes)


def test_open_files_do_not_grow(tmp_path):
    job(tmp_path / "ckpt", 1)
    held = pathlib.Path("/proc/self/fd")
    with am.open(tmp_path / "ckpt") as reader:
        generation = reader.latest()
        before = len(list(held.iterdir()))
        for _ in range(50):
            generation["w"][1:2]
        assert len(list(held.iterdir())) == before
