"""What a store may hold instead of its files: refused by name, on restore and by every command that
only reads, without blocking and without following a link; what is not needed does not matter.
"""

from __future__ import annotations

import json
import os
import pathlib
import shutil
import socket
import stat
from collections.abc import Callable
from typing import Any

import pytest
from damage import kit

import alpha_mpi as am
from alpha_mpi import digest
from alpha_mpi.canonical import canonical
from alpha_mpi.format.envelope import seal

pytestmark = pytest.mark.timeout(120)

#: Commands that only read a store, each on one generation; FILE: something to be written elsewhere.
READS: dict[str, tuple[str, ...]] = {
    "cp": ("GENERATION", "ELSEWHERE"),
    "diff": ("GENERATION", "OTHER"),
    "h5": ("GENERATION", "-o", "ELSEWHERE"),
    "ls": (),
    "plan": ("GENERATION",),
    "show": ("GENERATION", "--tree"),
    "verify": ("GENERATION",),
    "why": (),
}
#: The files without which a command has nothing true to say.
ROOTS = ("root", "store.json")
NEEDS = {
    "cp": ("pack", "manifest", *ROOTS),
    "diff": ("pack", "manifest", *ROOTS),
    "h5": ("pack", "manifest", *ROOTS),
    "ls": ("newest root", "record", "store.json"),
    "plan": ("manifest", *ROOTS),
    "show": ("manifest", *ROOTS),
    "verify": ("pack", "manifest", "record", "mark", "seal", *ROOTS),
    "why": ("newest root", "record", "store.json"),
}


def kinds(file: str) -> set[str]:
    """What a file is to the commands."""
    name = pathlib.PurePath(file).name
    if file == "store.json":
        return {"store.json"}
    if file.startswith("epochs/"):
        return {"record"}
    if name.endswith((".pinned", ".removed")):
        return {"mark"}
    if file.startswith("data/"):
        return {"pack" if name.endswith(".pack") else "manifest"}
    if file == "published/e000001-000002.json":
        return {"seal"}
    return {"root", "newest root"} if kit.NEWEST in file else {"root"}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    path = tmp_path_factory.mktemp("made") / "ckpt"
    kit.make(path)
    return path


# ---------------------------------------------------------------- what stands in place of a file


def body_of(good: bytes) -> Any:
    return json.loads(good.split(b"\n")[0])


def spelled(change: Callable[[str], str]) -> Callable[[bytes], bytes]:
    """Change the text of a body, and repair its digest."""

    def harm(good: bytes) -> bytes:
        body = good.split(b"\n")[0].decode()
        changed = change(body)
        assert changed != body
        return seal(changed.encode())

    return harm


def versioned(body: str) -> str:
    return body.replace('"version":1', '"version":2')


