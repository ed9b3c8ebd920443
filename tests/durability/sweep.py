"""A sweep: every power cut of a recording that is looked at, judged.

A cut is placed before the end of each sync: there most is pending, and what was reported since the
last one is already to be kept. A cut at any earlier moment leaves one of the same states, and less was
reported; but before a generation is retired more was to be kept, so there is a cut there too.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterator, Sequence

from durability.disk import Choice, Disk, Node
from durability.judge import Judge, Required
from durability.recording import Op


@dataclasses.dataclass
class Swept:
    """What a sweep saw. `states` are different ones; `wrong` says where, of what is violated."""

    cuts: int = 0
    exhaustive: int = 0
    states: int = 0
    resumed: int = 0
    violating: int = 0
    wrong: list[str] = dataclasses.field(default_factory=list)


def cut_points(ops: Sequence[Op], model: str) -> Iterator[tuple[Disk, Required, str]]:
    """Yield the disk before the end of each sync, and at the end; with what was reported until then."""
    disk, targets = Disk(model), dict[int, Node]()
    events = [(op.begin, 1, i) for i, op in enumerate(ops)]
    for i, op in enumerate(ops):
        if op.what == "sync" or (op.what not in ("write", "note") and model == "syncmeta"):
            events.append((op.end, 0, i))
    acknowledged: set[str] = set()
    epoch = 0
    for _, begins, i in sorted(events):
        op = ops[i]
        if not begins:
            yield disk, Required(frozenset(acknowledged), epoch), f"before the end of {op.what} {op.path}"
            if op.what == "sync":
                disk.end_of_sync(op, targets.pop(i))
            else:
                disk.end_of_name(op)
            continue
        if op.what == "note":
            kind, _, text = op.path.partition(" ")
            if kind == "ack":
                acknowledged.add(text)
            elif kind == "epoch":
                epoch = max(epoch, int(text))
            continue
        if op.what == "sync":
            targets[i] = disk.target(op)
        final = os.path.basename(op.other)
        if final.endswith(".removed"):
            yield disk, Required(frozenset(acknowledged), epoch), f"before {op.what} {op.other}"
            acknowledged.discard(final.removesuffix(".removed"))
        disk.begin(op)
    yield disk, Required(frozenset(acknowledged), epoch), "at the end"


def sweep(
    ops: Sequence[Op],
    judge: Judge,
    *,
    model: str = "posix",
    bound: int = 256,
    seed: int = 1,
    resumes: int = 0,
    first: bool = False,
) -> Swept:
    """Judge what each cut may leave; at most `resumes` of the states are also continued by a real job.

    `first`: end at the first violation.
    """
    swept = Swept()
    known: set[int] = set()
    continued: set[object] = set()
    for disk, required, where in cut_points(ops, model):
        swept.cuts += 1
        choices = disk.choices()
        states = 1
        for choice in choices:
            states *= len(choice.states)
        swept.exhaustive += model in ("posix", "syncmeta") and states <= bound
        for taken in disk.cuts(choices, bound, seed + swept.cuts):
            state = disk.state(choices, taken)
            key = hash(frozenset(state.items()))
            known.add(key)
            wrong = judge.look(state, key).missing(required)
            shape = frozenset(path for path in state if "/." not in path), required.epoch
            if not wrong and len(continued) < resumes and shape not in continued:
                continued.add(shape)
                wrong = judge.go_on(state, required)
                swept.resumed += 1
            if wrong:
                swept.violating += 1
                if len(swept.wrong) < 20:
                    swept.wrong.append(f"{where}: {'; '.join(wrong)}\n{told(choices, taken)}")
                if first:
                    return swept
    swept.states = len(known)
    return swept


def told(choices: Sequence[Choice], taken: Sequence[int]) -> str:
    """Say what of the pending things is there."""
    lines = []
    for choice, i in zip(choices, taken, strict=True):
        states = choice.states
        there = states[i]
        what = choice.key[1] or "data"
        if isinstance(there, bytes):
            lines.append(f"    {what}: state {i} of {len(states)}, {len(there)} bytes")
        else:
            lines.append(
                f"    {what}: {'there' if there is not None else 'not there'}, state {i} of {len(states)}"
            )
    return "\n".join(lines)
