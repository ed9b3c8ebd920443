"""Resume equivalence: does an interrupted training publish the words of one that ran through?

The *straight* run trains all updates in one job. The *interrupted* one trains some, ends after a
save, and goes on in fresh processes. Every generation that both published is compared on every bit,
in the order of updates and regions, so that the first difference is the nearest to its cause.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import pathlib
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence

from ..comparing import Difference, compare
from ..errors import CheckpointError, Refused
from ..restore import choose
from ..restore.generation import Generation
from ..restore.plan import PER_OWNER
from ..store.store import Store
from .program import Program, Training, run

#: Longest time of one run, in seconds.
TIMEOUT = 120.0


class NotEquivalent(CheckpointError, AssertionError):
    """Two runs that should have published the same words did not; `finding` says where."""

    default_code = "not-equivalent"

    def __init__(self, message: str, finding: Finding) -> None:
        values = finding.difference.values or (None, None)
        super().__init__(
            message,
            code="not-equivalent",
            region=finding.difference.region,
            expected=values[0],
            found=values[1],
        )
        self.finding = finding

    def __str__(self) -> str:
        return self.message  # a page, which says all there is to say


@dataclasses.dataclass(frozen=True)
class Finding:
    """Where two runs first differ.

    Attributes
    ----------
    runs : tuple of str
        Which two: the one taken as right, and the other.
    update : int
        The first update after which published words differ.
    since : int
        The last one before it that both runs published alike; 0 where there is none.
    difference : Difference
        The first region that differs, with the index, both values and their bits. A moment that
        differs is told as the region ``cursor``.
    """

    runs: tuple[str, str]
    update: int
    since: int
    difference: Difference

    def __str__(self) -> str:
        text = f"DIFFERENT after update {self.update}, {self.difference}"
        if self.since < self.update - 1:
            text += f" (of the updates since {self.since} none was saved by both runs)"
        return text


@dataclasses.dataclass(frozen=True)
class Equivalence:
    """What `resume_equivalence` found; ``str`` of it is a page for people.

    Attributes
    ----------
    program : str
        The command, with its placeholders.
    lines : tuple of str
        What was compared, and how each comparison ended.
    findings : tuple of Finding
        Of the comparisons that found a difference.
    directory : str or None
        Where stores and logs lie; None: removed.
    """

    program: str
    lines: tuple[str, ...]
    findings: tuple[Finding, ...]
    directory: str | None

    @property
    def same(self) -> bool:
        """Whether no bit differed anywhere."""
        return not self.findings

    def __bool__(self) -> bool:
        return self.same

    def __str__(self) -> str:
        left = [f"  stores and logs: {self.directory}"] if self.directory else []
        return "\n".join([self.program, *(f"  {line}" for line in self.lines), *left])

    def check(self) -> None:
        """Raise `NotEquivalent`, an AssertionError, with the page as its text, unless all is the same."""
        if self.findings:
            raise NotEquivalent(str(self), self.findings[0])


def resume_equivalence(
    training: Training,
    *,
    updates: int = 5,
    at: int = 3,
    owners: Sequence[int] = (4, 3, 5),
    across: bool = False,
    timeout: float = TIMEOUT,
    directory: str | os.PathLike[str] | None = None,
    env: Mapping[str, str] | None = None,
) -> Equivalence:
    """Compare a training that ran through with one that was interrupted, on each number of owners.

    Called by one process, outside of MPI; it starts three jobs for each number of owners: `updates`
    updates in one run; `at` of them; and, in fresh processes, the rest. The program should save after
    every update and keep all generations: what both runs have published and kept is compared.

    Parameters
    ----------
    training : sequence of str, str, or callable
        The command without `mpiexec`, as words or as one line. ``{store}`` stands for the path of
        the store and ``{updates}`` for the update up to which to train. Where ``{stop}`` stands too,
        ``{updates}`` is the length of the whole training, always the same, and ``{stop}`` the update
        after which to end. Or ``"module:function"``, ``"file.py:function"``, or a function at the
        top of a file: ``function(store, updates)``, or ``function(store, updates, stop)``.
    across : bool
        Also go on with another number of owners after `at`, from each to the next and from the last
        to the first. For placement-free contracts: all runs must publish the same words, but for
        per-owner regions, which are left out between unlike numbers of owners.
    timeout : float
        Longest time of one run in seconds; one that hangs is killed.
    directory : path, optional
        Keep stores and logs in a new folder there. None: a temporary one, kept only if something
        differs or fails.
    env : mapping, optional
        More environment for the runs.

    Raises `Refused`: ``run-failed``, ``run-hung``, ``no-generation`` (a run did not publish what it
    should), ``argument``.
    """
    program = Program(training)
    counts = tuple(owners)
    if not counts or any(n < 1 for n in counts) or not 0 < at < updates:
        raise Refused(
            "updates are cut in two, and at least one number of owners is tried",
            code="argument",
            expected="0 < at < updates, owners of at least 1",
            found=f"at={at}, updates={updates}, owners={counts}",
        )
    if directory is not None:
        pathlib.Path(directory).mkdir(parents=True, exist_ok=True)
    home = pathlib.Path(tempfile.mkdtemp(prefix="resume-", dir=directory))
    trial = _Trial(program, updates, at, timeout, dict(env or {}), home)
    for n in dict.fromkeys(counts):
        trial.each(n)
    if across:
        trial.across(tuple(dict.fromkeys(counts)))
    keep = directory is not None or trial.findings
    if not keep:
        shutil.rmtree(home)
    return Equivalence(str(program), tuple(trial.lines), tuple(trial.findings), str(home) if keep else None)


@dataclasses.dataclass
class _Trial:
    """The runs of one call, and what was found so far."""

    program: Program
    updates: int
    at: int
    timeout: float
    env: dict[str, str]
    home: pathlib.Path
    lines: list[str] = dataclasses.field(default_factory=list)
    findings: list[Finding] = dataclasses.field(default_factory=list)

    def each(self, n: int) -> None:
        """One number of owners: straight against interrupted."""
        straight, first, cut = (self.home / f"{n}-{name}" for name in ("straight", "first", "interrupted"))
        self._leg(straight, n, self.updates)
        self._leg(first, n, self.at)
        told = f"{_owners(n)}, interrupted after update {self.at}"
        with published(first, told) as found:
            self._need(found, told, self.at)
        shutil.copytree(first, cut)
        self._leg(cut, n, self.updates)
        self._compare(f"{_owners(n)}, uninterrupted", straight, told, cut, first)

    def across(self, counts: tuple[int, ...]) -> None:
        """Every number of owners to the next; and all straight runs with the first one."""
        right = self.home / f"{counts[0]}-straight"
        told = f"{_owners(counts[0])}, uninterrupted"
        for n in counts[1:]:
            self._compare(told, right, f"{_owners(n)}, uninterrupted", self.home / f"{n}-straight")
        for a, b in zip(counts, (*counts[1:], counts[0]), strict=True) if len(counts) > 1 else ():
            store = self.home / f"{a}-then-{b}"
            shutil.copytree(self.home / f"{a}-first", store)
            self._leg(store, b, self.updates)
            what = f"{_owners(a)}, after update {self.at} on {_owners(b)}"
            self._compare(told, right, what, store, self.home / f"{a}-first")

    def _leg(self, store: pathlib.Path, n: int, stop: int) -> None:
        log = store.with_name(f"{store.name}-to-{stop}.log")
        run(
            self.program.leg(store, self.updates, stop),
            n,
            log,
            self.timeout,
            {**self.program.env, **self.env},
        )

    def _compare(
        self, one: str, a: pathlib.Path, two: str, b: pathlib.Path, first: pathlib.Path | None = None
    ) -> None:
        """Compare store `b` with `a`, which is right; `first` is what the first leg of `b` left."""
        resumed = first is not None
        with published(a, one) as right, published(b, two) as other:
            self._need(right, one, self.updates)
            self._need(other, two, self.updates)
            if first is not None:
                with published(first, two) as before:
                    epochs = [found[max(found)].candidate.position.epoch for found in (before, other)]
                if epochs[0] >= epochs[1]:
                    raise Refused(
                        f"{two}: the second leg did not resume what the first had saved",
                        code="not-resumed",
                        expected=f"a continuation of epoch {epochs[0]}",
                        found=f"epoch {epochs[1]}",
                    )
            shared = sorted(right.keys() & other.keys())
            since, words = 0, 0
            for update in shared:
                for difference in differences(right[update], other[update]):
                    if not difference.same:
                        finding = Finding((one, two), update, since, difference)
                        self.findings.append(finding)
                        self.lines.append(f"{two}: {finding}{self._hint(update, resumed)}")
                        return
                    words += difference.words
                since = update
        self.lines.append(f"{two}: the same, {len(shared)} updates, {words:,} words")

    def _hint(self, update: int, resumed: bool) -> str:
        if resumed and update <= self.at:
            return "; already before the interruption: the program gives other bits each time it is run"
        return "" if resumed else "; without any interruption: its bits depend on the number of owners"

    def _need(self, found: Mapping[int, Generation], who: str, update: int) -> None:
        if update not in found:
            raise Refused(
                f"{who}: no generation of update {update} was found; the program must save after every "
                "update and keep all generations",
                code="no-generation",
                expected=f"update {update}",
                found=", ".join(map(str, sorted(found))) or "none",
            )


def _owners(n: int) -> str:
    return f"{n} owner" if n == 1 else f"{n} owners"


@contextlib.contextmanager
def published(path: pathlib.Path, who: str) -> Iterator[dict[int, Generation]]:
    """Give the generations of a store's lineage by update."""
    try:
        store = Store.open(path)
    except Refused as error:
        raise Refused(
            f"{who}: the run left no store: is {{store}} where it saves?", code="no-generation", file=path
        ) from error
    with store:
        found = {}
        for position in choose.survey(store).lineage:
            generation = Generation.open(store, *position)
            found[generation.candidate.manifest.prefix.moment.update] = generation
        yield found


def differences(a: Generation, b: Generation) -> Iterator[Difference]:
    """Compare two generations, moments first; see `resume_equivalence` for what is left out."""
    one, two = (g.candidate.manifest.prefix.moment.cursor for g in (a, b))
    if one != two:
        yield Difference("cursor", values=(str(one), str(two)), path="the moment")
    own = {r.name for r in (*a.regions, *b.regions) if r.kind in PER_OWNER}
    unlike = a.root.owners != b.root.owners
    for difference in compare(a, b):
        if not (unlike and difference.region in own):
            yield difference
