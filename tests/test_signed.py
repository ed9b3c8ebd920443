"""Signed stores: what a key refuses, where it may lie, and what a reader without it is told."""

from __future__ import annotations

import json
import os
import pathlib
import shutil
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

import alpha_mpi as am
from alpha_mpi.cli import alpha_mpi
from alpha_mpi.format.signature import Key
from alpha_mpi.restore import choose
from alpha_mpi.store import observe
from alpha_mpi.store.signing import read_key
from alpha_mpi.store.store import Store

Job = Callable[..., am.Checkpointer]


@pytest.fixture
def key(tmp_path: pathlib.Path) -> pathlib.Path:
    return write_key(tmp_path / "key")


def write_key(path: pathlib.Path, data: bytes = b"0123456789abcdef" * 4, mode: int = 0o600) -> pathlib.Path:
    path.write_bytes(data)
    path.chmod(mode)
    return path


@pytest.fixture
def words() -> np.ndarray:
    return np.zeros(5, np.float32)


@pytest.fixture
def job(tmp_path: pathlib.Path, words: np.ndarray) -> Job:
    def open_(**options: Any) -> am.Checkpointer:
        state = am.State()
        state.replicate("w", words)
        return am.Checkpointer(options.pop("path", tmp_path / "s"), state, visibility=0.0, **options)

    return open_


@pytest.fixture
def store(job: Job, key: pathlib.Path, words: np.ndarray, tmp_path: pathlib.Path) -> pathlib.Path:
    """A signed store of two epochs: e000001-000001, -000002, and e000002-000001."""
    for updates in ((1, 2), (3,)):
        with job(key=key) as ckpt:
            ckpt.resume()
            for update in updates:
                words[:] = update
                ckpt.save(update)
    return tmp_path / "s"


def refused(code: str, call: Callable[[], Any]) -> am.Refused:
    with pytest.raises(am.Refused) as told:
        call()
    assert told.value.code == code, told.value
    return told.value


def resumed(job: Job, **options: Any) -> am.Moment:
    with job(**options) as ckpt:
        return ckpt.resume()


def command(*words: object) -> tuple[int, Any]:
    result = CliRunner().invoke(alpha_mpi(), [*map(str, words), "--json"])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.output
    return result.exit_code, json.loads(result.stdout)


def test_every_root_and_claim_is_signed(store: pathlib.Path, job: Job, key: pathlib.Path) -> None:
    files = [*(store / "published").iterdir(), *(store / "epochs").iterdir()]
    assert len(files) == 6
    assert all(file.read_bytes().split(b"\n")[1].startswith(b"sha256:") for file in files)
    assert all(file.read_bytes().split(b"\n")[2].startswith(b"hmac-sha256:") for file in files)
    assert resumed(job, key=key) == am.Moment(3, 3, 3)


def test_a_store_or_a_file_of_another_key(store: pathlib.Path, job: Job, tmp_path: pathlib.Path) -> None:
    before = {p: p.read_bytes() for p in store.rglob("*") if p.is_file()}
    other = write_key(tmp_path / "other", b"x" * 64)
    refused("forged-signature", lambda: resumed(job, key=other))
    code, told = command("verify", store, "--key", other)
    problems = [*told.get("problems", []), *(p for g in told["generations"] for p in g["problems"])]
    assert code == 1 and {p["code"] for p in problems} >= {"forged-signature"}
    assert before == {p: p.read_bytes() for p in store.rglob("*") if p.is_file()}


def test_without_the_key_one_reads_and_does_not_write(
    store: pathlib.Path, job: Job, key: pathlib.Path
) -> None:
    told = refused("unsigned", lambda: resumed(job))
    assert "needs the key" in str(told)
    with am.open(store) as reader:
        assert reader.latest()["w"][:].tolist() == [3] * 5
    with am.open(store, key=key) as reader:
        assert reader.latest()["w"][:].tolist() == [3] * 5
    for name, entry in (("verify", "signatures"), ("show", "signature"), ("ls", "signature")):
        assert command(name, store)[1][entry] == "not checked"
        assert command(name, store, "--key", key)[1][entry] == "checked"
    for name in ("verify", "show", "ls"):
        assert "not checked" in CliRunner().invoke(alpha_mpi(), [name, str(store)]).stdout
    for name in ("why", "plan"):
        assert command(name, store, "--key", key)[0] == 0


