"""NO-PICKLE: nothing read from a store, or sent between ranks, is ever executed or unpickled."""

from __future__ import annotations

import ast
import pathlib
import subprocess
import sys
import textwrap

import numpy as np
import pytest

PACKAGE = pathlib.Path(__file__).resolve().parents[1] / "alpha_mpi"
#: Modules that turn bytes into code or into objects of any class.
FORBIDDEN = {"pickle", "_pickle", "marshal", "shelve", "dill", "cloudpickle", "joblib", "yaml", "code"}
#: Built-ins that run text.
RUNS = {"eval", "exec", "compile", "__import__"}
#: Methods by which mpi4py pickles; the library's channels have a `send` and `gather` of their own.
PICKLES = {"bcast", "scatter", "allgather", "alltoall", "allreduce", "reduce", "isend", "irecv", "sendrecv"}


def faults(source: str) -> list[str]:
    """Return what in a module could execute or unpickle bytes."""
    found = []
    for node in ast.walk(ast.parse(source)):
        names = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and not node.level:
            names = [node.module or ""]
        found += [name for name in names if name.partition(".")[0] in FORBIDDEN]
        if not isinstance(node, ast.Call):
            continue
        function = node.func
        if isinstance(function, ast.Name) and function.id in RUNS:
            found.append(function.id)
        if isinstance(function, ast.Attribute):
            on = ast.unparse(function.value)
            if function.attr in PICKLES and ("raw" in on or "comm" in on.lower()):
                found.append(f"{on}.{function.attr}")
            if on in ("np", "numpy") and function.attr in ("load", "fromfile"):
                found.append(f"{on}.{function.attr}")
        found += [k.arg for k in node.keywords if k.arg == "allow_pickle"]
    return found


@pytest.mark.parametrize("path", sorted(PACKAGE.rglob("*.py")), ids=lambda p: str(p.relative_to(PACKAGE)))
def test_no_module_can_unpickle_or_execute(path: pathlib.Path) -> None:
    assert faults(path.read_text()) == []


@pytest.mark.parametrize(
    "source",
    [
        "import pickle",
        "from marshal import loads",
        "def f(x): return eval(x)",
        "np.load(f, allow_pickle=True)",
        "data = world.raw.bcast(None, 0)",
        "comm.allgather(1)",
    ],
)
def test_the_judge_finds_each(source: str) -> None:
    assert faults(source)


#: Run in a process of its own: an audit hook cannot be taken away again.
JOB = """
    import pickle, sys
    import numpy as np
    import alpha_mpi as am

    def state(words, rng):
        state, kept = am.State(), {"note": "a document", "n": [1, 2.5, None]}
        state.partition("w", words, shape=words.shape, layout=am.rows())
        state.document("kept", lambda: kept, kept.update)
        state.per_owner("rng", am.rng(rng))
        return state

    def train(path):
        words = np.arange(12.0).reshape(4, 3)
        with am.Checkpointer(path, state(words, np.random.default_rng(1))) as ckpt:
            at = ckpt.resume().update + 1
            words += at
            ckpt.save(update=at)

    def look(path):
        generation = am.open(path).latest()
        return [np.asarray(generation[name]) for name in generation], dict(generation.documents)

    seen = []
    def hook(event, arguments):
        if armed and event in ("pickle.find_class", "exec", "compile", "marshal.loads", "marshal.load"):
            seen.append(event)

    armed = False
    path = sys.argv[1]
    train(path), look(path)  # everything that is imported late is imported now
    sys.addaudithook(hook)
    armed = True
    train(path), look(path)
    assert seen == [], seen
    pickle.loads(pickle.dumps(np.float64))
    assert "pickle.find_class" in seen
    seen.clear()
    exec("1")
    assert "exec" in seen
    print("quiet")
"""


def test_a_restore_executes_and_unpickles_nothing(tmp_path: pathlib.Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(JOB), str(tmp_path / "ckpt")],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.stdout == "quiet\n", done.stderr


def test_a_pickle_in_place_of_words_is_only_words(tmp_path: pathlib.Path) -> None:
    """Bytes of a pickle that would run a command come back as the bytes they are."""
    import pickle

    import alpha_mpi as am

    class Evil:
        def __reduce__(self) -> tuple[object, tuple[str]]:
            return exec, (f"open({str(tmp_path / 'ran')!r}, 'w')",)

    words = np.frombuffer(pickle.dumps(Evil()), np.uint8)
    am.save(tmp_path / "ckpt", {"w": words})
    back = am.load(tmp_path / "ckpt")["w"]
    assert bytes(back) == bytes(words)
    assert not (tmp_path / "ran").exists()
