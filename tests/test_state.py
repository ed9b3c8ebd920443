"""State: what is refused where it is declared, read at each capture, and put back at resume."""

from __future__ import annotations

import array
import dataclasses
import json
import random
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from alpha_mpi.errors import CheckpointError, PeerFailed, Refused
from alpha_mpi.format.documents import decode_document
from alpha_mpi.model.formats import by_name, fill, payload
from alpha_mpi.model.layout import Rule, grid, irregular, mesh, on, per_owner, replicated, rows, shares
from alpha_mpi.model.pieces import Box, Interval
from alpha_mpi.protocol.hierarchy import Star, Tree
from alpha_mpi.rng import rng
from alpha_mpi.state import Declared, State


class Box_:
    """An object of the user's with attributes."""

    def __init__(self, **values: Any) -> None:
        self.__dict__.update(values)


def one(state: State, owners: int = 1, owner: int = 0) -> Declared:
    return state.declare(owners, owner, Star())


def saved(declared: Declared) -> list[bytes]:
    """The bytes a save would write, in order."""
    return [
        bytes(h.data)
        if isinstance(h.data, bytes)
        else bytes(payload(h.data, by_name(declared.regions[h.ordinal].format)))
        for h in declared.capture()
    ]


def put_back(declared: Declared, data: list[bytes]) -> None:
    """What a restore does once everything is validated."""
    for destination, words in zip(declared.destinations(), data, strict=True):
        if destination.is_document:
            value = decode_document(words)
            destination.check(value)
            destination.set(value)
            continue
        view = destination.view()
        target = destination.empty() if view is None else view
        assert target.shape == destination.shape
        fill(target, words)
        if view is None:
            destination.set(target)


def refused(code: str, make: Callable[[], Any], *more: str) -> CheckpointError:
    with pytest.raises(Refused) as refusal:
        make()
    assert refusal.value.code == code, str(refusal.value)
    for text in more:
        assert text in str(refusal.value)
    return refusal.value


# Sources


def test_an_array_is_filled_in_place() -> None:
    w = np.arange(6.0).reshape(2, 3)
    state = State()
    state.replicate("w", w)
    declared = one(state)
    before, where = saved(declared), w.ctypes.data
    (piece,) = declared.capture()
    assert piece.data.ctypes.data == where and piece.piece == Interval(0, 6)  # type: ignore[union-attr]
    w[...] = -1
    put_back(declared, before)
    assert w.tolist() == [[0, 1, 2], [3, 4, 5]] and w.ctypes.data == where


def test_sources_are_read_at_every_capture() -> None:
    model = Box_(w=np.zeros(3))
    state = State()
    state.replicate("by function", lambda: model.w)
    state.replicate("by attribute", model, "w")
    declared = one(state)
    model.w = np.full(3, 7.0)  # another array than at the declaration
    assert saved(declared) == [np.full(3, 7.0).tobytes()] * 2
    model.w = np.zeros(3)
    put_back(declared, [np.arange(3.0).tobytes()] * 2)
    assert model.w.tolist() == [0, 1, 2]


@pytest.mark.parametrize(
    ("value", "format"),
    [
        (True, "bool"),
        (-(1 << 63), "int64"),
        ((1 << 63) - 1, "int64"),
        (0.1, "float64"),
        (-0.0, "float64"),
        (float("nan"), "float64"),
        (1 - 2.5j, "complex128"),
        (np.float32(0.1), "float32"),
        (np.float64(0.1), "float64"),
        (np.bool_(True), "bool"),
        (np.uint8(200), "uint8"),
        (ml_dtypes.bfloat16(1.5), "bfloat16"),
        (ml_dtypes.float8_e4m3fn(1.5), "float8_e4m3fn"),
    ],
)
def test_numbers_come_back_as_the_type_they_were(value: Any, format: str) -> None:
    thing = Box_(x=value)
    state = State()
    state.replicate("x", thing, "x")
    state.per_owner("mine", thing, "x")
    declared = one(state)
    assert [r.format for r in declared.regions] == [format] * 2
    assert [r.shape for r in declared.regions] == [()] * 2
    data = saved(declared)
    thing.x = type(value)(0)
    put_back(declared, data)
    assert type(thing.x) is type(value)
    assert repr(thing.x) == repr(value)


