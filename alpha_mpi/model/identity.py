"""Identity: which learner a checkpoint belongs to, and under which numerical contract.

A *learner* is the rule (programs, initial state, rate) and the input sequence, as labels the user
gives; no hash of a source file, no owner count, no split. A *contract* says on what the bits
depend: number formats, accumulation, combine order, device product where it matters, and whether
the checkpoint is bound to its placement.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from .. import digest
from ..canonical import EXACT
from ..errors import Refused
from .schema import Schema

#: How deep labels may nest, and how many values they may hold.
_DEPTH = 16
_VALUES = 10_000

PLACEMENTS = ("free", "bound")
#: What of a device a contract binds, where a region lies on one.
DEVICES = ("product", "uuid", "none")


class Learner:
    """Who learns: equal learners, and only they, may continue each other's checkpoints.

    Parameters
    ----------
    label : str
        The learner's name, e.g. ``"digits-mlp"``.
    rate : number or text, optional
        Learning rate or the name of its schedule.
    inputs : JSON-able, optional
        Names the input sequence, e.g. ``{"set": "digits", "seed": 7}``. A learner that declares
        one is refused a cursor of 0 after its first update.
    **labels : JSON-able
        Anything else that makes it another learner when it differs.

    Raises `Refused` (``label``) for a value that JSON cannot hold.
    """

    __slots__ = ("_data",)

    def __init__(self, label: str = "", rate: Any = None, inputs: Any = None, **labels: Any) -> None:
        if not isinstance(label, str):
            raise Refused("a learner's label must be a str", code="label", found=type(label).__name__)
        self._data = {
            "inputs": _plain(inputs, "inputs"),
            "label": _plain(label, "label"),
            "labels": _plain(labels, "labels"),
            "rate": _plain(rate, "rate"),
        }

    @property
    def label(self) -> str:
        """The learner's name."""
        label: str = self._data["label"]
        return label

    @property
    def has_inputs(self) -> bool:
        """Whether an input sequence is declared."""
        return self._data["inputs"] is not None

    def as_data(self) -> dict[str, Any]:
        """Return the identity as canonical JSON data (docs/format.md)."""
        return dict(self._data)

    @classmethod
    def from_data(cls, data: Mapping[str, Any]) -> Learner:
        """Return the learner of `as_data`. Raises `Refused` (``label``)."""
        if set(data) != {"inputs", "label", "labels", "rate"}:
            raise Refused("not a learner", code="label", found=str(sorted(data))[:200])
        labels = data["labels"]
        if not isinstance(data["label"], str) or not isinstance(labels, dict):
            raise Refused("not a learner", code="label", found=repr(labels)[:200])
        learner = cls()
        learner._data = {
            key: _plain(_value(data[key], key), key) for key in ("inputs", "label", "labels", "rate")
        }
        return learner

    def digest(self, algorithm: str = digest.DEFAULT) -> str:
        """Return the learner digest."""
        return digest.combine("learner", self.as_data(), algorithm=algorithm)

    def difference(self, other: Learner) -> list[str]:
        """Return one line per label in which `other` differs."""
        return _difference(self._data, other._data)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Learner) and self._data == other._data

    def __hash__(self) -> int:
        return hash(self.digest())

    def __repr__(self) -> str:
        return f"Learner({self._data!r})"


