"""Prefixes: does a role's capture belong to the attempt? If not, which field says so.

Called by the role itself with the root's prefix, and again by its parent at the commitment.
"""

from __future__ import annotations

from collections.abc import Sequence

from ..errors import Cause, Refused
from ..format.messages import REPLICAS_LIMIT
from ..model.capture import Prefix
from .causes import RegionName, named, plain

#: (ordinal, region digest) of replicated regions, in schema order.
Replicas = Sequence[tuple[int, str]]

#: With more replicated regions than this the root lists none, and a differing one is not named.
LISTED = REPLICAS_LIMIT

_REFUSALS = {
    "version": ("format-version", "its format version is not the root's", False),
    "attempt": ("mixed-moments", "its capture belongs to another attempt than the root's", True),
    "schema": ("schema-differs", "its schema is not the root's", False),
    "learner": ("other-learner", "its learner is not the root's", False),
    "contract": ("other-contract", "its numerical contract is not the root's", False),
    "layout": ("layout-differs", "its layout is not the root's", False),
    "cover": ("cover-differs", "its cover digest is not the root's", True),
    "moment": ("mixed-moments", "its capture is of another moment than the root's", True),
    "replicas": ("diverged-replica", "its replicated words are not the root's", True),
}


def difference(
    root: Prefix,
    other: Prefix,
    role: int,
    *,
    root_replicas: Replicas = (),
    replicas: Replicas = (),
    region_name: RegionName | None = None,
) -> Cause | None:
    """Return why `other`, the prefix of `role`, is not that of the attempt; None where it is.

    The replicated regions' digests, where both sides are at hand, serve to name the first region
    that differs.
    """
    found = root.difference(other)
    if found is None:
        return None
    field = found[0]
    code, message, retryable = _REFUSALS[field]
    expected, actual = plain(getattr(root, field)), plain(getattr(other, field))
    region = None
    if field == "replicas":
        first = _first_difference(root_replicas, replicas)
        if first is not None:
            ordinal, expected, actual = first
            region = named(ordinal, region_name)
            message = "a replicated region's words are not the root's"
    return Cause(
        kind=Refused.kind,
        code=code,
        message=message,
        retryable=retryable,
        role=role,
        region=region,
        expected=expected,
        found=actual,
    ).bounded()


def _first_difference(root: Replicas, other: Replicas) -> tuple[int, str, str] | None:
    if not root or not other:
        return None
    theirs = dict(other)
    for ordinal, digest in root:
        found = theirs.pop(ordinal, "-")
        if found != digest:
            return ordinal, digest, found
    for ordinal, digest in sorted(theirs.items()):
        return ordinal, "-", digest
    return None
