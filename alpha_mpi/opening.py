"""Opening: what all owners agree on before the first resume.

Every owner brings its state, learner, contract, hierarchy and path; whatever differs is refused
with the owner named. Then all mean one store, the sub-communicators stand, and the layout is known
to cover every region exactly.
"""

from __future__ import annotations

import dataclasses
import functools
import os
from collections.abc import Callable
from typing import Any, TypeVar

import msgspec

from .bound import Bound
from .declared import Declared, hierarchy_data
from .errors import Cause, Refused, cause_of, error_of, warn_user
from .format.manifest import RegionDecl, Root
from .model.identity import Contract, Learner
from .model.layout import Irregular, Replicated
from .mpi.agreement import agree, bcast
from .mpi.families import Families
from .mpi.world import World, open_world
from .protocol.hierarchy import Hierarchy, Star, Tree, roles
from .publication import layout as layouts
from .publication.capture import Taking
from .publication.estimate import array_nbytes
from .state import State
from .store.exposure import ExposedStoreWarning, exposed_store
from .store.signing import read_key
from .store.store import Store

T = TypeVar("T")

#: Up to this many owners the default is a star; above it a tree.
STAR_OWNERS = 4
#: Fan-out of the default tree.
FAN_OUT = 16


@dataclasses.dataclass
class Run:
    """One opened job: everything that does not change from save to save."""

    world: World
    families: Families
    hierarchy: Hierarchy
    store: Store
    declared: Declared
    learner: Learner
    contract: Contract
    layout: layouts.Checked
    given: layouts.Given
    deadline: float
    schema_digest: str
    learner_digest: str
    contract_digest: str
    layout_digest: str
    bound: Bound
    groups: tuple[tuple[int, tuple[int, ...]], ...]
    _taking: Taking | None = None

    @property
    def taking(self) -> Taking:
        """How this owner's words are captured, as long as its own pieces are the same."""
        found = self._taking
        if found is None or found.own is not self.layout.own:
            declared = self.declared
            own = self.layout.own
            found = Taking(declared.schema, declared.rules, own, declared.finite, declared.owner)
            self._taking = found
        return found

    @functools.cached_property
    def region_names(self) -> dict[int, str]:
        """Name of each region, by ordinal."""
        return {r.ordinal: r.name for r in self.declared.regions}

    @functools.cached_property
    def documents(self) -> frozenset[int]:
        """Ordinals of the documents."""
        return frozenset(r.ordinal for r in self.declared.regions if r.is_document)

    @functools.cached_property
    def array_nbytes(self) -> int:
        """Bytes of all array regions of all owners."""
        return array_nbytes(self.declared.schema, self.world.size)

    @functools.cached_property
    def root(self) -> Root:
        """What only a root says; entry, lineage and replicas are filled in at each save."""
        declared = self.declared
        return Root(
            store=self.store.id,
            entry=0,
            continues=None,
            schema=tuple(RegionDecl(r.name, r.kind, r.format, r.shape) for r in declared.regions),
            layouts=tuple(rule.as_data() for rule in declared.rules),
            replicas=(),
            owners=self.world.size,
            hierarchy=dict(hierarchy_data(self.hierarchy)),
            learner=self.learner.as_data(),
            contract=self.contract.as_data(),
            signed=self.store.key is not None,
        )

    @functools.cached_property
    def _irregular(self) -> tuple[int, ...]:
        return layouts.irregular_ordinals(self.declared.rules)

    def check_layout(self) -> None:
        """Decide anew who writes what, if an irregular region has other pieces on some owner."""
        ordinals = self._irregular
        if not ordinals:
            return
        given = self._given(ordinals)
        if not changed_anywhere(self.world, given != self.given, self.deadline):
            return
        self.given = given
        self.layout = layouts.check_layout(
            self.declared.schema,
            self.declared.rules,
            self.hierarchy,
            self.families,
            given,
            self.store.algorithm,
            self.deadline,
        )

    def _given(self, ordinals: tuple[int, ...]) -> layouts.Given:
        return everybody(self.world, lambda: given_pieces(self.declared, ordinals), self.deadline)

    def close(self) -> None:
        """Free what was opened; called by every owner."""
        self.store.close()
        self.families.free()
        self.world.free()


