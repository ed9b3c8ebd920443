"""R27: the device a generation was saved on, and the one it is resumed on.

A card is known by its UUID and a product by its name, however the process was told which ones to
see; another one is refused on every owner before any is given a word, with both named.
"""

from __future__ import annotations

import pathlib
from typing import Any

import numpy as np
import pytest
from fake_device import CARD, NEWER, OTHER, SLICE, Fake
from fill import fill, same_bits

import alpha_mpi as am
from alpha_mpi.devices import runtime as seam
from alpha_mpi.devices.identity import Identity, identity_of
from alpha_mpi.format.claim import decode_claim
from tests.mpi.scenario import HIERARCHIES, name_of, open_, refusal, snapshot

pytestmark = pytest.mark.mpi

CARDS = (CARD, OTHER, NEWER, SLICE)
SHAPE = (301, 4)


class Job:
    """One owner's share on the device that `visible` makes its number 0; None: on the host."""

    def __init__(self, comm: Any, visible: str | None, last: str | None = None) -> None:
        if last is not None and comm.rank == comm.size - 1:
            visible = last
        self.comm, self.fake = comm, Fake(*CARDS, visible=visible)
        begin, end = am.rows().bounds(SHAPE[0], comm.size, comm.rank)
        self.mine = slice(begin, end)
        host = np.full((end - begin, SHAPE[1]), 7, np.float32)
        self.array = host if visible is None else self.fake.array(host)
        self.state = am.State()
        self.state.partition("w", self.array, shape=SHAPE, layout=am.rows())

    def put(self, update: int) -> None:
        self.data[...] = fill("w", update, SHAPE, np.float32)[self.mine]

    @property
    def data(self) -> Any:
        return self.array if isinstance(self.array, np.ndarray) else self.array.data

    def publish(self, path: pathlib.Path, update: int, **more: Any) -> None:
        with seam.replaced(self.fake), open_(path, self.state, self.comm, **more) as ckpt:
            ckpt.resume()
            self.put(update)
            ckpt.save(update)

    def resumes(self, path: pathlib.Path, update: int, accept: Any = None, **more: Any) -> am.Checkpointer:
        """Resume; every word is that of `update`."""
        with seam.replaced(self.fake), open_(path, self.state, self.comm, **more) as ckpt:
            assert ckpt.resume(accept=accept).update == update
        assert same_bits(self.data.copy(), fill("w", update, SHAPE, np.float32)[self.mine])
        return ckpt

    def refused(self, path: pathlib.Path, **more: Any) -> am.CheckpointError:
        """Resume in vain: nothing changes, in the store or on the device."""
        before = snapshot(self.comm, path)
        with seam.replaced(self.fake), open_(path, self.state, self.comm, **more) as ckpt:
            told = refusal(self.comm, ckpt.resume)
        assert snapshot(self.comm, path) == before and (self.data == 7).all()
        assert told.code == "wrong-device" and 'am.Accept(device="why")' in str(told)
        return told


#: Spellings of CUDA_VISIBLE_DEVICES for the card that saved.
SAME = ("0", CARD.uuid, "GPU-aaaa", "GPU-aaaaaaaa-0000,1", "0,2")


@pytest.mark.parametrize("hierarchy", HIERARCHIES, ids=name_of)
def test_r27_the_product_is_bound_by_itself(comm: Any, mpi_tmp_path: pathlib.Path, hierarchy: Any) -> None:
    path, more = mpi_tmp_path / "s", {"hierarchy": hierarchy}
    Job(comm, "0").publish(path, 10, **more)
    for spelt in SAME[1:2]:
        Job(comm, spelt).resumes(path, 10, **more)
    Job(comm, "1").resumes(path, 10, **more)  # another card of the same product
    for visible, named in (("2", NEWER.product), ("MIG-aaaa", SLICE.product)):
        told = Job(comm, visible).refused(path, **more)
        assert (told.expected, told.found) == (CARD.product, named)
    told = Job(comm, None).refused(path, **more)
    assert (told.expected, told.found) == (CARD.product, "no GPU")
    if comm.size > 1:
        told = Job(comm, "0", last="2").refused(path, **more)
        assert told.found == f"{CARD.product} + {NEWER.product}"

    job = Job(comm, "2")
    ckpt = job.resumes(path, 10, am.Accept(device="the old ones are gone"), **more)
    assert ckpt.resumed is not None
    line = f"product: expected {NEWER.product!r}, found {CARD.product!r}"
    assert ckpt.resumed.accepted == (("device", line, "the old ones are gone"),)
    newest = sorted((path / "epochs").iterdir())[-1]
    assert decode_claim(newest.read_bytes(), "").accepted == ckpt.resumed.accepted


