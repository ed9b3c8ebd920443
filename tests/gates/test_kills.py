"""Gate: SIGKILL before each system call of a publish, of retention and of a claim.

A kill leaves the page cache alone, so this proves nothing about power cuts. It proves that a store
left behind at any point holds the previous or the new generation, whole; that nobody reported
success for what is not there; and that the next job resumes, cleans up and publishes.

The calls are counted in a traced run first. Each kill has its own copy of a small store with one
generation. What MPICH's launcher does, ending every rank when one dies, is part of the test: where
the others stand then is chance.
"""

from __future__ import annotations

import concurrent.futures
import dataclasses
import pathlib
import shutil

import pytest
from gates import crash
from gates.crash import step

import shim
from alpha_mpi.store import names

#: Launches at once: one works while the other's launcher waits for its dead.
AT_ONCE = 2
OLD = "e000001-000001"
NEW = "e000002-000001"


@dataclasses.dataclass(frozen=True)
class Scenario:
    """Where to kill: before the calls of role `acting`, which is also killed unless `victim` is.

    `every`: 1 takes each call that changes something, n only each n-th from `first` on; 0 takes
    every call.
    `least`: so many kills there are. `during`: the step whose calls count. `left`: the store holds
    an unfinished attempt already; `empty`: there is no store.
    """

    name: str
    ranks: int
    fan_out: int
    acting: int
    least: int = 10
    during: str = "save"
    victim: int | None = None
    keep: int | None = None
    every: int = 1
    first: int = 0
    left: bool = False
    empty: bool = False

    def steps(self, store: pathlib.Path) -> list[dict]:
        """Return the steps that lead to the one where the kill happens, and that one."""
        options = {} if self.keep is None else {"keep": self.keep}
        steps = [step("open", store=str(store), **options), step("resume"), step("save")]
        return steps[: [s["do"] for s in steps].index(self.during) + 1]


ORDINARY = [
    Scenario("root of a tree", 4, 2, acting=0, least=8, every=2),
    Scenario("inner role of a tree", 4, 2, acting=1, least=8, every=2),
    Scenario("leaf of a tree", 4, 2, acting=2, least=8, every=2, first=1),
    Scenario("root of a star", 3, 0, acting=0, least=6, every=3),
    Scenario("member of a star, by the root's calls", 3, 0, acting=0, least=5, victim=1, every=4),
    Scenario("retention", 3, 0, acting=0, least=5, keep=1, every=6, first=3),
    Scenario("claim and cleaning", 3, 0, acting=0, least=4, during="resume", left=True, every=4),
]
SLOW = [
    Scenario("root of a tree: each change", 4, 2, acting=0, least=15),
    Scenario("root of a tree, with retention: every call", 4, 2, acting=0, keep=1, every=0),
    Scenario("inner role of a tree: every call", 5, 2, acting=1, every=0),
    Scenario("leaf of a tree: every call", 5, 2, acting=3, every=0),
    Scenario("leaf of a tree, by the root's calls", 4, 2, acting=0, victim=3),
    Scenario("root of a tree, by the inner role's calls", 4, 2, acting=1, victim=0),
    Scenario("root of a star, with retention: every call", 3, 0, acting=0, keep=1, every=0),
    Scenario("member of a star, by each call of the root", 3, 0, acting=0, victim=2),
    Scenario("claim and cleaning: every call", 4, 2, acting=0, during="resume", left=True, every=0),
    Scenario("first claim", 3, 0, acting=0, during="resume", empty=True, every=0),
    Scenario("making a store: every call", 3, 0, acting=0, during="open", empty=True, every=0),
    Scenario("opening a store: every call", 3, 0, acting=0, during="open", every=0),
]


def changes(call: shim.Call) -> bool:
    """Whether the call changes the store: a kill before any other leaves what the next one finds."""
    if call.op == "openat":
        return bool(call.extra & 0o100)
    return call.op != "close" or call.path.endswith(".tmp")


def called(call: shim.Call) -> tuple[str, str]:
    """Return a call without what differs from run to run."""
    name = call.path.rpartition("/")[2]
    return call.op, names.parse_temporary(name) or name


class Stores:
    """Small stores to begin with, each made once."""

    def __init__(self, folder: pathlib.Path) -> None:
        self.folder = folder
        self.made: dict[tuple[int, int, bool], pathlib.Path] = {}

    def base(self, scenario: Scenario) -> pathlib.Path | None:
        """Return a store with one generation, perhaps with an unfinished attempt after it."""
        if scenario.empty:
            return None
        key = scenario.ranks, scenario.fan_out, scenario.left
        if key not in self.made:
            store = self.made[key] = self.folder / f"base-{len(self.made)}"
            plan = [step("open", store=str(store)), step("resume"), step("save"), step("close")]
            crash.run(scenario.ranks, scenario.fan_out, plan).on_all()
            if scenario.left:
                kill = step("arm", roles=[0], kill=1, kill_ops="renameat2,linkat")
                plan = [*plan[:2], kill, step("save")]
                done = crash.run(scenario.ranks, scenario.fan_out, plan, environment=shim.env(store))
                assert done.status != 0
                assert len(list((store / names.DATA).iterdir())) == 2
        return self.made[key]

    def copy(self, scenario: Scenario, name: str) -> pathlib.Path:
        """Return a fresh copy."""
        base, store = self.base(scenario), self.folder / name / "run" / "ckpt"
        store.parent.mkdir(parents=True)
        if base is not None:
            shutil.copytree(base, store)
        return store


