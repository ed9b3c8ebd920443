"""torch and jax as tests need them: the real package where it is installed, else a faithful stand-in.

A stand-in has the names and the behaviour that `alpha_mpi.rng` relies on: torch's generator keeps
its state as bytes; JAX's keys are immutable, of a dtype of their own or plain uint32 words.
"""

from __future__ import annotations

import importlib.util
import types
from typing import Any

import numpy as np


def module(name: str) -> Any:
    """Return the package, or its stand-in where it is not installed."""
    if importlib.util.find_spec(name) is not None:
        return importlib.import_module(name)
    return {"torch": _torch, "jax": _jax}[name]()


class _Generator:
    """Like torch.Generator: the whole state is a tensor of bytes."""

    def __init__(self, device: Any = "cpu") -> None:
        self.device = types.SimpleNamespace(type=str(getattr(device, "type", device)))
        self._words = np.random.MT19937(0)

    def manual_seed(self, seed: int) -> _Generator:
        self._words = np.random.MT19937(seed)
        return self

    def get_state(self) -> Any:
        state = self._words.state["state"]
        return np.append(state["key"], np.uint32(state["pos"])).astype(np.uint32).view(np.uint8)

    def set_state(self, state: Any) -> None:
        if state.dtype != np.uint8:
            raise TypeError("expected a torch.ByteTensor")
        if len(state) != 2500:
            raise RuntimeError("Expected a CPUGeneratorImplState of 2500 bytes")
        words = np.frombuffer(state.tobytes(), np.uint32)
        self._words.state = {"bit_generator": "MT19937", "state": {"key": words[:-1], "pos": int(words[-1])}}


def _rand(n: int, generator: _Generator) -> Any:
    return generator._words.random_raw(n)


def _torch() -> Any:
    return types.SimpleNamespace(Generator=_Generator, frombuffer=np.frombuffer, uint8=np.uint8, rand=_rand)


class _Dtype:
    """Like the dtype of JAX's typed keys, which is no dtype of NumPy."""


class _Array:
    """Like jax.Array: values that never change."""

    def __init__(self, words: Any, typed: bool) -> None:
        self.words = np.array(words, np.uint32)
        self.dtype: Any = _Dtype() if typed else self.words.dtype
        self.shape = self.words.shape[:-1] if typed else self.words.shape
        self.ndim = len(self.shape)

    def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
        if isinstance(self.dtype, _Dtype):
            raise TypeError("JAX array with PRNGKey dtype cannot be converted to a NumPy array.")
        words = self.words.copy()
        words.flags.writeable = False
        return words


def _split(key: _Array) -> tuple[_Array, _Array]:
    new = np.random.Generator(np.random.Philox(key=key.words.astype(np.uint64))).integers(
        0, 1 << 32, (2, *key.words.shape), np.uint32
    )
    return _Array(new[0], isinstance(key.dtype, _Dtype)), _Array(new[1], isinstance(key.dtype, _Dtype))


def _wrap(words: Any, *, impl: str) -> _Array:
    if impl != "fry" or np.shape(words)[-1] != 2:
        raise ValueError("key data of another shape")
    return _Array(np.asarray(words), True)


def _jax() -> Any:
    return types.SimpleNamespace(
        Array=_Array,
        dtypes=types.SimpleNamespace(
            prng_key=_Dtype, issubdtype=lambda a, b: isinstance(a, b) if isinstance(b, type) else False
        ),
        numpy=types.SimpleNamespace(asarray=lambda words: _Array(words, False)),
        random=types.SimpleNamespace(
            key=lambda seed: _Array([0, seed], True),
            PRNGKey=lambda seed: _Array([0, seed], False),
            split=_split,
            key_data=lambda key: _Array(key.words, False),
            key_impl=lambda key: "fry",
            wrap_key_data=_wrap,
            bits=lambda key: _split(key)[0].words,
        ),
    )
