"""HDF5: views whose data are the packs, copies, and imports; every format exact."""

import os
import pathlib
import shutil
import subprocess
import sys

import h5py
import numpy as np
import pytest
from fill import fill, same_bits
from restore.build_store import build, values_of

import alpha_mpi as am
from alpha_mpi.importing import import_hdf5
from alpha_mpi.interop import hdf5
from alpha_mpi.interop.hdf5 import names, types, view
from alpha_mpi.interop.hdf5.copy import block, steps
from alpha_mpi.model import formats, layout
from alpha_mpi.model.pieces import Box, Interval
from alpha_mpi.protocol import hierarchy as h
from alpha_mpi.restore.generation import Generation
from alpha_mpi.restore.verify import verify
from alpha_mpi.store.store import Store

REGIONS = [
    ("adam/m", "array", "float32", (13, 6)),
    ("columns", "array", "float64", (3, 11)),
    ("flat", "array", "int16", (2, 5, 7)),
    ("grid", "array", "bfloat16", (6, 8, 2)),
    ("odd", "array", "uint8", (5, 9)),
    ("mask", "array", "bool", (17,)),
    ("one", "array", "complex64", ()),
    ("none", "array", "float32", (0, 4)),
    ("own", "per-owner", "float8_e4m3fn", (3, 2)),
    ("count", "per-owner", "int64", ()),
    ("adam", "document", "json", ()),
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
RULES = [
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


@pytest.fixture(params=[h.Star(), h.Tree(2)], ids=["star", "tree"])
def made(request, tmp_path):
    """A store of everything, and its words."""
    values = values_of(REGIONS, 4)
    build(tmp_path / "ckpt", REGIONS, RULES, values, hierarchy=request.param, irregular=IRREGULAR)
    words = {
        name: np.stack(value) if kind == "per-owner" else value
        for (name, kind, *_), value in zip(REGIONS, values, strict=True)
    }
    return tmp_path / "ckpt", words


def opened(path):
    with am.open(path) as reader:
        position = reader.latest()._generation.candidate.position
    return Generation.open(Store.open(path), *position)


def export(path, target=None, **more):
    generation = opened(path)
    target = target or path / f"{generation.candidate.name}.h5"
    return hdf5.write_view(generation, target, verified=True, **more)


ARRAYS = [r[0] for r in REGIONS if r[2] != "json"]


def check_numbers(found, expected):
    """What an HDF5 tool reads are the same numbers."""
    found = np.asarray(found)
    if formats.of_dtype(expected.dtype).name == "float8_e4m3fn" and found.dtype == np.uint8:
        assert same_bits(found.view(expected.dtype), expected)
        return
    assert found.shape == expected.shape
    assert np.array_equal(np.asarray(found, np.complex128), np.asarray(expected, np.complex128))


def test_plain_h5py_reads_the_packs_in_the_stores_folder(made, monkeypatch):
    path, words = made
    done = export(path)
    assert done.bits == ("own",) and done.missing == ()
    monkeypatch.chdir(path)
    with h5py.File("e000001-000001.h5") as file:
        for name in ARRAYS:
            dataset = file[done.datasets[name]]
            check_numbers(dataset[()], words[name])
            if words[name].size and name not in ("grid", "columns", "odd"):
                assert dataset.external
            assert dataset.is_virtual == (name in ("grid", "columns", "odd"))
        assert file["mask"].dtype == bool and file["grid"].dtype == np.float32
        attrs = dict(file.attrs)
        assert attrs["alpha_mpi.update"] == 10 and attrs["alpha_mpi.verified"]
        assert attrs["alpha_mpi.root"].startswith("xxh3-128:") and attrs["alpha_mpi.owners"] == 4
        assert '"label":"test"' in attrs["alpha_mpi.learner"]
        assert file["grid"].attrs["alpha_mpi.format"] == "bfloat16"
        packs = {p.relative_to(path).as_posix() for p in path.rglob("*.pack")}
        assert {row["file"].decode() for row in file["alpha_mpi.shards"][...]} == packs
    size = (path / "e000001-000001.h5").stat().st_size
    assert size < 200_000


READ = """
import os, sys
import h5py, numpy as np
with h5py.File(sys.argv[1]) as file:
    print(*(float(np.sum(file[name][()], dtype=np.float64)) for name in ("adam%2Fm", "grid")))
"""


def elsewhere(path, cwd, **more):
    return subprocess.run(
        [sys.executable, "-c", READ, str(path)],
        cwd=cwd,
        env={**os.environ, **more},
        capture_output=True,
        text=True,
        timeout=60,
    )


def test_from_elsewhere_with_the_variable_and_after_a_move(made, tmp_path):
    path, words = made
    done = export(path)
    expected = f"{words['adam/m'].sum(dtype=np.float64)} {words['grid'].astype(np.float64).sum()}\n"
    assert elsewhere(done.path, tmp_path).returncode == 1
    with h5py.File(done.path) as file:
        variable, _, value = file.attrs["alpha_mpi.elsewhere"].partition("=")
    assert elsewhere(done.path, tmp_path, **{variable: value}).stdout == expected
    moved = shutil.move(path, tmp_path / "moved")
    file = pathlib.Path(moved) / "e000001-000001.h5"
    assert elsewhere(file, tmp_path, **{variable: value}).stdout == expected
    with hdf5.open_view(file) as shown:
        check_numbers(shown["grid"][...], words["grid"])


def test_open_view_from_anywhere(made, tmp_path, monkeypatch):
    path, words = made
    outside = tmp_path / "views"
    outside.mkdir()
    export(path, outside / "v.h5")
    monkeypatch.chdir("/")
    with hdf5.open_view(outside / "v.h5") as shown:
        assert set(shown) == {r[0] for r in REGIONS} and len(shown) == len(REGIONS)
        for name in ARRAYS:
            check_numbers(shown[name][()] if words[name].ndim == 0 else shown[name][...], words[name])
        for key in ((slice(1, 6, 2), slice(None, None, -3)), (2, ..., 1), (slice(4, 4),), (-1, 7, 1)):
            found, expected = shown["grid"][key], words["grid"][key].astype(np.float32)
            assert np.array_equal(found, expected) and np.shape(found) == np.shape(expected)
        assert np.asarray(shown["grid"]).shape == (len(shown["grid"]), 8, 2)
        assert "boxes" in repr(shown["grid"]) and "e000001-000001" in repr(shown)
        assert shown.attrs["alpha_mpi.kind"] == "view"
        assert shown["rng"].asstr()[2] == '{"owner":2}'


def test_a_pack_that_was_cut_or_went_is_not_read_as_zeros(made):
    path, _ = made
    done = export(path)
    pack = sorted(path.rglob("*.pack"))[0]
    data = pack.read_bytes()
    pack.write_bytes(data[:-8])
    with pytest.raises(am.Refused) as told:
        hdf5.open_view(done.path)
    assert told.value.code == "truncated"
    pack.unlink()
    with pytest.raises(am.Refused) as told:
        hdf5.open_view(done.path)
    assert told.value.code == "missing-pack"


def test_the_store_does_not_mind_its_view(made):
    path, _ = made
    export(path)
    with Store.open(path) as store:
        from alpha_mpi.restore import choose

        seen = choose.survey(store)
        assert seen.strangers == () and seen.damaged == ()
        assert verify(store, 1, 1).whole


def test_a_file_is_not_replaced_unasked(made, tmp_path):
    path, _ = made
    done = export(path)
    before = pathlib.Path(done.path).read_bytes()
    with pytest.raises(am.Refused) as told:
        export(path)
    assert told.value.code == "file-exists" and pathlib.Path(done.path).read_bytes() == before
    export(path, replace=True)
    (tmp_path / "folder").mkdir()
    with pytest.raises(am.Refused):
        export(path, tmp_path / "folder", replace=True)
    assert not [p for p in path.iterdir() if p.name.endswith(".tmp")]


@pytest.mark.parametrize("compress", [False, True])
def test_a_copy_stands_for_itself(made, tmp_path, compress):
    path, words = made
    done = hdf5.write_copy(opened(path), tmp_path / "copy.h5", compress=compress)
    shutil.rmtree(path)
    with h5py.File(done.path) as file:
        for name in ARRAYS:
            dataset = file[done.datasets[name]]
            check_numbers(dataset[()], words[name])
            assert not dataset.external and not dataset.is_virtual
            assert (dataset.compression == "gzip") == (compress and words[name].size > 1)
        assert file["own"].dtype == np.float32
    with hdf5.open_view(done.path) as shown:
        check_numbers(shown["adam/m"][...], words["adam/m"])


@pytest.mark.parametrize("kind", ["view", "copy", "compressed"])
def test_what_was_exported_comes_back_exactly(tmp_path, kind):
    """R20: every format, bits exact, by name; onto another number of owners."""
    regions = [(f, "array", f, (5, 13)) for f in formats.NAMES]
    regions += [
        ("doc", "document", "json", ()),
        ("a/b", "array", "uint16", (3,)),
        ("a", "array", "float16", (3,)),
    ]
    values = [fill(f, 1, (5, 13), formats.by_name(f).dtype) for f in formats.NAMES]
    values += [{"x": [1.5, 2**70]}, fill("u", 1, (3,), np.uint16), fill("v", 1, (3,), np.float16)]
    rules = [layout.rows(1)] * len(formats.NAMES) + [layout.replicated()] * 3
    build(tmp_path / "ckpt", regions, rules, values, owners=3, hierarchy=h.Tree(2))
    generation = opened(tmp_path / "ckpt")
    if kind == "view":
        done = hdf5.write_view(generation, tmp_path / "f.h5", verified=True)
    else:
        done = hdf5.write_copy(generation, tmp_path / "f.h5", compress=kind == "compressed")
    again = import_hdf5(done.path, tmp_path / "again")
    assert (again.moment.update, again.moment.cursor) == (10, 10)
    with am.open(tmp_path / "again") as reader:
        found = reader.latest()
        assert [r.name for r in found._generation.regions] == [r[0] for r in regions]
        for (name, kind_, format, _), value in zip(regions, values, strict=True):
            if kind_ == "document":
                assert found.documents[name] == value
                continue
            assert found[name].format == format
            assert same_bits(np.asarray(found[name]), value), name
            assert found[name].layout == (
                {"axis": 1, "rule": "rows"} if name in formats.NAMES else {"rule": "replicated"}
            )
        assert found.learner == am.Learner("test")


def test_every_word_of_a_narrow_format_survives_a_copy():
    for name in formats.NAMES:
        if types.is_expressed(name):
            continue
        format = formats.by_name(name)
        every = np.arange(256, dtype=np.uint8).view(format.dtype)
        assert same_bits(types.narrowed(types.widened(every), format), every), name
        with pytest.raises(am.Refused):
            types.narrowed(np.array([1.0 + 2**-20], np.float32), format)


@pytest.mark.parametrize("name", sorted(types.NARROW))
def test_hdf5_reads_the_numbers_of_narrow_floats(tmp_path, name):
    format = formats.by_name(name)
    every = np.arange(1 << 8 * format.itemsize, dtype=f"u{format.itemsize}").view(format.dtype)
    am.save(tmp_path / "ckpt", {"x": every}, finite=False)
    export(tmp_path / "ckpt")
    with hdf5.open_view(tmp_path / "ckpt" / "e000001-000001.h5") as shown:
        found = shown["x"][...].astype(np.float32)
    assert np.array_equal(found, every.astype(np.float32), equal_nan=True)


def test_names_that_hdf5_would_read_otherwise(tmp_path):
    odd = [
        "a",
        "a/b",
        "a//b",
        "/a",
        "a/",
        ".",
        "a/./b",
        "alpha_mpi.pieces",
        "50%",
        "é",
        "..",
        "x\0y",
        "%2F",
        "a%2Fb",
    ]
    paths = names.paths_of(odd)
    assert len(set(paths)) == len(odd) and paths[0] == "a" and paths[9] == "é" and paths[10] == ".."
    am.save(tmp_path / "ckpt", {})
    state, arrays = am.State(), {name: np.full(2, i) for i, name in enumerate(odd)}
    for name, array in arrays.items():
        state.replicate(name, array)
    with am.Checkpointer(tmp_path / "odd", state) as ckpt:
        ckpt.resume()
        ckpt.save(1)
    done = export(tmp_path / "odd")
    with hdf5.open_view(done.path) as shown:
        assert set(shown) == set(odd)
        for name, array in arrays.items():
            assert shown[name][...].tolist() == array.tolist()
    import_hdf5(done.path, tmp_path / "again")
    with am.open(tmp_path / "again") as reader:
        assert list(reader.latest()) == odd


def test_many_shards(tmp_path, monkeypatch):
    """More parts than one dataset can name are put together from boxes; far too many are left out."""
    monkeypatch.setattr(view, "SEGMENTS", 3)
    array = np.arange(70, dtype=np.int32).reshape(7, 10)
    regions = [("w", "array", "int32", (7, 10)), ("v", "array", "int32", (70,))]
    build(tmp_path / "ckpt", regions, [layout.shares()] * 2, [array, array.reshape(-1)], owners=6)
    done = export(tmp_path / "ckpt")
    with hdf5.open_view(done.path) as shown:
        assert np.array_equal(shown["w"][...], array) and shown["v"][-1] == 69
    with hdf5.open_source(done.path) as source:
        assert np.array_equal(source.array(source.datasets[0], (1, 2), (5, 7)), array[1:6, 2:9])
    monkeypatch.setattr(view, "BOXES", 8)
    done = export(tmp_path / "ckpt", replace=True)
    assert done.missing == ("w",) and set(done.datasets) == {"v"}


def test_owners_that_hold_nothing(tmp_path):
    """R18: two of four owners have no row, and one region is a scalar."""
    t, boxes = fill("t", 1, (2, 10), np.float64), fill("b", 1, (10, 10), np.float32)
    regions = [("t", "array", "float64", (2, 10)), ("b", "array", "float32", (10, 10))]
    cut = [[Box((0, 0), (7, 3))], [Box((0, 3), (7, 10))], [Box((7, 0), (10, 3))], [Box((7, 3), (10, 10))]]
    regions.append(("s", "array", "float64", ()))
    rules = [layout.rows(), layout.irregular(()), layout.replicated()]
    build(tmp_path / "ckpt", regions, rules, [t, boxes, np.float64(2.5)], irregular={1: cut})
    copy = hdf5.write_copy(opened(tmp_path / "ckpt"), tmp_path / "copy.h5", compress=True)
    for done in (copy, export(tmp_path / "ckpt")):
        again = tmp_path / f"again-{pathlib.Path(done.path).stem}"
        import_hdf5(done.path, again)
        with am.open(again) as reader:
            found = reader.latest()
            assert same_bits(np.asarray(found["t"]), t) and same_bits(np.asarray(found["b"]), boxes)
            assert found["s"][()] == 2.5


# ---------------------------------------------------------------- import


def test_any_file_of_numbers(tmp_path):
    with h5py.File(tmp_path / "f.h5", "w") as file:
        file["g/a"] = np.arange(12, dtype=">f8").reshape(3, 4)
        file["b"] = np.array([True, False])
        file["c"] = 3
        file.create_dataset("d", data=np.ones((4, 5), np.float32), chunks=(2, 2), compression="gzip")
        file["z"] = np.complex64(1 + 2j)
        file["nan"] = np.array([np.nan])
    made = import_hdf5(tmp_path / "f.h5", tmp_path / "ckpt")
    assert made.moment.update == 1
    assert import_hdf5(tmp_path / "f.h5", tmp_path / "ckpt").moment.update == 2
    with am.open(tmp_path / "ckpt") as reader:
        found = reader.latest()
        assert list(found) == ["b", "c", "d", "g/a", "nan", "z"] and found.learner.label == "f.h5"
        assert np.asarray(found["g/a"]).tolist() == np.arange(12.0).reshape(3, 4).tolist()
        assert found["b"].format == "bool" and found["c"][()] == 3 and found["z"][()] == 1 + 2j
        assert found["g/a"].format == "float64"
    with pytest.raises(am.Refused) as told:
        import_hdf5(tmp_path / "f.h5", tmp_path / "ckpt", update=1)
    assert told.value.code == "stale-update"
    with pytest.raises(am.Refused) as told:
        import_hdf5(tmp_path / "f.h5", tmp_path / "ckpt", learner=am.Learner("x"))
    assert told.value.code == "other-learner"


def test_what_is_no_number_is_named(tmp_path):
    with h5py.File(tmp_path / "f.h5", "w") as file:
        file["text"] = "hello"
        file["pair"] = np.zeros(2, [("a", "i4"), ("b", "f4")])
        file["raw"] = np.zeros(2, "V2")
        file["day"] = np.array([1], h5py.enum_dtype({"MON": 1}))
        file["fine"] = 1.0
    with pytest.raises(am.Refused) as told:
        import_hdf5(tmp_path / "f.h5", tmp_path / "ckpt")
    assert told.value.code == "format" and told.value.region == "day"
    assert all(name in str(told.value) for name in ("pair", "raw", "text"))
    assert not (tmp_path / "ckpt").exists()
    h5py.File(tmp_path / "empty.h5", "w").close()
    with pytest.raises(am.Refused):
        import_hdf5(tmp_path / "empty.h5", tmp_path / "ckpt")
    (tmp_path / "no.h5").write_bytes(b"no")
    with pytest.raises(am.CheckpointError):
        import_hdf5(tmp_path / "no.h5", tmp_path / "ckpt")


def test_attributes_that_lie_are_refused(tmp_path):
    am.save(tmp_path / "ckpt", {"x": np.arange(3, dtype=np.int32)})
    for n, (where, name, value) in enumerate(
        [
            ("x", "alpha_mpi.format", "float64"),
            ("x", "alpha_mpi.format", "json"),
            ("x", "alpha_mpi.format", "nothing"),
            ("x", "alpha_mpi.region", "heap"),
            ("x", "alpha_mpi.rule", "{}"),
            ("x", "alpha_mpi.rule", "no"),
            ("/", "alpha_mpi.learner", "[]"),
            ("/", "alpha_mpi.update", "many"),
        ]
    ):
        done = hdf5.write_copy(opened(tmp_path / "ckpt"), tmp_path / f"{n}.h5")
        with h5py.File(done.path, "r+") as file:
            file[where].attrs[name] = value
        with pytest.raises(am.Refused):
            hdf5.open_source(done.path)


def test_per_owner_state_needs_as_many_owners(made, tmp_path):
    done = export(made[0])
    with pytest.raises(am.Refused) as told:
        import_hdf5(done.path, tmp_path / "again")
    assert (told.value.code, told.value.region) == ("per-owner-state", "own")


def test_blocks_and_steps():
    assert block((10, 4, 5), 20) == (1, 4, 5) and block((10, 4, 5), 47) == (2, 4, 5)
    assert block((10, 4, 5), 3) == (1, 1, 3) and block((), 9) == () and block((3,), 0) == (1,)
    for shape in ((10, 4, 5), (7,), (), (0, 3), (1, 1)):
        seen = np.zeros(shape, int)
        for starts, counts in steps(shape, 6):
            seen[tuple(slice(a, a + n) for a, n in zip(starts, counts, strict=True))] += 1
        assert (seen == 1).all()
