"""Hierarchy: who is whose parent. Roles are numbered in preorder.

The n - 1 roles below a node are dealt as shares to min(fan_out, n - 1) children, recursively
(sizes differ by at most one, larger first); a child's subtree is the range [child, child + size).
"""

from __future__ import annotations

import dataclasses

from ..errors import Refused


@dataclasses.dataclass(frozen=True)
class Star:
    """One role holds all owners' shards: a tree of height 0."""


@dataclasses.dataclass(frozen=True)
class Tree:
    """A tree in which no role has more than `fan_out` children. Raises `Refused` below 1."""

    fan_out: int = 16

    def __post_init__(self) -> None:
        if not isinstance(self.fan_out, int) or self.fan_out < 1:
            raise Refused("a tree needs a fan-out of at least 1", code="hierarchy", found=self.fan_out)


Hierarchy = Star | Tree


def roles(hierarchy: Hierarchy, owners: int) -> int:
    """Return the number of roles: 1 on a star, one per owner on a tree."""
    return 1 if isinstance(hierarchy, Star) else owners


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
    here, h = place(hierarchy, owners, role), 0
    while here.children:
        first = here.children[0]  # larger shares come first, so the first child is the deepest
        here, h = _place(hierarchy, first[0], first[1], here.role, here.depth + 1), h + 1
    return h


def _place(hierarchy: Hierarchy, role: int, size: int, parent: int | None, depth: int) -> Place:
    below = size - 1
    if below == 0 or isinstance(hierarchy, Star):
        return Place(role, size, parent, depth, ())
    k = min(hierarchy.fan_out, below)
    share, extra = divmod(below, k)
    children, at = [], role + 1
    for i in range(k):
        n = share + (i < extra)
        children.append((at, n))
        at += n
    return Place(role, size, parent, depth, tuple(children))


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
