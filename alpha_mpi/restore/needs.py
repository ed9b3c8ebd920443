"""Needs: what this owner reads, receives and passes on; decided from the root alone.

A *reader* is the owner that reads words which several owners need, and passes them on: the root's
manifest and the layout rules let every owner know who that is, so nothing is exchanged to plan it.
On the placement a generation was saved on, the reader of a shard is the role that wrote it;
elsewhere it is owner k mod N for what saved role k wrote alone, and words that are replicated now
but were not are dealt to all owners by chunks.
"""

from __future__ import annotations

import collections
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from .. import digest
from ..canonical import canonical
from ..format.manifest import Manifest, Root, start_of
from ..model import formats
from ..model.layout import Replicated, Rule, from_data, share
from ..model.owners import writers
from ..model.pieces import Box, Interval, Piece, local_shape, size
from ..model.schema import Region, Schema
from . import copies
from .moved import opener
from .plan import PER_OWNER, Need, is_replicated
from .replicas import Incoming, Share, replicated_shares
from .validate import Target


class Destination(Protocol):
    """Where the words of one held piece go (`alpha_mpi.declared.Destination`)."""

    ordinal: int
    piece: Piece | None
    shape: tuple[int, ...]

    def view(self) -> Any: ...
    def check(self, value: Any) -> None: ...
    def set(self, value: Any) -> None: ...


class Declared(Protocol):
    """What this owner declares and holds (`alpha_mpi.declared.Declared`, `renumber.Renumbered`).

    A region whose rule is None is not declared: nothing of it is read.
    """

    schema: Schema

    @property
    def rules(self) -> Sequence[Rule | None]: ...
    @property
    def finite(self) -> Sequence[bool]: ...
    @property
    def repartition(self) -> Mapping[int, Any]: ...
    def repartitioned(self, ordinal: int, values: list[Any], old_count: int) -> Any: ...
    def destinations(self) -> Sequence[Destination]: ...


