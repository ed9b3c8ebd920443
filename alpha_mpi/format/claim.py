"""Store file, claims and marks: the small files of a store (docs/format.md, sections 5 and 6).

A *claim* is what a continuation writes, twice: as the seal that stands as an entry of the epoch it
ends, and as the record of the epoch it begins. A *mark* says of one entry that it is removed, or
pinned. A file in published/ that is not a mark is a root or a claim.
"""

from __future__ import annotations

import re
from typing import TypeVar

import msgspec

from .. import digest
from ..errors import Refused
from ..model.capture import FORMAT_VERSION
from . import body
from .envelope import MANIFEST_LIMIT, SMALL_LIMIT, open_envelope, seal
from .manifest import Manifest, decode_manifest_body
from .question import LARGEST_U4, Question

#: Most characters of a job's or a host's name, and most generations a claim says it skipped.
TEXT = 1024
SKIPPED = 4096
#: Most differences a claim says were accepted, and of which kinds they are.
ACCEPTED = 4096
KINDS = ("contract", "device", "extra", "learner", "missing")

_is_entry = re.compile(r"e[0-9]{6,16}-[0-9]{6,16}", re.ASCII).fullmatch
_is_code = re.compile(r"[a-z][0-9a-z-]{0,63}", re.ASCII).fullmatch


class StoreFile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """store.json: the store's id (equal for all who mean this store) and its digest algorithm."""

    id: str
    digest: str = digest.DEFAULT
    kind: str = "store"
    version: int = FORMAT_VERSION


