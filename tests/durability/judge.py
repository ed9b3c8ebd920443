"""The judge: what a store is worth that a power cut left.

Two readers look at it, in this process: `oracle`, which shares no code with the library, and the
library's own choice of the newest generation and its verification. They must agree, and every root
that stands in published/ without a mark must be a whole generation with the words of its update.
What was reported before the cut must be there (`Required`).
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import os
import pathlib
import shutil
import warnings
from collections.abc import Iterator, Mapping

import numpy as np
import oracle
from durability.disk import State
from fill import fill, same_bits
from gates import crash

import alpha_mpi as am
from alpha_mpi.errors import CheckpointError
from alpha_mpi.restore import choose
from alpha_mpi.restore.verify import verify
from alpha_mpi.store import names
from alpha_mpi.store.store import Store


@dataclasses.dataclass(frozen=True)
class Required:
    """What was reported before a power cut: generations that must be there, and the epoch taken.

    `least`: a generation that must be there unless a newer one is.
    """

    generations: frozenset[str] = frozenset()
    epoch: int = 0
    least: str = ""

    @property
    def newest(self) -> str:
        """The name of the newest generation, "" if there is none."""
        return max(self.generations, default=self.least)


@dataclasses.dataclass(frozen=True)
class Seen:
    """What the readers say of one state. `wrong` is wrong whatever was reported."""

    whole: frozenset[str]
    newest: str
    epoch: int
    refused: str
    wrong: tuple[str, ...]

    def missing(self, required: Required) -> list[str]:
        """Return what is wrong, or was reported and is not there."""
        found = list(self.wrong)
        found += [f"{name} was acknowledged and is not there" for name in required.generations - self.whole]
        if self.newest < required.newest:
            found.append(f"newest is {self.newest or 'none'}, acknowledged was {required.newest}")
        if self.epoch < required.epoch:
            found.append(f"epoch {required.epoch} was taken, and the store says {self.epoch}")
        if self.refused and (required.newest or required.epoch):
            found.append(f"the store is refused: {self.refused}")
        return found


class Judge:
    """Looks at states of one recording; `updates` is the update of each generation by its name.

    `folder` should lie in memory. Each state is made of the one before by its differences.
    """

    def __init__(self, folder: pathlib.Path, store: str, updates: Mapping[str, int]) -> None:
        self.folder, self.path, self.updates = folder, store, updates
        self._there: dict[str, bytes | None] = {}
        self._blobs: dict[bytes, pathlib.Path] = {}
        self._deep: dict[object, tuple[str, ...]] = {}
        self._seen: dict[int, Seen] = {}
        (folder / "blobs").mkdir(parents=True)
        (folder / "disk").mkdir()
        self.store = folder / "disk" / store

    def look(self, state: State, key: int) -> Seen:
        """Let both readers look at a state, once; nothing of it is changed. `key` stands for the state."""
        if key not in self._seen:
            self._seen[key] = self._look(state)
        return self._seen[key]

    def _look(self, state: State) -> Seen:
        self.make(state)
        below = {
            path.removeprefix(self.path + "/"): data
            for path, data in state.items()
            if path.startswith(self.path + "/")
        }
        roots, seals = self._entries(below)
        whole, wrong = set(), []
        for name in roots:
            problems = self._deeply(name, below)
            wrong += [f"{name} stands in published/ and is not whole: {problem}" for problem in problems]
            if not problems:
                whole.add(name)
        wrong += self._seals(below, seals)
        wrong += self._marks(below)
        newest, epoch, refused = self._library(wrong)
        if not refused:
            other = self._oracle(epoch)
            if other != newest:
                wrong.append(
                    f"newest is {newest or 'none'} for the library, {other or 'none'} for the oracle"
                )
        if newest and newest not in whole:
            wrong.append(f"newest is {newest}, which is not whole")
        return Seen(frozenset(whole), newest, epoch, refused, tuple(wrong))

    # ---- what stands there, by names and bytes alone ----

    def _entries(self, below: State) -> tuple[list[str], dict[str, bytes]]:
        """Return the names of roots that are not marked, and the seals."""
        roots, seals = [], {}
        for path, data in below.items():
            folder, name = os.path.split(path)
            if folder != names.PUBLISHED or not name.endswith(".json") or name.startswith("."):
                continue
            assert data is not None
            if b'"kind":"claim"' in data:
                seals[name.removesuffix(".json")] = data
            elif f"{path.removesuffix('.json')}.removed" not in below:
                roots.append(name.removesuffix(".json"))
        return sorted(roots), seals

    def _seals(self, below: State, seals: dict[str, bytes]) -> Iterator[str]:
        """An epoch's record must never outlive its seal, or the older epoch is open again."""
        for path, data in below.items():
            folder, name = os.path.split(path)
            epoch = names.parse_claim(name) if folder == names.EPOCHS else None
            if epoch is not None and epoch > 1 and data not in seals.values():
                yield f"{path} has no seal"

    def _marks(self, below: State) -> Iterator[str]:
        """A mark that nobody can read is none, and the data of its generation may be gone."""
        for path in below:
            if path.startswith(f"{names.PUBLISHED}/e") and path.endswith(".removed"):
                try:
                    oracle.load(self.store / path)
                except oracle.Damaged as error:
                    yield f"a mark is damaged: {error}"

    # ---- readers ----

    def _deeply(self, name: str, below: State) -> tuple[str, ...]:
        """Return what both readers find wrong with a generation; read once for the same files."""
        root = below[f"{names.PUBLISHED}/{name}.json"]
        # Packs and manifests of the same attempt; whatever else there is, neither opens it.
        attempts = [f"{names.DATA}/{name.split('-')[0]}-"]
        key = (
            name,
            root,
            below.get(names.STORE_FILE),
            frozenset(
                (path, data)
                for path, data in below.items()
                if path.startswith(attempts[0]) and not os.path.basename(path).startswith(".")
            ),
        )
        if key not in self._deep:
            self._deep[key] = tuple(self._read(name))
        return self._deep[key]

    def _read(self, name: str) -> Iterator[str]:
        try:
            found = oracle.read_generation(self.store, name)
        except (oracle.Damaged, OSError, KeyError, ValueError) as error:
            yield f"{type(error).__name__} {error}"
        else:
            if found.update != self.updates[name]:
                yield f"update {found.update}"
            yield from different(found)
        try:
            with Store.open(self.store) as store:
                epoch, number, _ = names.parse_published(f"{name}.json") or (0, 0, "")
                yield from (str(problem) for problem in verify(store, epoch, number).problems)
        except (CheckpointError, OSError) as error:
            yield str(error)

    def _library(self, wrong: list[str]) -> tuple[str, int, str]:
        """Return (newest, epoch, why the store cannot be opened) as the library says."""
        try:
            with Store.open(self.store) as store:
                seen = choose.survey(store)
        except (CheckpointError, OSError) as error:
            return "", 0, str(error)
        if seen.damage is not None:
            wrong.append(f"the newest cannot be told: {seen.damage}")
        wrong += [f"damaged {position}: {error}" for position, error in seen.damaged]
        wrong += [f"stranger {name}" for name in seen.strangers]
        return ("" if seen.newest is None else seen.newest.name), seen.epoch, ""

    def _oracle(self, epoch: int) -> str:
        try:
            return oracle.newest(self.store)
        except (oracle.Damaged, OSError) as error:
            return "" if "no generation" in str(error) or not epoch else f"unreadable, {error}"

    # ---- the next job ----

    def go_on(self, state: State, required: Required) -> list[str]:
        """Let a job of one rank resume what a power cut left, and save; return what is wrong then."""
        from mpi4py import MPI

        self.make(state)
        wrong: list[str] = []
        before = "" if not (self.store / names.STORE_FILE).exists() else self._library([])[0]
        words = Alone()
        try:
            with quiet(), am.Checkpointer(self.store, words.state(), MPI.COMM_SELF, visibility=0.0) as ckpt:
                moment = ckpt.resume()
                if moment.update != self.updates.get(before, 0) or before < required.newest:
                    wrong.append(f"resumed update {moment.update}, newest was {before or 'none'}")
                if moment.update:
                    wrong += [f"resumed, and {what} differs" for what in words.different(moment.update)]
                if moment.epoch <= required.epoch:
                    wrong.append(f"resumed as epoch {moment.epoch}, which was taken")
                words.at(moment.update + 1)
                name = ckpt.save(moment.update + 1).name
            found = crash.judge(self.store)
            wrong += found.problems
            if (found.newest, found.update) != (name, moment.update + 1):
                wrong.append(f"saved {name}, and newest is {found.newest}")
            wrong += [f"left over: {left}" for left in crash.leftovers(self.store, found.epoch)]
        except (CheckpointError, OSError) as error:
            wrong.append(f"the next job fails: {error}")
        # Files may be new and changed now: nothing of it serves the next state.
        shutil.rmtree(self.folder / "disk")
        (self.folder / "disk").mkdir()
        self._there = {}
        return wrong

    # ---- states on a real file system ----

    def make(self, state: State) -> None:
        """Make exactly this state in the folder."""
        disk, before = self.folder / "disk", self._there
        gone = [path for path in before if path not in state or before[path] != state[path]]
        for path in sorted(gone, reverse=True):
            if before[path] is not None:
                os.unlink(disk / path)
            elif path not in state:
                os.rmdir(disk / path)
        for path in sorted(state):
            data = state[path]
            if path in before and before[path] == data:
                continue
            if data is None:
                os.mkdir(disk / path)
            else:
                os.link(self._blob(data), disk / path)
        self._there = dict(state)

    def _blob(self, data: bytes) -> pathlib.Path:
        if data not in self._blobs:
            self._blobs[data] = path = self.folder / "blobs" / str(len(self._blobs))
            path.write_bytes(data)
        return self._blobs[data]


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """A store in memory is warned about, and rightly."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        yield


# ---- the words of crash_job.py, by its own rule ----


@functools.cache
def words(update: int, owners: int) -> dict[str, np.ndarray]:
    """Return every array after an update."""
    return {
        "weights": fill("weights", update, (33, 16), np.float32),
        "moments": fill("moments", update, (1003,), np.float64),
        "last": fill("last", update, (5, 3), np.int32),
        "pairs": fill("pairs", update, (12,), np.int16),
        "mean": fill("mean", update, (64,), np.float32),
        "mine": np.stack([fill(f"mine{k}", update, (7,), np.uint64) for k in range(owners)]),
    }


def different(found: oracle.Generation) -> list[str]:
    """Return the regions that are not, bit for bit, as after the update."""
    expected = words(found.update, found.owners)
    wrong = [name for name, array in expected.items() if not same_bits(array, found.arrays[name])]
    if found.documents["schedule"] != {"rate": 1.0 / (1 + found.update), "update": found.update}:
        wrong.append("schedule")
    return [f"region {name} differs" for name in wrong]


class Alone:
    """The whole state on one owner, whoever saved it."""

    def __init__(self) -> None:
        self.arrays = {name: np.zeros_like(array) for name, array in words(0, 1).items()}
        self.arrays["mine"] = self.arrays["mine"][0].copy()
        self.schedule: dict[str, float] = {}
        self.count = 0

    def at(self, update: int) -> None:
        """Become the state after an update."""
        for name, array in self.arrays.items():
            array[...] = words(update, 1)[name].reshape(array.shape)
        self.schedule, self.count = {"rate": 1.0 / (1 + update), "update": update}, update

    def state(self) -> am.State:
        """Declare it."""
        state = am.State()
        for name in ("weights", "moments", "last", "pairs"):
            array = self.arrays[name]
            rule = am.rows() if name in ("weights", "last") else am.shares()
            state.partition(name, array, shape=array.shape, layout=rule)
        state.replicate("mean", self.arrays["mean"])
        state.replicate("count", self, "count")
        state.document("schedule", lambda: self.schedule, lambda value: setattr(self, "schedule", value))
        state.per_owner("mine", self.arrays["mine"], repartition=lambda values, *_: values[0])
        return state

    def different(self, update: int) -> list[str]:
        """Return what is not as after an update."""
        wrong = [
            name
            for name, array in self.arrays.items()
            if not same_bits(array, words(update, 1)[name].reshape(array.shape))
        ]
        return wrong + ["count"] * (self.count != update) + ["schedule"] * (self.schedule["update"] != update)
