"""A disk as POSIX allows it: what may be on it when the power goes.

Names and data are *durable* or *pending*. A sync of a file makes its data durable, a sync of a
directory the names in it; each only what had ended before it began. At a power cut everything
durable is there, and of what is pending anything may be: of each name any of its states since the
last sync, of each file's bytes all, none, a part, or zeros in their place. Names are as independent of
each other as data are: harsher than any file system of Linux.

A *model* says how much of that freedom there is:

``posix``      all of it.
``ordered``    a journal: names appear in the order of the calls, and any sync commits all of them;
               data that were not synced are there, cut, or not there (ext4 data=ordered, xfs).
``writeback``  the same, but the size of a file may be there before its bytes: zeros.
``syncmeta``   each name is durable when its call returns (NFS); data are as in ``posix``.

A *choice* is one thing that may be one of several; a *state* is a choice of all of them.
"""

from __future__ import annotations

import dataclasses
import itertools
import os
import random
from collections.abc import Iterator, Mapping, Sequence

from durability.recording import Op

MODELS = ("posix", "ordered", "writeback", "syncmeta")
#: What a file's pending bytes may be.
NONE, CUT, ZEROS, HOLE, ALL = range(5)

State = Mapping[str, "bytes | None"]


class Node:
    """A file (`entries` None) or a directory."""

    def __init__(self, directory: bool) -> None:
        self.data = b""
        self.writes: list[Op] = []
        self.names: dict[str, Node] | None = {} if directory else None
        self.changes: list[tuple[Op, str, Node | None]] = []
        self.now: dict[str, Node] = {}

    def forget(self) -> None:
        """Keep no pending change."""
        self.writes, self.changes = [], []


@dataclasses.dataclass(frozen=True)
class Choice:
    """Something pending: the states it may have, the first as it was at the last sync, the last as now.

    `since[i]`: when state i came about.
    """

    key: tuple[int, str]
    states: tuple[Node | bytes | None, ...]
    since: tuple[float, ...]

    def at(self, moment: float) -> int:
        """Return the state that it had at a moment."""
        return max(i for i, since in enumerate(self.since) if since <= moment)