def test_an_unsigned_store_is_refused_with_a_key(job: Job, key: pathlib.Path, tmp_path: pathlib.Path) -> None:
    with job(digest="sha256") as ckpt:
        ckpt.resume()
        ckpt.save(1)
    refused("unsigned", lambda: resumed(job, key=key))
    # A copy made by who has the key is signed.
    store, new = tmp_path / "s", tmp_path / "new"
    assert command("cp", store, "latest", new, "--to-key", key)[0] == 0
    assert command("verify", new, "--key", key)[0] == 0
    assert resumed(job, key=key, path=new) == am.Moment(1, 1, 2)
    # And out of a signed store into one without a key.
    assert command("cp", new, "latest", tmp_path / "plain", "--key", key)[0] == 0
    assert command("verify", tmp_path / "plain")[1]["signatures"] == "none"


def test_weak_digests_cannot_be_signed(job: Job, key: pathlib.Path, tmp_path: pathlib.Path) -> None:
    refused("weak-digest", lambda: job(key=key, digest="xxh3-128"))
    assert not (tmp_path / "s" / "store.json").exists()
    with job() as ckpt:
        ckpt.resume()
        ckpt.save(1)
    refused("weak-digest", lambda: job(key=key))
    assert command("ls", tmp_path / "s", "--key", key)[1]["error"]["code"] == "weak-digest"
    assert command("cp", tmp_path / "s", "latest", tmp_path / "new", "--to-key", key)[0] == 0
    assert resumed(job, key=key, path=tmp_path / "new").update == 1


@pytest.mark.parametrize("algorithm", ["sha256", "blake3"])
def test_the_digest_may_be_chosen(job: Job, key: pathlib.Path, algorithm: str, words: np.ndarray) -> None:
    with job(key=key, digest=algorithm) as ckpt:
        ckpt.resume()
        words[:] = 4
        assert ckpt.save(1).root.startswith(algorithm)
    words[:] = 0
    assert resumed(job, key=key).update == 1
    assert words.tolist() == [4] * 5


ROOT = "published/e000002-000001.json"


def _reseal(data: bytes, change: Callable[[dict[str, Any]], None], signature: bool = True) -> bytes:
    """Return a file changed by who has no key: with a right digest, and the signature it had."""
    from alpha_mpi.format.envelope import seal

    body, _, line, _ = data.split(b"\n")
    value = json.loads(body)
    change(value)
    made = seal(json.dumps(value, sort_keys=True, separators=(",", ":")).encode(), "sha256")
    return made + (line + b"\n") * signature


def _cut(data: bytes) -> bytes:
    return b"\n".join(data.split(b"\n")[:2]) + b"\n"


@pytest.mark.parametrize(
    ("file", "change", "code"),
    [
        (ROOT, lambda d: _reseal(d, lambda v: v["root"].update(score="0x1p+0")), "forged-signature"),
        (ROOT, lambda d: _reseal(d, lambda v: v["root"].update(signed=False), False), "unsigned"),
        (ROOT, _cut, "unsigned"),
        ("epochs/e000002.json", lambda d: _reseal(d, lambda v: v.update(job="me")), "forged-signature"),
        ("epochs/e000002.json", _cut, "unsigned"),
    ],
)
def test_what_is_written_without_the_key_is_refused(
    store: pathlib.Path, job: Job, key: pathlib.Path, file: str, change: Callable[[bytes], bytes], code: str
) -> None:
    (store / file).write_bytes(change((store / file).read_bytes()))
    told = refused(code, lambda: resumed(job, key=key))
    assert told.file == file and told.role in (None, 0)
    # Not even a fallback passes it over: somebody wrote it.
    with job(key=key) as ckpt:
        refused(code, lambda: ckpt.resume(fallback=True))