class Immutable:
    """An array library's immutable array: no memory to fill, a namespace to make another."""

    def __init__(self, words: Any) -> None:
        self._words = np.array(words)

    def __array__(self, dtype: Any = None, copy: Any = None) -> np.ndarray:
        return self._words.copy()

    def __array_namespace__(self) -> Any:
        return Box_(asarray=Immutable)


def test_immutable_arrays_are_set_through_their_attribute() -> None:
    frozen = np.arange(4.0)
    frozen.flags.writeable = False
    thing = Box_(a=Immutable([1, 2, 3]), b=frozen)
    state = State()
    state.replicate("a", thing, "a")
    state.replicate("b", thing, "b")
    declared = one(state)
    data = saved(declared)
    thing.a, thing.b = Immutable([0, 0, 0]), np.zeros(4)
    thing.b.flags.writeable = False
    put_back(declared, data)
    assert isinstance(thing.a, Immutable) and np.asarray(thing.a).tolist() == [1, 2, 3]
    assert thing.b.tolist() == [0, 1, 2, 3]
    refused("cannot-set", lambda: one_region(lambda s: s.replicate("a", lambda: Immutable([1]))), "write=")


def one_region(declare: Callable[[State], None], owners: int = 1, owner: int = 0) -> Declared:
    state = State()
    declare(state)
    return one(state, owners, owner)


def test_other_libraries_memory_is_filled() -> None:
    numbers = array.array("d", [1, 2, 3])
    words = bytearray(b"abc")
    state = State()
    state.replicate("a", np.asarray(numbers))
    state.replicate("b", words)
    declared = one(state)
    data = saved(declared)
    numbers[1], words[0] = 9, 0
    put_back(declared, data)
    assert list(numbers) == [1, 2, 3] and words == b"abc"


def test_a_function_with_write_is_given_the_value() -> None:
    kept = {"n": 3, "w": np.arange(3.0), "late": None}
    state = State()
    state.replicate("n", lambda: kept["n"], write=lambda v: kept.update(n=v))
    state.replicate("w", lambda: kept["w"] * 1, write=lambda v: kept.update(w=v))
    state.partition(
        "late",
        lambda: kept["late"],
        write=lambda v: kept.update(late=v),
        shape=(2, 2),
        layout=rows(),
        dtype="bfloat16",
    )
    declared = one(state)
    refused("wrong-shape", declared.capture, "late", "None")
    put_back(
        declared,
        [np.int64(5).tobytes(), np.full(3, 4.0).tobytes(), np.ones((2, 2), ml_dtypes.bfloat16).tobytes()],
    )
    assert kept["n"] == 5 and type(kept["n"]) is int
    assert kept["w"].tolist() == [4, 4, 4]
    assert kept["late"].tolist() == [[1, 1], [1, 1]] and kept["late"].dtype == ml_dtypes.bfloat16
    declared.capture()


def test_a_property_that_copies_is_set_not_filled() -> None:
    class Optimizer:
        def __init__(self) -> None:
            self._m = np.zeros(3)

        @property
        def m(self) -> np.ndarray:
            return self._m.copy()

        @m.setter
        def m(self, value: np.ndarray) -> None:
            self._m[...] = value

        @property
        def fixed(self) -> np.ndarray:
            return self._m.copy()

        @property
        def shown(self) -> np.ndarray:
            return self._m

    o = Optimizer()
    state = State()
    state.replicate("m", o, "m")
    put_back(one(state), [np.arange(3.0).tobytes()])
    assert o.m.tolist() == [0, 1, 2]
    refused("cannot-set", lambda: one_region(lambda s: s.replicate("f", o, "fixed")), "afresh")
    put_back(one_region(lambda s: s.replicate("s", o, "shown")), [np.ones(3).tobytes()])
    assert o.m.tolist() == [1, 1, 1]


