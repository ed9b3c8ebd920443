"""Layout check: who writes which words, found exact once, and bound by cover digests.

Regular layouts cover by construction of their rules; of an *irregular* region, whose pieces only
their owners know, one owner (the *judge*) receives all pieces and decides. The cover digests are
then computed once over the tree: each parent keeps its children's, everybody gets the root's.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import msgspec

from ..errors import Cause, CheckpointError, Refused, cause_of, error_of
from ..format.manifest import cover, piece_ints, piece_of
from ..model.cover import check_cover
from ..model.layout import Irregular, Rule
from ..model.pieces import Piece, check
from ..model.schema import Schema
from ..mpi.agreement import agree, bcast, gather_text
from ..mpi.exchange import exchange
from ..mpi.families import Families
from ..mpi.world import World
from ..protocol.hierarchy import Hierarchy, Star
from .own import Own, of_owner

#: Pieces of the irregular regions one owner holds, by ordinal.
Given = dict[int, tuple[Piece, ...]]

_Pieces = list[tuple[int, list[tuple[int, ...]]]]
_DECODER = msgspec.msgpack.Decoder(_Pieces)


@dataclasses.dataclass(frozen=True)
class Checked:
    """A layout that was found exact.

    `own` are this owner's own pieces; `cover` is the cover digest of this role and its subtree,
    `covers` those of its children, `root` the root's, which the prefix carries.
    """

    own: tuple[Own, ...]
    cover: str
    covers: dict[int, str]
    root: str


def irregular_ordinals(rules: Sequence[Rule | None]) -> tuple[int, ...]:
    """Return the ordinals of the regions with an irregular layout."""
    return tuple(i for i, rule in enumerate(rules) if isinstance(rule, Irregular))


def check_layout(
    schema: Schema,
    rules: Sequence[Rule | None],
    hierarchy: Hierarchy,
    families: Families,
    given: Given,
    algorithm: str,
    deadline: float,
) -> Checked:
    """Decide that the pieces of all owners cover every region exactly. Called by every owner.

    Raises the same `Refused` (``overlap``, ``incomplete-cover``, ``bad-piece``) on every owner.
    """
    world = families.world
    theirs: list[Given] = []
    if irregular_ordinals(rules):
        _raise(_judge(schema, rules, world, given, deadline))
        theirs = _all_given(hierarchy, world, given, deadline)
    owner, owners = world.rank, world.size
    own = of_owner(schema, rules, hierarchy, owners, owner, given)
    if isinstance(hierarchy, Star):
        text = ""
        if owner == 0:
            everybody = list(own)
            for k in range(1, owners):
                everybody += of_owner(schema, rules, hierarchy, owners, k, theirs[k] if theirs else None)
            everybody.sort(key=lambda o: (o.ordinal, o.owner, o.start))
            text = _cover(everybody, (), algorithm)
        text = bcast(world, text.encode(), 0, deadline).decode()
        return Checked(tuple(own), text, {}, text)
    covers: dict[int, str] = {}
    if families.down is not None:
        texts = gather_text(families.down, b"", deadline)
        assert texts is not None
        covers = {
            role: text.decode() for (role, _), text in zip(families.place.children, texts[1:], strict=True)
        }
    mine = _cover(own, tuple(covers.values()), algorithm)
    if families.up is not None:
        gather_text(families.up, mine.encode(), deadline)
    root = bcast(world, mine.encode() if owner == 0 else None, 0, deadline).decode()
    return Checked(tuple(own), mine, covers, root)


def _cover(own: Sequence[Own], children: Sequence[str], algorithm: str) -> str:
    return cover(((o.ordinal, o.owner, o.piece) for o in own), children, algorithm)


def _raise(cause: Cause | None) -> None:
    if cause is not None:
        raise error_of(cause)


def _encode(given: Given, ordinals: Sequence[int]) -> bytes:
    return msgspec.msgpack.encode([(o, [piece_ints(p) for p in given.get(o, ())]) for o in ordinals])


def _decode(data: bytes, schema: Schema) -> Given:
    found: Given = {}
    for ordinal, pieces in _DECODER.decode(data):
        shape = schema.regions[ordinal].shape
        checked = []
        for ints in pieces:
            piece = piece_of(ints)
            assert piece is not None
            check(piece, shape)
            checked.append(piece)
        found[ordinal] = tuple(checked)
    return found


def _judge(
    schema: Schema, rules: Sequence[Rule | None], world: World, given: Given, deadline: float
) -> Cause | None:
    """Deal the irregular regions to judges; return the agreed cause, if one found a fault."""
    ordinals, n = irregular_ordinals(rules), world.size
    dealt = [ordinals[k::n] for k in range(n)]
    received = exchange(world, [_encode(given, mine) for mine in dealt], deadline)
    cause: Cause | None = None
    try:
        everybody = []
        for k, data in enumerate(received):
            try:
                everybody.append(_decode(data, schema))
            except CheckpointError as error:
                error.role = k if error.role is None else error.role
                raise
        for ordinal in dealt[world.rank]:
            region = schema.regions[ordinal]
            pieces = [(k, p) for k, their in enumerate(everybody) for p in their.get(ordinal, ())]
            check_cover([p for _, p in pieces], region.shape, [k for k, _ in pieces], region.name)
    except (Refused, ValueError) as error:
        cause = cause_of(error)
    agreed = agree(world, cause, deadline)
    if agreed is not None and agreed.code == "incomplete-cover":
        # Nobody holds these words: the judge that found it is not to blame.
        return dataclasses.replace(agreed, role=None)
    return agreed


def _all_given(hierarchy: Hierarchy, world: World, given: Given, deadline: float) -> list[Given]:
    """On a star, give owner 0 everybody's irregular pieces: it writes them all."""
    if not isinstance(hierarchy, Star):
        return []
    ordinals = tuple(given)
    outgoing = [_encode(given, ordinals)] + [b""] * (world.size - 1)
    received = exchange(world, outgoing, deadline)
    if world.rank != 0:
        return []
    found = []
    for data in received:
        pieces = _DECODER.decode(data)
        found.append({o: tuple(p for p in map(piece_of, ps) if p is not None) for o, ps in pieces})
    return found
