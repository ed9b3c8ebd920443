"""Capture: one owner's words at one moment, read but not yet written.

A *copy* is a piece of a replica group that another owner writes, of which only the digest matters.
"""

from __future__ import annotations

import dataclasses
import operator
from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np

from .. import digest
from ..errors import Refused
from ..format.manifest import DeviceRecord
from ..model.formats import JSON, by_name
from ..model.layout import Irregular, Rule
from ..model.pieces import Interval, Piece, size, start
from ..model.schema import Region, Schema
from .own import Own, is_replicated
from .shards import Shards, Wanted, Wants
from .source import source_of


class HeldWords(Protocol):
    """What an owner holds now, in columns: of each piece its region, and an array, words elsewhere, or
    a document's bytes."""

    @property
    def ordinals(self) -> Sequence[int]: ...
    @property
    def pieces(self) -> Sequence[Piece | None]: ...
    @property
    def data(self) -> Sequence[Any]: ...
    @property
    def owner(self) -> int: ...


@dataclasses.dataclass(frozen=True)
class Capture:
    """One owner's words at one moment: what it writes, and digests of what it only compares.

    `replicas` lists (ordinal, region digest) of every replicated region, `copies` (ordinal, piece
    digest) of the pieces another owner of the same group writes, `devices` those on which the words
    lie, where they are to be recorded.
    """

    shards: Shards
    replicas: tuple[tuple[int, str], ...] = ()
    copies: tuple[tuple[int, str], ...] = ()
    devices: tuple[DeviceRecord, ...] = ()


#: Of an owner that could read nothing.
NOTHING = Capture(Wants([]).of([]))