def read_only() -> np.ndarray:
    a = np.arange(3.0)
    a.flags.writeable = False
    return a


@dataclasses.dataclass(frozen=True)
class Frozen:
    x: float = 1.0


@pytest.mark.parametrize(
    "declare",
    [
        lambda s: s.replicate("x", 3.0),
        lambda s: s.replicate("x", np.float32(3)),
        lambda s: s.replicate("x", read_only()),
        lambda s: s.replicate("x", lambda: 3),
        lambda s: s.replicate("x", lambda: np.float32(3)),
        lambda s: s.replicate("x", read_only),
        lambda s: s.replicate("x", lambda: np.zeros(3)),
        lambda s: s.replicate("x", Frozen(), "x"),
        lambda s: s.per_owner("x", 3),
        lambda s: s.partition("x", lambda: np.zeros(3), shape=(3,), layout=shares()),
        lambda s: s.partition("x", lambda: [read_only()], shape=(3,), layout=irregular([Interval(0, 3)])),
        lambda s: s.partition("x", lambda: [np.zeros(3)], shape=(3,), layout=irregular([Interval(0, 3)])),
    ],
)
def test_what_can_be_neither_filled_nor_set_is_refused_with_the_cure(declare: Any) -> None:
    refused("cannot-set", lambda: one_region(declare), "write=function", "'x'")


def test_a_destination_that_became_read_only_is_refused_at_resume() -> None:
    model = Box_(w=np.zeros(3))
    declared = one_region(lambda s: s.replicate("w", lambda: model.w))
    model.w.flags.writeable = False
    assert len(declared.capture()) == 1  # saving reads only
    refused("cannot-set", declared.destinations, "read-only", "write=function")


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (np.array([{}], dtype=object), "pickled"),
        (np.array(["a"]), "strings"),
        (np.array([b"a"]), "strings"),
        (np.zeros(2, "M8[s]"), "times"),
        (np.zeros(2, [("a", "f4")]), "structured"),
        (np.zeros(2, np.longdouble), "machine"),
        (np.zeros(2, np.clongdouble), "machine"),
        (np.ma.masked_array([1.0, 2.0], [0, 1]), "masked"),
    ],
)
def test_arrays_without_fixed_bits_are_refused_where_they_are_declared(value: Any, text: str) -> None:
    for declare in (
        lambda s: s.replicate("x", value),
        lambda s: s.replicate("x", lambda: value),
        lambda s: s.replicate("x", Box_(v=value), "v"),
        lambda s: s.per_owner("x", Box_(v=value), "v"),
        lambda s: s.partition("x", value, shape=value.shape, layout=shares()),
    ):
        error = refused("format", lambda declare=declare: one_region(declare), text)
        assert error.region == "x"


@pytest.mark.parametrize("value", ["text", [1.0, 2.0], {"a": 1}, (1, 2), object(), None, b"abc"])
def test_values_that_are_not_words_are_refused(value: Any) -> None:
    thing = Box_(v=value)
    for declare in (lambda s: s.replicate("x", thing, "v"), lambda s: s.replicate("x", lambda: value)):
        error = refused("format", lambda declare=declare: one_region(declare))
        assert error.region == "x"


@pytest.mark.parametrize("value", ["text", [1.0], object(), None, int, np.float32])
def test_things_that_are_no_source_are_refused(value: Any) -> None:
    with pytest.raises(CheckpointError):
        one_region(lambda s: s.replicate("x", value))


