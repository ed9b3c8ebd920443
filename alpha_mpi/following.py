"""Following: the next save continues what a store holds, without restoring it.

For codes that bring a whole state of their own: `save` in one line, and `import`. A training loop
resumes instead.
"""

from __future__ import annotations

from .checkpointer import Checkpointer
from .continuing import follow_run
from .model.capture import Moment


def follow(ckpt: Checkpointer) -> Moment:
    """Take the next epoch; return the moment of the newest generation, or update 0 of an empty store.

    Called by every owner in place of `Checkpointer.resume`. Reads roots alone, so the schema and the
    layout may be others than before. Raises `Refused` ``other-learner`` for a store of another
    learner, and as `resume` where the store cannot tell its newest generation.
    """
    return ckpt._take(follow_run(ckpt._run, ckpt._visibility)).moment
