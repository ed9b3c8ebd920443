"""Kill a training job in the middle of a save, resume it, and compare it with one that ran through.

    python examples/digits/demo.py

Four jobs: one runs through; one is killed as a whole (SIGKILL) while a save is under way; then the
same command again, which resumes; and once more with one rank fewer, in a copy of the killed job's
store. Leaves the killed and resumed job's store at demo-run/ckpt.
"""

import argparse
import json
import os
import pathlib
import shutil
import subprocess
import sys
import time

import numpy as np

from alpha_mpi.testing import launch

HERE = pathlib.Path(__file__).resolve().parent
UPDATES, EVERY, KILLED_AT = 200, 25, 100
PATIENCE = 120.0  # seconds a job may take before the demo gives up


def fail(text):
    sys.exit(f"demo: {text}")


def command(store, out, fan_out):
    words = [sys.executable, "-u", str(HERE / "train.py"), "--store", str(store), "--out", str(out)]
    return [*words, "--updates", str(UPDATES), "--every", str(EVERY), "--keep", "8", "--tree", str(fan_out)]


def run_through(ranks, words, log):
    """Run a job to its end; return its output."""
    with open(log, "w+") as file:
        job = launch.start(ranks, words, stdout=file, stderr=subprocess.STDOUT)
        try:
            code = job.process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            job.kill()
            fail(f"the job did not end within {PATIENCE:.0f} s; see {log}")
        text = pathlib.Path(log).read_text()
    if code != 0:
        fail(f"the job ended with code {code}:\n{text}")
    return text


def run_and_kill(ranks, words, log, unfinished):
    """Start a job whose save of update KILLED_AT is slow on its last rank; kill it inside that save."""
    with open(log, "w+") as file:
        slow = {"DIGITS_SLOW_SAVE": str(KILLED_AT)}
        job = launch.start(ranks, words, extra=slow, stdout=file, stderr=subprocess.STDOUT)
        try:
            deadline = time.monotonic() + PATIENCE
            while not unfinished():
                if job.process.poll() is not None or time.monotonic() > deadline:
                    fail(f"the job was never seen inside the save of update {KILLED_AT}; see {log}")
                time.sleep(0.01)
        finally:
            job.kill()
    return pathlib.Path(log).read_text()


def attempt_on_disk(store, name):
    """Return the sizes of an attempt's packs, if it has any, and no published root names the attempt."""
    packs = [p.stat().st_size for p in sorted((store / "data" / name).glob("*/*.pack"))]
    for entry in (store / "published").glob("*.json"):
        body = json.loads(entry.read_text().splitlines()[0])
        attempt = body.get("prefix", {}).get("attempt", {})
        if name == f"e{attempt.get('epoch', 0):06d}-{attempt.get('save', 0):06d}":
            return []
    return packs


def alpha_mpi(*words):
    """Run one of our commands, as a user would; return what it printed."""
    told = subprocess.run([sys.executable, "-m", "alpha_mpi.cli", *words], capture_output=True, text=True)
    if told.returncode != 0:
        fail(f"alpha-mpi {' '.join(words)} ended with code {told.returncode}:\n{told.stdout}{told.stderr}")
    return told.stdout


def seconds_of_saves(text):
    """Return {update: seconds} from the lines that train.py prints."""
    lines = [line.split() for line in text.splitlines() if line.startswith("saved update ")]
    return {int(words[2]): float(words[4]) for words in lines}


def same_bits(a, b):
    return a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()


def equal(a, b):
    """Return whether two results hold the same arrays, bit for bit."""
    with np.load(a) as expected, np.load(b) as found:
        names = set(expected.files)
        return names == set(found.files) and all(same_bits(expected[n], found[n]) for n in names)


def size(count):
    return f"{count / 1024:,.1f} KiB"