def test_python_integers_outside_of_int64_are_refused() -> None:
    thing = Box_(n=1 << 63)
    refused("out-of-range", lambda: one_region(lambda s: s.replicate("n", thing, "n")), "document")
    thing.n = 3
    declared = one_region(lambda s: s.replicate("n", thing, "n"))
    thing.n = -(1 << 63) - 1
    refused("out-of-range", declared.capture)


def test_what_changes_its_format_or_shape_is_refused_naming_both() -> None:
    thing = Box_(a=np.zeros(3, np.float32), b=1.0)
    state = State()
    state.replicate("a", thing, "a")
    state.replicate("b", thing, "b")
    declared = one(state)
    thing.a = np.zeros(3, ml_dtypes.bfloat16)
    error = refused("wrong-format", declared.capture)
    assert (error.region, error.expected, error.found) == ("a", "float32", "bfloat16")
    refused("wrong-format", declared.destinations)
    thing.a = np.zeros((3, 1), np.float32)
    error = refused("wrong-shape", declared.capture)
    assert (error.region, error.expected, error.found) == ("a", "(3,)", "(3, 1)")
    thing.a, thing.b = np.zeros(3, np.float32), 1
    error = refused("wrong-format", declared.capture)
    assert (error.region, error.expected, error.found) == ("b", "float64", "int64")


def test_a_region_of_no_words_that_grows_is_not_lost() -> None:
    thing = Box_(z=np.zeros((3, 0, 5), np.int8), s=np.zeros(0, np.float32))
    state = State()
    state.replicate("z", thing, "z")
    state.per_owner("s", thing, "s")
    declared = one(state)
    assert len(declared.capture()) == 0 and declared.held == ((), ())
    put_back(declared, [])
    thing.z = np.zeros((3, 1, 5), np.int8)
    assert refused("wrong-shape", declared.capture).region == "z"
    thing.z, thing.s = np.zeros((3, 0, 5), np.int8), np.zeros(1, np.float32)
    assert refused("wrong-shape", declared.destinations).region == "s"


def test_a_failure_of_the_users_code_names_the_region() -> None:
    trouble = Box_(on=False, w=np.zeros(3))

    def getter() -> np.ndarray:
        if trouble.on:
            raise KeyError("no such thing")
        return trouble.w

    state = State()
    state.replicate("w", getter)
    state.document("d", lambda: 1 / 0 if trouble.on else {}, lambda v: None)
    declared = one(state)
    trouble.on = True
    for act in (declared.capture, declared.destinations, lambda: one(state, owners=4, owner=3)):
        with pytest.raises(PeerFailed, match="KeyError") as failure:
            act()
        assert (failure.value.code, failure.value.region, failure.value.retryable) == ("user-code", "w", True)
        assert isinstance(failure.value.__cause__, KeyError)
    assert failure.value.role == 3
    trouble.on = False
    assert len(declared.capture()) == 2


def test_a_failing_setter_and_a_missing_attribute_are_user_code() -> None:
    def setter(value: Any) -> None:
        raise RuntimeError("no")

    declared = one_region(lambda s: s.replicate("n", lambda: 1, write=setter))
    with pytest.raises(PeerFailed, match="RuntimeError: no"):
        put_back(declared, [np.int64(1).tobytes()])
    with pytest.raises(PeerFailed, match="AttributeError"):
        one_region(lambda s: s.replicate("n", Box_(), "n"))


# Layouts


def mine(rule: Rule, whole: np.ndarray, n: int, k: int) -> np.ndarray:
    (piece,) = rule.pieces(whole.shape, n, k)
    if isinstance(piece, Interval):
        return whole.reshape(-1)[piece.start : piece.stop]
    assert isinstance(piece, Box)
    return whole[tuple(slice(a, b) for a, b in zip(piece.starts, piece.stops, strict=True))]


