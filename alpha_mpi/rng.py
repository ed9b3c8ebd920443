"""Random generators as documents of each owner: exact, and never somebody else's.

`rng` wraps a generator; its whole state is read at save and put back at resume. NumPy's `Generator`
with every bit generator and `RandomState`, Python's `random.Random`, PyTorch's `torch.Generator`,
and JAX's keys. PyTorch and JAX are looked at only where the program has imported them.

A generator is sequential, so on another number of owners nobody's stream is the right one: such a
resume is refused (``per-owner-state``) unless `State.per_owner` has ``repartition=``. `streams` has
the kind that needs no such rule.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Callable
from typing import Any

import numpy as np

from .errors import Refused
from .sources import Fixed, Source, source_of

#: Longest array inside a generator's state, in words; the largest known (MT19937) has 624.
_WORDS_LIMIT = 1 << 16
#: What a state that does not fit makes these libraries raise.
_UNFIT = (TypeError, ValueError, KeyError, OverflowError, IndexError, RuntimeError)


def rng(generator: Any, attr: str | None = None, *, write: Callable[[Any], Any] | None = None) -> Rng:
    """Return the source of a random generator's state, for `State.per_owner` or `State.document`.

    Parameters
    ----------
    generator : numpy.random.Generator, numpy.random.RandomState, random.Random, torch.Generator
        The generator itself; or with `attr` the object that holds it; or with `write` a function
        that returns it.
    attr : str, optional
        Name of the attribute that holds the generator. A JAX key is a value that the program
        replaces, so it must be given in this way, or with `write`.
    write : callable, optional
        Takes the key that a resume brings.

    Raises `Refused` (``source``) for anything else, also `random.SystemRandom`, whose stream has
    no state that could be saved.
    """
    if attr is None and write is None and not callable(generator):
        return Rng(Fixed(generator))
    return Rng(source_of(generator, attr, write, "rng"))


class Rng:
    """Source of one random generator's state; see `rng`."""

    def __init__(self, source: Source) -> None:
        self._source = source
        kind = _kind(source.read())
        if kind.startswith("jax.") and not source.settable:
            raise _no_source(
                "a JAX key is replaced at every split: give the object that holds it and the "
                "attribute, rng(object, 'key'), or a function and write=",
                "an object and its attribute, or write=",
                kind,
            )

    def read(self) -> dict[str, Any]:
        """Return the generator's whole state as a JSON-able value."""
        generator = self._source.read()
        return {"kind": _kind(generator), "state": _plain(_state(generator))}

    def check(self, value: Any) -> None:
        """Refuse (``wrong-generator``) a state that this generator could not take.

        Called before a resume changes anything; decided on a generator of the same kind that is
        thrown away.
        """
        generator = self._source.read()
        _put(value, generator, _spare(generator))

    def write(self, value: Any) -> None:
        """Give the generator a state that `read` returned. Raises `Refused` (``wrong-generator``)."""
        generator = self._source.read()
        key = _put(value, generator, generator)
        if key is not None:
            self._source.write(key)


def _kind(generator: Any) -> str:
    """Return which kind of generator this is. Raises `Refused` (``source``) if it is none."""
    g = generator
    if isinstance(g, np.random.Generator):
        return f"numpy.Generator/{type(g.bit_generator).__name__}"
    if isinstance(g, np.random.RandomState):
        return f"numpy.RandomState/{g.get_state(legacy=False)['bit_generator']}"
    if isinstance(g, random.Random) and not isinstance(g, random.SystemRandom):
        return "random.Random"
    torch, jax = sys.modules.get("torch"), sys.modules.get("jax")
    if torch is not None and isinstance(g, torch.Generator):
        return f"torch.Generator/{g.device.type}"
    if jax is not None and isinstance(g, jax.Array):
        if jax.dtypes.issubdtype(g.dtype, jax.dtypes.prng_key):
            return f"jax.random.key/{jax.random.key_impl(g)}"
        if g.dtype == np.uint32 and g.ndim >= 1 and g.shape[-1] in (2, 4):
            return "jax.random.PRNGKey"
    raise _no_source(
        "not a random generator whose state can be saved",
        "a Generator or RandomState of NumPy, random.Random, torch.Generator or a JAX key",
        type(g).__name__,
    )


