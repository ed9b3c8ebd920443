"""Hierarchy: who is whose parent. Roles are numbered in preorder.

The n - 1 roles below a node are dealt as shares to min(fan_out, n - 1) children, recursively
(sizes differ by at most one, larger first); a child's subtree is the range [child, child + size).

A tree may follow the machine's *nodes*: the first role of each node, its *leader*, has the other
roles of its node below it, dealt as above, and then the leaders of other nodes, whose nodes are
dealt in the same way. So one role per node has a parent on another node.
"""

from __future__ import annotations

import bisect
import dataclasses
import functools
import itertools

from ..errors import Refused


@dataclasses.dataclass(frozen=True)
class Star:
    """One role holds all owners' shards: a tree of height 0."""


@dataclasses.dataclass(frozen=True)
class Tree:
    """A tree in which no role has more than `fan_out` children. Raises `Refused` below 1.

    With `nodes`, the number of owners on each node in order, the tree follows them: no leader has
    more than `fan_out` children on its own node, and leaders of `fan_out` others.
    """

    fan_out: int = 16
    nodes: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if not isinstance(self.fan_out, int) or self.fan_out < 1:
            raise Refused("a tree needs a fan-out of at least 1", code="hierarchy", found=self.fan_out)
        if not all(isinstance(size, int) and size >= 1 for size in self.nodes):
            raise Refused("a node has at least one owner", code="hierarchy", found=str(self.nodes)[:200])

    @functools.cached_property
    def leaders(self) -> tuple[int, ...]:
        """The first role of each node, and behind the last one the number of roles."""
        return tuple(itertools.accumulate(self.nodes, initial=0))


Hierarchy = Star | Tree


def roles(hierarchy: Hierarchy, owners: int) -> int:
    """Return the number of roles: 1 on a star, one per owner on a tree.

    Raises `Refused` (``hierarchy``) for nodes that hold another number of owners.
    """
    if isinstance(hierarchy, Star):
        return 1
    if hierarchy.nodes and hierarchy.leaders[-1] != owners:
        raise Refused(
            "the nodes hold another number of owners",
            code="hierarchy",
            expected=f"{owners} owners",
            found=f"{hierarchy.leaders[-1]} on {len(hierarchy.nodes)} nodes",
        )
    return owners


def role_of(hierarchy: Hierarchy, owner: int) -> int:
    """Return the role that writes this owner's shards."""
    return 0 if isinstance(hierarchy, Star) else owner


@dataclasses.dataclass(frozen=True)
class Place:
    """One role's place in the tree: what it must expect and of whom."""

    role: int
    size: int
    parent: int | None
    depth: int
    children: tuple[tuple[int, int], ...]  # (role, subtree size), in preorder


def path(hierarchy: Hierarchy, owners: int, role: int) -> tuple[int, ...]:
    """Return the roles from the root down to `role`, both included."""
    return tuple(p.role for p in _walk(hierarchy, owners, role))


def place(hierarchy: Hierarchy, owners: int, role: int) -> Place:
    """Return the place of one role; work and memory grow with depth x fan-out, not with owners."""
    return _walk(hierarchy, owners, role)[-1]


def height(hierarchy: Hierarchy, owners: int, role: int = 0) -> int:
    """Return the height of the subtree below `role`: 0 for a leaf."""
    return _height(hierarchy, role, place(hierarchy, owners, role).size)


def _height(hierarchy: Hierarchy, role: int, size: int) -> int:
    h = 0
    while below := _children(hierarchy, role, size):
        if isinstance(hierarchy, Tree) and _node(hierarchy, role) is not None:
            return h + 1 + max(_height(hierarchy, *child) for child in below)
        (role, size), h = below[0], h + 1  # larger shares come first, so the first child is the deepest
    return h


def _place(hierarchy: Hierarchy, role: int, size: int, parent: int | None, depth: int) -> Place:
    return Place(role, size, parent, depth, _children(hierarchy, role, size))


def _node(hierarchy: Tree, role: int) -> int | None:
    """Return the node that this role leads, if it leads one."""
    if not hierarchy.nodes:
        return None
    i = bisect.bisect_left(hierarchy.leaders, role)
    return i if hierarchy.leaders[i] == role else None


def _children(hierarchy: Hierarchy, role: int, size: int) -> tuple[tuple[int, int], ...]:
    """Return the children of a role whose subtree is [role, role + size)."""
    if size == 1 or isinstance(hierarchy, Star):
        return ()
    first = _node(hierarchy, role)
    if first is None:
        return _deal(role + 1, size - 1, hierarchy.fan_out)
    leaders = hierarchy.leaders
    last = bisect.bisect_left(leaders, role + size)
    own = _deal(role + 1, hierarchy.nodes[first] - 1, hierarchy.fan_out)
    others = _deal(first + 1, last - first - 1, hierarchy.fan_out)
    return own + tuple((leaders[i], leaders[i + n] - leaders[i]) for i, n in others)


def _deal(at: int, count: int, fan_out: int) -> tuple[tuple[int, int], ...]:
    """Deal [at, at + count) as shares to as many children as there may be; (first, size) of each."""
    if not count:
        return ()
    k = min(fan_out, count)
    share, extra = divmod(count, k)
    children = []
    for i in range(k):
        n = share + (i < extra)
        children.append((at, n))
        at += n
    return tuple(children)


def _walk(hierarchy: Hierarchy, owners: int, role: int) -> list[Place]:
    n = roles(hierarchy, owners)
    if not 0 <= role < n:
        raise ValueError(f"no role {role} among {n}")
    walk = [_place(hierarchy, 0, n, None, 0)]
    while walk[-1].role != role:
        here = walk[-1]
        child, size = next(c for c in here.children if c[0] <= role < c[0] + c[1])
        walk.append(_place(hierarchy, child, size, here.role, here.depth + 1))
    return walk
