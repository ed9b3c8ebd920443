"""Floors: which room may import which, read from the syntax tree (docs/architecture.md).

Imports go downward only. Third-party packages enter each in the rooms named here and nowhere else.
"""

import ast
import pathlib
import subprocess
import sys

import pytest

PACKAGE = pathlib.Path(__file__).resolve().parents[1] / "alpha_mpi"

GROUND = {"errors", "canonical", "digest"}
#: Room -> (rooms it may import, third-party packages it may import).
FLOORS = {
    "ground": (set(), {"xxhash", "blake3"}),
    "model": ({"ground"}, {"numpy", "ml_dtypes"}),
    "format": ({"ground", "model"}, {"numpy", "msgspec"}),
    "store": ({"ground", "model", "format"}, set()),
    "protocol": ({"ground", "model", "format"}, set()),
    "mpi": ({"ground", "model", "format", "protocol"}, {"mpi4py", "numpy", "msgspec"}),
    "publication": ({"ground", "model", "format", "store", "protocol", "mpi"}, {"numpy", "msgspec"}),
    "restore": ({"ground", "model", "format", "store", "protocol", "mpi"}, {"numpy", "msgspec"}),
    "devices": ({"ground", "model"}, {"cupy", "kvikio", "numpy"}),
    "learning": ({"ground", "model", "mpi", "top"}, {"numpy"}),
    "interop": ({"ground", "model", "format", "store", "restore"}, {"numpy", "h5py"}),
    "testing": (
        {"ground", "model", "store", "protocol", "restore", "devices", "learning", "top"},
        {"pytest", "numpy"},
    ),
    "qualification": (
        {
            *("ground", "model", "format", "store", "protocol", "mpi", "restore", "learning", "testing"),
            "top",
        },
        {"numpy"},
    ),
    "top": (
        {
            "ground",
            "model",
            "format",
            "store",
            "protocol",
            "mpi",
            "publication",
            "restore",
            "devices",
            "interop",
        },
        {"numpy", "mpi4py", "ml_dtypes", "msgspec"},
    ),
    "cli": (
        {
            "ground",
            "model",
            "format",
            "store",
            "protocol",
            "mpi",
            "restore",
            "devices",
            "interop",
            "testing",
            "qualification",
            "top",
        },
        {"click", "numpy"},
    ),
}
#: Packages for annotations only; never at run time.
TYPING = {"typing_extensions"}


def room_of(parts):
    """Return the room of a module given by its names below the package."""
    if not parts or parts[0] == "__main__":
        return "top"
    if parts[0] in GROUND:
        return "ground"
    return parts[0] if parts[0] in FLOORS else "top"


def is_typing_only(node):
    return isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test)


def imports(path):
    """Yield (line, names, whether for annotations only) of each module imported by a file."""
    module = path.relative_to(PACKAGE.parent).with_suffix("").parts
    package = module[:-1]
    tree = ast.parse(path.read_text())
    typing = {id(n) for top in ast.walk(tree) if is_typing_only(top) for n in ast.walk(top)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node.lineno, tuple(alias.name.split(".")), id(node) in typing
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else ()
            names = (*base, *(node.module.split(".") if node.module else ()))
            for alias in node.names:
                # `from . import errors` names a module, `from .errors import Refused` does not.
                whole = (*names, alias.name)
                is_module = (PACKAGE.parent.joinpath(*whole)).with_suffix(".py").exists()
                is_module |= PACKAGE.parent.joinpath(*whole).is_dir()
                yield node.lineno, whole if is_module else names, id(node) in typing


MODULES = sorted(PACKAGE.rglob("*.py"))
ROOMS = [path for path in MODULES if path.name == "__init__.py"]


@pytest.mark.parametrize("path", MODULES, ids=lambda p: str(p.relative_to(PACKAGE)))
def test_imports_go_down(path):
    here = room_of(path.relative_to(PACKAGE).with_suffix("").parts)
    rooms, packages = FLOORS[here]
    wrong = []
    for line, names, typing in imports(path):
        if names[0] == "alpha_mpi":
            there = room_of(names[1:])
            if there != here and there not in rooms:
                wrong.append(f"line {line}: {here} may not import {'.'.join(names)} ({there})")
            continue
        known = names[0] in sys.stdlib_module_names or names[0] in packages
        if not known and not (typing and names[0] in TYPING):
            wrong.append(f"line {line}: {here} may not import {names[0]}")
    assert not wrong


@pytest.mark.parametrize("path", ROOMS, ids=lambda p: f"room {p.parent.name}")
def test_a_room_opens_with_its_nouns(path):
    tree = ast.parse(path.read_text())
    assert ast.get_docstring(tree), f"{path}: no docstring"


def test_modules_are_of_one_noun():
    """A module over about 400 lines is a reason to look for the second noun in it."""
    long = {str(p.relative_to(PACKAGE)): n for p in MODULES if (n := len(p.read_text().splitlines())) > 450}
    assert not long


def loaded_by(*modules):
    """Return the top-level packages in a fresh interpreter after importing these."""
    code = "import sys, importlib\nfor name in sys.argv[1:]: importlib.import_module(name)\n"
    code += "print(*{name.partition('.')[0] for name in sys.modules})"
    done = subprocess.run(
        [sys.executable, "-c", code, *modules], capture_output=True, text=True, timeout=60, check=True
    )
    return set(done.stdout.split())


@pytest.mark.parametrize(
    "name",
    [
        *("alpha_mpi", "alpha_mpi.cli", "alpha_mpi.store.durable", "alpha_mpi.store.probe"),
        *("alpha_mpi.format.manifest", "alpha_mpi.format.claim", "alpha_mpi.model.pieces"),
        *("alpha_mpi.protocol.hierarchy", "alpha_mpi.protocol.events"),
    ],
)
def test_a_login_node_needs_no_mpi(name):
    assert not loaded_by(name) & {"mpi4py", "h5py", "cupy"}