class Contract:
    """On what the bits depend. Everything not given is not promised to matter.

    Parameters
    ----------
    formats : list of str, optional
        Number formats in use; those of the schema by default.
    accumulation : str, optional
        Format and manner of sums, e.g. ``"float64, pairwise"``.
    combine : str, optional
        Order in which owners' sums are combined, e.g. ``"by rank"``. A contract that names one
        says that bits depend on it.
    product : str, optional
        Device product, where bits depend on it. Where none is given and a region lies on a GPU, the
        products that all owners use, as the driver names them (see `device`).
    device : str
        What is bound of the devices on which regions lie. ``"product"``: a resume on another product
        is refused (``wrong-device``). ``"uuid"``: also on another card, owner by owner; on another
        number of owners too. ``"none"``: nothing.
    placement : str
        ``"free"``: may be resumed on another number of owners. ``"bound"``: refused there.
    **labels : JSON-able
        Anything else.

    Raises `Refused` (``label``).
    """

    __slots__ = ("_data",)

    def __init__(
        self,
        formats: Any = None,
        accumulation: str | None = None,
        combine: str | None = None,
        product: str | None = None,
        placement: str = "free",
        device: str = "product",
        **labels: Any,
    ) -> None:
        if device not in DEVICES:
            raise Refused(
                "a contract binds no such thing of a device",
                code="label",
                expected=" or ".join(DEVICES),
                found=repr(device)[:80],
            )
        if placement not in PLACEMENTS:
            raise Refused(
                "unknown placement",
                code="label",
                expected=" or ".join(PLACEMENTS),
                found=repr(placement)[:80],
            )
        if formats is not None:
            formats = sorted(set(formats))
        self._data = {
            "accumulation": _plain(accumulation, "accumulation"),
            "combine": _plain(combine, "combine"),
            "formats": _plain(formats, "formats"),
            "labels": _plain(labels, "labels"),
            "placement": placement,
            "product": _plain(product, "product"),
        }
        if device != DEVICES[0]:
            self._data["device"] = device

    @property
    def device(self) -> str:
        """What is bound of devices: ``"product"``, ``"uuid"`` or ``"none"``."""
        device: str = self._data.get("device", DEVICES[0])
        return device

    @property
    def product(self) -> str | None:
        """The device product; None where none was given or found."""
        product: str | None = self._data["product"]
        return product

    def on(self, products: Iterable[str]) -> Contract:
        """Return this contract with the products of the devices in use, where it binds and names none.

        Called once all owners know which devices they all use.
        """
        names = " + ".join(sorted(set(products)))
        if not names or self.product is not None or self.device == "none":
            return self
        full = Contract()
        full._data = {**self._data, "product": names}
        return full

    @property
    def bound(self) -> bool:
        """Whether the checkpoint may only be resumed by as many owners as saved it."""
        return bool(self._data["placement"] == "bound")

    @property
    def formats(self) -> list[str] | None:
        """Number formats in use; None where none were given."""
        formats: list[str] | None = self._data["formats"]
        return formats

    def resolved(self, schema: Schema) -> Contract:
        """Return this contract with the schema's formats where none were given.

        Called once the state is declared, before the digest is taken.
        """
        if self._data["formats"] is not None:
            return self
        full = Contract()
        full._data = {**self._data, "formats": formats_of(schema)}
        return full

    def as_data(self) -> dict[str, Any]:
        """Return the contract as canonical JSON data (docs/format.md)."""
        return dict(self._data)

    @classmethod
    def from_data(cls, data: Mapping[str, Any]) -> Contract:
        """Return the contract of `as_data`. Raises `Refused` (``label``)."""
        keys = {"accumulation", "combine", "formats", "labels", "placement", "product"}
        if "device" in data and data["device"] in DEVICES[1:]:
            keys.add("device")
        if set(data) != keys or data["placement"] not in PLACEMENTS or not isinstance(data["labels"], dict):
            raise Refused("not a contract", code="label", found=str(sorted(data))[:200])
        contract = cls()
        contract._data = {key: _plain(_value(data[key], key), key) for key in sorted(keys)}
        return contract

    def digest(self, algorithm: str = digest.DEFAULT) -> str:
        """Return the contract digest."""
        return digest.combine("contract", self.as_data(), algorithm=algorithm)

    def difference(self, other: Contract) -> list[str]:
        """Return one line per label in which `other` differs."""
        return _difference(self._data, other._data)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Contract) and self._data == other._data

    def __hash__(self) -> int:
        return hash(self.digest())

    def __repr__(self) -> str:
        return f"Contract({self._data!r})"


def formats_of(schema: Schema) -> list[str]:
    """Return the number formats of a schema: those of a contract that gives none."""
    return sorted({r.format for r in schema.regions if not r.is_document})


def _difference(mine: Mapping[str, Any], theirs: Mapping[str, Any]) -> list[str]:
    lines = []
    for key in sorted(set(mine) | set(theirs)):
        a, b = mine.get(key), theirs.get(key)
        if a == b and type(a) is type(b):
            continue
        if key == "labels" and isinstance(a, dict) and isinstance(b, dict):
            lines += _difference(a, b)
        else:
            lines.append(f"{key}: expected {_value(a, key)!r}, found {_value(b, key)!r}"[:400])
    return lines


def _plain(value: Any, where: str, depth: int = 0, budget: list[int] | None = None) -> Any:
    """Return a label as canonical JSON data: floats and large integers as marked strings."""
    budget = [_VALUES] if budget is None else budget
    budget[0] -= 1
    if depth > _DEPTH or budget[0] < 0:
        raise Refused("labels are too deep or too many", code="label", found=where[:200])
    if isinstance(value, np.generic):
        value = value.item()
    if value is None or isinstance(value, (bool, str)):
        if isinstance(value, str) and not _encodable(value):
            raise Refused("a label holds an unpaired surrogate", code="label", found=where[:200])
        return value
    if isinstance(value, int):
        value = int(value)
        return value if abs(value) <= EXACT else {"$int": str(value)}
    if isinstance(value, float):
        return {"$float": float(value).hex() if math.isfinite(value) else str(float(value))}
    if isinstance(value, Mapping):
        plain = {}
        for key, item in value.items():
            if not isinstance(key, str) or not _encodable(key):
                raise Refused("a label's key must be text", code="label", found=f"{where}: {key!r}"[:200])
            plain["$" + key if key.startswith("$") else key] = _plain(
                item, f"{where}.{key}", depth + 1, budget
            )
        return plain
    if isinstance(value, (list, tuple)):
        return [_plain(v, f"{where}[{i}]", depth + 1, budget) for i, v in enumerate(value)]
    raise Refused(
        "a label must be text, a number, a list or a mapping",
        code="label",
        found=f"{where}: {type(value).__name__}"[:200],
    )


def _value(data: Any, where: str, depth: int = 0) -> Any:
    """Return the label that `_plain` wrote."""
    if depth > _DEPTH + 2:
        raise Refused("labels are too deep", code="label", found=where[:200])
    if isinstance(data, dict):
        if len(data) == 1:
            ((key, text),) = data.items()
            if key in ("$float", "$int") and isinstance(text, str):
                try:
                    return float.fromhex(text) if key == "$float" else _integer(text)
                except (ValueError, OverflowError):
                    raise Refused("not a number", code="label", found=f"{where}: {text}"[:200]) from None
        return {
            (k[1:] if k.startswith("$") else k): _value(v, f"{where}.{k}", depth + 1) for k, v in data.items()
        }
    if isinstance(data, list):
        return [_value(v, f"{where}[{i}]", depth + 1) for i, v in enumerate(data)]
    return data


def _integer(text: str) -> int:
    if len(text) > 4000:
        raise ValueError(text[:80])
    return int(text)


def _encodable(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
