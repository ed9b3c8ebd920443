"""A save in memory: real machines, ports and driver; the work is kept in a few fields."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

from alpha_mpi import digest
from alpha_mpi.errors import cause_of
from alpha_mpi.format.manifest import ChildRecord
from alpha_mpi.model.capture import Attempt, Moment, Prefix
from alpha_mpi.mpi.driver import run
from alpha_mpi.mpi.families import Families
from alpha_mpi.mpi.ports import Ports, Report
from alpha_mpi.protocol.events import (
    End,
    Entered,
    Failed,
    ManifestDurable,
    NextEntry,
    RootDurable,
    ShardsDurable,
    WriterStopped,
)
from alpha_mpi.protocol.hierarchy import Tree
from alpha_mpi.protocol.publication import StarMember, StarRoot, TreeRole

ROOT = digest.of(b"root")


def prefix(attempt: Attempt, replicas: str = "same") -> Prefix:
    name = digest.of
    return Prefix(
        1,
        attempt,
        name(b"schema"),
        name(b"learner"),
        name(b"contract"),
        name(b"layout"),
        name(b"cover"),
        Moment(attempt.save, attempt.save, attempt.epoch),
        name(replicas.encode()),
    )


def words(owner: int, size: int) -> bytes:
    return bytes((owner * 31 + i) % 251 for i in range(size))


class Work:
    """What the room above would do, in memory. Fields named `fail_*` say where to fail."""

    def __init__(self, families: Families, inventory: bytes = b"", payload: bytes = b"") -> None:
        self.place = families.place
        self.role = families.world.rank
        self._inventory = inventory
        self._payload = payload
        self.seconds = 0.0
        self.fail_shards = self.fail_payload = self.fail_receive = False
        self.on_shards: Callable[[], None] = lambda: None
        self.stopped = threading.Event()
        self.inventories: dict[int, bytes] = {}
        self.payloads: dict[int, bytearray] = {}
        self.bytes = 0
        self.calls: list[str] = []

    def _start(self, work: Callable[[], Any], report: Report) -> None:
        threading.Thread(target=lambda: report(work()), daemon=True).start()

    def write_shards(self, report: Report) -> None:
        self.calls.append("shards")

        def work() -> Any:
            self.on_shards()
            end = time.monotonic() + self.seconds
            while time.monotonic() < end and not self.stopped.is_set():
                time.sleep(0.01)
                self.bytes += 1
            if self.fail_shards:
                return Failed(cause_of(OSError(28, "No space left on device"), self.role))
            return ShardsDurable()

        self._start(work, report)

    def stop_writing(self, report: Report) -> None:
        self.calls.append("stop")
        self.stopped.set()
        self._start(WriterStopped, report)

    def write_manifest(self, children: tuple[ChildRecord, ...], report: Report) -> None:
        self.calls.append("manifest")
        assert [(c.role, c.size) for c in children] == list(self.place.children)
        name = digest.of(b"manifest")
        record = ChildRecord(self.place.role, self.place.size, name, digest.of(b"cover"))
        self._start(lambda: ManifestDurable(record), report)

    def publish_root(self, children: tuple[ChildRecord, ...], entry: int, report: Report) -> None:
        self.calls.append("root")
        assert [(c.role, c.size) for c in children] == list(self.place.children)
        self._start(lambda: RootDurable(ROOT), report)

    def look_at_next_entry(self, entry: int, report: Report) -> None:
        self.calls.append("look")
        self._start(lambda: NextEntry(None, False), report)

    def written(self) -> int:
        return self.bytes

    def inventory(self) -> bytes:
        return self._inventory

    def payload(self, offset: int, nbytes: int) -> memoryview:
        if self.fail_payload and offset > 0:
            raise ValueError("the getter failed")
        return memoryview(self._payload)[offset : offset + nbytes]

    def receive_inventory(self, owner: int, data: bytes) -> None:
        assert not self.payloads
        self.inventories[owner] = data

    def receive_payload(self, owner: int, offset: int, view: memoryview) -> None:
        if self.fail_receive and offset > 0:
            raise OSError(28, "No space left on device")
        stream = self.payloads.setdefault(owner, bytearray())
        assert len(stream) == offset
        stream += view
        self.bytes += len(view)


class Job:
    """One owner's sequence of saves."""

    def __init__(self, families: Families, ports: Ports, deadline: float = 20) -> None:
        self.families = families
        self.ports = ports
        self.deadline = deadline
        self.saves = 0
        self.work: Work

    def save(
        self,
        work: Work | None = None,
        replicas: str = "same",
        failing: BaseException | None = None,
        slice_limit: int = 1 << 20,
        deadline: float | None = None,
    ) -> End:
        self.saves += 1
        attempt = Attempt(1, self.saves)
        world, place = self.families.world, self.families.place
        self.work = work or Work(self.families)
        limit, now = deadline or self.deadline, time.monotonic()
        machine: TreeRole | StarRoot | StarMember
        if not self.families.star:
            hierarchy = self.families.hierarchy
            assert isinstance(hierarchy, Tree)
            entry = self.saves if place.parent is None else None
            machine = TreeRole(place, world.size, attempt, limit, entry, now=now, fan_out=hierarchy.fan_out)
        elif world.rank == 0:
            machine = StarRoot(world.size, attempt, limit, self.saves, slice_limit, now=now)
        else:
            machine = StarMember(world.rank, attempt, limit, now=now)
        if failing is None:
            entered = Entered(
                prefix(attempt, replicas),
                inventory=len(self.work._inventory),
                payload=len(self.work._payload),
            )
        else:
            entered = Entered(None, cause=cause_of(failing, world.rank))
        self.machine = machine
        return run(machine, self.ports, self.work, entered)