class Needs:
    """What one owner needs (see the module's docstring). Made after the destinations are known.

    Attributes
    ----------
    needs, targets
        What is read from the store here, and where each goes.
    number : dict
        Need of each destination (by its place in `destinations`) that is read here.
    everywhere : list of Share
        Words all owners hold, the same list on every owner; `own_shares` are those read here.
    received : dict
        What comes from other owners, by ordinal.
    groups, copied : dict
        Owners with the same piece of a region, and its bytes; the lowest is the reader.
    own_copies : dict
        Need that holds the whole of a copied piece on its reader, where it is not one shard.
    named : dict
        Digest that the root lists of a region replicated then and now.
    compared : list of int
        Regions replicated now but not then: the owners compare what they got with each other.
    handed : dict
        Need of each old owner's value that this owner reads for a repartition: (ordinal, old owner).
    """

    def __init__(
        self,
        root: Manifest,
        schema: Schema,
        file: str,
        declared: Declared,
        owner: int,
        owners: int,
        moved: bool,
        groups: bool,
    ) -> None:
        assert root.root is not None
        self._manifest = root
        self._root: Root = root.root
        self._schema = schema
        self._file = file
        self._declared = declared
        self._owner = owner
        self._owners = owners
        self._moved = moved
        self._grouped = groups
        self.destinations: Sequence[Destination] = tuple(declared.destinations())
        self.needs: list[Need] = []
        self.targets: list[Target] = []
        self.number: dict[int, int] = {}
        self.everywhere: list[Share] = []
        self.own_shares: dict[Share, int] = {}
        self.received: dict[int, Incoming] = {}
        self.groups: dict[int, tuple[int, ...]] = {}
        self.copied: dict[int, int] = {}
        self.own_copies: dict[int, int] = {}
        self.named: dict[int, str] = {}
        self.compared: list[int] = []
        self.handed: dict[tuple[int, int], int] = {}
        self._saved: dict[int, list[Share]] = {}  # by ordinal: who wrote what was replicated then
        self._shares()
        self._pieces()

    # ------------------------------------------------ words all owners hold

    def _shares(self) -> None:
        root, listed = self._root, dict(self._root.replicas)
        for share_ in replicated_shares(self._manifest, self._schema, self._file):
            self._saved.setdefault(share_.ordinal, []).append(share_)
        for region, rule in zip(self._schema.regions, self._declared.rules, strict=True):
            if rule is None or (region.kind != "document" and not isinstance(rule, Replicated)):
                continue
            if is_replicated(region, root.layouts[region.ordinal]):
                found = self._saved.get(region.ordinal, [])
                if self._moved:
                    found = [s._replace(writer=opener(s.writer, self._owners)) for s in found]
                if region.ordinal in listed:
                    self.named[region.ordinal] = listed[region.ordinal]
            else:
                found = dealt(region, self._owners)
                if found:
                    self.compared.append(region.ordinal)
            self.everywhere += found
            for one in found:
                if one.writer == self._owner:
                    self.own_shares[one] = self._own_share(one, region)

    def _own_share(self, one: Share, region: Region) -> int:
        if region.is_document:
            return self._need(Need(one.ordinal, None, None), Target(hold=True))
        itemsize = formats.by_name(region.format).itemsize
        words = Interval(one.at // itemsize, (one.at + one.nbytes) // itemsize)
        if one.ordinal in self.compared or not is_replicated(region, self._root.layouts[one.ordinal]):
            # Put together of several shards, so it is made anew.
            return self._need(Need(one.ordinal, None, words), Target(None, (size(words),)))
        return self._need(Need(one.ordinal, None, words), Target(hold=True))

    # ------------------------------------------------ everything else

    def _pieces(self) -> None:
        nbytes = collections.Counter[int]()
        for one in self.everywhere:
            nbytes[one.ordinal] += one.nbytes
        others = self._root.owners != self._owners
        for i, destination in enumerate(self.destinations):
            ordinal, region = destination.ordinal, self._schema.regions[destination.ordinal]
            target = Target(destination.view(), tuple(destination.shape))
            if ordinal in nbytes:
                self._receive(region, target, nbytes[ordinal], self.named.get(ordinal))
            elif region.kind in PER_OWNER and others:
                self._hand(region)
            elif not region.is_document and not region.size:
                continue
            elif region.kind != "array":
                self.number[i] = self._need(Need(ordinal, self._owner, None), target)
            else:
                assert destination.piece is not None
                self._array(i, region, destination.piece, target)

    def _array(self, i: int, region: Region, piece: Piece, target: Target) -> None:
        """One piece of a region: read here, or by the lowest owner that holds the same."""
        group = self._group(region)
        need = Need(region.ordinal, None, piece)
        if len(group) < 2:
            self.number[i] = self._need(need, target)
            return
        length = size(piece) * formats.by_name(region.format).itemsize
        self.groups[region.ordinal], self.copied[region.ordinal] = group, length
        if group[0] != self._owner:
            self._receive(region, target, length, None)
            return
        self.number[i] = self._need(need, target)
        if self._moved:
            # The piece need not be one shard of the store: what is passed on is put together.
            made = target.array is None
            self.own_copies[region.ordinal] = (
                self.number[i] if made else self._need(need, Target(None, local_shape(piece)))
            )

    def _group(self, region: Region) -> tuple[int, ...]:
        rule = self._declared.rules[region.ordinal]
        if rule is None or not self._grouped or not copies.has_groups(rule):
            return ()
        return tuple(rule.group(region.shape, self._owners, self._owner))

    def _hand(self, region: Region) -> None:
        """Read what some old owners had of their own, so that every owner gets to know it."""
        if not region.is_document and not region.size:
            return
        target = Target(None, () if region.is_document else region.shape)
        for old in range(self._owner, self._root.owners, self._owners):
            self.handed[region.ordinal, old] = self._need(Need(region.ordinal, old, None), target)

    def _need(self, need: Need, target: Target) -> int:
        self.needs.append(need)
        self.targets.append(target)
        return len(self.needs) - 1

    def _receive(self, region: Region, target: Target, nbytes: int, named: str | None) -> None:
        algorithm = (named or self._manifest.prefix.cover).partition(":")[0]
        self.received[region.ordinal] = Incoming(region, target, nbytes, algorithm)

    # ------------------------------------------------ whose shards these are

    def roles(self) -> frozenset[int] | None:
        """Return the saved roles that hold the words read here, as the rules say; None: any may."""
        if self._root.hierarchy.get("kind") == "star":
            return frozenset()
        found: set[int] = set()
        rules: dict[bytes, Rule] = {}
        known: dict[tuple[bytes, tuple[int, ...], Piece], frozenset[int] | None] = {}
        for need in self.needs:
            region, data = self._schema.regions[need.ordinal], self._root.layouts[need.ordinal]
            if need.owner is not None:
                found.add(need.owner)
                continue
            if is_replicated(region, data):
                found.update(s.writer for s in self._saved[need.ordinal] if _meets(s, need, region))
                continue
            assert need.piece is not None
            word = canonical(data)
            rule = rules.get(word)
            if rule is None:
                rule = rules[word] = from_data(data)
            key = word, region.shape, need.piece
            if key not in known:
                known[key] = writers(rule, region.shape, self._root.owners, need.piece)
            owners = known[key]
            if owners is None:
                return None  # irregular: the pieces stand in the manifests
            found |= owners
        return frozenset(found)


def dealt(region: Region, owners: int) -> list[Share]:
    """Return who reads which words of a region that all owners hold now, but not when it was saved.

    Its chunks are dealt as shares, beginning with another owner for each region.
    """
    nbytes = region.size * formats.by_name(region.format).itemsize
    count = digest.chunk_count(nbytes)
    parts = min(count, owners)
    found = []
    for i in range(parts):
        first, last = share(count, parts, i)
        at, stop = first * digest.CHUNK, min(last * digest.CHUNK, nbytes)
        found.append(Share(region.ordinal, (i + region.ordinal) % owners, at, stop - at))
    return found


def _meets(one: Share, need: Need, region: Region) -> bool:
    """Whether a share may hold words of a need."""
    if need.piece is None:
        return True
    itemsize = formats.by_name(region.format).itemsize
    if isinstance(need.piece, Interval):
        first, stop = need.piece.start, need.piece.stop
    else:
        last = Box(tuple(b - 1 for b in need.piece.stops), need.piece.stops)
        first, stop = start_of(need.piece, region.shape), start_of(last, region.shape) + 1
    return first * itemsize < one.at + one.nbytes and one.at < stop * itemsize
