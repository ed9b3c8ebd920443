"""Store file, claims and marks."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from format.format_values import STORE, D, bounded, claims, marks, some_claim, some_root, store_files
from hypothesis import given

from alpha_mpi.errors import Refused
from alpha_mpi.format.claim import (
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
from alpha_mpi.format.envelope import seal
from alpha_mpi.format.manifest import encode_manifest

FILE = "epochs/e000004.json"


@bounded
@given(claims)
def test_claims_come_back(claim: Claim) -> None:
    data = encode_claim(claim, "sha256")
    assert decode_claim(data, FILE) == claim
    assert decode_entry(data, FILE) == claim
    assert encode_claim(claim, "sha256") == data


@bounded
@given(marks)
def test_marks_come_back(mark: Mark) -> None:
    assert decode_mark(encode_mark(mark), "m") == mark


@bounded
@given(store_files)
def test_store_files_come_back(value: StoreFile) -> None:
    data = encode_store_file(value)
    assert decode_store_file(data) == value
    assert data.split(b"\n")[1].startswith(value.digest.encode())


SMALL: list[tuple[Callable[..., Any], bytes, str]] = [
    (decode_store_file, encode_store_file(StoreFile(id=STORE)), "corrupt-store-file"),
    (decode_claim, encode_claim(some_claim()), "corrupt-claim"),
    (decode_mark, encode_mark(Mark(kind="pinned", store=STORE, entry=(3, 4), root=D)), "corrupt-mark"),
    (decode_entry, encode_claim(some_claim()), "corrupt-root"),
]


@pytest.mark.parametrize(("decode", "data", "code"), SMALL)
def test_every_flipped_bit_and_every_cut_is_refused(
    decode: Callable[..., Any], data: bytes, code: str
) -> None:
    for i in range(len(data) * 8):
        flipped = bytearray(data)
        flipped[i // 8] ^= 1 << i % 8
        with pytest.raises(Refused) as caught:
            decode(bytes(flipped), "the-file")
        assert caught.value.code in (code, "truncated")
        assert caught.value.file == "the-file"
    for n in range(len(data)):
        with pytest.raises(Refused) as caught:
            decode(data[:n], "the-file")
        assert caught.value.code == "truncated"
    with pytest.raises(Refused) as caught:
        decode(b"x" * (1 << 20) + data, "the-file")
    assert caught.value.code in ("too-large", code)


def put(key: str, new: Any) -> tuple[str, Any]:
    return key, new


@pytest.mark.parametrize(
    "edit",
    [
        put("kind", "store"),
        put("store", ""),
        put("store", "A"),
        put("epoch", 0),
        put("epoch", 2**53),
        put("epoch", -1),
        put("continues", None),
        put("continues", "x"),
        put("base", None),
        put("base", [4, 1]),
        put("base", [0, 1]),
        put("base", [3, 0]),
        put("base", [3]),
        put("nonce", "../../x"),
        put("nonce", ""),
        put("owners", 0),
        put("job", "j" * 1025),
        put("host", None),
        put("restart", -1),
        put("skipped", [["../x", "corrupt-shard"]]),
        put("skipped", [["e000001-000001", "Bad Code"]]),
        put("skipped", [["e000001-000001", "code"]] * 4097),
        put("fork", ["x", "job"]),
        put("fork", [D, "j" * 1025]),
        put("more", 1),
        put("restart", None),
        put("accepted", None),
        put("accepted", [["damage", "w", "why"]]),
        put("accepted", [["extra", "w"]]),
        put("accepted", [["extra", "w", ""]]),
        put("accepted", [["extra", "", "why"]]),
        put("accepted", [["extra", "w", "y" * 1025]]),
        put("accepted", [["extra", "w" * 1025, "why"]]),
        put("accepted", [["missing", "w", "why"], ["extra", "v", "why"]]),
        put("accepted", [["extra", "w", "why"], ["extra", "w", "why"]]),
        put("accepted", [["learner", "rate", "why"], ["learner", "seed", "why"]]),
        put("accepted", [["extra", f"{i:04}", "w"] for i in range(4097)]),
    ],
)
def test_a_wrong_claim_is_refused(edit: tuple[str, Any]) -> None:
    value = json.loads(encode_claim(some_claim()).split(b"\n")[0])
    value[edit[0]] = edit[1]
    data = seal(json.dumps(value, sort_keys=True, separators=(",", ":")).encode())
    with pytest.raises(Refused) as caught:
        decode_claim(data, FILE)
    assert caught.value.code == "corrupt-claim"


def test_nothing_is_accepted_where_nothing_is_continued() -> None:
    fresh = msgspec.structs.replace(some_claim(), continues=None, base=None)
    with pytest.raises(Refused) as caught:
        encode_claim(msgspec.structs.replace(fresh, accepted=(("extra", "w", "why"),)))
    assert caught.value.code == "corrupt-claim"


def test_a_claim_that_no_reader_would_take_is_not_written() -> None:
    accepted = tuple(("extra", f"{i:04}", "\x01" * 1024) for i in range(400))
    with pytest.raises(Refused) as caught:
        encode_claim(msgspec.structs.replace(some_claim(), accepted=accepted))
    assert caught.value.code == "too-large"


def test_a_claim_of_another_version_is_refused_as_such() -> None:
    value = json.loads(encode_claim(some_claim()).split(b"\n")[0])
    for version in (0, 2, None):
        value["version"] = version
        data = seal(json.dumps(value, sort_keys=True, separators=(",", ":")).encode())
        for decode in (decode_claim, decode_entry):
            with pytest.raises(Refused) as caught:
                decode(data, FILE)
            assert caught.value.code == "format-version"


@pytest.mark.parametrize(
    "wrong",
    [
        msgspec.structs.replace(some_claim(), epoch=0),
        msgspec.structs.replace(some_claim(), kind="seal"),
        msgspec.structs.replace(some_claim(), version=2),
        msgspec.structs.replace(some_claim(), host="\ud800"),
    ],
)
def test_a_claim_that_would_be_refused_is_not_written(wrong: Claim) -> None:
    with pytest.raises(Refused) as caught:
        encode_claim(wrong)
    assert caught.value.code == "corrupt-claim"


def test_marks_and_store_files_that_would_be_refused_are_not_written() -> None:
    good = Mark(kind="pinned", store=STORE, entry=(3, 4), root=D)
    for changed in ({"kind": "lost"}, {"version": 2}, {"store": "/"}, {"entry": (0, 1)}, {"root": "x"}):
        with pytest.raises(Refused) as caught:
            encode_mark(msgspec.structs.replace(good, **changed))
        assert caught.value.code == "corrupt-mark"
    for changed in ({"kind": "shop"}, {"version": 2}, {"id": ""}, {"digest": "md5"}):
        with pytest.raises(Refused) as caught:
            encode_store_file(msgspec.structs.replace(StoreFile(id=STORE), **changed))
        assert caught.value.code == "corrupt-store-file"


def test_an_entry_is_a_root_or_a_claim() -> None:
    root = some_root()
    data = encode_manifest(root)
    assert decode_entry(data, "f") == root
    assert root_digest(data, "f") == data.split(b"\n")[1].decode()
    with pytest.raises(Refused) as caught:
        decode_entry(encode_mark(Mark(kind="removed", store=STORE, entry=(1, 1), root=D)), "f")
    assert caught.value.code == "corrupt-root"


def test_a_store_file_under_another_algorithm_is_refused() -> None:
    """Found by fuzzing: the digest line says the store's algorithm, and no other."""
    body = encode_store_file(StoreFile(id=STORE)).split(b"\n")[0]
    for algorithm in ("sha256", "blake3"):
        with pytest.raises(Refused) as caught:
            decode_store_file(seal(body, algorithm))
        assert caught.value.code == "corrupt-store-file"
    assert decode_store_file(seal(body)).id == STORE