@pytest.mark.parametrize(
    ("rule", "n"),
    [
        (shares(), 3),
        (rows(), 3),
        (rows(1), 3),
        (grid((3,)), 3),
        (grid((1, 3)), 3),
        (mesh({"a": 3, "b": 2}, (None, "a")), 6),
        (on((2, 0, 3), rows()), 4),
        (replicated(), 3),
    ],
)
def test_each_owner_gives_the_piece_its_rule_says(rule: Rule, n: int) -> None:
    whole = np.arange(7 * 11, dtype=np.int32).reshape(7, 11)
    for k in range(n):
        if not rule.pieces(whole.shape, n, k):
            continue
        local = mine(rule, whole, n, k).copy()
        state = State()
        state.partition("w", lambda local=local: local, shape=whole.shape, layout=rule)
        declared = state.declare(n, k, Tree(2))
        data = saved(declared)
        assert data == [local.tobytes()]
        (piece,) = declared.capture()
        assert (piece.ordinal, piece.owner, piece.piece) == (0, k, rule.pieces(whole.shape, n, k)[0])
        local[...] = -1
        put_back(declared, data)
        assert np.array_equal(local, mine(rule, whole, n, k))
        wrong = State()
        wrong.partition("w", np.zeros((7, 12), np.int32), shape=whole.shape, layout=rule)
        refused("wrong-shape", lambda wrong=wrong, k=k: wrong.declare(n, k, Star()), "(7, 12)")


def test_one_owner_may_hold_the_whole_in_either_shape() -> None:
    for shape in ((6,), (2, 3)):
        w = np.zeros(shape)
        state = State()
        state.partition("w", w, shape=(2, 3), layout=shares())
        put_back(one(state), [np.arange(6.0).tobytes()])
        assert w.reshape(-1).tolist() == [0, 1, 2, 3, 4, 5]


ARRAYS = {
    "f": np.asfortranarray(np.random.default_rng(0).random((1000, 32), np.float32)),
    "t": np.arange(60, dtype=np.int16).reshape(5, 4, 3).T,
    "s": np.random.default_rng(1).random((30, 8))[::3],
    "r": np.arange(100, dtype=np.float16)[::-1],
    "be": np.random.default_rng(2).random(64).astype(">f8"),
    "bf": np.asfortranarray(np.arange(192).reshape(64, 3).astype(ml_dtypes.bfloat16)),
    "u": np.zeros(401, np.uint8)[1:].view(np.float64).reshape(10, 5),
    "w": np.broadcast_to(np.arange(3.0), (4, 3)),
}


def destination_for(a: np.ndarray, order: str) -> np.ndarray:
    zero = np.zeros(a.shape, a.dtype)
    if order == "c":
        return zero
    if order == "fortran":
        return np.asfortranarray(zero)
    if order == "swapped":
        return zero.astype(a.dtype.newbyteorder("S"))
    wide = np.zeros((*a.shape, 2), a.dtype)
    return wide[..., 1]


@pytest.mark.parametrize("order", ["c", "fortran", "strided", "swapped"])
@pytest.mark.parametrize("name", ARRAYS)
def test_r21_values_stand_where_they_stood_in_every_memory_layout(name: str, order: str) -> None:
    a = ARRAYS[name]
    before = a.tobytes()
    for rule, n in ((replicated(), 1), (shares(), 1), (rows(), 3), (rows(a.ndim - 1), 3)):
        for k in range(n):
            source = mine(rule, a, n, k) if n > 1 else a
            target = destination_for(source, order)
            saving = State()
            saving.partition("a", Box_(v=source), "v", shape=a.shape, layout=rule)
            resuming = State()
            resuming.partition("a", target, shape=a.shape, layout=rule)
            put_back(one(resuming, n, k), saved(one(saving, n, k)))
            assert np.array_equal(target, source)
    assert a.tobytes() == before


