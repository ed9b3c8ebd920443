"""Heat on a plate: a simulation on a grid of ranks, saved and resumed with alpha_mpi on any grid.

Every rank holds one tile of the plate with a halo one cell wide. An update fills the halos from the
four neighbours and takes one explicit step of the heat equation. A cell is computed by the same
operations on any grid of ranks, so the field is the same to the last bit.
"""

import argparse

import numpy as np
from mpi4py import MPI

import alpha_mpi as am

DIFFUSION = 0.2  # times the time step over the cell's width squared: stable below 0.25
HOT, FLAME = 1.0, 0.5  # temperature of the plate's upper edge; what the flame adds at each update


class Tile:
    """This rank's cells [top, bottom) x [left, right) of the plate, and one cell more all around."""

    def __init__(self, cart, shape):
        rows, columns = am.grid(cart.dims).slices(shape, cart.size, cart.rank)
        self.top, self.bottom, self.left, self.right = rows.start, rows.stop, columns.start, columns.stop
        self.cart, self.shape = cart, shape
        self.u = np.zeros((self.bottom - self.top + 2, self.right - self.left + 2))
        if self.top == 0:
            self.u[0] = HOT
        self.next = self.u.copy()

    def inner(self):
        """The cells that are this rank's own: the array that stands there now."""
        return self.u[1:-1, 1:-1]

    def exchange(self):
        """Fill the halo from the neighbours; where there is none, the edge of the plate stays."""
        for axis in (0, 1):
            lines = self.u.swapaxes(0, axis)
            before, after = self.cart.Shift(axis, 1)
            for mine, to, halo, source in ((1, before, -1, after), (-2, after, 0, before)):
                line = lines[halo].copy()
                self.cart.Sendrecv(lines[mine].copy(), to, recvbuf=line, source=source)
                lines[halo] = line

    def step(self, update):
        """One update: diffusion, and a flame that walks over the plate."""
        self.exchange()
        u = self.u
        around = u[:-2, 1:-1] + u[2:, 1:-1] + u[1:-1, :-2] + u[1:-1, 2:]
        self.next[1:-1, 1:-1] = u[1:-1, 1:-1] + DIFFUSION * (around - 4 * u[1:-1, 1:-1])
        self.u, self.next = self.next, u
        row, column = 3 * update % self.shape[0], 7 * update % self.shape[1]
        if self.top <= row < self.bottom and self.left <= column < self.right:
            self.inner()[row - self.top, column - self.left] += FLAME


def gather(tile):
    """Return the whole plate on rank 0, None elsewhere."""
    tiles = tile.cart.gather((tile.top, tile.bottom, tile.left, tile.right, tile.inner()))
    if tiles is None:
        return None
    plate = np.empty(tile.shape)
    for top, bottom, left, right, cells in tiles:
        plate[top:bottom, left:right] = cells
    return plate


def main():
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--store", required=True, help="directory of the checkpoints")
    options.add_argument("--updates", type=int, default=500, help="go on to this update")
    options.add_argument("--every", type=int, default=50, help="save after so many updates")
    options.add_argument("--keep", type=int, default=3, help="generations to keep")
    options.add_argument("--shape", type=int, nargs=2, default=(96, 128), help="cells of the plate")
    options.add_argument("--out", help="the final field, as .npy")
    args = options.parse_args()

    dims = MPI.Compute_dims(MPI.COMM_WORLD.size, 2)
    cart = MPI.COMM_WORLD.Create_cart(dims)  # ranks in C order of the grid, as am.grid numbers them
    tile = Tile(cart, tuple(args.shape))

    state = am.State()
    state.partition("temperature", tile.inner, shape=tile.shape, layout=am.grid(dims))
    learner = am.Learner("heat", diffusion=DIFFUSION, hot=HOT, flame=FLAME)
    with am.Checkpointer(args.store, state, cart, learner=learner, every=args.every, keep=args.keep) as ckpt:
        moment = ckpt.resume()
        if cart.rank == 0:
            print(f"starting after update {moment.update} on {dims[0]} x {dims[1]} ranks", flush=True)
        for update in range(moment.update + 1, args.updates + 1):
            tile.step(update)
            if ckpt.due(update):
                ckpt.save(update)

    plate = gather(tile)
    if cart.rank == 0 and args.out:
        np.save(args.out, plate)


if __name__ == "__main__":
    main()
