"""Random states of PyTorch and JAX, and streams, whose draws know nothing of owners."""

from __future__ import annotations

import hashlib
import json
import random
import struct
import subprocess
import sys
import types
from typing import Any

import numpy as np
import pytest
from other_randoms import module

import alpha_mpi as am
from alpha_mpi.protocol.hierarchy import Star


@pytest.fixture
def torch(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setitem(sys.modules, "torch", module("torch"))
    return sys.modules["torch"]


@pytest.fixture
def jax(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setitem(sys.modules, "jax", module("jax"))
    return sys.modules["jax"]


def code_of(call: Any) -> str:
    with pytest.raises(am.Refused) as caught:
        call()
    return caught.value.code


def through_json(value: Any) -> Any:
    return json.loads(json.dumps(value))


def test_a_torch_stream_continues_exactly(torch: Any) -> None:
    g = torch.Generator().manual_seed(5)
    torch.rand(3, generator=g)
    saved = through_json(am.rng(g).read())
    assert saved["kind"] == "torch.Generator/cpu"
    expected = np.asarray(torch.rand(700, generator=g)).tolist()
    other = torch.Generator().manual_seed(6)
    source = am.rng(other)
    source.check(saved)
    assert source.read() != saved
    source.write(saved)
    assert np.asarray(torch.rand(700, generator=other)).tolist() == expected


def test_a_torch_state_that_does_not_fit_changes_nothing(torch: Any) -> None:
    source = am.rng(torch.Generator().manual_seed(5))
    good = source.read()
    for state in (3, {}, {"bytes": "zz"}, {"bytes": "00"}, {"bytes": good["state"]["bytes"][:-2]}):
        assert code_of(lambda state=state: source.check({**good, "state": state})) == "wrong-generator"
    assert code_of(lambda: source.check({**good, "kind": "torch.Generator/cuda"})) == "wrong-generator"
    assert source.read() == good


@pytest.mark.parametrize("make", ["key", "PRNGKey"])
def test_a_jax_key_is_put_back_where_it_is_held(jax: Any, make: str) -> None:
    held = types.SimpleNamespace(key=getattr(jax.random, make)(7))
    source = am.rng(held, "key")

    def draw() -> Any:
        held.key, sub = jax.random.split(held.key)
        return np.asarray(jax.random.bits(sub)).tolist()

    draw()
    saved = through_json(source.read())
    expected = [draw() for _ in range(3)]
    held.key = getattr(jax.random, make)(8)
    before = held.key
    source.check(saved)
    assert held.key is before
    source.write(saved)
    assert [draw() for _ in range(3)] == expected
    bad = {**saved["state"], "words": {"array": "uint32", "words": [1, 2, 3, 4]}}
    for state in ({**saved["state"], "shape": [4]}, bad, {}, None):
        assert code_of(lambda state=state: source.check({**saved, "state": state})) == "wrong-generator"
    given: list[Any] = []
    am.rng(lambda: held.key, write=given.append).write(saved)
    assert type(given[0]) is type(held.key)


def test_a_jax_key_alone_has_no_way_back(jax: Any) -> None:
    assert code_of(lambda: am.rng(jax.random.key(1))) == "source"
    assert code_of(lambda: am.rng(lambda: jax.random.key(1))) == "source"
    assert code_of(lambda: am.rng(jax.numpy.asarray(np.zeros(3, np.uint32)))) == "source"


def test_neither_package_is_imported_for_its_own_sake() -> None:
    code = "import sys, alpha_mpi as am, numpy as np; am.rng(np.random.default_rng(1)).read()"
    code += "\ntry: am.rng(object())\nexcept am.Refused: print({'torch', 'jax'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.stdout == "set()\n", done.stderr


def test_a_generator_that_is_replaced_is_read_where_it_is_held() -> None:
    held = types.SimpleNamespace(g=np.random.default_rng(1))
    source = am.rng(held, "g")
    saved = source.read()
    held.g = np.random.default_rng(2)
    assert source.read() != saved
    source.write(saved)
    assert held.g.integers(1 << 60) == np.random.default_rng(1).integers(1 << 60)


# Streams


def philox(counter: tuple[int, ...], key: tuple[int, ...]) -> list[int]:
    """Philox4x64-10 as the paper defines it (section 3.3), one block, in Python's integers."""
    a, b, c, d = counter
    k, m = key
    for _ in range(10):
        one, two = a * 0xD2E7470EE14C6C93, c * 0xCA5A826395121157
        low = (1 << 64) - 1
        a, b, c, d = (two >> 64) ^ b ^ k, two & low, (one >> 64) ^ d ^ m, one & low
        k, m = (k + 0x9E3779B97F4A7C15) & low, (m + 0xBB67AE8584CAA73B) & low
    return [a, b, c, d]


def test_the_words_are_those_of_the_paper() -> None:
    # The first known answer that the authors publish for this generator.
    assert philox((0, 0, 0, 0), (0, 0))[0] == 0x16554D9ECA36314C
    noise = am.stream(3, "noise")
    for index in (0, 1, 7000, (1 << 64) - 1):
        words = noise.at(index).bit_generator.random_raw(8).tolist()
        assert words[:4] == philox((1, 0, index, 0), noise.key)
        assert words[4:] == philox((2, 0, index, 0), noise.key)


@pytest.mark.parametrize("owners", [1, 2, 3, 5, 8])
def test_draws_depend_on_the_item_and_not_on_the_owner(owners: int) -> None:
    def draw(g: np.random.Generator) -> Any:
        return g.standard_normal((2, 3), np.float32)

    noise = am.stream(11)
    whole = noise.each(range(40, 47), draw)
    parts = []
    for owner in reversed(range(owners)):
        start, stop = am.rows().bounds(7, owners, owner)
        parts.insert(0, am.stream(11).each(range(40 + start, 40 + stop), draw))
    assert whole.shape == (7, 2, 3)
    assert np.concatenate(parts).tobytes() == whole.tobytes()
    assert parts[-1].dtype == np.float32


def test_seeds_and_labels_part_streams_for_good() -> None:
    # The keys are part of what is promised: a new version must draw the same.
    for words, text in (((1,), b'["1"]'), ((2**70, "a", 5), b'["1180591620717411303424","text a","5"]')):
        hashed = hashlib.sha256(b"alpha_mpi stream\n" + text).digest()
        assert am.stream(*words).key == struct.unpack("<2Q", hashed[:16])
    keys = {
        am.stream(*words).key for words in [(1,), (2,), (1, "a"), (1, "b"), (1, 5), (1, "5"), (1, "a", 5)]
    }
    assert len(keys) == 7
    assert am.stream(np.int64(1)).key == am.stream(1).key
    for bad in (None, 1.0, -1, True, "1", 1 << 256):
        assert code_of(lambda bad=bad: am.stream(bad)) == "argument"
    assert code_of(lambda: am.stream(1, 2.0)) == "argument"
    for bad in (-1, 1 << 64, 0.5, None):
        assert code_of(lambda bad=bad: am.stream(1).at(bad)) == "argument"


def test_a_stream_is_a_document_of_all_owners() -> None:
    noise, state = am.stream(1), am.State()
    state.document("noise", noise)
    state.document("shared", am.rng(random.Random(1)))
    declared = state.declare(3, 2, Star())
    assert [region.kind for region in declared.regions] == ["document", "document"]
    assert len(declared.capture()[0].data) < 100
    other = am.stream(2)
    value = through_json(noise.read())
    other.check(value)
    assert other.key != noise.key
    other.write(value)
    assert other.key == noise.key
    for bad in (None, {}, {"key": [1, 2]}, {**value, "kind": "x"}, {**value, "key": [1, 1 << 64]},
                {**value, "key": [1, True]}, {**value, "key": [1]}):  # fmt: skip
        assert code_of(lambda bad=bad: other.check(bad)) == "wrong-generator"
    destination = declared.destinations()[0]
    with pytest.raises(am.Refused, match="stream"):
        destination.check({"kind": "?"})


def test_a_resume_brings_the_key_of_the_stream(tmp_path: Any) -> None:
    noise, state, drawn = am.stream(4), am.State(), np.zeros(3)
    state.replicate("drawn", drawn)
    state.document("noise", noise)
    with am.Checkpointer(tmp_path / "ckpt", state) as ckpt:
        ckpt.resume()
        drawn += noise.at(0).random(3)
        ckpt.save(1)
    again = am.stream(5)
    state = am.State()
    state.replicate("drawn", np.zeros(3))
    state.document("noise", again)
    with am.Checkpointer(tmp_path / "ckpt", state) as ckpt:
        assert ckpt.resume().update == 1
    assert again.at(1).random() == noise.at(1).random()


@pytest.mark.parametrize("make", [np.random.default_rng, np.random.RandomState, random.Random])
def test_a_bare_generator_is_refused_with_the_cure(make: Any) -> None:
    with pytest.raises(am.Refused, match=r"of a random generator give rng\(generator\)") as caught:
        am.State().per_owner("noise", make(1))
    assert (caught.value.code, caught.value.region) == ("source", "noise")
