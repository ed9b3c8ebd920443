"""save and load in one line: trees come back exactly, with the refusals of a Checkpointer."""

import pathlib
import subprocess
import sys

import ml_dtypes
import numpy as np
import pytest
from fill import fill, same_bits
from hypothesis import given, settings
from hypothesis import strategies as st

import alpha_mpi as am
from alpha_mpi.trees import name_of, put_together, take_apart


def same(a, b):
    """Two trees are equal: types, keys, formats, shapes and bits."""
    if isinstance(a, np.ndarray | np.generic):
        return type(a) is type(b) and same_bits(a, b)
    if isinstance(a, dict):
        return isinstance(b, dict) and list(a) == list(b) and all(same(a[k], b[k]) for k in a)
    if isinstance(a, list | tuple):
        return type(a) is type(b) and len(a) == len(b) and all(map(same, a, b))
    return type(a) is type(b) and a == b


def tree():
    return {
        "model": {"w": fill("w", 1, (5, 7), np.float32), "layers": [fill("l", 1, (3,), ml_dtypes.bfloat16)]},
        "betas": (0.9, np.float32(0.999)),
        "a/b": fill("x", 1, (), np.int64),
        "a": {"b": fill("y", 1, (0, 3), np.bool_), "": fill("z", 1, (2,), np.complex128)},
        "": fill("e", 1, (4,), ml_dtypes.float8_e5m2),
        "~": None,
        "note": {"text": "é\n", "big": 2**80, "list": [1, [True, None]], "nothing": {}},
    }


def test_a_tree_comes_back_exactly(tmp_path):
    given = tree()
    generation = am.save(tmp_path / "ckpt", given)
    assert generation.moment.update == 1
    found = am.load(tmp_path / "ckpt")
    # Keys of a plain part come back sorted: JSON objects have no order.
    assert set(found) == set(given)
    for key in ("model", "betas", "a/b", "a", "", "~"):
        assert same(found[key], given[key]), key
    assert found["note"] == given["note"]


@pytest.mark.parametrize("value", [3, None, "text", [1.5, {"a": []}], {}, []])
def test_a_tree_without_an_array(tmp_path, value):
    am.save(tmp_path / "ckpt", value)
    assert am.load(tmp_path / "ckpt") == value


def test_one_array_alone(tmp_path):
    array = fill("a", 1, (3, 4), np.float64)
    array.flags.writeable = False
    am.save(tmp_path / "ckpt", array)
    assert same_bits(am.load(tmp_path / "ckpt"), array)


LEAVES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(allow_nan=False),
    st.text(st.characters(codec="utf-8"), max_size=4),
    st.integers(0, 3).map(lambda n: np.arange(n, dtype=np.int16)),
    st.just(np.float64(2.5)),
)
KEYS = st.text(st.characters(codec="utf-8"), max_size=3) | st.sampled_from(["~", "/", "~1", "~e", "0", ""])
TREES = st.recursive(
    LEAVES,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.lists(inner, max_size=3).map(tuple),
        st.dictionaries(KEYS, inner, max_size=3),
    ),
    max_leaves=12,
)


@given(TREES)
@settings(max_examples=150, deadline=None)
def test_taking_apart_and_together(value):
    structure, arrays = take_apart(value)
    from alpha_mpi.format import decode_document, encode_document

    read = decode_document(encode_document(structure))

    def plain(x):
        if isinstance(x, dict):
            return {k: plain(v) for k, v in sorted(x.items())}
        return type(x)(map(plain, x)) if isinstance(x, list | tuple) else x

    assert same(plain(put_together(read, lambda name: np.asarray(arrays[name]))), plain(value))


@given(st.lists(st.lists(KEYS, min_size=1, max_size=3).map(tuple), min_size=2, max_size=2, unique=True))
def test_two_ways_have_two_names(ways):
    assert name_of(ways[0]) != name_of(ways[1])


def test_later_trees_may_be_others_and_the_older_go(tmp_path):
    store = tmp_path / "ckpt"
    for n in (1, 2, 3):
        am.save(store, {"w": np.full(n, n)})
    with am.open(store) as reader:
        assert [g.moment.update for g in reader] == [3]
    am.save(store, {"w": np.full(9, 9)}, keep=None)
    am.save(store, {"w": np.full(9, 9)}, keep=None)  # the same words again
    with am.open(store) as reader:
        assert [g.moment.update for g in reader] == [3, 4, 5]
        assert list(reader.latest()) == ["w"]
    assert am.load(store, generation="u3")["w"].tolist() == [3, 3, 3]