def test_a_file_under_another_name_has_no_signature(store: pathlib.Path, key: pathlib.Path) -> None:
    published = store / "published"
    shutil.copy(published / "e000001-000002.json", published / "e000002-000002.json")
    shutil.copy(published / "e000001-000003.json", published / "e000002-000003.json")
    shutil.copy(store / "epochs" / "e000001.json", store / "epochs" / "e000003.json")
    with Store.open(store, key=read_key(key)) as opened:
        for position in ((2, 2), (2, 3)):
            found = observe.look(opened, *position)
            assert found is not None and found.damage is not None
            assert found.damage.code == "forged-signature"
        record = observe.record(opened, 3)
        assert record is not None and record.damage is not None and record.damage.code == "forged-signature"
        # The seal is a claim's place, and its record has the same bytes.
        seal = observe.look(opened, 1, 3)
        assert seal is not None and seal.claim is not None and seal.signed
        assert choose.survey(opened).damage is not None


def test_a_signature_is_of_one_store(
    store: pathlib.Path, job: Job, key: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    with job(key=key, path=tmp_path / "t") as ckpt:
        ckpt.resume()
        ckpt.save(1)
    for name in ("epochs/e000001.json", "published/e000001-000001.json"):
        kept = (store / name).read_bytes()
        (store / name).write_bytes((tmp_path / "t" / name).read_bytes())
        with Store.open(store, key=read_key(key)) as opened:
            found = observe.record(opened, 1) if "epochs" in name else observe.look(opened, 1, 1)
        assert found is not None and found.damage is not None and found.damage.code == "forged-signature"
        (store / name).write_bytes(kept)


def test_the_body_is_not_looked_at_before_the_signature(store: pathlib.Path, key: pathlib.Path) -> None:
    """A body that would be refused for what it holds is refused for who wrote it."""
    from alpha_mpi.format.envelope import seal

    line = (store / ROOT).read_bytes().split(b"\n")[2]
    (store / ROOT).write_bytes(seal(b"[" * 100_000, "sha256") + line + b"\n")
    with Store.open(store, key=read_key(key)) as opened:
        found = observe.look(opened, 2, 1)
    assert found is not None and found.damage is not None and found.damage.code == "forged-signature"


@pytest.mark.parametrize("mode", [0o604, 0o602, 0o620, 0o644, 0o666])
def test_a_key_that_others_can_reach_is_no_key(tmp_path: pathlib.Path, mode: int) -> None:
    told = refused("key-file", lambda: read_key(write_key(tmp_path / "k", mode=mode)))
    assert f"{mode:04o}" in str(told)


@pytest.mark.parametrize("nbytes", [0, 31, 4097, 100_000])
def test_a_key_of_another_length_is_no_key(tmp_path: pathlib.Path, nbytes: int) -> None:
    refused("key-file", lambda: read_key(write_key(tmp_path / "k", b"k" * nbytes)))


def test_what_is_no_file_is_no_key(tmp_path: pathlib.Path, job: Job) -> None:
    os.mkfifo(tmp_path / "fifo", 0o600)
    for path in (tmp_path / "missing", tmp_path, tmp_path / "fifo", "/dev/zero"):
        told = refused("key-file", lambda path=path: job(key=path))
        assert str(path) in str(told)
    assert not (tmp_path / "s").exists()


def test_a_key_is_never_shown(tmp_path: pathlib.Path) -> None:
    for mode in (0o600, 0o400, 0o640):
        (tmp_path / "k").unlink(missing_ok=True)
        key = read_key(write_key(tmp_path / "k", b"secret--" * 4, mode))
        assert "secret" not in repr(key) + str(key)
    assert not hasattr(Key(b"k" * 32), "__dict__")


def test_one_line_and_commands_that_change(
    key: pathlib.Path, tmp_path: pathlib.Path, store: pathlib.Path
) -> None:
    am.save(tmp_path / "t", {"a": np.arange(3)}, key=key)
    am.save(tmp_path / "t", {"a": np.arange(4)}, key=key)
    assert am.load(tmp_path / "t", key=key)["a"].tolist() == [0, 1, 2, 3]
    refused("unsigned", lambda: am.save(tmp_path / "t", {"a": np.arange(5)}))
    for words in (
        ("pin", store, "u1"),
        ("unpin", store, "u1"),
        ("rm", store, "u1"),
        ("diff", store, "u2", "u3"),
    ):
        assert command(*words, "--key", key)[0] == (1 if words[0] == "diff" else 0), words
    assert command("prune", store, "--keep", 1, "--key", key)[0] == 0
    assert command("verify", store, "--all", "--key", key)[0] == 0
