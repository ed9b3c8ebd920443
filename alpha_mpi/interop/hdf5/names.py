"""Names: where a region stands in a file, and what else does.

A region's name is the path of its dataset, so that ``adam/m`` lies in the group ``adam``. A name that
HDF5 would read otherwise, or that begins inside another region's dataset, is *escaped*: written
with ``%2F`` for ``/``; an attribute then holds the name itself.
"""

from __future__ import annotations

from collections.abc import Sequence

#: Begins the names of everything in a file that is not a region.
OURS = "alpha_mpi."
#: The group of the datasets that a view's virtual datasets are put together from.
PIECES = OURS + "pieces"
#: The tables of all shards, and of all files they lie in.
SHARDS, FILES = OURS + "shards", OURS + "files"
#: Attributes of the root.
VERSION, KIND, GENERATION, STORE, ROOT = (
    OURS + w for w in ("version", "kind", "generation", "store", "root")
)
UPDATE, CURSOR, EPOCH, OWNERS = (OURS + w for w in ("update", "cursor", "epoch", "owners"))
LEARNER, CONTRACT, VERIFIED = (OURS + w for w in ("learner", "contract", "verified"))
SCHEMA, LAYOUTS, COVER, ELSEWHERE = (OURS + w for w in ("schema", "layout", "cover", "elsewhere"))
#: Attributes of a dataset.
ORDINAL, NAME, REGION, FORMAT, STORED, LAYOUT, DIGEST = (
    *(OURS + w for w in ("ordinal", "name", "region", "format", "stored")),
    *(OURS + w for w in ("rule", "digest")),
)

#: What makes plain HDF5 look for the packs beside the file, from any folder.
PREFIX_VARIABLE, PREFIX = "HDF5_EXTFILE_PREFIX", "${ORIGIN}"


def paths_of(regions: Sequence[str]) -> list[str]:
    """Return the path of each region's dataset, all different and none inside another."""
    plain = {name for name in regions if _is_plain(name)}
    found = []
    for name in regions:
        parts = name.split("/")
        inside = any("/".join(parts[:i]) in plain for i in range(1, len(parts)))
        found.append(name if name in plain and not inside else escaped(name))
    return found


def escaped(name: str) -> str:
    """Return a name of one part: no two names give the same, and no plain name looks like one."""
    text = name.replace("%", "%25").replace("/", "%2F").replace("\0", "%00")
    return text if "%" in text else "%_" + text


def _is_plain(name: str) -> bool:
    if "%" in name or "\0" in name or name.startswith(OURS):
        return False
    return all(part not in ("", ".") for part in name.split("/"))
