"""Capture: one owner's words at one moment, read but not yet written.

A *source* is one own piece with the bytes it has now; a *copy* is a piece of a replica group that
another owner writes, of which only the digest matters.
"""

from __future__ import annotations

import dataclasses
import operator
from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np

from .. import digest
from ..errors import Refused
from ..format.manifest import DeviceRecord
from ..format.pack import Slot
from ..model.formats import JSON, Format, by_name, memory_of
from ..model.layout import Irregular, Rule
from ..model.pieces import Interval, Piece, size, start
from ..model.schema import Region, Schema
from .own import Own, is_replicated
from .source import Source, source_of, tables_of


class HeldWords(Protocol):
    """What an owner holds of one region now: an array, or a document's bytes."""

    @property
    def ordinal(self) -> int: ...
    @property
    def owner(self) -> int: ...
    @property
    def piece(self) -> Piece | None: ...
    @property
    def data(self) -> Any: ...


@dataclasses.dataclass(frozen=True)
class Capture:
    """One owner's words at one moment: what it writes, and digests of what it only compares.

    `replicas` lists (ordinal, region digest) of every replicated region, `copies` (ordinal, piece
    digest) of the pieces another owner of the same group writes, `devices` those on which the words
    lie, where they are to be recorded.
    """

    sources: tuple[Source, ...]
    replicas: tuple[tuple[int, str], ...]
    copies: tuple[tuple[int, str], ...]
    devices: tuple[DeviceRecord, ...] = ()


def _moved(owner: int, region: Region) -> Refused:
    return Refused(
        "the pieces changed between the check of the layout and the capture: nothing may change them "
        "during a save",
        code="changed-while-saving",
        role=owner,
        region=region.name,
    )


class _Wanted(NamedTuple):
    """What does not change from save to save of one own piece: see `Source`."""

    region: Region
    own: Own
    key: tuple[int, int]  # of what is held: ordinal, first word
    format: Format | None
    nwords: int
    slot: Slot
    finite: bool


