"""Path: the manifests from the root down to this owner's role, each against the record above it.

A manifest is believed for what its parent's record says of it, and for nothing else: the digest of
the whole file, the role, the size of its subtree, and the cover digest, which is computed anew from
its own records. Its prefix must be the root's.
"""

from __future__ import annotations

import dataclasses
import os
from typing import TYPE_CHECKING

import msgspec

from .. import digest
from ..errors import Refused
from ..format.envelope import MANIFEST_LIMIT, open_envelope
from ..format.manifest import ChildRecord, Manifest, Root, cover, decode_manifest
from ..format.records import check_records
from ..model.capture import Attempt
from ..protocol.hierarchy import Place, Star, Tree, place, roles
from ..store import names
from ..store.store import Store, await_name
from .refuse import check_root

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ..model.schema import Schema


_DECODER = msgspec.json.Decoder(Manifest)


@dataclasses.dataclass(frozen=True)
class Path:
    """The manifests of one role: from the root to its own (on a star both are one)."""

    schema: Schema
    manifests: tuple[Manifest, ...]

    @property
    def root(self) -> Manifest:
        """The root's manifest."""
        return self.manifests[0]

    @property
    def own(self) -> Manifest:
        """The manifest of this role."""
        return self.manifests[-1]


def manifest_file(attempt: Attempt, role: int) -> str:
    """Return the name below the store of a role's group manifest."""
    return os.path.join(names.DATA, names.attempt(attempt), names.group(role), names.manifest(role))


def read_manifest(store: Store, attempt: Attempt, role: int, visibility: float = 0.0) -> bytes:
    """Return the bytes of a group manifest's file, opened once.

    A missing name is believed after `visibility` seconds. Raises `Refused` ``missing-manifest``,
    ``not-a-file``, ``too-large``, ``truncated``.
    """
    file = manifest_file(attempt, role)

    def look() -> bytes:
        with store.files_of(attempt, role) as directory:
            return directory.read(names.manifest(role), MANIFEST_LIMIT)

    try:
        return await_name(look, visibility)
    except FileNotFoundError as error:
        raise Refused(
            "the group manifest of a role is missing", code="missing-manifest", role=role, file=file
        ) from error
    except Refused as error:
        error.file, error.role = file, role
        raise


def open_root(data: bytes, root: str, file: str, known: Schema | None = None) -> tuple[Manifest, Schema]:
    """Return a root and its schema (`known` if it is that one), checked by the root digest and in itself.

    Raises `Refused`: ``corrupt-root`` and what decoding raises.
    """
    manifest, found = decode_manifest(data, file=file, code="corrupt-root")
    if found != root:
        raise Refused(
            "the root has another digest", code="corrupt-root", file=file, expected=root, found=found
        )
    return manifest, check_whole_root(manifest, file, known)


def check_whole_root(manifest: Manifest, file: str, known: Schema | None = None) -> Schema:
    """Return the schema of a decoded root, once its rules, children, records and cover are checked."""
    schema = check_root(manifest, file, known)
    check_children(manifest, manifest, file)
    check_records(manifest, _root(manifest), file)
    check_cover_digest(manifest, manifest.prefix.cover, file)
    return schema


def open_child(data: bytes, record: ChildRecord, root: Manifest, file: str) -> Manifest:
    """Return the manifest that `record` names, checked against it and against the root.

    Raises `Refused` with the child's role: ``corrupt-manifest``, ``wrong-child``,
    ``wrong-subtree-size``, ``mixed-moments``, ``cover-differs`` and what decoding raises.
    """
    try:
        found = digest.of(data, record.manifest.partition(":")[0])
        if found != record.manifest:
            # Say what is wrong with it, where it says so itself.
            decode_manifest(data, file=file)
            raise Refused(
                "not the manifest that the one above it names",
                code="corrupt-manifest",
                expected=record.manifest,
                found=found,
            )
        manifest, _ = decode_manifest(data, file=file)
        _check_child(manifest, record, root)
        check_children(manifest, root, file)  # first: it names the child that is missing
        check_records(manifest, _root(root), file)
        check_cover_digest(manifest, record.cover, file)
    except Refused as error:
        error.role = record.role if error.role is None else error.role
        error.file = error.file or file
        raise
    return manifest


def _root(manifest: Manifest) -> Root:
    assert manifest.root is not None
    return manifest.root


