"""A declared state: the schema, and this owner's pieces, read and put back.

A *destination* is where the words of one held piece go at resume.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import numpy as np

from . import digest
from .devices.identity import Identity
from .devices.words import DeviceWords
from .errors import CheckpointError, Refused
from .format.documents import encode_document
from .held import HeldPieces
from .model.formats import Array, Format, by_name, of_dtype
from .model.layout import Held, Irregular, Replicated, Rule, layout_digest, sorted_pieces
from .model.pieces import Piece, Shape, is_empty, local_shape, start, words
from .model.schema import Region, Schema
from .protocol.hierarchy import Hierarchy, Star
from .sources import DocumentSource, Reading, Source, call, check_filled, fail, is_filled, reading_of

#: What an owner has of its own, from what all owners of another count had:
#: (values by old owner, old count, new count, this owner) -> value.
Repartition = Callable[[list[Any], int, int, int], Any]


class Destination:
    """Where the words of one held piece go at resume.

    `view` gives a writable array to fill in place, of any strides and byte order (on a GPU: words
    that lie one behind the other); where it is None
    a fresh array of `shape` and `format` (or a document's value) is handed to `set`. `check`
    refuses a value that could not be taken, before anything is changed.
    """

    def __init__(
        self,
        region: Region,
        piece: Piece | None,
        owner: int,
        *,
        shape: Shape = (),
        array: Array | DeviceWords | None = None,
        give: Callable[[Any], Any] | None = None,
        judge: Callable[[Any], Any] | None = None,
    ) -> None:
        self.region = region
        self.ordinal = region.ordinal
        self.piece = piece
        self.owner = owner
        self.shape = shape
        self._array = array
        self._give = give
        self._judge = judge

    @property
    def format(self) -> Format | None:
        """The number format; None for a document."""
        return None if self.region.is_document else by_name(self.region.format)

    @property
    def is_document(self) -> bool:
        """Whether `set` takes a document's value."""
        return self.region.is_document

    def view(self) -> Array | DeviceWords | None:
        """Return the array to fill in place, or None where a fresh value is to be set."""
        return self._array

    def empty(self) -> Array:
        """Return a fresh array to fill and hand to `set`."""
        return np.empty(self.shape, by_name(self.region.format).dtype)

    def check(self, value: Any) -> None:
        """Refuse a value `set` could not take. Changes nothing. Called while validating."""
        if self._judge is not None:
            judge = self._judge
            call(lambda: judge(value), self.region.name, self.owner)

    def set(self, value: Any) -> None:
        """Hand over a fresh array of `shape`, or a document's value, for the user's code to keep."""
        if self._give is None:
            raise ValueError("this destination is filled in place")
        give = self._give
        call(lambda: give(value), self.region.name, self.owner)


class Declared:
    """A state declared for one owner of `owners`.

    Attributes
    ----------
    schema : Schema
    rules : tuple of Rule
        One per region.
    finite : tuple of bool
        Per region, whether words that are infinite or not a number are refused.
    owners, owner : int
    repartition : mapping of int to callable
        Of the per-owner regions that have one, by ordinal: see `State.per_owner`.
    devices : tuple of Identity
        On which this owner's regions lay when they were declared.
    """

    def __init__(
        self,
        schema: Schema,
        rules: tuple[Rule, ...],
        finite: tuple[bool, ...],
        sources: tuple[Source | DocumentSource, ...],
        owners: int,
        owner: int,
        hierarchy: Hierarchy,
        repartition: Mapping[int, Repartition] = MappingProxyType({}),
        devices: tuple[Identity, ...] = (),
    ) -> None:
        self.schema = schema
        self.rules = rules
        self.finite = finite
        self.owners = owners
        self.owner = owner
        self.hierarchy = hierarchy
        self.repartition = repartition
        self.devices = devices
        self._sources = sources
        # Thousands of regions are few kinds: asked once, for to ask an abstract class takes its time.
        self._irregulars = {i: rule for i, rule in enumerate(rules) if isinstance(rule, Irregular)}
        self._arrays = {i: source for i, source in enumerate(sources) if isinstance(source, Source)}
        self._held: dict[int, Held] = {}
        self._alike: dict[tuple[int, Shape, str], Held] = {}
        self._good: dict[tuple[int, Shape], tuple[Shape, ...]] = {}
        #: Of regions whose array was plain when it was last judged: piece, dtype, shapes it may have.
        self._plain: list[tuple[Piece | None, np.dtype[Any], tuple[Shape, ...]] | None]
        self._plain = [None] * len(schema.regions)
        self._last: tuple[list[int], list[Piece | None]] | None = None

    @property
    def regions(self) -> tuple[Region, ...]:
        """The regions, in the order of their declaration."""
        return self.schema.regions

    @property
    def held(self) -> tuple[Held, ...]:
        """Per region, the pieces this owner holds, by first word; irregular ones as they are now."""
        return tuple(self.pieces(r.ordinal) for r in self.regions)

    def pieces(self, ordinal: int) -> Held:
        """Return the pieces of one region this owner holds; an irregular rule is asked anew."""
        held = self._held.get(ordinal)
        if held is not None:
            return held
        region, irregular = self.regions[ordinal], self._irregulars.get(ordinal)
        if irregular is not None:
            given = self._irregular(region, irregular)
            return tuple(sorted_pieces(given, region.shape))
        rule = self.rules[ordinal]
        alike = id(rule), region.shape, region.kind  # the rules are kept, so an id is one rule's
        held = self._alike.get(alike)
        if held is None:
            held = (None,) if region.is_document else rule.pieces(region.shape, self.owners, self.owner)
            self._alike[alike] = held
        self._held[ordinal] = held
        return held

    def layout_digest(self, algorithm: str = digest.DEFAULT) -> str:
        """Return the layout digest of these rules, this owner count and this hierarchy."""
        return layout_digest(self.rules, self.owners, hierarchy_data(self.hierarchy), algorithm)

    def capture(self) -> HeldPieces:
        """Read every source now, and return this owner's pieces ordered by (ordinal, first word).

        Called as the first act of a save. Copies no array. Raises `PeerFailed` (``user-code``) with
        the region when the user's code fails, `Refused` (``wrong-shape``, ``wrong-format``) when it
        gives something else than was declared.
        """
        data: list[Any] = []
        given: dict[int, tuple[Piece | None, ...]] = {}  # of irregular regions
        for (ordinal, plain), source in zip(enumerate(self._plain), self._sources, strict=True):
            if plain is not None:  # an array like that of the last save needs no second judgement
                _, dtype, good = plain
                try:
                    value = source.read()
                except Exception as error:
                    fail(error, self.regions[ordinal].name, self.owner)
                if type(value) is np.ndarray and value.dtype == dtype and value.shape in good:
                    data.append(value)
                    continue
                readings = self._judged(self.regions[ordinal], value)
            elif ordinal in self._arrays:
                readings = self._readings(self.regions[ordinal], self._arrays[ordinal])
                if ordinal in self._irregulars:
                    given[ordinal] = tuple(piece for piece, _ in readings)
            else:
                data.append(self._document(self.regions[ordinal], source))
                continue
            for _, reading in readings:
                assert reading.array is not None
                data.append(reading.array)
        return HeldPieces(*self._columns(given), data, self.owner)

    def _columns(self, given: dict[int, tuple[Piece | None, ...]]) -> tuple[list[int], list[Piece | None]]:
        """Return ordinal and piece of all that is held, `given` those of irregular regions: nearly
        always what was returned last, the very lists."""
        if self._last is None or given:
            held = [given[r.ordinal] if r.ordinal in given else self.pieces(r.ordinal) for r in self.regions]
            ordinals = [ordinal for ordinal, pieces in enumerate(held) for _ in pieces]
            self._last = ordinals, [piece for pieces in held for piece in pieces]
        return self._last

    def destinations(self) -> tuple[Destination, ...]:
        """Return where each held piece goes, in the order of `capture`. Changes nothing.

        Called while validating. Raises what `capture` raises, and `Refused` (``cannot-set``) for a
        value that can be neither filled in place nor set.
        """
        found: list[Destination] = []
        for region, source in zip(self.regions, self._sources, strict=True):
            array = self._arrays.get(region.ordinal)
            if array is not None:
                found.extend(self._array_destinations(region, array))
            else:
                judge = getattr(source, "check", None)
                found.append(Destination(region, None, self.owner, give=source.write, judge=judge))
        return tuple(found)

    def repartitioned(self, ordinal: int, values: list[Any], old_count: int) -> Any:
        """Return what this owner has of a per-owner region, from what all old owners had.

        Calls the user's `repartition`. An array comes back in the region's shape and format, for a
        destination of it. Raises `PeerFailed` (``user-code``), `Refused` (``wrong-shape``,
        ``wrong-format``) for something else.
        """
        region, rule = self.regions[ordinal], self.repartition[ordinal]
        value = call(lambda: rule(values, old_count, self.owners, self.owner), region.name, self.owner)
        if region.is_document:
            return value
        if type(value) in (bool, int, float, complex):
            value = call(lambda: np.asarray(value, by_name(region.format).dtype), region.name, self.owner)
        reading = reading_of(value, region.name)
        check_reading(reading, region, None)
        return reading.array.fetch() if isinstance(reading.array, DeviceWords) else reading.array

    def _array_destinations(self, region: Region, source: Source) -> list[Destination]:
        found = []
        readings = self._readings(region, source, allow_none=source.settable)
        irregular = region.ordinal in self._irregulars
        if irregular:
            again = self._readings(region, source)
            check_filled([r for _, r in readings], [r for _, r in again], region.name)
        for piece, reading in readings:
            filled = irregular or is_filled(source, reading, region.name, self.owner)
            give = None if filled else _giver(source, reading)
            if filled and isinstance(reading.array, DeviceWords) and not reading.array.contiguous:
                filled, give = False, reading.array.fill  # from new words of the host, in one go
            found.append(
                Destination(
                    region,
                    piece,
                    self.owner,
                    shape=_shapes(region, piece)[0] if reading.array is None else reading.array.shape,
                    array=reading.array if filled else None,
                    give=give,
                )
            )
        return found

    def _readings(
        self, region: Region, source: Source, allow_none: bool = False
    ) -> list[tuple[Piece | None, Reading]]:
        """Read one array region: its pieces and what the source gives for each, all checked."""
        irregular = self._irregulars.get(region.ordinal)
        if irregular is not None:
            return self._irregular_readings(region, irregular, source)
        held = self.pieces(region.ordinal)
        if not held and region.kind == "array" and not isinstance(self.rules[region.ordinal], Replicated):
            return []  # nothing is held here: whatever the source would give is not looked at
        return self._judged(region, call(source.read, region.name, self.owner), allow_none)

    def _judged(
        self, region: Region, value: Any, allow_none: bool = False
    ) -> list[tuple[Piece | None, Reading]]:
        """Check what the source of a region gave, and return its pieces with it."""
        reading = reading_of(value, region.name)
        pieces = self.pieces(region.ordinal)
        piece = pieces[0] if pieces else None
        alike = id(piece), region.shape  # a piece of `_held`, which is kept
        good = self._good.get(alike)
        if good is None:
            good = self._good[alike] = _shapes(region, piece)
        check_reading(reading, region, piece, allow_none, good)
        if type(value) is np.ndarray and len(pieces) == 1:
            self._plain[region.ordinal] = piece, value.dtype, good
        return [(piece, reading) for piece in pieces]

    def _irregular_readings(
        self, region: Region, rule: Irregular, source: Source
    ) -> list[tuple[Piece | None, Reading]]:
        pieces = self._irregular(region, rule)
        arrays = call(source.read, region.name, self.owner)
        if not isinstance(arrays, (list, tuple)) or len(arrays) != len(pieces):
            found = f"{len(arrays)} arrays" if isinstance(arrays, (list, tuple)) else type(arrays).__name__
            raise Refused(
                "an irregular region's source gives one array per piece, in the same order",
                code="wrong-shape",
                region=region.name,
                expected=f"a list of {len(pieces)} arrays",
                found=found,
            )
        readings: list[tuple[Piece | None, Reading]] = []
        for piece, value in zip(pieces, arrays, strict=True):
            if not is_empty(piece):
                reading = reading_of(value, region.name)
                check_reading(reading, region, piece)
                readings.append((piece, reading))
        return sorted(readings, key=lambda r: start(r[0], region.shape))

    def _irregular(self, region: Region, rule: Irregular) -> tuple[Piece, ...]:
        given: tuple[Piece, ...] = call(lambda: rule.current(region.shape), region.name, self.owner)
        return given

    def _document(self, region: Region, source: DocumentSource) -> bytes:
        value = call(source.read, region.name, self.owner)
        try:
            return encode_document(value)
        except CheckpointError as error:
            error.region = region.name
            raise


def check_reading(
    reading: Reading,
    region: Region,
    piece: Piece | None,
    allow_none: bool = False,
    good: tuple[Shape, ...] | None = None,
) -> None:
    """Refuse (``wrong-format``, ``wrong-shape``) a reading that cannot hold a piece of a region.

    An array has the piece's shape, or the region's where the piece is the whole of it: `good`,
    where the caller knows these shapes already.
    """
    if reading.array is None:
        if allow_none:
            return
        raise Refused(
            "the source gave nothing for a piece this owner holds",
            code="wrong-shape",
            region=region.name,
            expected=f"an array of shape {_shapes(region, piece)[0]}",
            found="None",
        )
    found = of_dtype(reading.array.dtype).name
    if found != region.format:
        raise Refused(
            "the source gives another number format than was declared",
            code="wrong-format",
            region=region.name,
            expected=region.format,
            found=found,
        )
    good = good or _shapes(region, piece)
    if reading.array.shape not in good:
        raise Refused(
            "the source gives an array of another shape" + (f" for {piece}" if piece is not None else ""),
            code="wrong-shape",
            region=region.name,
            expected=" or ".join(map(str, good)),
            found=str(reading.array.shape),
        )


def _shapes(region: Region, piece: Piece | None) -> tuple[Shape, ...]:
    """Return the shapes an array that holds a piece may have, the preferred one first."""
    if piece is None:
        return (region.shape,)
    local = local_shape(piece)
    if local != region.shape and words(local) == words(region.shape):
        return (region.shape, local)
    return (local,)


def _giver(source: Source, reading: Reading) -> Callable[[Array], None]:
    return lambda array: source.write(reading.given_back(array))


def hierarchy_data(hierarchy: Hierarchy) -> Mapping[str, Any]:
    """Return a hierarchy as the JSON data that stand in the root."""
    if isinstance(hierarchy, Star):
        return {"kind": "star"}
    if hierarchy.nodes:
        return {"kind": "tree", "other": True}
    return {"fan_out": hierarchy.fan_out, "kind": "tree"}
