"""Damage: one flipped bit in each kind of file of a store; a process of its own must refuse it.

A resume reads what it needs of the newest generation: each of those files is changed, at its
beginning, its middle and its end, and the refusal must name that file. A seal of an older epoch is
not read by a resume; there `verify` must name it.
"""

from __future__ import annotations

import collections
import functools
import os
import pathlib
from collections.abc import Callable

from ..errors import CheckpointError
from ..learning import DataParallel
from ..restore import choose
from ..store import check, names
from ..store.store import Store
from .check import FAILED, HELD, PARTLY, Check, Clock, Plan, Table, ended
from .kills import LIFE
from .learners import SHAPE, train
from .warden import Life, Say, live

#: The learner whose generation is damaged: it goes on on any number of owners.
LEARNER = ("adam", "parameter-partitioned")
WANT = "every flipped bit is refused by a process of its own, which names the file and changes nothing"
#: The kinds of file that a store of several owners has.
KINDS = ("store file", "claim", "root", "seal", "manifest", "pack")


def resume(store: str, say: Say) -> None:
    """Resume as a job does that begins now, on one owner."""
    from ..checkpointer import Checkpointer

    with (
        DataParallel(*LEARNER, shape=SHAPE) as learner,
        Checkpointer(
            store,
            learner.state(),
            learner=learner.identity,
            contract=learner.contract,
            visibility=0.0,
            time_limit=None,
        ) as ckpt,
    ):
        say({"resumed": ckpt.resume().update})


def judge(store: str, say: Say) -> None:
    """Judge the small files of the store, as `alpha-mpi verify` does."""
    with Store.open(store) as opened:
        for error in check.faults(opened):
            say({"refused": error.code, "file": error.file})


def files(store: str) -> list[tuple[str, str, bool]]:
    """Return (kind, file below the store, whether a resume reads it): one or two of each kind."""
    with Store.open(store) as opened:
        seen = choose.survey(opened)
        if seen.newest is None:
            return []
        epoch, number = seen.lineage[0]
        attempt = seen.newest.manifest.prefix.attempt
        here = os.path.join(names.DATA, names.attempt(attempt))
        data = sorted(str(path.relative_to(store)) for path in pathlib.Path(store, here).glob("*/*"))
        shown = opened.published.names()
    found = [("store file", names.STORE_FILE, True)]
    found.append(("claim", os.path.join(names.EPOCHS, names.claim(epoch)), True))
    found.append(("root", os.path.join(names.PUBLISHED, names.entry(epoch, number)), True))
    old = [n for n in shown if (p := names.parse_published(n)) and p[0] < epoch and p[2] == "entry"]
    if old:
        found.append(("seal", os.path.join(names.PUBLISHED, old[-1]), False))
    for ending, kind in ((".manifest.json", "manifest"), (".pack", "pack")):
        mine = [name for name in data if name.endswith(ending)]
        found += [(kind, name, True) for name in dict.fromkeys([*mine[:1], *mine[-1:]])]
    return found


def damage(store: str, plan: Plan) -> Check:
    """Damage the files of the store at `store`, one after the other. Called by the warden."""
    clock = Clock(plan.share("damage"))
    notes: list[str] = []
    if not os.path.isdir(store):  # no team has made one: on one owner then
        for updates in (2, 4):
            told = live(functools.partial(_trained, store, updates), LIFE)
            notes += [f"the store to damage: {x.get('message') or x.get('error')}" for x in told.said]
    try:
        targets = files(store)
    except (CheckpointError, OSError) as error:
        notes, targets = [*notes, f"the store to damage: {error}"], []
    if not targets:
        why = notes[0] if notes else "the store to damage has no generation"
        return ended(
            "damage", FAILED, WANT, f"nothing could be damaged; {why}", notes=notes, seconds=clock.taken
        )
    count: collections.Counter[str] = collections.Counter()
    rows = []
    for kind, file, read in targets:
        for where in ("first byte", "middle", "last byte"):
            if clock.over and count:
                break
            told, changed = _flipped(store, file, where, resume if read else judge)
            count[kind] += 1
            good, said = _named(told, file)
            rows.append((kind, file, where, said))
            if changed:
                notes.append(f"{kind}, {file}, {where}: the refusal changed the store: {changed}")
            if not good:
                notes.append(f"{kind}, {file}, {where}: {said}")
    control = live(functools.partial(resume, store), LIFE)
    if not control.last("resumed"):
        notes.append(f"mended, it is refused too: {control.said[-1:]}")
    tried = sum(count.values())
    kinds = ", ".join(count) or "nothing"
    missing = [kind for kind in KINDS if not count[kind]]
    verdict = FAILED if notes else HELD if tried == 3 * len(targets) and not missing else PARTLY
    said = f"{tried} flipped bits in {kinds}: each refused with the file named; mended, it is resumed"
    without = f"; not tried: {', '.join(missing)}" if missing else ""
    return ended(
        "damage",
        verdict,
        WANT,
        f"{notes[0]} ({len(notes)} of {tried} tries)" if notes else said + without,
        notes=notes,
        tables=(Table("what was said of one flipped bit", ("kind", "file", "where", "answer"), tuple(rows)),),
        figures={"tried": tried, "faults": len(notes), "kinds": list(count)},
        seconds=clock.taken,
    )


def _trained(store: str, updates: int, say: Say) -> None:
    train(store, updates, *LEARNER)


def _flipped(store: str, file: str, where: str, work: Callable[[str, Say], None]) -> tuple[Life, str]:
    """Flip a bit, let a process try, and put it back; say also which names the try made or removed."""
    path = pathlib.Path(store, file)
    data = path.read_bytes()
    at = {"first byte": 0, "middle": len(data) // 2, "last byte": len(data) - 1}[where]
    wrong = bytearray(data)
    wrong[at] ^= 4
    before = _shown(store)
    path.write_bytes(wrong)
    try:
        told = live(functools.partial(work, store), LIFE)
    finally:
        path.write_bytes(data)
    return told, ", ".join(sorted(_shown(store) ^ before))


def _shown(store: str) -> set[str]:
    return {f"{d}/{name}" for d in (names.EPOCHS, names.PUBLISHED) for name in os.listdir(f"{store}/{d}")}


def _named(told: Life, file: str) -> tuple[bool, str]:
    """Say whether a refusal names the file, and what was said."""
    refusals = [line for line in told.said if "refused" in line]
    for line in refusals:
        if str(line["file"]).endswith(file):
            return True, f"refused: {line['refused']}"
    if refusals:
        return False, f"refused ({refusals[0]['refused']}), but named {refusals[0]['file']}"
    if told.last("resumed") is not None:
        return False, f"not refused: update {told.last('resumed')} was resumed"
    return False, f"not refused: {told.last('error') or 'nothing was said'}"