#: For every file. (A pack is no JSON; what can be said of its text is said in test_lies.py.)
BYTES: dict[str, Callable[[bytes], bytes]] = {
    "empty": lambda good: b"",
    "a byte short": lambda good: good[:-1],
    "half": lambda good: good[: len(good) // 2],
    "a byte more": lambda good: good + b"\0",
    "twice": lambda good: good + good,
    "zeros": lambda good: bytes(len(good)),
    "a page of junk after": lambda good: good + os.urandom(4096),
    "another file format": lambda good: b"\x89HDF\r\n\x1a\n" + good,
}
#: For JSON files, each with a digest that is right.
TEXTS: dict[str, Callable[[bytes], bytes]] = {
    "a newer version": spelled(versioned),
    "a key twice": spelled(lambda body: body.replace("{", '{"kind":"claim",', 1)),
    "deep nesting": spelled(lambda body: body[:-1] + ',"more":' + "[" * 10**5 + "]" * 10**5 + "}"),
    "a huge number": spelled(lambda body: body.replace(":1", ":" + "9" * 400, 1)),
    "a negative number": spelled(lambda body: body.replace(":1", ":-1", 1)),
    "a number in float": spelled(lambda body: body.replace(":1", ":1e0", 1)),
    "spaces": spelled(lambda body: " " + body),
    "an unknown field": spelled(lambda body: body[:-1] + ',"zz":0}'),
    "a list": lambda good: seal(b"[]"),
    "no object": lambda good: seal(b"7"),
    "not UTF-8": lambda good: seal(b'{"kind":"\xff\xfe"}'),
    "a lone surrogate": spelled(lambda body: body.replace('"kind":"', '"kind":"\\ud800', 1)),
    "a NUL": spelled(lambda body: body.replace('"kind":"', '"kind":"\\u0000', 1)),
    "a path": spelled(lambda body: body.replace('"kind":"', '"kind":"../../', 1)),
    "a digest of another algorithm": lambda good: good.split(b"\n")[0] + b"\nmd5:" + b"0" * 32 + b"\n",
}


def a_directory(path: pathlib.Path, good: bytes) -> None:
    path.mkdir()


def a_fifo(path: pathlib.Path, good: bytes) -> None:
    os.mkfifo(path)


def a_link_to_the_very_bytes(path: pathlib.Path, good: bytes) -> None:
    (path.parent / "aside").write_bytes(good)
    path.symlink_to("aside")


def a_link_to_nowhere(path: pathlib.Path, good: bytes) -> None:
    path.symlink_to("nowhere")


def a_link_to_itself(path: pathlib.Path, good: bytes) -> None:
    path.symlink_to(path.name)


def a_socket(path: pathlib.Path, good: bytes) -> None:
    here = os.getcwd()
    os.chdir(path.parent)  # the name of a socket is short
    try:
        with socket.socket(socket.AF_UNIX) as made:
            made.bind(path.name)
    finally:
        os.chdir(here)


def a_device(path: pathlib.Path, good: bytes) -> None:
    try:
        os.mknod(path, stat.S_IFCHR | 0o666, os.makedev(1, 5))
    except PermissionError:  # only root makes one; a link to one is as near as others get
        path.symlink_to("/dev/zero")


def nothing(path: pathlib.Path, good: bytes) -> None:
    pass


INSTEAD = [
    *(a_directory, a_fifo, a_link_to_the_very_bytes, a_link_to_nowhere, a_link_to_itself, a_socket),
    *(a_device, nothing),
]


class Harmed:
    """A copy of a store in which one file at a time is something else."""

    def __init__(self, made: pathlib.Path, folder: pathlib.Path) -> None:
        self.whole, self.path = made, kit.copy(made, folder / "ckpt")
        self.elsewhere = folder / "elsewhere"

    def instead(self, file: str, put: Callable[[pathlib.Path, bytes], None]) -> None:
        path = self.path / file
        good = path.read_bytes()
        path.unlink()
        put(path, good)

    def repair(self, file: str) -> None:
        path = self.path / file
        if path.is_dir() and not path.is_symlink():
            path.rmdir()
        path.unlink(missing_ok=True)
        (path.parent / "aside").unlink(missing_ok=True)
        shutil.copyfile(self.whole / file, path)

    def judge(self, file: str, what: str, commands: Any = READS) -> None:
        """Every command that needs the file refuses and names it; so does a restore."""
        generation = kit.FILES[file]
        before = kit.digests(self.path)
        for command in commands:
            words = {"GENERATION": generation or kit.NEWEST, "ELSEWHERE": str(self.elsewhere)}
            words["OTHER"] = kit.BEFORE if generation != kit.BEFORE else kit.NEWEST
            code, said = kit.run(command, self.path, *(words.get(w, w) for w in READS[command]))
            if kinds(file) & set(NEEDS[command]):
                assert code == 1, (file, what, command, said)
                told = file in said or pathlib.PurePath(file).name in said or "aside" in said
                told = told or (file == "store.json" and str(self.path) in said)
                # Of a root that is not there the generation is named.
                told = told or (what == "nothing" and pathlib.PurePath(file).stem in said)
                assert told, (file, what, command, said)
            if self.elsewhere.is_dir():
                shutil.rmtree(self.elsewhere)
            self.elsewhere.unlink(missing_ok=True)
        assert kit.digests(self.path) == before, (file, what)
        if generation != "" and not (what == "nothing" and file == "store.json"):
            error = kit.refused(self.path, generation)
            told = kit.names_file(error, file) or file == "store.json"
            told = told or (what == "nothing" and pathlib.PurePath(file).stem in str(error))
            assert told, (file, what, error)


@pytest.fixture
def harmed(made: pathlib.Path, tmp_path: pathlib.Path) -> Harmed:
    return Harmed(made, tmp_path)


JSON = [
    "store.json",
    "epochs/e000002.json",
    "published/e000001-000001.json",
    "published/e000002-000003.json",
    "published/e000002-000001.removed",
    "data/e000001-000001/000/000001.manifest.json",
]
PACK = "data/e000001-000001/000/000001.pack"


@pytest.mark.parametrize("file", [*JSON, PACK])
def test_other_bytes(harmed: Harmed, file: str) -> None:
    for n, (what, harm) in enumerate(BYTES.items()):
        data = harm((harmed.whole / file).read_bytes())
        harmed.instead(file, lambda path, good, data=data: path.write_bytes(data) and None)
        # Each kind of damage meets a restore and `verify`; the other commands take turns.
        harmed.judge(file, what, ["verify", list(READS)[n % len(READS)]])
        harmed.repair(file)


@pytest.mark.parametrize("file", JSON)
def test_texts_with_digests_of_their_own(harmed: Harmed, file: str) -> None:
    tried = 0
    for n, (what, harm) in enumerate(TEXTS.items()):
        try:
            data = harm((harmed.whole / file).read_bytes())
        except AssertionError:
            continue  # this file has no such text
        tried += 1
        harmed.instead(file, lambda path, good, data=data: path.write_bytes(data) and None)
        harmed.judge(file, what, ["verify", list(READS)[n % len(READS)]])
        harmed.repair(file)
    assert tried >= 9


@pytest.mark.parametrize("put", INSTEAD)
def test_no_file_at_all(harmed: Harmed, put: Callable[[pathlib.Path, bytes], None]) -> None:
    """Also on every command: none blocks on a FIFO, none follows a link."""
    for file in [*JSON, PACK]:
        harmed.instead(file, put)
        if put is nothing and (file == "published/e000002-000003.json" or "removed" in file):
            # Its absence is a save that was never published (R05), or a mark that was never made.
            code, said = kit.run("verify", harmed.path, kit.NEWEST)
            assert code == (0 if "removed" in file else 1), said
        elif put is nothing and file == "epochs/e000002.json":
            # Its seal has the same bytes, and whoever continues writes it again.
            assert kit.run("verify", harmed.path)[0] == 1
            job = kit.Job(harmed.path)
            with job.checkpointer as ckpt:
                assert ckpt.resume().update == 40
            assert (harmed.path / file).read_bytes() == (harmed.whole / file).read_bytes()
            shutil.rmtree(harmed.path)
            kit.copy(harmed.whole, harmed.path)
        else:
            harmed.judge(file, put.__name__)
        harmed.repair(file)


# ---------------------------------------------------------------- swapped, renamed, spliced


def swap(path: pathlib.Path, one: str, two: str) -> None:
    (path / one).rename(path / "aside")
    (path / two).rename(path / one)
    (path / "aside").rename(path / two)


@pytest.mark.parametrize(
    ("one", "two"),
    [
        ("epochs/e000001.json", "epochs/e000002.json"),
        ("published/e000002-000002.json", "published/e000002-000003.json"),
        ("published/e000001-000001.json", "published/e000002-000003.json"),
        ("published/e000001-000002.json", "published/e000002-000003.json"),
        ("published/e000001-000001.pinned", "published/e000002-000001.removed"),
        ("data/e000001-000001/000/000001.pack", "data/e000001-000001/000/000002.pack"),
        ("data/e000001-000001/000/000001.manifest.json", "data/e000001-000001/000/000002.manifest.json"),
        ("data/e000002-000002/000/000000.pack", "data/e000002-000003/000/000000.pack"),
        ("data/e000001-000001/000/000001.pack", "data/e000001-000001/000/000001.manifest.json"),
    ],
)
def test_swapped_files(harmed: Harmed, one: str, two: str) -> None:
    """R05: they are named, and no generation with one of them is restored."""
    swap(harmed.path, one, two)
    code, said = kit.run("verify", harmed.path, "--all")
    below = "manifest" in two  # below a manifest that is another one nothing is named any more
    assert code == 1 and (one in said and two in said if not below else one in said or two in said), said
    for file in (one, two):
        if kit.FILES[file] != "":
            error = kit.refused(harmed.path, kit.FILES[file])
            assert kit.names_file(error, one) or kit.names_file(error, two), error


@pytest.mark.parametrize(
    ("file", "name", "code"),
    [
        ("published/e000002-000003.json", "published/e000002-000004.json", "misplaced-root"),
        ("published/e000001-000001.json", "published/e000002-000004.json", "misplaced-root"),
        ("published/e000001-000002.json", "published/e000002-000004.json", "misplaced-claim"),
        ("epochs/e000002.json", "epochs/e000003.json", "misplaced-claim"),
        ("published/e000001-000001.pinned", "published/e000002-000003.pinned", "corrupt-mark"),
        ("published/e000002-000001.removed", "published/e000002-000003.removed", "corrupt-mark"),
    ],
)
def test_renamed_files(harmed: Harmed, file: str, name: str, code: str) -> None:
    """A copy under a newer name is not newer: an old root, claim or mark says where it belongs."""
    shutil.copyfile(harmed.path / file, harmed.path / name)
    told, said = kit.run("verify", harmed.path)
    assert told == 1 and name in said and code in said, said
    if code != "corrupt-mark":
        error = kit.refused(harmed.path)
        assert (error.code, kit.names_file(error, name)) == (code, True), error
    else:
        # No valid mark: the newest generation is neither removed nor anything else.
        job = kit.Job(harmed.path)
        with job.checkpointer as ckpt:
            assert ckpt.resume().update == 40


def test_files_of_another_store(harmed: Harmed, tmp_path: pathlib.Path) -> None:
    other = tmp_path / "other"
    job = kit.Job(other)
    with job.checkpointer as ckpt:
        ckpt.resume()
        job.w += 1
        ckpt.save(1)
    for file, code in [
        ("store.json", "misplaced-claim"),
        ("epochs/e000001.json", "misplaced-claim"),
        ("published/e000001-000001.json", "misplaced-root"),
    ]:
        harmed.instead(file, lambda path, good, file=file: shutil.copyfile(other / file, path) and None)
        assert kit.run("verify", harmed.path, "--all")[0] == 1
        assert kit.refused(harmed.path, kit.TREE).code in (code, "misplaced-root")
        harmed.repair(file)


def test_a_store_of_something_else(tmp_path: pathlib.Path) -> None:
    """A folder that is no store, or one of another program, is refused and stays as it is."""
    for name, text, code in [
        ("store.json", seal(b'{"kind":"shop","version":1}'), "not-a-store"),
        ("store.json", b'{"kind": "zarr"}\n', "not-a-store"),
        (".zgroup", b"{}", "not-a-store"),
    ]:
        path = tmp_path / f"{len(list(tmp_path.iterdir()))}-{name}"
        path.mkdir()
        (path / name).write_bytes(text)
        (path / "data.bin").write_bytes(b"words of somebody else")
        before = kit.digests(path)
        if name == "store.json":
            with pytest.raises(am.CheckpointError) as caught:
                kit.Job(path)
            assert caught.value.code == code, caught.value
        for command in READS:
            words = [{"ELSEWHERE": str(tmp_path / "e")}.get(w, w) for w in READS[command]]
            words = ["latest" if w in ("GENERATION", "OTHER") else w for w in words]
            got, said = kit.run(command, path, *words)
            assert got == 1 and path.name in said, (command, said)
        assert kit.digests(path) == before


# ---------------------------------------------------------------- another generation's manifest


def rewrite(path: pathlib.Path, change: Callable[[Any], Any]) -> bytes:
    """Change a JSON file's body and repair its digest; return the file."""
    value = body_of(path.read_bytes())
    value = change(value) or value
    data = seal(canonical(value))
    path.write_bytes(data)
    return data


def test_a_spliced_manifest_with_digests_of_its_own(tmp_path: pathlib.Path) -> None:
    """The root names the other generation's manifest by its true digest, and is itself repaired."""
    from restore.build_store import build, values_of

    from alpha_mpi.protocol.hierarchy import Tree

    first, second = (values_of(kit.REGIONS, 3, seed=n) for n in (1, 2))
    path = tmp_path / "ckpt"
    build(path, kit.REGIONS, kit.RULES, first, owners=3, hierarchy=Tree(1), save=1, entry=1, update=10)
    build(path, kit.REGIONS, kit.RULES, second, owners=3, hierarchy=Tree(1), save=2, entry=2, update=20)
    folders = [path / "data" / f"e000001-00000{n}" / "000" for n in (1, 2)]
    name = "000001.manifest.json"
    spliced = (folders[0] / name).read_bytes()
    # Its own digest is right, and nobody names it.
    (folders[1] / name).write_bytes(spliced)
    error = kit.refused(path)
    assert (error.code, kit.names_file(error, name)) == ("corrupt-manifest", True), error
    # The root names it by its digest.
    rewrite(
        path / "published" / "e000001-000002.json",
        lambda root: root["children"][0].__setitem__(2, digest.of(spliced)),
    )
    error = kit.refused(path)
    assert error.code in ("mixed-moments", "attempt", "corrupt-manifest"), error
    assert kit.names_file(error, name) and error.role == 1, error
    code, said = kit.run("verify", path)
    assert code == 1 and name in said


def test_an_epoch_outside_of_the_lineage_is_refused_and_stays(harmed: Harmed) -> None:
    """A root whose epoch nobody claimed, or that says another one than it was published in."""
    root = harmed.path / "published" / "e000002-000003.json"
    good = root.read_bytes()
    rewrite(root, lambda value: value["prefix"]["moment"].__setitem__("epoch", 1))
    for generation in (None, kit.NEWEST):
        error = kit.refused(harmed.path, generation)
        assert error.code == "stale-epoch", error
        assert kit.names_file(error, "published/e000002-000003.json")
    code, said = kit.run("verify", harmed.path)
    assert code == 1 and "stale-epoch" in said
    root.write_bytes(good)

    def epoch_9(value: Any) -> None:
        value["prefix"]["moment"]["epoch"] = value["prefix"]["attempt"]["epoch"] = 9
        value["root"]["entry"] = 1

    alien = root.with_name("e000009-000001.json")
    shutil.copyfile(root, alien)
    rewrite(alien, epoch_9)
    error = kit.refused(harmed.path)
    assert error.code == "missing-claim", error
    code, said = kit.run("verify", harmed.path)
    assert code == 1 and "epochs/e000009.json" in said, said


def published_by(
    path: pathlib.Path, *moments: tuple[int, int], inputs: str | None = None
) -> list[am.Generation]:
    """Publish in a store of its own; each moment is (update, cursor)."""
    job = kit.Job(path, learner=am.Learner("test", inputs=inputs))
    with job.checkpointer as ckpt:
        ckpt.resume()
        made = []
        for update, cursor in moments:
            job.w += 1
            made.append(ckpt.save(update, cursor))
    return made


def test_a_generation_that_its_claim_does_not_lead_to(tmp_path: pathlib.Path) -> None:
    """The first of an epoch continues what the claim continues, or it was made under another one."""
    path = tmp_path / "s"
    published_by(path, (1, 1), (2, 2))
    published_by(path, (3, 3))
    root = path / "published" / "e000002-000001.json"
    other = body_of((path / "published" / "e000001-000002.json").read_bytes())["root"]["continues"]
    rewrite(root, lambda value: value["root"].__setitem__("continues", other))
    for generation in (None, "e000002-000001"):
        error = kit.refused(path, generation)
        assert error.code == "stale-epoch" and kit.names_file(error, "e000002-000001.json"), error
    code, said = kit.run("verify", path)
    assert code == 1 and "stale-epoch" in said


def test_r24_a_cursor_set_back_with_every_digest_repaired(tmp_path: pathlib.Path) -> None:
    """R24: a generation whose cursor was set back to 0 although its update is 3 is refused."""
    path, learner = tmp_path / "s", am.Learner("test", inputs="12 samples")
    published_by(path, (1, 4), (2, 8), (3, 12), inputs="12 samples")
    root = path / "published" / "e000001-000003.json"
    rewrite(root, lambda value: value["prefix"]["moment"].__setitem__("cursor", 0))
    error = kit.refused(path, learner=learner)
    assert error.code == "reset-cursor" and kit.names_file(error, "e000001-000003.json"), error
    assert kit.run("verify", path)[0] == 1


@pytest.mark.parametrize(
    ("key", "value", "code"), [("cursor", 3, "reset-cursor"), ("update", 2, "stale-update")]
)
def test_a_lineage_that_goes_back_is_found_by_verify(
    tmp_path: pathlib.Path, key: str, value: int, code: str
) -> None:
    path = tmp_path / "s"
    published_by(path, (1, 4), (2, 8), (3, 12))
    root = path / "published" / "e000001-000003.json"
    rewrite(root, lambda body: body["prefix"]["moment"].__setitem__(key, value))
    told, said = kit.run("verify", path)
    assert told == 1 and code in said and "e000001-000003.json" in said, said