def everybody(world: World, work: Callable[[], T], deadline: float) -> T:
    """Do something on every owner; when it fails on one, raise its error on all of them."""
    result: Any = None
    cause: Cause | None = None
    try:
        result = work()
    except BaseException as error:  # also the user's SystemExit: nobody may be left waiting
        cause = cause_of(error, world.rank)
    agreed = agree(world, cause, deadline)
    if agreed is not None:
        raise error_of(agreed)
    return result  # type: ignore[no-any-return]


def changed_anywhere(world: World, changed: bool, deadline: float) -> bool:
    """Return whether some owner says yes, on every owner."""
    note = Cause(kind="error", code="changed", message="") if changed else None
    return agree(world, note, deadline) is not None


def given_pieces(declared: Declared, ordinals: tuple[int, ...]) -> layouts.Given:
    """Return the pieces this owner holds of the irregular regions."""
    return {o: tuple(p for p in declared.pieces(o) if p is not None) for o in ordinals}


def replica_groups(declared: Declared) -> tuple[tuple[int, tuple[int, ...]], ...]:
    """Return the replica groups this owner is in: (ordinal, owners that hold the same piece)."""
    found = []
    for region, rule in zip(declared.regions, declared.rules, strict=True):
        if region.kind != "array" or isinstance(rule, Replicated | Irregular):
            continue
        members = tuple(rule.group(region.shape, declared.owners, declared.owner))
        if len(members) > 1:
            found.append((region.ordinal, members))
    return tuple(found)


def default_hierarchy(owners: int) -> Hierarchy:
    """Return a star for few owners, otherwise a tree."""
    return Star() if owners <= STAR_OWNERS else Tree(FAN_OUT)


def open_run(
    path: str | os.PathLike[str],
    state: State,
    comm: Any,
    learner: Learner | None,
    contract: Contract | None,
    hierarchy: Hierarchy | None,
    deadline: float,
    algorithm: str | None,
    visibility: float,
    key: str | os.PathLike[str] | None = None,
) -> Run:
    """Open a job on a store. Called by every owner; raises the same error on each of them."""
    world = open_world(comm)
    try:
        return _open_run(
            world, path, state, learner, contract, hierarchy, deadline, algorithm, visibility, key
        )
    except BaseException:
        world.free()
        raise


def _open_run(
    world: World,
    path: str | os.PathLike[str],
    state: State,
    learner: Learner | None,
    contract: Contract | None,
    hierarchy: Hierarchy | None,
    deadline: float,
    algorithm: str | None,
    visibility: float,
    key: str | os.PathLike[str] | None,
) -> Run:
    form = hierarchy or default_hierarchy(world.size)

    def declare() -> Declared:
        if not isinstance(form, Star | Tree):
            raise Refused(
                "not a hierarchy",
                code="hierarchy",
                expected="Star() or Tree(fan_out)",
                found=repr(form)[:200],
            )
        roles(form, world.size)
        for given, kind in ((state, State), (learner, Learner), (contract, Contract)):
            if not isinstance(given, kind) and (given is not None or kind is State):
                name = kind.__name__
                raise Refused(
                    f"{name.lower()}= takes a {name}",
                    code="argument",
                    expected=f"{name}(...)",
                    found=repr(given)[:200],
                )
        return state.declare(world.size, world.rank, form)

    declared = everybody(world, declare, deadline)
    state.in_use = True
    learner = learner or Learner()
    contract = (contract or Contract()).resolved(declared.schema)
    _same_on_all(world, declared, learner, contract, form, key is not None, deadline)
    bound = Bound.of(contract, declared.devices, world, deadline)
    contract = bound.contract
    store = _open_store(world, path, deadline, algorithm, visibility, key)
    try:
        families = Families(world, form, deadline)
        ordinals = layouts.irregular_ordinals(declared.rules)
        given = everybody(world, lambda: given_pieces(declared, ordinals), deadline)
        checked = layouts.check_layout(
            declared.schema, declared.rules, form, families, given, store.algorithm, deadline
        )
    except BaseException:
        store.close()
        raise
    return Run(
        world=world,
        families=families,
        hierarchy=form,
        store=store,
        declared=declared,
        learner=learner,
        contract=contract,
        layout=checked,
        given=given,
        deadline=deadline,
        schema_digest=declared.schema.digest(store.algorithm),
        learner_digest=learner.digest(store.algorithm),
        contract_digest=contract.digest(store.algorithm),
        layout_digest=declared.layout_digest(store.algorithm),
        bound=bound,
        groups=replica_groups(declared),
    )