def test_an_owner_that_holds_nothing_may_give_anything() -> None:
    for value in (None, np.empty((0, 3), np.float32), np.zeros((9, 9), np.float32), "x", []):
        state = State()
        state.partition("w", lambda value=value: value, shape=(2, 3), layout=rows(), dtype=np.float32)
        declared = state.declare(4, 3, Star())
        assert not len(declared.capture()) and declared.destinations() == () == declared.held[0]
        assert declared.regions[0].format == "float32"
    state = State()
    state.partition("w", np.empty((0, 3), np.float32), shape=(2, 3), layout=on((0,), rows()))
    assert state.declare(4, 3, Star()).regions[0].format == "float32"
    for value in (None, []):
        state = State()
        state.partition("w", lambda value=value: value, shape=(2, 3), layout=rows())
        refused("format", lambda state=state: state.declare(4, 3, Star()), "dtype=")


def test_a_declared_dtype_is_checked() -> None:
    for dtype in ("bfloat16", ml_dtypes.bfloat16, by_name("bfloat16"), np.dtype(ml_dtypes.bfloat16)):
        state = State()
        state.replicate("w", np.zeros(3, np.float16), dtype=dtype)
        refused("wrong-format", lambda state=state: one(state), "bfloat16", "float16")
    for dtype in (object, "nonsense", "g"):
        refused("format", lambda dtype=dtype: State().replicate("w", np.zeros(3), dtype=dtype))


def test_like_takes_shape_and_layout() -> None:
    w, m = np.zeros((2, 3), np.float32), np.zeros((2, 3), ml_dtypes.bfloat16)
    state = State()
    state.partition("w", w, shape=(4, 3), layout=rows())
    state.partition("m", m, like="w")
    declared = state.declare(2, 1, Star())
    assert declared.held[0] == declared.held[1] == (Box((2, 0), (4, 3)),)
    assert [r.shape for r in declared.regions] == [(4, 3)] * 2
    assert [r.format for r in declared.regions] == ["float32", "bfloat16"]
    refused("layout", lambda: state.partition("x", m, like="y"))
    refused("layout", lambda: state.partition("x", m, like="w", shape=(4, 3)))
    refused("layout", lambda: state.partition("x", m, like=3))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        ({"shape": (3,)}, "layout"),
        ({"layout": rows()}, "layout"),
        ({"shape": (3,), "layout": "rows"}, "layout"),
        ({"shape": (3,), "layout": per_owner()}, "layout"),
        ({"shape": (-3,), "layout": rows()}, "shape"),
        ({"shape": 3, "layout": rows()}, "shape"),
        ({"shape": (1 << 50,), "layout": rows()}, "shape"),
        ({"shape": (3,), "layout": rows(1)}, "layout"),
        ({"shape": (3,), "layout": grid((2,))}, "layout"),
        ({"shape": (3,), "layout": on((1,), rows())}, "layout"),
    ],
)
def test_layouts_that_cannot_be_are_refused_at_declaration(arguments: dict[str, Any], code: str) -> None:
    error = refused(code, lambda: one_region(lambda s: s.partition("w", np.zeros(3), **arguments)))
    assert error.region == "w"


def test_irregular_pieces_and_arrays_are_read_at_each_save() -> None:
    pieces: list[Any] = [Interval(6, 9), Interval(0, 2)]
    arrays = [np.array([6, 7, 8]), np.array([0, 1])]
    state = State()
    state.partition("w", lambda: arrays, shape=(9,), layout=irregular(lambda: pieces))
    state.partition("v", arrays, shape=(9,), layout=irregular(pieces))
    declared = state.declare(3, 1, Star())
    assert declared.held == ((Interval(0, 2), Interval(6, 9)),) * 2
    data = saved(declared)
    assert data == [np.array([0, 1]).tobytes(), np.array([6, 7, 8]).tobytes()] * 2
    for a in arrays:
        a[...] = -1
    put_back(declared, data)
    assert [a.tolist() for a in arrays] == [[6, 7, 8], [0, 1]]
    pieces.append(Interval(3, 3))
    arrays.append(np.empty(0))
    refused("wrong-shape", declared.capture, "2 arrays")  # the fixed list of pieces
    del pieces[:], arrays[:]
    refused("wrong-shape", declared.capture, "'v'")
    assert declared.pieces(0) == ()


