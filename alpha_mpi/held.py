"""Held: what one owner holds at one capture, as it lies in the user's memory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import overload

import msgspec

from .devices.words import DeviceWords
from .model.formats import Array
from .model.pieces import Piece


class HeldPiece(msgspec.Struct, frozen=True, gc=False):
    """One piece of one capture. `data` are the user's own words, not a copy: an array of the
    piece's shape (or of the region's, where the piece is the whole), in any memory order, or its
    words on a GPU; for a document its canonical bytes. `piece` is None for a whole."""

    ordinal: int
    piece: Piece | None
    data: Array | DeviceWords | bytes
    owner: int


class HeldPieces(Sequence[HeldPiece]):
    """All pieces of one capture, ordered by (ordinal, first word), in columns: there may be thousands.

    Attributes
    ----------
    ordinals, pieces, data : sequences
        As of a `HeldPiece`.
    owner : int
    """

    __slots__ = ("data", "ordinals", "owner", "pieces")

    def __init__(
        self,
        ordinals: Sequence[int],
        pieces: Sequence[Piece | None],
        data: Sequence[Array | DeviceWords | bytes],
        owner: int,
    ) -> None:
        self.ordinals, self.pieces, self.data, self.owner = ordinals, pieces, data, owner

    def __len__(self) -> int:
        return len(self.ordinals)

    @overload
    def __getitem__(self, i: int) -> HeldPiece: ...
    @overload
    def __getitem__(self, i: slice) -> HeldPieces: ...
    def __getitem__(self, i: int | slice) -> HeldPiece | HeldPieces:
        if isinstance(i, slice):
            return HeldPieces(self.ordinals[i], self.pieces[i], self.data[i], self.owner)
        return HeldPiece(self.ordinals[i], self.pieces[i], self.data[i], self.owner)
