"""Kills: processes that die around the rename, and the next one, which must find a whole generation.

Each *life* resumes what the one before left, says what it found, and saves. It is killed, by itself
between two stages of a commit, or from outside at a moment by chance; or it is the *next* one, which
nobody kills. The generation that this one resumes is the last that a save has reported, or the one
that was under way; bit for bit.
"""

from __future__ import annotations

import collections
import functools
import random
import signal
import time
from typing import Any

import numpy as np

from ..errors import CheckpointError
from ..model.layout import rows, shares
from ..restore import choose
from ..restore.verify import verify
from ..state import State
from ..store.store import Store
from .check import FAILED, HELD, PARTLY, Check, Clock, Plan, Table, ended, many
from .stages import die_at, watch
from .warden import Killer, Life, Say, live

#: Longest time of one life, in seconds.
LIFE = 60.0
#: Updates that a life saves that nobody kills.
UPDATES = 3
#: Updates of a life that is to be killed from outside: it does not end before.
ENDLESS = 1000
#: The moments of a first look: on both sides of the rename that publishes.
QUICK = (("entry", "closed"), ("entry", "renamed"))


class Words:
    """A small state whose every word follows from the update."""

    def __init__(self) -> None:
        self.weights = np.zeros((97, 64), np.float32)
        self.moments = np.zeros(1003, np.float64)
        self.mean = np.zeros(33, np.float32)
        self.count = 0

    def at(self, update: int) -> None:
        """Become the state after `update`."""
        self.weights[...] = np.arange(97 * 64, dtype=np.float32).reshape(97, 64) + 7 * update
        self.moments[...] = np.arange(1003) / (1 + update)
        self.mean[...] = update
        self.count = update

    def state(self) -> State:
        """Declare it."""
        state = State()
        state.partition("weights", self.weights, shape=self.weights.shape, layout=rows())
        state.partition("moments", self.moments, shape=self.moments.shape, layout=shares())
        state.replicate("mean", self.mean)
        state.replicate("count", self, "count")
        return state

    def wrong(self, update: int) -> list[str]:
        """Return the regions that are not, bit for bit, as after `update`."""
        other = Words()
        other.at(update)
        arrays = ("weights", "moments", "mean")
        found = [n for n in arrays if getattr(self, n).tobytes() != getattr(other, n).tobytes()]
        return found + ["count"] * (self.count != update)


def life(
    store: str,
    say: Say,
    updates: int = UPDATES,
    dies: tuple[str, str, int] | None = None,
    telling: bool = False,
) -> None:
    """Resume, say what was found, and save the next updates; die at a moment of a kind of file.

    Who is telling says which moments there were.
    """
    from ..checkpointer import Checkpointer

    if dies is not None:
        die_at(*dies)
    elif telling:
        watch(lambda kind, moment: say({"moment": [kind, moment]}))
    held = Words()
    with Checkpointer(store, held.state(), keep=3, visibility=2.0, time_limit=None) as ckpt:
        moment = ckpt.resume()
        wrong = held.wrong(moment.update) if moment.update else []
        say({"resumed": moment.update, "wrong": wrong})
        for update in range(moment.update + 1, moment.update + 1 + updates):
            held.at(update)
            say({"begun": update})
            ckpt.save(update)
            say({"saved": update})


