"""Sources: where the words of a region are read at every save, and put back at resume.

A *source* is an array, a function, or an attribute of an object. A *reading* is what it gave this
once. Words go back *in place* where the reading's memory is the user's own and writable; else they
are *set*: an attribute, or the `write` function the user gave. What can be neither is refused.
"""

from __future__ import annotations

import abc
import dataclasses
import inspect
from collections.abc import Callable
from typing import Any, NoReturn, Protocol

import numpy as np

from .devices.words import DeviceWords, device_words, is_device_array
from .errors import CheckpointError, PeerFailed, Refused
from .model.formats import Array, of_dtype

#: Python's own numbers, each with the dtype it is saved as and comes back from.
_NUMBERS: dict[type, Any] = {bool: np.bool_, int: np.int64, float: np.float64, complex: np.complex128}


class DocumentSource(Protocol):
    """What gives a JSON-able value and takes it back; `rng` makes such a source.

    A `check(value)` method, where there is one, refuses a value before anything is changed.
    """

    def read(self) -> Any: ...

    def write(self, value: Any) -> None: ...


class Source(abc.ABC):
    """Where an array region's words are read; `settable` says that `write` can give them back."""

    settable: bool = False

    @abc.abstractmethod
    def read(self) -> Any:
        """Return the value as the user holds it now."""

    def write(self, value: Any) -> None:
        """Hand over a value of the type that was read."""
        raise NotImplementedError


@dataclasses.dataclass
class Fixed(Source):
    """One array (or array-like object), always the same one; filled in place."""

    value: Any

    def read(self) -> Any:
        return self.value


@dataclasses.dataclass
class Getter(Source):
    """A function called at every read, and perhaps one that takes a value back."""

    getter: Callable[[], Any]
    setter: Callable[[Any], Any] | None = None

    def __post_init__(self) -> None:
        self.settable = self.setter is not None

    def read(self) -> Any:
        return self.getter()

    def write(self, value: Any) -> None:
        assert self.setter is not None
        self.setter(value)


@dataclasses.dataclass
class Attribute(Source):
    """An attribute of an object, read and set by name."""

    owner: Any
    name: str

    def __post_init__(self) -> None:
        self.settable = _can_set(self.owner, self.name)

    def read(self) -> Any:
        return getattr(self.owner, self.name)

    def write(self, value: Any) -> None:
        setattr(self.owner, self.name, value)


def _can_set(owner: Any, name: str) -> bool:
    cls = type(owner)
    frozen = getattr(getattr(cls, "__dataclass_params__", None), "frozen", False)
    if frozen or isinstance(owner, tuple):
        return False
    found = inspect.getattr_static(cls, name, None)
    return not (isinstance(found, property) and found.fset is None)


def source_of(source: Any, attr: str | None, write: Callable[[Any], Any] | None, region: str) -> Source:
    """Return the source a user's arguments mean. Raises `Refused` (``source``).

    An array of a dtype that is no format is refused here already.
    """
    if attr is not None:
        if write is not None:
            raise Refused("give an attribute or write=, not both", code="source", region=region)
        if not isinstance(attr, str):
            raise Refused(
                "an attribute is named by a str", code="source", region=region, found=type(attr).__name__
            )
        return Attribute(source, attr)
    if write is not None and not callable(write):
        raise Refused("write= must be callable", code="source", region=region, found=type(write).__name__)
    if callable(source) and not _is_array_like(source):
        return Getter(source, write)
    if write is not None:
        return Getter(lambda: source, write)
    if type(source) in _NUMBERS or isinstance(source, np.generic):
        raise _no_way_back(region, type(source).__name__)
    if isinstance(source, np.ndarray):
        _format_of(source, region)
        if not source.flags.writeable:
            raise _no_way_back(region, "a read-only array")
    elif not _is_array_like(source):
        raise Refused(
            "not an array, nor a function that returns one, nor an object with an attribute" + _cure(source),
            code="source",
            region=region,
            found=type(source).__name__,
        )
    return Fixed(source)


@dataclasses.dataclass(frozen=True)
class Reading:
    """What a source gave: the value as the user holds it, and its words.

    `array` is None where the value is None; of an array on a GPU it is its `DeviceWords`.
    `in_place` says that filling `array` fills the value.
    """

    value: Any
    array: Array | DeviceWords | None
    in_place: bool

    @property
    def immutable(self) -> str:
        """What the value is, for a refusal."""
        if self.value is None:
            return "None"
        if type(self.value) in _NUMBERS:
            return f"a Python {type(self.value).__name__}"
        if isinstance(self.value, np.ndarray):
            return "a read-only array"
        if isinstance(self.array, DeviceWords):
            return "an array on a GPU that cannot be written to"
        return f"a value of type {type(self.value).__name__}"

    def given_back(self, array: Array) -> Any:
        """Return fresh words as a value of the type that was read: what `write` is handed."""
        if type(self.value) in _NUMBERS:
            return type(self.value)(array.reshape(()).item())
        if isinstance(self.value, np.generic):
            return array.reshape(())[()]
        if isinstance(self.value, np.ndarray) or self.value is None:
            return array
        space = getattr(self.value, "__array_namespace__", None)
        if space is None:
            return array
        if isinstance(self.array, DeviceWords):
            return self.array.made_like(space(), self.value, array)
        return space().asarray(array)


def read(source: Source, region: str, role: int | None = None) -> Reading:
    """Read a source now. Errors of the user's code come out typed, with the region named.

    Raises `PeerFailed` (``user-code``), `Refused` (``format``, ``out-of-range``).
    """
    return reading_of(call(source.read, region, role), region)