def _moved(owner: int, region: Region) -> Refused:
    return Refused(
        "the pieces changed between the check of the layout and the capture: nothing may change them "
        "during a save",
        code="changed-while-saving",
        role=owner,
        region=region.name,
    )


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
        regions = zip(schema.regions, rules, strict=True)
        replicated = [region for region, rule in regions if is_replicated(region, rule)]
        self._irregular = {i for i, rule in enumerate(rules) if isinstance(rule, Irregular)}
        self._everywhere = {region.ordinal for region in replicated}
        wanted = [self._want(o, finite) for o in own]
        self._wants = Wants(wanted)
        self._parts = [(i, w.words) for i, w in enumerate(wanted) if w.words is not None]
        #: Of what is held where each own piece lies: region and first word.
        self._wanted = [(o.ordinal, 0 if o.ordinal in self._everywhere else o.start) for o in own]
        # Replicated regions are captured whole by every owner, whoever writes them.
        self._replicated = [region.ordinal for region in replicated]
        self._wholes = {r.ordinal: _whole(r, owner, finite[r.ordinal]) for r in replicated}
        # Of the last capture: the pieces held, their keys, where among them each own one is, which are
        # copies, and where each replicated region is held that has words.
        self._pieces: Sequence[Piece | None] = []
        self._ordinals: Sequence[int] = []
        self._keys: list[tuple[int, int]] = []
        self._places: list[int] = []
        self._copies: list[int] = []
        self._whole_places: list[int] = []
        self._present: list[int] = []
        self._whole_wants = Wants([])

    def _want(self, own: Own, finite: Sequence[bool]) -> Wanted:
        region = self._schema.regions[own.ordinal]
        if region.format == JSON:
            return Wanted(region, own, 0, False)
        format, words = by_name(region.format), region.size if own.piece is None else size(own.piece)
        # Replicated words are looked at before it is known who writes them.
        replicated = own.ordinal in self._everywhere
        part = own.piece if replicated and words != region.size else None
        assert part is None or isinstance(part, Interval)
        return Wanted(region, own, words * format.itemsize, finite[own.ordinal] and not replicated, part)

    def _locate(self, held: HeldWords) -> None:
        """Find the keys of what is held; nearly always those of the last capture, the very pieces.

        Raises `Refused` (``changed-while-saving``) where the pieces held are not those that the
        layout check decided on: their words would be written as those of other places.
        """
        pieces, ordinals = held.pieces, held.ordinals
        if pieces is self._pieces:
            return
        if ordinals == self._ordinals and all(map(operator.is_, pieces, self._pieces)):
            return
        shapes = [region.shape for region in self._schema.regions]
        keys = [(o, start(piece, shapes[o])) for o, piece in zip(ordinals, pieces, strict=True)]
        at = {key: i for i, key in enumerate(keys)}
        for own, key in zip(self.own, self._wanted, strict=True):
            found = at.get(key)
            split = own.ordinal in self._everywhere  # a part of what is held may be own
            if found is None or not (split or pieces[found] == own.piece):
                raise _moved(own.owner, self._schema.regions[own.ordinal])
        known = {*self._wanted, *((ordinal, 0) for ordinal in self._everywhere)}
        if self._irregular:  # nobody has copies there: all that is held is own, and held once
            for i, key in enumerate(keys):
                if key[0] in self._irregular and (key not in known or at[key] != i):
                    raise _moved(held.owner, self._schema.regions[key[0]])
        self._keys = keys
        self._copies = [i for i, key in enumerate(keys) if key not in known]
        self._places = [at[key] for key in self._wanted]
        self._present = [ordinal for ordinal in self._replicated if (ordinal, 0) in at]
        self._whole_places = [at[ordinal, 0] for ordinal in self._present]
        self._whole_wants = Wants([self._wholes[ordinal] for ordinal in self._present])
        self._pieces, self._ordinals = pieces, ordinals

    def take(self, held: HeldWords, algorithm: str, devices: tuple[DeviceRecord, ...] = ()) -> Capture:
        """Return the capture of the words held now.

        Called once per save by every owner, before anything is sent. Raises `Refused`:
        ``non-finite`` for replicated words, which every owner looks at, ``changed-while-saving``
        where an irregular region's pieces are no longer those of the layout check.
        """
        self._locate(held)
        data = held.data
        tables, replicas = self._replicas(data, algorithm)
        chunks = None
        if tables:
            chunks = [tables.get(ordinal) for ordinal, _ in self._wanted]
            for i, part in self._parts:
                chunks[i] = self._chunks(self.own[i].ordinal, part, tables, algorithm)
        shards = self._wants.of([data[at] for at in self._places], chunks)
        copies = []
        for at in self._copies:
            (ordinal, first), words = self._keys[at], data[at]
            region = self._schema.regions[ordinal]
            if region.format == JSON or not np.size(words):
                continue
            copy = source_of(region, Own(ordinal, held.owner, first, held.pieces[at]), words, False)
            table = copy.table(algorithm)
            copies.append((ordinal, digest.shard(region.format, copy.nbytes, table, algorithm)))
        return Capture(shards, replicas, tuple(sorted(copies)), devices)

    def _replicas(
        self, data: Sequence[Any], algorithm: str
    ) -> tuple[dict[int, bytes], tuple[tuple[int, str], ...]]:
        """Return the chunk digests of the replicated regions that have words, and the region digest
        of every replicated region; both by ordinal."""
        if not self._replicated:
            return {}, ()
        wholes = self._whole_wants.of([data[at] for at in self._whole_places])
        tables = wholes.tables(algorithm)
        names = dict(zip(self._present, wholes.regions(tables, algorithm), strict=True))
        for ordinal in self._replicated:
            if ordinal not in names:
                names[ordinal] = digest.region(self._wholes[ordinal].region.format, 0, b"", algorithm)
        replicas = tuple([(ordinal, names[ordinal]) for ordinal in self._replicated])
        return dict(zip(self._present, tables, strict=True)), replicas

    def _chunks(self, ordinal: int, part: Interval, tables: dict[int, bytes], algorithm: str) -> bytes:
        """Return the chunk digests of an own part of a replicated region, which begins with a chunk."""
        itemsize = by_name(self._schema.regions[ordinal].format).itemsize
        first, last = part.start * itemsize // digest.CHUNK, digest.chunk_count(part.stop * itemsize)
        width = digest.SIZES[algorithm]
        return tables[ordinal][first * width : last * width]


def _whole(region: Region, owner: int, finite: bool) -> Wanted:
    """Return the whole of a replicated region."""
    own = Own(region.ordinal, owner, 0, None)
    if region.format == JSON:
        return Wanted(region, own, 0, False)
    return Wanted(region, own, region.size * by_name(region.format).itemsize, finite)
