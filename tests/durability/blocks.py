"""Power cuts of a disk: a real file system on a disk that remembers, put back to every moment.

A loop device over `blocklog`'s file carries ext4; jobs run on it; what the file system wrote between
two flushes may be on the disk in any part when the power goes. Each such image is mounted, so that the
kernel recovers its journal, and the store that it holds is judged as in `sweep`. Needs root, FUSE and
loop devices. A *neighbour* writes and syncs a file of its own meanwhile: its syncs commit the journal
between any two calls of the jobs.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import os
import pathlib
import random
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence

from durability.blocklog import FLUSH, MARK, WRITE, Logged, read_log
from durability.disk import State
from durability.judge import Judge, Required
from durability.scenarios import ROWS, Scenario
from gates import crash

import shim

SIZE = 24 << 20
BLOCK = 4096
STORE = "new/run/ckpt"
#: Up to so many writes between two flushes all their subsets are looked at.
SUBSETS = 5
_MKFS = [
    "-q",
    "-F",
    "-b",
    str(BLOCK),
    "-J",
    "size=4",
    "-E",
    "nodiscard,lazy_itable_init=0,lazy_journal_init=0",
]
_PROGRAMS = ("losetup", "mkfs.ext4", "mount", "umount")


def told(*words: str | os.PathLike[str]) -> str:
    """Run a command, and return what it printed; raises OSError with what it said of a failure."""
    command = [os.fspath(word) for word in words]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    if done.returncode:
        raise OSError(f"{words[0]}: {' '.join(done.stderr.split())[-300:]}")
    return done.stdout.strip()


def why_not(folder: pathlib.Path) -> str:
    """Return why this machine cannot do it, "" if it can."""
    if os.geteuid():
        return "only root may mount a file system"
    missing = [name for name in _PROGRAMS if shutil.which(name) is None]
    if missing:
        return f"{', '.join(missing)} not found"
    try:
        with disk(folder, ""):
            return ""
    except (OSError, subprocess.SubprocessError) as error:
        return str(error)


@contextlib.contextmanager
def disk(folder: pathlib.Path, options: str) -> Iterator[tuple[pathlib.Path, pathlib.Path, pathlib.Path]]:
    """Mount a new file system on a disk that remembers; gives where it is, the mark, and the log."""
    served, mounted, log = folder / "served", folder / "mounted", folder / "log"
    for path in (served, mounted):
        path.mkdir(parents=True, exist_ok=True)
    log.unlink(missing_ok=True)
    program = pathlib.Path(__file__).with_name("blocklog.py")
    server = subprocess.Popen(
        [sys.executable, str(program), str(served), str(log), str(SIZE)],
        stdin=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    with contextlib.ExitStack() as undo:
        undo.callback(_end, server, served)
        while not (served / "disk").exists():
            if server.poll() is not None:
                assert server.stderr is not None
                raise OSError(server.stderr.read().strip().splitlines()[-1])
            time.sleep(0.02)
        device = told("losetup", "-f", "--show", served / "disk")
        undo.callback(told, "losetup", "-d", device)
        told("mkfs.ext4", *_MKFS, device)
        told("mount", "-t", "ext4", "-o", ",".join(filter(None, ("noatime", options))), device, mounted)
        undo.callback(told, "umount", mounted)
        yield mounted, served / "mark", log


def _end(server: subprocess.Popen[str], served: pathlib.Path) -> None:
    if os.path.ismount(served):
        told("umount", "-l", served)
    try:
        server.wait(20)
    except subprocess.TimeoutExpired:
        server.kill()
        server.wait()
    assert server.stderr is not None
    server.stderr.close()


def record(
    scenario: Scenario,
    folder: pathlib.Path,
    *,
    options: str = "",
    neighbour: bool = False,
    fail: str | None = None,
) -> list[Logged]:
    """Run the jobs of a scenario on such a disk; return its log from mkfs to the end of the jobs.

    `options` are those of the mount, `fail` that of the shim: calls that are only pretended.
    """
    with disk(folder, options) as (mounted, mark, log):
        at = {"store": str(mounted / STORE)}
        plan = [{**s, "with": {**s["with"], **at}} if s["do"] == "open" else s for s in scenario.steps]
        environment = shim.env(mounted, fail=fail)
        # The file system is that of the jobs alone now: what mkfs and the mount left behind goes first.
        told("sync", "-f", mounted)
        _say(mark, "begin")
        with _neighbour(mounted / "neighbour") if neighbour else contextlib.nullcontext():
            launched = crash.run(
                scenario.ranks, scenario.fan_out, plan, ack=mark, environment=environment, rows=ROWS
            )
        _say(mark, "end")
        assert not any("error" in line for lines in launched.on_all() for line in lines)
    return list(read_log(log))


def _say(mark: pathlib.Path, text: str) -> None:
    with mark.open("ab", buffering=0) as file:
        file.write(f"{text}\n".encode())


@contextlib.contextmanager
def _neighbour(path: pathlib.Path) -> Iterator[None]:
    stop = threading.Event()

    def work() -> None:
        while not (path.parent / "new").exists():
            if stop.wait(0.005):
                return
        fd = os.open(path, os.O_WRONLY | os.O_CREAT, 0o600)
        for i in itertools.count():
            if stop.wait(0.001):
                break
            os.pwrite(fd, bytes([i % 256]) * 100, 0)
            os.ftruncate(fd, 100 + i % 7)  # its size changes, so the journal is committed
            os.fsync(fd)
        os.close(fd)

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


@dataclasses.dataclass
class Replayed:
    """What a replay saw."""

    flushes: int = 0
    images: int = 0
    states: int = 0
    resumed: int = 0
    violating: int = 0
    wrong: list[str] = dataclasses.field(default_factory=list)


def replay(
    log: Sequence[Logged],
    scenario: Scenario,
    judge: Judge,
    folder: pathlib.Path,
    *,
    seed: int = 1,
    most: int = 400,
    resumes: int = 0,
    first: bool = False,
) -> Replayed:
    """Judge what each power cut may leave on the disk; at most about `most` images, spread by chance."""
    names = {update: name for name, update in scenario.updates.items()}
    found, chance = Replayed(), random.Random(seed)
    known: set[int] = set()
    folder.mkdir(exist_ok=True)
    count = sum(1 for _ in _intervals(log, names))
    each = max(1, most // max(1, count))
    looked_at = set(chance.sample(range(1, count + 1), min(count, most)))
    before = None
    for base, pending, required in _intervals(log, names):
        found.flushes += 1
        if found.flushes not in looked_at:
            continue
        for chosen in _subsets(pending, each, chance):
            if not chosen and before == (found.flushes - 1, required):
                continue  # all that the one before had
            found.images += 1
            image = folder / "image"
            image.write_bytes(_write(bytearray(base), [pending[i] for i in chosen]))
            where = f"flush {found.flushes}, writes {chosen} of {len(pending)}"
            try:
                state = read_image(image, folder / "mounted")
            except OSError as error:
                wrong = [f"not read: {error}"]
            else:
                key = hash(frozenset(state.items()))
                wrong = judge.look(state, key).missing(required)
                if not wrong and key not in known and found.resumed < resumes:
                    found.resumed += 1
                    wrong = judge.go_on(state, required)
                known.add(key)
            if wrong:
                found.violating += 1
                if len(found.wrong) < 20:
                    found.wrong.append(f"{where}: {'; '.join(wrong)}")
                if first:
                    return found
        before = found.flushes, required
    found.states = len(known)
    return found


def _intervals(
    log: Sequence[Logged], names: dict[int, str]
) -> Iterator[tuple[bytearray, list[Logged], Required]]:
    """Yield the disk at each flush, what was written since, and what was reported until the next one."""
    base, pending, least, begun = bytearray(SIZE), list[Logged](), "", False
    for one in log:
        if one.kind == WRITE:
            pending += _halves(one)
        if one.kind == MARK:
            for line in one.data.decode().splitlines():
                if line == "begin":
                    begun = True
                elif line != "end":
                    least = max(least, names[int(line.split()[1])])
        ended = one.kind == MARK and one.data == b"end\n"
        if begun and ((one.kind == FLUSH and pending) or ended):
            yield base, pending, Required(least=least)
        if ended:
            return
        if one.kind == FLUSH:
            _write(base, pending)
            pending = []


def _halves(one: Logged) -> list[Logged]:
    """A write of several blocks may arrive in part."""
    cut = len(one.data) // BLOCK // 2 * BLOCK
    if not cut:
        return [one]
    return [
        one._replace(data=one.data[:cut]),
        one._replace(offset=one.offset + cut, data=one.data[cut:]),
    ]


def _subsets(pending: Sequence[Logged], most: int, chance: random.Random) -> Iterator[tuple[int, ...]]:
    """Yield which of the writes arrived: all, none, and `most` others; of a few, all subsets if they fit."""
    count = len(pending)
    whole = tuple(range(count))
    if count <= SUBSETS:
        every = [
            tuple(i for i, there in enumerate(taken) if there)
            for taken in itertools.product((True, False), repeat=count)
        ]
    else:
        every = [*(whole[:n] for n in range(1, count)), *(whole[n:] for n in range(1, count))]
        every += [(i,) for i in whole] + [whole[:i] + whole[i + 1 :] for i in whole]
        every += [tuple(i for i in whole if chance.random() < 0.5) for _ in range(16)]
    others = [chosen for chosen in dict.fromkeys(every) if chosen not in (whole, ())]
    yield from dict.fromkeys((whole, *chance.sample(others, min(len(others), most)), ()))


def _write(image: bytearray, writes: Sequence[Logged]) -> bytearray:
    for one in writes:
        image[one.offset : one.offset + len(one.data)] = one.data
    return image


def read_image(image: pathlib.Path, mounted: pathlib.Path) -> State:
    """Mount an image, which recovers its journal; return what it holds of ours."""
    mounted.mkdir(exist_ok=True)
    told("mount", "-t", "ext4", "-o", "loop,noatime", image, mounted)
    try:
        found: dict[str, bytes | None] = {}
        for path in sorted(mounted.glob("new")) + sorted(mounted.glob("new/**/*")):
            found[str(path.relative_to(mounted))] = None if path.is_dir() else path.read_bytes()
        return found
    finally:
        told("umount", mounted)
