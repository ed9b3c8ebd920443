"""The oracle: what the reference learners must arrive at, computed by one process with NumPy alone.

Written from docs/learning.md and nothing else; it imports nothing of ours, not even the function
that deals shares. ``train("adam", [("replicated", 4, 3), ("parameter-partitioned", 2, 2)])`` goes
through a sequence of placements, each leg being (placement of state, owners, updates).
"""

from __future__ import annotations

import numpy as np

MODULUS = 4294967296
ITEMS, BATCH, SEED, INITIAL, RATE = 24, 13, 7, 3, 0.05
#: Outputs and features.
SHAPE = (3, 5)

PARTITIONED = {  # parameters, moments
    "replicated": (False, False),
    "optimizer-partitioned": (False, True),
    "parameter-partitioned": (True, True),
}
MOMENTS = {"momentum": ["velocity"], "adam": ["first", "second"]}


def made_of(seed, row, column):
    x = seed * 2654435761 + row * 2246822519 + column * 3266489917 + 1
    x %= MODULUS
    x ^= x // 2**15
    x = x * 739982445 % MODULUS
    x ^= x // 2**12
    x = x * 695872825 % MODULUS
    return np.float64(x // 2**24 - 128) / 100


def begin(rule, words):
    """The state before the first update, every region flat."""
    state = {"parameters": np.array([made_of(INITIAL, 0, i) for i in range(words)])}
    for name in MOMENTS[rule]:
        state[name] = np.zeros(words)
    if rule == "adam":
        state["powers"] = np.ones(2)
    state["loss"] = np.float64(0)
    return state


def gradient(parameters, item, shape):
    """One item's gradient, word by word, and its loss."""
    outputs, features = shape
    x = [made_of(SEED, item % ITEMS, i) for i in range(features)]
    wanted = [made_of(SEED, item % ITEMS, features + o) for o in range(outputs)]
    words, loss = [], np.float64(0)
    for o in range(outputs):
        found = np.float64(0)
        for i in range(features):
            found += parameters[o * features + i] * x[i]
        residual = found - wanted[o]
        loss += residual * residual
        words += [residual * x[i] for i in range(features)]
    return np.array([*words, loss])


def paired(terms):
    """The combine tree, from the top: the largest power of two below the count goes to the left."""
    if len(terms) == 1:
        return terms[0]
    half = 1
    while 2 * half < len(terms):
        half *= 2
    return paired(terms[:half]) + paired(terms[half:])


def summed(parameters, items, owners, by_item, shape):
    """All items' gradients and losses, added as this placement on so many owners adds them."""
    dealt = np.array_split(items, owners)
    if by_item:
        return paired([gradient(parameters, item, shape) for share in dealt for item in share])
    own = []
    for share in dealt:
        total = np.zeros(len(parameters) + 1)
        for item in share:
            total = total + gradient(parameters, item, shape)
        own.append(total)
    return paired(own)


def moved(rule, share, g, powers):
    """One owner's share of parameters and moments after an update."""
    new = dict(share)
    if rule == "momentum":
        new["velocity"] = 0.9 * share["velocity"] + g
        new["parameters"] = share["parameters"] - RATE * new["velocity"]
        return new
    new["first"] = 0.9 * share["first"] + (1 - 0.9) * g
    new["second"] = 0.999 * share["second"] + (1 - 0.999) * (g * g)
    divisor = np.sqrt(new["second"] / (1 - powers[1])) + 1e-8
    new["parameters"] = share["parameters"] - RATE * (new["first"] / (1 - powers[0])) / divisor
    return new


def train(rule, legs, shape=SHAPE, batch=BATCH):
    """Go through the legs; return the last state, the moment, and the loss of each update."""
    words = shape[0] * shape[1]
    state, update, cursor, losses = begin(rule, words), 0, 0, []
    large = ["parameters", *MOMENTS[rule]]
    for placement, owners, updates in legs:
        parameters_too, moments_too = PARTITIONED[placement]
        for _ in range(updates):
            items = np.arange(cursor, cursor + batch)
            total = summed(state["parameters"], items, owners, parameters_too, shape) / batch
            if rule == "adam":
                state["powers"] = np.array([state["powers"][0] * 0.9, state["powers"][1] * 0.999])
            powers = state.get("powers")
            cuts = np.array_split(np.arange(words), owners if moments_too else 1)
            shares = [
                moved(rule, {name: state[name][cut] for name in large}, total[:-1][cut], powers)
                for cut in cuts
            ]
            for name in large:
                state[name] = np.concatenate([share[name] for share in shares])
            state["loss"] = state["loss"] + 0.1 * (total[-1] - state["loss"])
            losses.append(total[-1])
            update, cursor = update + 1, cursor + batch
    return state, (update, cursor), np.array(losses)