def _check_child(manifest: Manifest, record: ChildRecord, root: Manifest) -> None:
    if manifest.role != record.role:
        raise Refused(
            "another role's manifest", code="wrong-child", expected=record.role, found=manifest.role
        )
    if manifest.size != record.size:
        raise Refused(
            f"child role {record.role}: a subtree of another size",
            code="wrong-subtree-size",
            expected=record.size,
            found=manifest.size,
        )
    difference = root.prefix.difference(manifest.prefix)
    if difference is not None:
        field, expected, found = difference
        raise Refused(
            f"this role's part was captured with another {field} than the root's",
            code="mixed-moments",
            expected=expected,
            found=found,
        )


def check_cover_digest(manifest: Manifest, expected: str, file: str) -> None:
    """Refuse (``cover-differs``) records that are not the pieces a cover digest stands for."""
    covers = [child.cover for child in manifest.children]
    found = cover(manifest.shards, covers, expected.partition(":")[0])
    if found != expected:
        raise Refused(
            "the pieces listed here are not those that were found to cover every region",
            code="cover-differs",
            role=manifest.role,
            file=file,
            expected=expected,
            found=found,
        )


def check_children(manifest: Manifest, root: Manifest, file: str) -> None:
    """Refuse children other than the hierarchy gives: missing, additional, or of another size."""
    hierarchy = hierarchy_of(root)
    if hierarchy is None:
        return  # another shape: the child records alone say it
    owners = _root(root).owners
    if manifest.role >= roles(hierarchy, owners):
        raise Refused("a role outside the tree", code="wrong-child", role=manifest.role, file=file)
    expected: Place = place(hierarchy, owners, manifest.role)
    found = tuple((child.role, child.size) for child in manifest.children)
    if found == expected.children and manifest.size == expected.size:
        return
    roles_found = [role for role, _ in found]
    missing = [role for role, _ in expected.children if role not in roles_found]
    extra = [role for role in roles_found if role not in dict(expected.children)]
    code, what, role = "wrong-subtree-size", "children of other sizes", manifest.role
    if missing:
        code, what, role = "missing-subtree", f"the subtree of role {missing[0]} is missing", missing[0]
    elif extra:
        code, what, role = "wrong-child", f"role {extra[0]} is no child here", extra[0]
    raise Refused(
        what,
        code=code,
        role=role,
        file=file,
        expected=_spell(expected.children),
        found=_spell(found),
    )


def _spell(children: Sequence[tuple[int, int]]) -> str:
    return ", ".join(f"role {role} ({size})" for role, size in children[:16]) or "no children"


def hierarchy_of(root: Manifest) -> Star | Tree | None:
    """Return the hierarchy a root says; None for ``tree, other``."""
    said = _root(root).hierarchy
    if said.get("kind") == "star":
        return Star()
    fan_out = said.get("fan_out")
    return Tree(fan_out) if isinstance(fan_out, int) else None


def record_of(parent: Manifest, role: int, file: str) -> ChildRecord:
    """Return the record of a child. Raises `Refused` ``missing-subtree`` if there is none."""
    for child in parent.children:
        if child.role == role:
            return child
    raise Refused(
        f"the manifest of role {parent.role} names no child role {role}",
        code="missing-subtree",
        role=role,
        file=file,
    )


def believe_path(files: Sequence[bytes], roles_: Sequence[int], root: str, root_file: str) -> list[Manifest]:
    """Return the manifests of a path that the roles above have read and checked; root first.

    Only the digests are compared: whoever read these very bytes from the store found them valid.
    """
    body, found = open_envelope(files[0], file=root_file, code="corrupt-root")
    if found != root:
        raise Refused(
            "the root came with another digest",
            code="corrupt-root",
            file=root_file,
            expected=root,
            found=found,
        )
    manifests = [_DECODER.decode(body)]
    attempt = manifests[0].prefix.attempt
    for data, role in zip(files[1:], roles_[1:], strict=True):
        record = record_of(manifests[-1], role, manifest_file(attempt, role))
        manifests.append(believe_child(data, record, attempt))
    return manifests


def believe_child(data: bytes, record: ChildRecord, attempt: Attempt) -> Manifest:
    """Return the manifest that `record` names, from bytes that another owner has found valid.

    Only the digest is compared. Raises `Refused` ``corrupt-manifest``.
    """
    file = manifest_file(attempt, record.role)
    got = digest.of(data, record.manifest.partition(":")[0])
    if got != record.manifest:
        raise Refused(
            "a manifest came with another digest",
            code="corrupt-manifest",
            role=record.role,
            file=file,
            expected=record.manifest,
            found=got,
        )
    return _DECODER.decode(open_envelope(data, file=file)[0])