@pytest.mark.parametrize("hierarchy", HIERARCHIES, ids=name_of)
def test_r27_the_very_card(comm: Any, mpi_tmp_path: pathlib.Path, hierarchy: Any) -> None:
    path, more = mpi_tmp_path / "s", {"hierarchy": hierarchy, "contract": am.Contract(device="uuid")}
    Job(comm, "GPU-aaaa").publish(path, 10, **more)
    for spelt in SAME if isinstance(hierarchy, am.Star) else SAME[:1]:
        Job(comm, spelt).resumes(path, 10, **more)
    told = Job(comm, "1").refused(path, **more)
    assert told.role == 0 and (told.expected, told.found) == (str(CARD), str(OTHER))
    told = Job(comm, "0", last="GPU-bbbb").refused(path, **more)
    assert told.role == comm.size - 1 and (told.expected, told.found) == (str(CARD), str(OTHER))
    for visible in ("2", SLICE.uuid, None) if isinstance(hierarchy, am.Star) else ():
        Job(comm, visible).refused(path, **more)
    other = HIERARCHIES[hierarchy is HIERARCHIES[0]]
    if comm.size > 1:  # with one owner a tree of height 0 and a star still differ
        told = Job(comm, "0", last="1").refused(path, **{**more, "hierarchy": other})
        assert told.role == comm.size - 1 and told.found == str(OTHER)
    Job(comm, "0").resumes(path, 10, **{**more, "hierarchy": other})

    ckpt = Job(comm, "0", last="1").resumes(path, 10, am.Accept(device="why not"), **more)
    assert ckpt.resumed is not None
    subject = f"owner {comm.size - 1}: saved on {CARD}, resumed on {OTHER}"
    assert ckpt.resumed.accepted == (("device", subject, "why not"),)


def test_r27_on_another_number_of_owners(comm: Any, mpi_tmp_path: pathlib.Path) -> None:
    """The cards of one owner each are no cards of another number of owners; a product is."""
    if comm.size == 1:
        return
    few = comm.Split(0 if comm.rank == 0 else 1, comm.rank)
    bound = am.Contract(device="uuid")
    if comm.rank == 0:
        Job(few, "0").publish(mpi_tmp_path / "uuid", 10, contract=bound)
        Job(few, "0").publish(mpi_tmp_path / "product", 10)
    comm.barrier()
    told = Job(comm, "0").refused(mpi_tmp_path / "uuid", contract=bound)
    assert "bound to the cards of 1 owners" in str(told)
    Job(comm, "0").resumes(mpi_tmp_path / "uuid", 10, am.Accept(device="why not"), contract=bound)
    Job(comm, "1").resumes(mpi_tmp_path / "product", 10)
    few.Free()


def test_r27_nothing_is_bound(comm: Any, mpi_tmp_path: pathlib.Path) -> None:
    path, more = mpi_tmp_path / "s", {"contract": am.Contract(device="none")}
    Job(comm, "0").publish(path, 10, **more)
    for visible in ("0", "1", "2", SLICE.uuid, None):
        Job(comm, visible).resumes(path, 10, **more)
    Job(comm, "2").resumes(path, 10)  # nor is it for a job that binds its own


def test_r27_a_region_that_moves(comm: Any, mpi_tmp_path: pathlib.Path) -> None:
    """During a job: a save on a device that the contract does not know is refused."""
    for device, contract in ((2, None), (1, am.Contract(device="uuid"))):
        fake = Fake(*CARDS)
        held = {"w": fake.array(np.zeros(5))}
        state = am.State()
        state.per_owner("w", lambda held=held: held["w"], write=lambda value: None)
        with seam.replaced(fake), open_(mpi_tmp_path / f"s{device}", state, comm, contract=contract) as ckpt:
            ckpt.resume()
            if comm.rank == comm.size - 1:
                held["w"] = fake.array(np.zeros(5), device)
            told = refusal(comm, lambda ckpt=ckpt: ckpt.save(1))
            assert (told.code, told.role, told.region) == ("wrong-device", comm.size - 1, "w")
            held["w"] = fake.array(np.ones(5), 0)
            ckpt.save(2)


def test_r27_names(comm: Any) -> None:
    raw = bytes.fromhex("aaaaaaaa000000000000000000000001")
    assert identity_of("Fake One", raw) == CARD
    assert identity_of("Fake One MIG 1g.10gb", raw) == Identity(
        "Fake One MIG 1g.10gb", "MIG-aaaaaaaa-0000-0000-0000-000000000001", "1g.10gb"
    )