def _state(generator: Any) -> Any:
    g = generator
    if isinstance(g, np.random.Generator):
        return g.bit_generator.state
    if isinstance(g, np.random.RandomState):
        return g.get_state(legacy=False)
    if isinstance(g, random.Random):
        version, words, gauss = g.getstate()
        return {"gauss_next": gauss, "version": version, "words": list(words)}
    if hasattr(g, "get_state"):  # torch: the bytes of its own state
        return {"bytes": np.asarray(g.get_state()).tobytes().hex()}
    words = _key_words(g)
    return {"shape": list(words.shape), "words": words.reshape(-1)}


def _key_words(key: Any) -> Any:
    jax = sys.modules["jax"]
    return np.asarray(jax.random.key_data(key))


def _spare(generator: Any) -> Any:
    """Return another generator of the same kind; of a JAX key itself, since it is never changed."""
    g = generator
    if isinstance(g, np.random.Generator):
        return np.random.Generator(type(g.bit_generator)(0))
    if isinstance(g, np.random.RandomState):
        bits = getattr(g, "_bit_generator", None)
        return np.random.RandomState() if bits is None else np.random.RandomState(type(bits)(0))
    if isinstance(g, random.Random):
        return random.Random(0)
    if hasattr(g, "get_state"):
        return sys.modules["torch"].Generator(device=g.device)
    return g


def _put(value: Any, generator: Any, into: Any) -> Any:
    """Put a state that `generator` may take into `into`; return the new value of a JAX key, else None."""
    kind = _kind(generator)
    if not isinstance(value, dict) or set(value) != {"kind", "state"} or value["kind"] != kind:
        found = value.get("kind") if isinstance(value, dict) else type(value).__name__
        raise Refused(
            "the saved state is that of another kind of random generator",
            code="wrong-generator",
            expected=kind,
            found=str(found)[:200],
        )
    try:
        state = _arrays(value["state"])
        if isinstance(into, np.random.Generator):
            into.bit_generator.state = state
        elif isinstance(into, np.random.RandomState):
            into.set_state(state)
        elif isinstance(into, random.Random):
            into.setstate((state["version"], tuple(state["words"]), state["gauss_next"]))
        elif hasattr(into, "set_state"):
            torch = sys.modules["torch"]
            # A bytearray: torch wants memory that it could write to.
            into.set_state(torch.frombuffer(bytearray.fromhex(state["bytes"]), dtype=torch.uint8))
        else:
            return _key(state, into, kind)
    except _UNFIT as error:
        raise Refused(
            "the saved state does not fit this random generator",
            code="wrong-generator",
            expected=kind,
            found=f"{type(error).__name__}: {error}"[:200],
        ) from error
    return None


def _key(state: Any, like: Any, kind: str) -> Any:
    """Return a JAX key of the kind and shape of `like`. Raises ValueError for another shape."""
    jax = sys.modules["jax"]
    shape, words = tuple(state["shape"]), state["words"]
    if shape != _key_words(like).shape:
        raise ValueError(f"words of shape {shape}")
    if words.dtype != np.uint32:
        raise ValueError(f"words of {words.dtype}")
    data = jax.numpy.asarray(words.reshape(shape))
    typed = kind != "jax.random.PRNGKey"
    return jax.random.wrap_key_data(data, impl=jax.random.key_impl(like)) if typed else data


def _no_source(message: str, expected: str, found: str) -> Refused:
    return Refused(message, code="source", expected=expected, found=found)


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, np.ndarray):
        if value.dtype.kind not in "iu" or value.ndim != 1:
            raise Refused("a random state of unknown form", code="source", found=str(value.dtype))
        return {"array": value.dtype.newbyteorder("=").name, "words": value.tolist()}
    if isinstance(value, np.generic):
        return value.item()
    return value


def _arrays(value: Any) -> Any:
    if not isinstance(value, dict):
        return value
    if set(value) == {"array", "words"}:
        words = value["words"]
        if value["array"] not in ("uint8", "uint16", "uint32", "uint64", "int32", "int64"):
            raise ValueError(f"words of {value['array']!r}")
        if not isinstance(words, list) or len(words) > _WORDS_LIMIT:
            raise ValueError("too many words")
        if any(not isinstance(w, int) or isinstance(w, bool) for w in words):
            raise ValueError("words must be integers")
        return np.array(words, dtype=value["array"])
    return {key: _arrays(item) for key, item in value.items()}
