"""Format: bytes to values and back, pure (docs/format.md is normative).

A *body* is one value of ours as canonical JSON; the *envelope* closes it with its digest. The
*store file*, *claims*, *marks* and *group manifests* are such files. A *document* is a user's
JSON-able value. A *pack* is one file that holds many shards of one role; a *slot* is one shard's
place in it. A *message* is what one role tells another.

Every decoder asks the same questions in the same order: length, magic (or the form of the
envelope), digest, version, fields, nothing left over. Whatever it returns is valid by itself;
whatever it does not like it refuses with a stable code, naming file, expected and found. Nothing
in this room opens a file.
"""

from .claim import (
    Claim,
    Mark,
    StoreFile,
    decode_claim,
    decode_entry,
    decode_mark,
    decode_store_file,
    encode_claim,
    encode_mark,
    encode_store_file,
    root_digest,
)
from .documents import decode_document, encode_document
from .envelope import open_envelope, seal
from .manifest import (
    ChildRecord,
    Manifest,
    Place,
    RegionDecl,
    Root,
    ShardRecord,
    cover,
    decode_manifest,
    encode_manifest,
    piece_ints,
    piece_of,
    start_of,
)
from .pack import PackPlan, Slot, open_directory, open_header
from .records import check_records

__all__ = [
    "ChildRecord",
    "Claim",
    "Manifest",
    "Mark",
    "PackPlan",
    "Place",
    "RegionDecl",
    "Root",
    "ShardRecord",
    "Slot",
    "StoreFile",
    "check_records",
    "cover",
    "decode_claim",
    "decode_document",
    "decode_entry",
    "decode_manifest",
    "decode_mark",
    "decode_store_file",
    "encode_claim",
    "encode_document",
    "encode_manifest",
    "encode_mark",
    "encode_store_file",
    "open_directory",
    "open_envelope",
    "open_header",
    "piece_ints",
    "piece_of",
    "root_digest",
    "seal",
    "start_of",
]