def test_words_that_are_not_finite(tmp_path):
    odd = {"w": np.array([1, np.nan])}
    with pytest.raises(am.Refused) as told:
        am.save(tmp_path / "ckpt", odd)
    assert (told.value.code, told.value.region) == ("non-finite", "w")
    am.save(tmp_path / "ckpt", odd, finite=False)
    with pytest.raises(am.Refused) as told:
        am.load(tmp_path / "ckpt")
    assert (told.value.code, told.value.region) == ("non-finite", "w")
    assert same_bits(am.load(tmp_path / "ckpt", finite=False)["w"], odd["w"])


def test_what_is_refused(tmp_path):
    store = tmp_path / "ckpt"
    for wrong, code in (
        ({1: np.ones(1)}, "document"),
        ({"x": {1, 2}}, "document"),
        ({"x": np.array(["a"])}, "format"),
        ({"x": object()}, "document"),
    ):
        with pytest.raises(am.Refused) as told:
            am.save(store, wrong)
        assert told.value.code == code, wrong
    for layouts in ({"y": am.per_owner()}, {"x": am.rows()}, {"x": (am.rows(), (3,))}, {"x": 5}):
        with pytest.raises(am.Refused):
            am.save(store, {"x": np.ones((2, 2))}, layouts=layouts)
    with pytest.raises(am.Refused) as told:
        am.load(tmp_path / "missing")
    assert told.value.code == "no-store"
    am.save(store, {"x": np.ones(1)})
    for word, code in (("newest", "argument"), ("u7", "no-generation")):
        with pytest.raises(am.Refused) as told:
            am.load(store, generation=word)
        assert told.value.code == code


def test_the_store_of_a_job_is_read_but_never_continued(tmp_path):
    w = fill("w", 1, (6, 2), np.float32)
    state = am.State()
    state.partition("w", w, shape=w.shape, layout=am.rows())
    state.document("d", lambda: {"a": 1}, lambda value: None)
    state.per_owner("r", am.rng(np.random.default_rng(1)))
    with am.Checkpointer(tmp_path / "ckpt", state, learner=am.Learner("digits")) as ckpt:
        ckpt.resume()
        ckpt.save(1)
    found = am.load(tmp_path / "ckpt")
    assert same_bits(found["w"], w) and found["d"] == {"a": 1} and set(found) == {"w", "d", "r"}
    with pytest.raises(am.Refused) as told:
        am.save(tmp_path / "ckpt", {"w": w})
    assert told.value.code == "other-learner"
    with am.open(tmp_path / "ckpt") as reader:
        assert reader.generations == ("e000001-000001",)


def test_loading_changes_nothing(tmp_path):
    am.save(tmp_path / "ckpt", {"x": np.arange(5)})
    before = sorted((str(p), p.stat().st_mtime_ns) for p in (tmp_path / "ckpt").rglob("*"))
    am.load(tmp_path / "ckpt")
    assert sorted((str(p), p.stat().st_mtime_ns) for p in (tmp_path / "ckpt").rglob("*")) == before


def test_a_flipped_bit_is_refused(tmp_path):
    am.save(tmp_path / "ckpt", {"x": np.arange(500)})
    (pack,) = pathlib.Path(tmp_path / "ckpt").rglob("*.pack")
    data = bytearray(pack.read_bytes())
    data[300] ^= 1
    pack.write_bytes(data)
    with pytest.raises(am.Refused) as told:
        am.load(tmp_path / "ckpt")
    assert (told.value.code, told.value.region) == ("corrupt-shard", "x")


def test_two_programs(tmp_path):
    """What one program saves another one loads."""
    code = "import sys, numpy, alpha_mpi as am; am.save(sys.argv[1], {'x': [numpy.arange(3.0)], 'n': 4})"
    subprocess.run([sys.executable, "-c", code, str(tmp_path / "ckpt")], check=True, timeout=60)
    found = am.load(tmp_path / "ckpt")
    assert found["n"] == 4 and found["x"][0].tolist() == [0, 1, 2]
