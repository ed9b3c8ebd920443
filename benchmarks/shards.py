"""Measure what one role of many shards costs before its first word moves: encode, decode, plan.

    python benchmarks/shards.py [--shards 100000] [--repeats 5]

One role's group manifest with that many shards, half of them intervals and half boxes, is encoded, decoded
(with every check) and planned onto the same pieces. The floor is the standard `json` module that writes and
reads the same values with no check at all. CPU seconds, interleaved; the aim for 100,000 shards is
one second in all.
"""

import argparse
import gc
import json
import statistics
import time

from alpha_mpi import digest
from alpha_mpi.format.manifest import (
    Manifest,
    Place,
    Prefix,
    ShardRecord,
    decode_manifest,
    encode_manifest,
    piece_of,
)
from alpha_mpi.model import Schema
from alpha_mpi.model.capture import Attempt, Moment
from alpha_mpi.restore.plan import Held, Need, plan


def group(count):
    """Return one role's manifest of `count` shards."""
    same, place = digest.of(b"same on all roles"), (Place(1, 1, 1),)
    half = count // 2
    pieces = [(0, (8 * k, 8 * k + 8)) for k in range(half)]
    pieces += [(1, (2, k, 0, k + 1, 8)) for k in range(count - half)]
    own = (ShardRecord(o, 1, piece, 64, digest.of(b"%d" % i), place) for i, (o, piece) in enumerate(pieces))
    prefix = Prefix(1, Attempt(1, 1), *[same] * 5, Moment(1, 1, 1), digest.replicas([]))
    return Manifest("manifest", prefix, 1, 1, tuple(own), (), None)


def timed(call):
    """Return (what `call` returned, its CPU seconds)."""
    gc.collect()
    began = time.process_time()
    value = call()
    return value, time.process_time() - began


def main():
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--shards", type=int, default=100_000)
    options.add_argument("--repeats", type=int, default=5)
    args = options.parse_args()
    count = args.shards
    made = group(count)
    regions = Schema.of([("w", "array", "int64", (8 * count,)), ("v", "array", "int64", (count, 8))]).regions
    plain = json.loads(encode_manifest(made).split(b"\n")[0])
    spent = {}
    for _ in range(args.repeats):
        text, seconds = timed(lambda: json.dumps(plain))
        spent.setdefault("floor: json writes", []).append(seconds)
        _, seconds = timed(lambda text=text: json.loads(text))
        spent.setdefault("floor: json reads", []).append(seconds)
        data, seconds = timed(lambda: encode_manifest(made))
        spent.setdefault("encode", []).append(seconds)
        (back, _), seconds = timed(lambda data=data: decode_manifest(data, "manifest"))
        spent.setdefault("decode", []).append(seconds)
        held = [Held(record, 1) for record in back.shards]
        needs = [Need(r.ordinal, None, piece_of(r.piece)) for r in back.shards]
        _, seconds = timed(lambda needs=needs, held=held: plan(needs, held, regions))
        spent.setdefault("plan", []).append(seconds)
    floor = sum(statistics.median(v) for k, v in spent.items() if k.startswith("floor"))
    ours = sum(statistics.median(v) for k, v in spent.items() if not k.startswith("floor"))
    print(f"{count} shards in one role: CPU s min/median/max of {args.repeats}")
    for name, values in spent.items():
        print(f"  {name:<20}{min(values):.3f}/{statistics.median(values):.3f}/{max(values):.3f}")
    print(f"  in all {ours:.2f} s, {ours / floor:.2f} x the floor")


if __name__ == "__main__":
    main()