def test_irregular_pieces_that_meet_are_not_ordered_by_kind() -> None:
    declared = one_region(
        lambda s: s.partition(
            "w",
            [np.zeros(2), np.zeros((2, 1))],
            shape=(3, 4),
            layout=irregular([Interval(0, 2), Box((0, 0), (2, 1))]),
        )
    )
    assert set(declared.pieces(0)) == {Interval(0, 2), Box((0, 0), (2, 1))}
    assert len(declared.capture()) == 2  # whether pieces overlap is decided over all owners


def test_irregular_boxes_and_what_is_refused() -> None:
    box = Box((1, 0), (3, 2))
    block = np.arange(4.0).reshape(2, 2).T
    state = State()
    state.partition("w", [block], shape=(3, 4), layout=irregular([box]))
    declared = one(state)
    assert saved(declared) == [np.array([0.0, 2, 1, 3]).tobytes()]
    for source, code in (
        (np.zeros((1, 2, 2)), "format"),
        ([np.zeros(4)], "wrong-shape"),
        ([], "format"),
        ([block, block], "wrong-shape"),
    ):
        state = State()
        with pytest.raises(Refused) as refusal:
            state.partition("w", source, shape=(3, 4), layout=irregular([box]))
            one(state).capture()
        assert refusal.value.code == code
    refused(
        "source",
        lambda: State().partition("w", list, shape=(3,), layout=irregular([]), write=print),
    )
    empty = State()
    empty.partition("w", list, shape=(3,), layout=irregular([]), dtype="float32")
    assert len(one(empty).capture()) == 0


# Names


@pytest.mark.parametrize("name", ["n" * 400, "漢" * 300, "a/../b;c d\ne", "\u202e", "🦊"])
def test_r30_names_are_kept(name: str) -> None:
    declared = one_region(lambda s: s.replicate(name, np.zeros(1)))
    assert declared.regions[0].name == name and len(declared.capture()) == 1


@pytest.mark.parametrize("name", ["", "\ud800", None])
def test_r30_names_are_refused_where_they_are_declared(name: Any) -> None:
    for declare in (
        lambda s: s.replicate(name, np.zeros(1)),
        lambda s: s.partition(name, np.zeros(1), shape=(1,), layout=rows()),
        lambda s: s.per_owner(name, np.zeros(1)),
        lambda s: s.document(name, dict, print),
    ):
        refused("name", lambda declare=declare: declare(State()))


def test_r30_a_name_is_declared_once() -> None:
    state = State()
    state.replicate("w", np.zeros(1))
    for declare in (
        lambda: state.replicate("w", np.zeros(1)),
        lambda: state.document("w", dict, print),
        lambda: state.per_owner("w", np.zeros(1)),
    ):
        refused("name", declare, "'w'")
    assert len(state) == 1


def test_a_state_without_regions_is_refused() -> None:
    refused("empty-state", lambda: one(State()))


# Documents and random streams


def test_documents_are_read_at_save_and_given_back() -> None:
    kept: dict[str, Any] = {"rate": 0.1, "big": 1 << 70, "list": [1, None, "é"]}
    got: list[Any] = []
    state = State()
    state.document("schedule", lambda: kept, got.append)
    declared = one(state)
    assert declared.held == ((None,),) and declared.regions[0].kind == "document"
    (data,) = saved(declared)
    put_back(declared, [data])
    assert got == [kept]
    kept["bad"] = object()
    with pytest.raises(Refused) as refusal:
        declared.capture()
    assert refusal.value.region == "schedule"
    for read, write in ((None, print), (dict, None)):
        refused("source", lambda read=read, write=write: State().document("d", read, write))


