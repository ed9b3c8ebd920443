"""`python -m alpha_mpi.testing.call FUNCTION STORE UPDATES STOP`: run one leg of a function.

Called on every rank by `program`. FUNCTION is "module:function" or "file.py:function"; it is called
as ``function(store, updates)``, where `updates` is the update to train up to. A function that has a
parameter `stop` is given the length of the whole training as `updates`, and ends after `stop`.
"""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import os
import sys
from typing import Any


def load(name: str) -> Any:
    """Return the function of a name. A file is run as a module; its folder is looked in first."""
    place, _, path = name.rpartition(":")
    if place.endswith(".py"):
        sys.path.insert(0, os.path.dirname(os.path.abspath(place)))
        spec = importlib.util.spec_from_file_location(os.path.basename(place)[:-3], place)
        assert spec is not None and spec.loader is not None
        found: Any = importlib.util.module_from_spec(spec)
        sys.modules[spec.name] = found  # dataclasses and pickles look their module up
        spec.loader.exec_module(found)
    else:
        found = importlib.import_module(place)
    for part in path.split("."):
        found = getattr(found, part)
    return found


def main(arguments: list[str]) -> None:
    """Call the function as its parameters ask."""
    name, store, updates, stop = arguments
    function = load(name)
    if "stop" in inspect.signature(function).parameters:
        function(store, int(updates), stop=int(stop))
    else:
        function(store, int(stop))


if __name__ == "__main__":
    main(sys.argv[1:])