def call(function: Callable[[], Any], region: str, role: int | None = None) -> Any:
    """Call the user's code for one region; its failure becomes one of the library's errors."""
    try:
        return function()
    except Exception as error:
        fail(error, region, role)


def fail(error: Exception, region: str, role: int | None = None) -> NoReturn:
    """Raise what the user's code raised for one region, as one of the library's errors."""
    if isinstance(error, CheckpointError):
        error.region = error.region or region
        raise error
    raise PeerFailed(
        f"{type(error).__name__}: {error}",
        code="user-code",
        retryable=True,
        region=region,
        role=role,
    ) from error


def reading_of(value: Any, region: str) -> Reading:
    """Return a value of the user's as a reading. Raises `Refused` (``format``, ``out-of-range``)."""
    if type(value) is np.ndarray:  # what nearly every value is
        _format_of(value, region)
        return Reading(value, value, value.flags.writeable)
    if value is None:
        return Reading(None, None, False)
    if type(value) in _NUMBERS:
        return Reading(value, _number(value, region), False)
    if isinstance(value, np.generic):
        array = np.asarray(value)
        _format_of(array, region)
        return Reading(value, array, False)
    if isinstance(value, np.ma.MaskedArray):
        raise Refused(
            "a masked array is two regions: declare its data and its mask",
            code="format",
            region=region,
            found="a masked array",
        )
    if isinstance(value, np.ndarray):
        _format_of(value, region)
        return Reading(value, np.asarray(value), bool(value.flags.writeable))
    if call(lambda: is_device_array(value), region):
        words = call(lambda: device_words(value, region), region)
        _format_of(words, region)
        return Reading(value, words, words.writable)
    if not _is_array_like(value):
        raise Refused(
            "neither an array nor a number; keep other values in a document",
            code="format",
            region=region,
            expected="bool or a fixed-width number",
            found=type(value).__name__,
        )
    array = call(lambda: np.asarray(value), region)
    _format_of(array, region)
    # An array library's own object: in place only if it shows the same memory each time.
    in_place = array.flags.writeable and same_memory(array, call(lambda: np.asarray(value), region))
    return Reading(value, array, bool(in_place))


def same_memory(a: Array | DeviceWords, b: Array | DeviceWords) -> bool:
    """Return whether two arrays show the same words of memory in the same order."""
    if isinstance(a, DeviceWords):
        return isinstance(b, DeviceWords) and a.is_same_memory(b)
    if isinstance(b, DeviceWords):
        return False
    if a.shape != b.shape or a.dtype != b.dtype:
        return False
    if a.size == 0:
        return True
    where = [x.__array_interface__["data"][0] for x in (a, b)]
    return where[0] == where[1] and a.strides == b.strides


def is_filled(source: Source, reading: Reading, region: str, role: int | None = None) -> bool:
    """Return whether words go back by filling the reading's array; else they are set.

    Called at declaration and before a resume changes anything; reads a source that is not a fixed
    array once more: an array made afresh at each call would be filled and lost. Raises `Refused`
    (``cannot-set``) for a value that can be neither filled nor set.
    """
    if source.settable and isinstance(source, Getter):
        return False
    if reading.array is not None and reading.in_place:
        if isinstance(source, Fixed):
            return True
        again = read(source, region, role)
        if again.array is not None and same_memory(reading.array, again.array):
            return True
        if not source.settable:
            raise _no_way_back(region, "an array made afresh at each call")
    if not source.settable:
        raise _no_way_back(region, reading.immutable)
    return False


def check_filled(first: list[Reading], again: list[Reading], region: str) -> None:
    """Refuse (``cannot-set``) the arrays of an irregular region unless all are filled in place."""
    for a, b in zip(first, again, strict=True):
        if a.array is None or b.array is None or not a.in_place:
            raise _no_way_back(region, a.immutable)
        if not same_memory(a.array, b.array):
            raise _no_way_back(region, "arrays made afresh at each call")


def _cure(source: Any) -> str:
    """What to declare instead of a value that is no source, as the end of a message."""
    if any(hasattr(source, name) for name in ("bit_generator", "getstate", "get_state")):
        return ": of a random generator give rng(generator)"
    if isinstance(source, (dict, list, tuple, set, str)):
        return ": make it an array, or keep it in a document"
    return ""


def _no_way_back(region: str, what: str) -> Refused:
    return Refused(
        "this value could not be put back at resume: declare the object and the attribute that hold it, "
        "as in (name, object, 'attribute'), or give write=function",
        code="cannot-set",
        region=region,
        expected="a writable array, an attribute that can be set, or write=",
        found=what,
    )


def _number(value: Any, region: str) -> Array:
    if type(value) is int and not -(1 << 63) <= value < 1 << 63:
        raise Refused(
            "a Python int outside of int64; keep it in a document",
            code="out-of-range",
            region=region,
            expected="-2**63 to 2**63 - 1",
            found=f"an int of {value.bit_length()} bits",
        )
    return np.asarray(value, dtype=_NUMBERS[type(value)])


def _format_of(array: Array | DeviceWords, region: str) -> None:
    try:
        of_dtype(array.dtype)
    except Refused as error:
        error.region = region
        raise


def _is_array_like(value: Any) -> bool:
    if isinstance(value, (np.ndarray, memoryview, bytearray)):
        return True
    if inspect.isclass(value):
        return False
    if any(hasattr(value, name) for name in ("__array__", "__array_interface__")):
        return True
    # Asked of the class: an array that must not be used as it is says so by an error.
    return any(hasattr(type(value), name) for name in ("__cuda_array_interface__", "__dlpack_device__"))