GENERATORS = [
    *(lambda b=b: np.random.Generator(b(7)) for b in (np.random.PCG64, np.random.PCG64DXSM)),
    *(lambda b=b: np.random.Generator(b(7)) for b in (np.random.MT19937, np.random.Philox, np.random.SFC64)),
    lambda: np.random.RandomState(7),
    lambda: np.random.RandomState(np.random.PCG64(7)),
    lambda: random.Random(7),
]


def draw(g: Any, n: int) -> list[Any]:
    if isinstance(g, random.Random):
        return [g.gauss(0, 1) for _ in range(n)] + [g.getrandbits(77)]
    words = g.standard_normal(n).tolist()
    if isinstance(g, np.random.Generator):
        return words + g.integers(0, 1 << 20, n, dtype=np.uint32).tolist() + g.random(n, np.float32).tolist()
    return words + g.randint(0, 1 << 20, n).tolist()


@settings(derandomize=True, deadline=None, max_examples=40)
@given(st.sampled_from(GENERATORS), st.integers(0, 9), st.integers(0, 1300))
def test_a_random_stream_continues_exactly(make: Callable[[], Any], n: int, more: int) -> None:
    g = make()
    draw(g, n)
    state = State()
    state.per_owner("rng", rng(g))
    declared = state.declare(3, 2, Star())
    assert declared.regions[0].kind == "per-owner-document"
    (data,) = saved(declared)
    json.loads(data)
    expected = draw(g, more + 3)
    put_back(declared, [data])
    assert draw(g, more + 3) == expected
    other = make()
    draw(other, 3)
    rng(other).write(decode_document(data))
    assert draw(other, more + 3) == expected


@pytest.mark.parametrize("make", GENERATORS)
def test_a_random_state_that_does_not_fit_is_refused_before_anything_changes(make: Callable[[], Any]) -> None:
    g = make()
    source = rng(g)
    good = source.read()
    foreign = rng(random.Random(1) if isinstance(g, np.random.RandomState) else np.random.RandomState(1))
    for bad in (
        None,
        {},
        {"kind": good["kind"]},
        foreign.read(),
        {"kind": good["kind"], "state": 3},
        {"kind": good["kind"], "state": {}},
        {"kind": good["kind"], "state": {**good["state"], "state": {"state": "x"}, "words": [1]}},
    ):
        refused("wrong-generator", lambda bad=bad: source.check(bad))
        assert source.read() == good
    source.check(good)
    assert source.read() == good


def test_only_generators_with_a_state_are_streams() -> None:
    for bad in (random.SystemRandom(), np.random, 3, None, np.random.PCG64(1)):
        refused("source", lambda bad=bad: rng(bad))


# Declared


def test_the_layout_digest_knows_the_hierarchy() -> None:
    state = State()
    state.partition("w", np.zeros(3), shape=(6,), layout=rows())
    digests = [state.declare(2, 0, h).layout_digest() for h in (Star(), Tree(2), Tree(3))]
    assert len(set(digests)) == 3
    assert state.declare(2, 1, Star()).layout_digest() == digests[0]


def test_regions_and_finite_are_in_order() -> None:
    state = State()
    state.partition("a", np.zeros(3), shape=(3,), layout=shares(), finite=False)
    state.replicate("b", np.zeros(3))
    state.document("c", dict, print)
    declared = one(state)
    assert [r.name for r in declared.regions] == ["a", "b", "c"]
    assert declared.finite == (False, True, False)
    assert declared.schema.regions == declared.regions and (declared.owners, declared.owner) == (1, 0)
    assert len(declared.rules) == 3


def test_two_regions_may_show_the_same_memory() -> None:
    w = np.zeros(4)
    state = State()
    state.replicate("all", w)
    state.replicate("half", w[:2])
    declared = one(state)
    put_back(declared, [np.arange(4.0).tobytes(), np.arange(2.0).tobytes()])
    assert w.tolist() == [0, 1, 2, 3]