class Trial:
    """The lives of one store, one after the other."""

    def __init__(self, store: str) -> None:
        self.store = store
        self.saved = self.begun = 0  # the last that was reported, and the last that was begun
        self.notes: list[str] = []
        self.found: collections.Counter[tuple[str, str]] = collections.Counter()
        self.kills = 0
        self._died = "nothing"
        self._moment = ""  # where the last one was killed

    def live(
        self,
        what: str,
        dies: tuple[str, str, int] | None = None,
        killer: Killer | None = None,
        updates: int = UPDATES,
        telling: bool = False,
    ) -> Life:
        """Live one life, judge what it resumed, and remember how it died."""
        work = functools.partial(life, self.store, updates=updates, dies=dies, telling=telling)
        told = live(work, LIFE, killer)
        self.judge(told)
        killed = told.code == -signal.SIGKILL
        if killed:
            self.kills += 1
            self._died = f"a kill ({what})"
        elif told.code == 0 and dies is not None:
            self.notes.append(f"{what}: the process was to die there, and lived")
        if not killed:
            self._died = (
                "a life that ended well" if told.code == 0 and told.last("saved") else "one that failed"
            )
        self._moment = what if killed else ""
        return told

    def kill(self, *how: Any) -> None:
        """Live one life that is killed, and the next one."""
        self.live(*how)
        self.live("nobody", updates=1)

    def judge(self, told: Life) -> None:
        """Compare what a life resumed with what the ones before had saved."""
        where = f"after {self._died}"
        for line in told.said:
            if "refused" in line or "error" in line or "hung" in line:
                self.notes.append(f"{where}: {line.get('message') or line.get('error') or 'it hung'}")
        resumed = told.last("resumed")
        if resumed is not None:
            if resumed not in (self.saved, self.begun):
                self.notes.append(
                    f"{where}: update {resumed} was resumed; saved was {self.saved}, under way {self.begun}"
                )
            if told.last("wrong"):
                self.notes.append(f"{where}: update {resumed} with other words in {told.last('wrong')}")
            if self._moment:
                new = resumed == self.begun and self.begun > self.saved
                self.found[self._moment, "new" if new else "previous"] += 1
            self.saved = self.begun = resumed
        elif told.code == 0 and not told.said:
            self.notes.append(f"{where}: the process said nothing")
        self.saved = told.last("saved", self.saved)
        self.begun = max(self.begun, told.last("begun", 0), self.saved)


def kills(store: str, plan: Plan) -> Check:
    """Kill lives in `store`, a directory of their own, and judge what is left. Called by the warden."""
    clock, trial = Clock(plan.share("kills")), Trial(store)
    trial.live("nobody")
    told = trial.live("nobody", telling=True)
    begin = time.monotonic()
    trial.live("nobody")
    span = time.monotonic() - begin
    seen = dict.fromkeys((str(kind), str(when)) for kind, when in _moments(told))
    # The first entry of a life seals the older epoch, the next ones are its roots.
    moments = [
        (what, kind, when, count)
        for kind, when in seen
        for what, count in ((("seal", 1), ("root", 2)) if kind == "entry" else ((kind, 1),))
        if not plan.quick or (kind, when) in QUICK
    ]
    wanted = len(moments) + plan.kills
    for what, kind, when, count in moments:
        if clock.over and trial.kills:
            break
        trial.kill(f"{what} {when}", (kind, when, count))
    for _ in range(plan.kills):
        if clock.over:
            break
        killer = Killer(random.uniform(0, span), random.choice(("", '"resumed"')))
        trial.kill("by chance", None, killer, ENDLESS)
    return _conclude(trial, clock, wanted, _verify(trial))


def _moments(told: Life) -> list[list[str]]:
    return [line["moment"] for line in told.said if "moment" in line]


def _verify(trial: Trial) -> int:
    """Read every byte of every generation that is left; return how many there are."""
    try:
        with Store.open(trial.store) as store:
            seen = choose.survey(store)
            for position in seen.lineage:
                trial.notes += [str(problem) for problem in verify(store, *position).problems]
            return len(seen.lineage)
    except (CheckpointError, OSError) as error:
        trial.notes.append(f"the store that is left: {error}")
        return 0


def _conclude(trial: Trial, clock: Clock, wanted: int, whole: int) -> Check:
    found = trial.found
    moments = list(dict.fromkeys(what for what, _ in found))
    lines = tuple((what, str(found[what, "previous"]), str(found[what, "new"])) for what in moments)
    previous = sum(n for (_, which), n in found.items() if which == "previous")
    new = sum(found.values()) - previous
    enough = trial.kills >= wanted
    verdict = FAILED if trial.notes else HELD if enough else PARTLY
    said = f"{many(trial.kills, 'kill')}; then resumed the previous generation {many(previous, 'time')}"
    said += f", the new one {many(new, 'time')}"
    if trial.notes:
        said = f"{trial.notes[0]} ({said})"
    elif not enough:
        said = f"{said}; of {wanted} to be tried: the time was over"
    return ended(
        "kills",
        verdict,
        "the next process resumes the last generation reported, or the one under way; each word of it",
        said,
        notes=trial.notes,
        tables=(
            Table(
                "what the next process resumed, by where the one before died",
                ("killed", "previous generation", "new one"),
                lines,
            ),
        ),
        figures={"kills": trial.kills, "previous": previous, "new": new, "whole": whole},
        seconds=clock.taken,
    )
