"""However CUDA_VISIBLE_DEVICES is spelt, the same device is the same device, card or slice."""

from __future__ import annotations

import json
import pathlib
from typing import Any

import numpy as np
import pytest
from fake_device import CARD, NEWER, OTHER, SLICE, Fake

import alpha_mpi as am
from alpha_mpi.devices import runtime as seam
from alpha_mpi.devices.identity import Identity

SECOND = Identity(SLICE.product, "MIG-bbbbbbbb-0000-0000-0000-000000000005", SLICE.mig)
LARGER = Identity("Fake One MIG 2g.20gb", "MIG-cccccccc-0000-0000-0000-000000000006", "2g.20gb")
CARDS = (CARD, OTHER, NEWER, SLICE, SECOND, LARGER)
#: By number, by UUID, by the beginning of one, by a list; of a slice also as drivers before 470 named it.
SPELT = {
    CARD: ("0", "0,1,2", CARD.uuid, "GPU-aaaa", f"{CARD.uuid[:12]},2"),
    SLICE: ("3", "3,0", SLICE.uuid, "MIG-aaaa", f"{SLICE.uuid},{CARD.uuid}", f"MIG-{CARD.uuid}/1/0"),
}
#: What is another device than each of them, by what the contract binds.
OTHERS = {
    (CARD, "product"): (NEWER, SLICE),
    (CARD, "uuid"): (OTHER, NEWER, SLICE),
    (SLICE, "product"): (CARD, LARGER),
    (SLICE, "uuid"): (CARD, SECOND, LARGER),
}


def opened(path: pathlib.Path, visible: str, by: str) -> tuple[Any, Any, Any]:
    fake = Fake(*CARDS, visible=visible)
    array = fake.array(np.full(50, 7.0))
    state = am.State()
    state.partition("w", array, shape=(50,), layout=am.shares())
    return fake, array, lambda: am.Checkpointer(path, state, contract=am.Contract(device=by))


@pytest.mark.parametrize("by", ["product", "uuid"])
@pytest.mark.parametrize("card", [CARD, SLICE], ids=["card", "slice"])
def test_spellings(tmp_path: pathlib.Path, card: Identity, by: str) -> None:
    path = tmp_path / "s"
    fake, array, checkpointer = opened(path, SPELT[card][0], by)
    with seam.replaced(fake), checkpointer() as ckpt:
        ckpt.resume()
        array.later(np.arange(50.0))
        ckpt.save(1)
    body = (path / "published/e000001-000001.json").read_bytes().splitlines()[0]
    assert json.loads(body)["devices"] == [[0, *card]], "owner, product, UUID, profile of a slice"
    for visible in SPELT[card]:
        fake, array, checkpointer = opened(path, visible, by)
        with seam.replaced(fake), checkpointer() as ckpt:
            assert ckpt.resume().update == 1
        assert (array.get() == np.arange(50.0)).all()
    for other in OTHERS[card, by]:
        fake, array, checkpointer = opened(path, other.uuid, by)
        with seam.replaced(fake), checkpointer() as ckpt:
            with pytest.raises(am.Refused) as told:
                ckpt.resume()
            assert told.value.code == "wrong-device" and (array.data == 7).all()
            assert card.product in str(told.value.expected) and other.product in str(told.value.found)