def _same_on_all(
    world: World,
    declared: Declared,
    learner: Learner,
    contract: Contract,
    hierarchy: Hierarchy,
    key: bool,
    deadline: float,
) -> None:
    """Refuse an owner whose declaration is not owner 0's, and say in what it differs."""
    mine = {
        "schema": declared.schema.as_data(),
        "layout": [rule.as_data() for rule in declared.rules],
        "learner": learner.as_data(),
        "contract": contract.as_data(),
        "hierarchy": {**hierarchy_data(hierarchy), "nodes": list(getattr(hierarchy, "nodes", ()))},
        "key": "given" if key else "none",
    }
    data = msgspec.msgpack.encode(mine)
    theirs = msgspec.msgpack.decode(bcast(world, data if world.rank == 0 else None, 0, deadline))

    def compare() -> None:
        plain = msgspec.msgpack.decode(data)
        codes = {
            "schema": "schema-differs",
            "layout": "layout-differs",
            "learner": "other-learner",
            "contract": "other-contract",
            "hierarchy": "layout-differs",
            "key": "argument-differs",
        }
        for what, code in codes.items():
            if plain[what] == theirs[what]:
                continue
            region = None
            expected, found = theirs[what], plain[what]
            if what in ("schema", "layout"):
                for i in range(max(len(expected), len(found))):
                    a = expected[i] if i < len(expected) else None
                    b = found[i] if i < len(found) else None
                    if a != b:
                        expected, found = a, b
                        names = plain["schema"] if i < len(plain["schema"]) else theirs["schema"]
                        region = names[i][0]
                        break
            raise Refused(
                f"its {what} is not owner 0's",
                code=code,
                role=world.rank,
                region=region,
                expected=expected,
                found=found,
            )

    everybody(world, compare, deadline)


def _open_store(
    world: World,
    path: str | os.PathLike[str],
    deadline: float,
    algorithm: str | None,
    visibility: float,
    key: str | os.PathLike[str] | None,
) -> Store:
    """Open one store on all owners: it is the store id that counts, not the spelling of the path.

    Owner 0 alone reads the key: it alone reads and writes what is signed.
    """
    store: Store | None = None
    try:

        def create() -> Store | None:
            if world.rank != 0:
                return None
            secret = None if key is None else read_key(key)
            made = Store.create_or_open(path, algorithm, visibility=0.0, key=secret)
            told = exposed_store(made)
            if told is not None:
                try:
                    warn_user(ExposedStoreWarning(told))
                except ExposedStoreWarning:  # the user's filter makes it an error
                    made.close()
                    raise
            return made

        store = everybody(world, create, deadline)
        facts = b""
        if store is not None:
            by_link = store.root.by_link
            facts = msgspec.msgpack.encode([store.id, store.path, by_link])
        id_, first, by_link = msgspec.msgpack.decode(bcast(world, facts, 0, deadline))

        def join() -> Store:
            if store is not None:
                return store
            found = os.path.abspath(os.fspath(path))
            try:
                # Owner 0 has made it, so a missing name can only be old news or another path.
                wait = visibility if os.path.realpath(found) == os.path.realpath(first) else 0.0
                mine = Store.open(path, write=True, visibility=wait, by_link=by_link)
            except Refused as error:
                if error.code not in ("no-store", "not-a-store", "missing-directory"):
                    raise
                raise _other_store(world.rank, first, found) from error
            if mine.id != id_:
                mine.close()
                raise _other_store(world.rank, first, found)
            return mine

        return everybody(world, join, deadline)
    except BaseException:
        if store is not None:
            store.close()
        raise


def _other_store(role: int, expected: str, found: str) -> Refused:
    return Refused(
        "it means another store than owner 0: give every rank the same path",
        code="other-store",
        role=role,
        file=found,
        expected=expected,
        found=found,
    )