@pytest.fixture(scope="module")
def stores(tmp_path_factory: pytest.TempPathFactory) -> Stores:
    return Stores(tmp_path_factory.mktemp("kills"))


def calls_of(scenario: Scenario, stores: Stores) -> list[shim.Call]:
    """Return the calls of the acting role during the step, none of them disturbed."""
    store = stores.copy(scenario, "traced")
    trace = store.parents[1] / "trace"
    *before, last = scenario.steps(store)
    plan = [*before, step("say", text="begin"), last, step("say", text="end"), step("close")]
    crash.run(
        scenario.ranks, scenario.fan_out, plan, environment=shim.env(store.parent, trace=trace)
    ).on_all()
    mine = [c for c in shim.read_trace(trace) if c.rank == scenario.acting]
    begin, end = (next(i for i, c in enumerate(mine) if c.path == text) for text in ("begin", "end"))
    shutil.rmtree(store.parents[1])
    return mine[begin + 1 : end]


@dataclasses.dataclass
class Killed:
    """One kill and what it left."""

    number: int
    call: shim.Call
    store: pathlib.Path
    acked: list[str]
    wrong: list[str]


def kill(scenario: Scenario, stores: Stores, number: int, call: shim.Call) -> Killed:
    """Kill before one call, and judge what is left."""
    store = stores.copy(scenario, f"kill-{number}")
    ack, trace = (store.parents[1] / name for name in ("ack", "trace"))
    *before, last = scenario.steps(store)
    armed = step("arm", roles=[scenario.acting], victim=scenario.victim, kill=number)
    environment = shim.env(store.parent, trace=trace)
    done = crash.run(
        scenario.ranks, scenario.fan_out, [*before, armed, last], ack=ack, environment=environment
    )
    acked = ack.read_text().splitlines() if ack.exists() else []
    wrong = []
    killed = [c for c in shim.read_trace(trace) if c.note.startswith("killed")]
    if [called(c) for c in killed] != [called(call)]:
        wrong.append(f"not killed there, status {done.status}: {killed} {done.output[-2000:]}")
    if done.status == 0:
        wrong.append("the job ended well")
    wrong += judged(scenario, store, acked)
    return Killed(number, call, store, acked, wrong)


def judged(scenario: Scenario, store: pathlib.Path, acked: list[str]) -> list[str]:
    """Judge a store that was left behind: the old or the new generation, whole."""
    if scenario.empty:
        return []  # there is no generation yet; the next job tells
    found = crash.judge(store)
    wrong = list(found.problems)
    if found.newest not in ((OLD, NEW) if scenario.during == "save" else (OLD,)):
        wrong.append(f"newest is {found.newest}")
    if acked and found.newest != NEW:
        wrong.append(f"success was reported by {acked}, but newest is {found.newest}")
    return wrong


def recover(scenario: Scenario, kills: list[Killed]) -> None:
    """Let one later job resume every store in turn, and save; judge again."""
    plan = []
    for killed in kills:
        plan += [step("open", store=str(killed.store)), step("resume"), step("save"), step("close")]
    # The judge above looked at each store; the newest must be what it said.
    before = [None if scenario.empty else crash.judge(killed.store) for killed in kills]
    lines = crash.run(scenario.ranks, scenario.fan_out, plan).on_all()
    for i, killed in enumerate(kills):
        for one in lines[4 * i : 4 * i + 4]:
            killed.wrong += [str(line) for line in one if "error" in line or line["warnings"]]
        if killed.wrong:
            continue
        _, resumed, saved, _ = lines[4 * i : 4 * i + 4]
        expected = before[i].update if before[i] is not None else 0
        killed.wrong += [f"resumed {r}" for r in resumed if r["different"] or r["update"] != expected]
        after = crash.judge(killed.store)
        if after.problems or after.newest != saved[0]["name"] or after.update != expected + 1:
            killed.wrong.append(f"after the next save: {after}")
        killed.wrong += [f"left over: {name}" for name in crash.leftovers(killed.store, after.epoch)]


def sweep(scenario: Scenario, stores: Stores) -> list[Killed]:
    """Kill before each of the calls that the scenario takes."""
    calls = calls_of(scenario, stores)
    if scenario.every == 0:
        chosen = list(enumerate(calls, 1))
    else:
        chosen = [(n, c) for n, c in enumerate(calls, 1) if changes(c)]
        chosen = chosen[scenario.first :: scenario.every]
    with concurrent.futures.ThreadPoolExecutor(AT_ONCE) as pool:
        kills = list(pool.map(lambda one: kill(scenario, stores, *one), chosen))
    recover(scenario, kills)
    for killed in kills:
        shutil.rmtree(killed.store.parents[1])
    return kills


def test_there_are_enough_kills() -> None:
    assert sum(scenario.least for scenario in ORDINARY) >= 40


@pytest.mark.timeout(1200)
@pytest.mark.parametrize(
    "scenario",
    [*ORDINARY, *(pytest.param(s, marks=pytest.mark.campaign) for s in SLOW)],
    ids=lambda s: s.name.replace(" ", "-"),
)
def test_a_kill_before_each_call(scenario: Scenario, stores: Stores) -> None:
    kills = sweep(scenario, stores)
    assert len(kills) >= scenario.least
    wrong = [f"before call {k.number}, {called(k.call)}: {w}" for k in kills for w in k.wrong]
    assert not wrong, "\n".join(wrong)
    print(f"{len(kills)} kills, {sum(bool(k.acked) for k in kills)} after a success")