class Disk:
    """What is durable and what is pending, while operations are carried out in their order."""

    def __init__(self, model: str = "posix") -> None:
        assert model in MODELS
        self.model = model
        self.root = Node(directory=True)
        self.nodes: list[Node] = [self.root]

    # ---- operations ----

    def begin(self, op: Op) -> None:
        """From here on, the effect of an operation may be on the disk."""
        if op.what in ("create", "mkdir"):
            directory, name = self._parent(op.path)
            if op.what == "create" and name in directory.now:
                return  # opened, not made
            assert name not in directory.now, f"{op.path} is there already"
            made = Node(op.what == "mkdir")
            self.nodes.append(made)
            self._change(op, directory, name, made)
        elif op.what == "write":
            self._find(op.path).writes.append(op)
        elif op.what in ("link", "rename"):
            node = self._find(op.path)
            directory, name = self._parent(op.other)
            assert name not in directory.now, f"{op.other} is replaced"
            self._change(op, directory, name, node)
            if op.what == "rename":
                self._change(op, *self._parent(op.path), None)
        elif op.what in ("unlink", "rmdir"):
            self._change(op, *self._parent(op.path), None)
        else:
            assert op.what in ("sync", "note"), op.what

    def end_of_sync(self, op: Op, node: Node) -> None:
        """A sync has returned: what had ended before it began is durable."""
        if node.names is None:
            node.data, node.writes = _flushed(node, op.begin)
        if self.model in ("ordered", "writeback"):
            for other in self.nodes:
                self._keep_names(other, op.begin)
        elif node.names is not None:
            self._keep_names(node, op.begin)

    def end_of_name(self, op: Op) -> None:
        """A call on names has returned: with ``syncmeta`` they are durable."""
        if self.model == "syncmeta":
            for node in self.nodes:
                self._keep_names(node, op.end)

    def target(self, op: Op) -> Node:
        """Return what a sync is of: looked up when it begins."""
        return self._find(op.path)

    def _keep_names(self, node: Node, moment: float) -> None:
        if node.names is None or not node.changes:
            return
        left = []
        for change in node.changes:
            op, name, there = change
            if op.end > moment:
                left.append(change)
            elif there is None:
                node.names.pop(name, None)
            else:
                node.names[name] = there
        node.changes = left

    def _change(self, op: Op, directory: Node, name: str, node: Node | None) -> None:
        directory.changes.append((op, name, node))
        if node is None:
            assert name in directory.now, f"{op.path} is not there"
            del directory.now[name]
        else:
            directory.now[name] = node

    def _find(self, path: str) -> Node:
        node = self.root
        for part in path.split("/") if path else ():
            node = node.now[part]
        return node

    def _parent(self, path: str) -> tuple[Node, str]:
        above, name = os.path.split(path)
        return self._find(above), name

    # ---- what a power cut may leave ----

    def choices(self) -> list[Choice]:
        """Return everything that is pending and can be seen, the most recent first."""
        found = []
        for node in self._reachable():
            if node.names is None:
                if node.writes:
                    found.append(self._of_data(node))
                continue
            pending: dict[str, list[tuple[Op, Node | None]]] = {}
            for op, name, there in node.changes:
                pending.setdefault(name, []).append((op, there))
            for name, changes in pending.items():
                states = (node.names.get(name), *(there for _, there in changes))
                found.append(Choice((id(node), name), states, (0.0, *(op.begin for op, _ in changes))))
        return sorted(found, key=lambda choice: choice.since[-1], reverse=True)

    def _of_data(self, node: Node) -> Choice:
        whole = _applied(node.data, node.writes)
        pending = sum(len(op.data) for op in node.writes)
        cut = whole[: len(node.data) + max(1, pending // 2)] if len(whole) > len(node.data) else node.data
        zeros = _applied(node.data, [dataclasses.replace(op, data=bytes(len(op.data))) for op in node.writes])
        hole = _applied(node.data, [dataclasses.replace(node.writes[0], data=b""), *node.writes[1:]])
        states = {NONE: node.data, CUT: cut, ZEROS: zeros, HOLE: hole, ALL: whole}
        if self.model == "ordered":
            states = {NONE: node.data, CUT: cut, ALL: whole}
        distinct = list(dict.fromkeys([*list(states.values())[:-1], whole]))
        if distinct[-1] != whole:  # one of the others is the whole: it goes last
            distinct = [d for d in distinct if d != whole] + [whole]
        since = (0.0,) + (node.writes[0].begin,) * (len(distinct) - 2) + (node.writes[-1].begin,)
        return Choice((id(node), ""), tuple(distinct), since[-len(distinct) :])

    def _reachable(self) -> Iterator[Node]:
        seen, stack = {id(self.root)}, [self.root]
        while stack:
            node = stack.pop()
            yield node
            if node.names is None:
                continue
            for below in (*node.names.values(), *(there for _, _, there in node.changes)):
                if below is not None and id(below) not in seen:
                    seen.add(id(below))
                    stack.append(below)

    def state(self, choices: Sequence[Choice], taken: Sequence[int]) -> dict[str, bytes | None]:
        """Return the files (their bytes) and directories (None) that such a choice leaves."""
        chosen = {choice.key: choice.states[i] for choice, i in zip(choices, taken, strict=True)}
        changed: dict[int, list[str]] = {}
        for choice in choices:
            if choice.key[1]:
                changed.setdefault(choice.key[0], []).append(choice.key[1])
        found: dict[str, bytes | None] = {}

        def walk(node: Node, path: str) -> None:
            assert node.names is not None
            names: dict[str, Node] = node.names
            if id(node) in changed:
                names = dict(names)
                for name in changed[id(node)]:
                    there = chosen[id(node), name]
                    if there is None:
                        names.pop(name, None)
                    else:
                        assert isinstance(there, Node)
                        names[name] = there
            for name, below in names.items():
                if below.names is None:
                    data = chosen.get((id(below), ""), below.data)
                    assert isinstance(data, bytes)
                    found[path + name] = data
                else:
                    found[path + name] = None
                    walk(below, f"{path}{name}/")

        walk(self.root, "")
        return found

    def cuts(self, choices: Sequence[Choice], bound: int, seed: int) -> Iterator[tuple[int, ...]]:
        """Yield which states to look at, each once: all if they are at most `bound`.

        Otherwise all of the most recent choices, as many as `bound` allows, with everything older there,
        not there, and by chance; and over all choices: every moment of the past, each thing alone there
        and alone missing, and `bound` by chance.
        """
        sizes = [len(choice.states) for choice in choices]
        if self.model in ("ordered", "writeback"):
            yield from dict.fromkeys(self._journal(choices))
            return
        recent, product = 0, 1
        while recent < len(sizes) and product * sizes[recent] <= bound:
            product *= sizes[recent]
            recent += 1
        chance = random.Random(seed)
        last = tuple(size - 1 for size in sizes)
        first = (0,) * len(sizes)

        def drawn() -> tuple[int, ...]:
            return tuple(chance.randrange(size) for size in sizes)

        def wanted() -> Iterator[tuple[int, ...]]:
            whole = recent == len(sizes)
            for rest in (last,) if whole else (last, first, None):
                for head in itertools.product(*(range(size) for size in sizes[:recent])):
                    yield (*head, *(rest or drawn())[recent:])
            if whole:
                return
            yield from self._journal(choices)
            for base in (first, last):
                for i, size in enumerate(sizes):
                    for other in range(size):
                        yield (*base[:i], other, *base[i + 1 :])
            for _ in range(bound):
                yield drawn()

        yield from dict.fromkeys(wanted())

    def _journal(self, choices: Sequence[Choice]) -> Iterator[tuple[int, ...]]:
        """Names as at each moment since the last sync; data as then, all there, or one or all damaged."""
        data = [i for i, choice in enumerate(choices) if not choice.key[1]]
        for moment in sorted({since for choice in choices for since in choice.since}) or [0.0]:
            then = tuple(choice.at(moment) for choice in choices)
            yield then
            for wanted in range(ALL + 1):
                for some in (data, *([i] for i in data)):
                    taken = list(then)
                    for i in data:
                        states = len(choices[i].states)
                        taken[i] = min(wanted, states - 1) if i in some else states - 1
                    yield tuple(taken)


def _flushed(node: Node, moment: float) -> tuple[bytes, list[Op]]:
    done = [op for op in node.writes if op.end <= moment]
    return _applied(node.data, done), [op for op in node.writes if op.end > moment]


def _applied(data: bytes, writes: Sequence[Op]) -> bytes:
    found = bytearray(data)
    for op in writes:
        if len(found) < op.offset:
            found.extend(bytes(op.offset - len(found)))
        found[op.offset : op.offset + len(op.data)] = op.data
    return bytes(found)