class Claim(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What the continuation that takes `epoch` says.

    `continues` is the root digest of the generation it resumes and `base` that generation's entry
    (epoch, number); both None for a fresh start. `skipped` lists damaged generations passed over,
    (entry name, code). `fork` is (root digest, job) where a generation was asked for by name.
    `accepted` lists what was accepted although it differs: (kind, subject, reason), in order.
    `signed` says that the file has a signature line.
    """

    store: str
    epoch: int
    continues: str | None
    base: tuple[int, int] | None
    nonce: str
    owners: int
    job: str = ""
    restart: int = 0
    host: str = ""
    skipped: tuple[tuple[str, str], ...] = ()
    fork: tuple[str, str] | None = None
    accepted: tuple[tuple[str, str, str], ...] = ()
    signed: bool = False
    kind: str = "claim"
    version: int = FORMAT_VERSION


class Mark(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """removed: the entry is a generation no more. pinned: retention leaves it alone."""

    kind: str
    store: str
    entry: tuple[int, int]
    root: str
    version: int = FORMAT_VERSION


_STORE = msgspec.json.Decoder(StoreFile)
_CLAIM = msgspec.json.Decoder(Claim)
_MARK = msgspec.json.Decoder(Mark)
_WRITTEN = "(being written)"

T = TypeVar("T")


def encode_store_file(value: StoreFile) -> bytes:
    """Return the bytes of store.json. Raises `Refused` rather than return what no reader takes."""
    _check_store_file(value, Question(_WRITTEN, "corrupt-store-file"))
    return seal(body.encode_body(value), value.digest)


def decode_store_file(data: bytes, file: str = "store.json") -> StoreFile:
    """Return the value of store.json. Raises `Refused` (`corrupt-store-file`, `format-version`...)."""
    value = _open(data, _STORE, ("store",), file, "corrupt-store-file")
    ask = Question(file, "corrupt-store-file")
    _check_store_file(value, ask)
    found = _algorithm_of(data)
    if found != value.digest:
        ask.refuse("the store's algorithm is not the one of its own digest line", value.digest, found)
    return value


def _algorithm_of(data: bytes) -> str:
    """Return which algorithm the digest line of a JSON file, opened already, says."""
    return data.split(b"\n", 2)[1].partition(b":")[0].decode()


def encode_claim(claim: Claim, algorithm: str = digest.DEFAULT) -> bytes:
    """Return the bytes of a claim: the same for the seal and for the epoch's record."""
    _check_claim(claim, Question(_WRITTEN, "corrupt-claim"))
    data = seal(body.encode_body(claim), algorithm)
    if len(data) > SMALL_LIMIT:
        raise Refused(
            "the claim is longer than any reader takes",
            code="too-large",
            expected=f"at most {SMALL_LIMIT} bytes",
            found=f"{len(data)} bytes",
        )
    return data


def decode_claim(data: bytes, file: str) -> Claim:
    """Return the value of a claim's file. Raises `Refused` (`corrupt-claim`, ...)."""
    claim = _open(data, _CLAIM, ("claim",), file, "corrupt-claim")
    _check_claim(claim, Question(file, "corrupt-claim"))
    return claim


def encode_mark(mark: Mark, algorithm: str = digest.DEFAULT) -> bytes:
    """Return the bytes of a mark's file."""
    _check_mark(mark, Question(_WRITTEN, "corrupt-mark"))
    return seal(body.encode_body(mark), algorithm)


def decode_mark(data: bytes, file: str) -> Mark:
    """Return the value of a mark's file. Raises `Refused` (`corrupt-mark`, ...)."""
    mark = _open(data, _MARK, ("removed", "pinned"), file, "corrupt-mark")
    _check_mark(mark, Question(file, "corrupt-mark"))
    return mark


def decode_entry(data: bytes, file: str) -> Manifest | Claim:
    """Return the root manifest or the claim of a file that stands as an entry.

    Raises `Refused`: `corrupt-root`, or `corrupt-claim` where the file is known to hold a claim.
    `root_digest` of the same bytes is the root digest.
    """
    text, _ = open_envelope(data, file=file, limit=MANIFEST_LIMIT, code="corrupt-root")
    kind = body.kind_of(text, ("manifest", "claim"), file=file, code="corrupt-root")
    if kind == "claim":
        return decode_claim(data, file=file)
    manifest = decode_manifest_body(text, file=file, code="corrupt-root")
    if manifest.root is None:
        raise Refused(
            "an entry is a root or a claim",
            code="corrupt-root",
            file=file,
            expected="role 0 with a root",
            found=f"the group manifest of role {manifest.role}",
        )
    return manifest


def root_digest(data: bytes, file: str) -> str:
    """Return the checked digest of the body of a root's (or any JSON) file: a root's name."""
    return open_envelope(data, file=file, code="corrupt-root")[1]


def _open(data: bytes, decoder: msgspec.json.Decoder[T], kinds: tuple[str, ...], file: str, code: str) -> T:
    text, _ = open_envelope(data, file=file, limit=SMALL_LIMIT, code=code)
    body.kind_of(text, kinds, file=file, code=code)
    return body.decode_body(text, decoder, file=file, code=code)


def _check_store_file(value: StoreFile, ask: Question) -> None:
    if value.kind != "store":
        ask.refuse("kind", "store", value.kind[:100])
    ask.number("format version", value.version, FORMAT_VERSION, FORMAT_VERSION)
    ask.identifier("store id", value.id)
    if value.digest not in digest.ALGORITHMS:
        ask.refuse("digest algorithm", " or ".join(digest.ALGORITHMS), value.digest[:100])


def _check_claim(claim: Claim, ask: Question) -> None:
    if claim.kind != "claim":
        ask.refuse("kind", "claim", claim.kind[:100])
    ask.number("format version", claim.version, FORMAT_VERSION, FORMAT_VERSION)
    ask.identifier("store id", claim.store)
    ask.number("epoch", claim.epoch, 1)
    if (claim.continues is None) != (claim.base is None):
        ask.refuse("continues and base stand together", "both or neither", f"{claim.continues}, {claim.base}")
    if claim.continues is not None and claim.base is not None:
        ask.digest("root digest continued", claim.continues)
        ask.number("epoch of the base", claim.base[0], 1, claim.epoch - 1)
        ask.number("entry of the base", claim.base[1], 1)
    ask.identifier("nonce", claim.nonce)
    ask.number("owners", claim.owners, 1, LARGEST_U4)
    ask.text("job", claim.job, TEXT)
    ask.text("host", claim.host, TEXT)
    ask.number("restart count", claim.restart)
    if len(claim.skipped) > SKIPPED:
        ask.refuse("generations skipped", f"at most {SKIPPED}", len(claim.skipped))
    for name, code in claim.skipped:
        if _is_entry(name) is None or _is_code(code) is None:
            ask.refuse("a generation skipped", "[entry name, code]", f"{name[:100]}, {code[:100]}")
    if claim.fork is not None:
        ask.digest("root digest of the fork", claim.fork[0])
        ask.text("job of the fork", claim.fork[1], TEXT)
    _check_accepted(claim, ask)


def _check_accepted(claim: Claim, ask: Question) -> None:
    accepted = claim.accepted
    if len(accepted) > ACCEPTED:
        ask.refuse("differences accepted", f"at most {ACCEPTED}", len(accepted))
    if accepted and claim.continues is None:
        ask.refuse("differences accepted", "none where nothing is continued", len(accepted))
    last = ("", "")
    for kind, subject, reason in accepted:
        if kind not in KINDS:
            ask.refuse("kind of difference", " or ".join(KINDS), kind[:100])
        ask.text("subject of a difference", subject, TEXT, 1)
        ask.text("reason for a difference", reason, TEXT, 1)
        if not last < (kind, subject) or (kind == last[0] and kind not in ("extra", "missing")):
            ask.refuse("order of the differences", f"after {last}"[:200], f"{kind} {subject}"[:200])
        last = kind, subject


def _check_mark(mark: Mark, ask: Question) -> None:
    if mark.kind not in ("removed", "pinned"):
        ask.refuse("kind", "removed or pinned", mark.kind[:100])
    ask.number("format version", mark.version, FORMAT_VERSION, FORMAT_VERSION)
    ask.identifier("store id", mark.store)
    ask.number("epoch of the entry", mark.entry[0], 1)
    ask.number("number of the entry", mark.entry[1], 1)
    ask.digest("root digest", mark.root)