class Taking:
    """How the words of `owner` are captured: what does not change from save to save.

    `own` are its own pieces; `rules` and `finite` have one entry per region.
    """

    def __init__(
        self,
        schema: Schema,
        rules: Sequence[Rule | None],
        own: Sequence[Own],
        finite: Sequence[bool],
        owner: int,
    ) -> None:
        self.own = own
        self._schema = schema
        self._finite = finite
        regions = zip(schema.regions, rules, strict=True)
        replicated = [region for region, rule in regions if is_replicated(region, rule)]
        self._irregular = {i for i, rule in enumerate(rules) if isinstance(rule, Irregular)}
        self._everywhere = everywhere = {region.ordinal for region in replicated}
        self._wanted = [self._want(o) for o in own]
        #: Replicated regions are captured whole by every owner, whoever writes them.
        self._whole = [self._want(Own(region.ordinal, owner, 0, None)) for region in replicated]
        #: Keys of what is held and either own or replicated; other pieces are copies.
        self._known = {w.key for w in self._wanted} | {(ordinal, 0) for ordinal in everywhere}
        # Of the last capture: the pieces held, their keys, where among them each wanted one is, and
        # which are copies.
        self._pieces: list[Piece | None] = []
        self._ordinals: list[int] = []
        self._keys: list[tuple[int, int]] = []
        self._places: list[int] = []
        self._copies: list[int] = []
        #: Of each replicated region where it is held; None where it has no words at all.
        self._whole_places: list[int | None] = [None] * len(self._whole)

    def _want(self, own: Own) -> _Wanted:
        region = self._schema.regions[own.ordinal]
        format = None if region.format == JSON else by_name(region.format)
        words = region.size if own.piece is None else size(own.piece)
        slot = Slot(*own.key, words * format.itemsize if format else 0)
        must = self._finite[own.ordinal] and format is not None and format.floating
        key = (own.ordinal, 0 if own.ordinal in self._everywhere else own.start)
        return _Wanted(region, own, key, format, words, slot, must)

    def _locate(self, held: Sequence[HeldWords]) -> None:
        """Find the keys of what is held; nearly always those of the last capture, the very pieces.

        Raises `Refused` (``changed-while-saving``) where the pieces held are not those that the
        layout check decided on: their words would be written as those of other places.
        """
        pieces, ordinals = [h.piece for h in held], [h.ordinal for h in held]
        if ordinals == self._ordinals and all(map(operator.is_, pieces, self._pieces)):
            return
        shapes = [region.shape for region in self._schema.regions]
        keys = [(o, start(piece, shapes[o])) for o, piece in zip(ordinals, pieces, strict=True)]
        at = {key: i for i, key in enumerate(keys)}
        for wanted in self._wanted:
            found = at.get(wanted.key)
            split = wanted.region.ordinal in self._everywhere  # a part of what is held may be own
            if found is None or not (split or pieces[found] == wanted.own.piece):
                raise _moved(wanted.own.owner, wanted.region)
        if self._irregular:  # nobody has copies there: all that is held is own, and held once
            for i, key in enumerate(keys):
                if key[0] in self._irregular and (key not in self._known or at[key] != i):
                    raise _moved(held[i].owner, self._schema.regions[key[0]])
        self._keys = keys
        self._copies = [i for i, key in enumerate(keys) if key not in self._known]
        self._places = [at[wanted.key] for wanted in self._wanted]
        self._whole_places = [at.get(wanted.key) for wanted in self._whole]
        self._pieces, self._ordinals = pieces, ordinals

    def take(
        self, held: Sequence[HeldWords], algorithm: str, devices: tuple[DeviceRecord, ...] = ()
    ) -> Capture:
        """Return the capture of the words held now.

        Called once per save by every owner, before anything is sent. Raises `Refused`:
        ``non-finite`` for replicated words, which every owner looks at, ``changed-while-saving``
        where an irregular region's pieces are no longer those of the layout check.
        """
        self._locate(held)
        wholes, replicas = self._replicas(held, algorithm)
        sources = []
        for wanted, at in zip(self._wanted, self._places, strict=True):
            whole = wholes.get(wanted.own.ordinal)
            source = _source(wanted, held[at].data) if whole is None else _part(wanted, whole, algorithm)
            sources.append(source)
        copies = []
        for at in self._copies:
            key, h = self._keys[at], held[at]
            region = self._schema.regions[key[0]]
            if region.format == JSON or not np.size(h.data):
                continue
            copy = source_of(region, Own(region.ordinal, h.owner, key[1], h.piece), h.data, False)
            table = copy.table(algorithm)
            copies.append((region.ordinal, digest.shard(region.format, copy.nbytes, table, algorithm)))
        return Capture(tuple(sources), replicas, tuple(sorted(copies)), devices)

    def _replicas(
        self, held: Sequence[HeldWords], algorithm: str
    ) -> tuple[dict[int, Source], tuple[tuple[int, str], ...]]:
        """Return the replicated regions that have words, whole and with their chunk digests, and the
        region digest of every replicated region; both by ordinal."""
        wholes = {
            wanted.own.ordinal: _source(wanted, held[at].data)
            for wanted, at in zip(self._whole, self._whole_places, strict=True)
            if at is not None
        }
        for whole, table in zip(wholes.values(), tables_of(tuple(wholes.values()), algorithm), strict=True):
            whole.chunks = table
        rows = []
        for wanted in self._whole:
            found = wholes.get(wanted.own.ordinal)
            rows.append(
                (wanted.region.format, 0, b"")
                if found is None
                else (wanted.region.format, found.slot.nbytes, found.chunks or b"")
            )
        named = digest.regions(rows, algorithm)
        return wholes, tuple((w.own.ordinal, name) for w, name in zip(self._whole, named, strict=True))


def _source(wanted: _Wanted, data: Any) -> Source:
    """Return the source of the whole of a held piece."""
    region, own, _, format, nwords, slot, finite = wanted
    if format is None or data.size != nwords:
        return source_of(region, own, data, finite)
    memory = memory_of(data, format) if isinstance(data, np.ndarray) else None
    return Source(region, own, data, slot, format, finite, None, None, memory)


def _part(wanted: _Wanted, whole: Source, algorithm: str) -> Source:
    """Return the source of the part of replicated words that is own, whose digests are known."""
    region, own, _, format, nwords, slot, _ = wanted
    table = whole.chunks or b""
    if format is None:
        slot = Slot(*own.key, whole.slot.nbytes)
    if format is None or nwords == region.size:
        return Source(region, own, whole.data, slot, format, False, None, table, whole.memory)
    assert isinstance(own.piece, Interval)
    width = digest.SIZES[algorithm]
    first = own.piece.start * format.itemsize // digest.CHUNK
    last = digest.chunk_count(own.piece.stop * format.itemsize)
    table = table[first * width : last * width]
    return source_of(region, own, whole.data, False, own.piece, table)