def main():
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--dir", type=pathlib.Path, default=pathlib.Path("demo-run"), help="where to work")
    options.add_argument("--ranks", type=int, default=4, help="ranks of every job")
    options.add_argument("--fan-out", type=int, default=2, help="fan-out of the tree")
    args = options.parse_args()

    home, store = args.dir, args.dir / "ckpt"
    home.mkdir(parents=True, exist_ok=True)
    for name in ("ckpt", "reference", "copy"):  # of an earlier demo
        shutil.rmtree(home / name, ignore_errors=True)

    print(f"1. {args.ranks} ranks train {UPDATES} updates, saving every {EVERY}, undisturbed", flush=True)
    words = command(home / "reference", home / "reference.npz", args.fan_out)
    run_through(args.ranks, words, home / "reference.log")

    words = command(store, home / "resumed.npz", args.fan_out)
    name = f"e000001-{KILLED_AT // EVERY:06d}"
    print(
        f"2. the same in {store}, every rank killed (SIGKILL) inside the save of update {KILLED_AT}",
        flush=True,
    )
    text = run_and_kill(args.ranks, words, home / "killed.log", lambda: attempt_on_disk(store, name))
    first = seconds_of_saves(text)
    left = attempt_on_disk(store, name)
    if not left or KILLED_AT in first:
        fail("the kill left no unfinished attempt on disk")
    print(f"   on disk: attempt {name}, {len(left)} of {args.ranks} packs ({size(sum(left))}), no root")

    shutil.copytree(store, home / "copy")

    print("3. the same command again", flush=True)
    text = run_through(args.ranks, words, home / "resumed.log")
    second, before = seconds_of_saves(text), KILLED_AT - EVERY
    if f"starting after update {before}" not in text.splitlines():
        fail(f"the resumed job did not start after update {before}; see {home / 'resumed.log'}")
    print(f"   resumed after update {before}")

    fewer = max(1, args.ranks - 1)
    print(f"4. a copy of what the killed job left, resumed on {fewer} ranks", flush=True)
    words = command(home / "copy", home / "fewer.npz", args.fan_out)
    text = run_through(fewer, words, home / "fewer.log")
    if f"starting after update {before}" not in text.splitlines():
        fail(f"the job on {fewer} ranks did not start after update {before}; see {home / 'fewer.log'}")
    if not equal(home / "reference.npz", home / "fewer.npz"):
        fail(f"the run that went on with {fewer} ranks differs from the one that ran through")
    print(f"   {args.ranks} resumed on {fewer}: equal to the run on {args.ranks}, bit for bit")

    rows = []
    for g in json.loads(alpha_mpi("ls", "--json", str(store)))["generations"]:
        took = (first if g["epoch"] == 1 else second).get(g["update"])
        told = "-" if took is None else f"{took * 1e3:.1f} ms"
        rows.append((g["update"], g["name"], size(g["bytes"]), told))
    rows.append((KILLED_AT, f"(attempt {name})", size(sum(left)), "killed"))
    print(f"\n{'update':>6}  {'generation':<24}{'size':>12}{'save':>12}")
    for update, generation, amount, took in sorted(rows):
        print(f"{update:>6}  {generation:<24}{amount:>12}{took:>12}")

    print(f"\n{'after update ' + str(UPDATES):<20}{'ran through':>20}{'killed, resumed':>20}")
    with np.load(home / "reference.npz") as expected, np.load(home / "resumed.npz") as found:
        for key in expected.files:
            a, b = expected[key], found[key]
            same = same_bits(a, b)
            told = [f"{x.item():.12g}" if x.ndim == 0 else f"sum {x.sum(dtype='f8'):.9f}" for x in (a, b)]
            print(f"{key:<20}{told[0]:>20}{told[1]:>20}   {'bit for bit equal' if same else 'DIFFERENT'}")
    if not equal(home / "reference.npz", home / "resumed.npz"):
        fail("the resumed run differs from the one that ran through")
    print(f"\n{alpha_mpi('verify', str(store)).strip()}\n")
    print("look at the store with:")
    for words in (f"ls {store}", f"show {store}", f"verify {store}"):
        print(f"  {os.path.relpath(pathlib.Path(sys.executable).parent / 'alpha-mpi')} {words}")


if __name__ == "__main__":
    main()
