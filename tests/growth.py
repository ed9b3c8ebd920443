"""Growth: whether work grows with its size, judged by a ratio inside one process and by no clock's limit."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable


def growth(work: Callable[[int], Callable[[], object]], small: int, factor: int, repeats: int = 3) -> float:
    """Return how many times the CPU seconds of `work(small)()` those of `work(small * factor)()` are,
    divided by `factor`: about 1 for linear work, about `factor` for quadratic work.

    `work(n)` prepares n things and returns the call that is measured. Of each the best of `repeats`.
    """
    calls = [work(small), work(small * factor)]
    best = [float("inf")] * 2
    gc.collect()
    enabled = gc.isenabled()
    gc.disable()
    try:
        for _ in range(repeats):
            for i, call in enumerate(calls):
                began = time.process_time()
                call()
                best[i] = min(best[i], time.process_time() - began)
    finally:
        if enabled:
            gc.enable()
    return best[1] / max(best[0], 1e-4) / factor
