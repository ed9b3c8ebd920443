"""Member: one rank of a team that a lonely `alpha-mpi qualify` starts.

``python -m alpha_mpi.qualification.member HOW SCRATCH OPTIONS``, where HOW is ``mpi`` (started by
mpiexec), ``pipe:RANK:SIZE`` (joined by the parent), or ``one``. Rank 0 says a line of JSON as each
check begins and ends, so that what was found outlives a hang: on standard output or, where that is
the pipe, on standard error.
"""

from __future__ import annotations

import json
import sys
from typing import Any

from .check import Check, Plan
from .interrupts import PATIENCE
from .team import MpiTeam, PipeTeam, Team


def main(arguments: list[str]) -> None:
    """Be a rank: do the checks that the options name."""
    how, scratch, text = arguments
    options = json.loads(text)
    plan = Plan(**options["plan"])
    team: Team
    if how == "mpi":
        team = MpiTeam(plan.limit("shared"))
    else:
        from .warden import alone

        alone()
        rank, size = (int(word) for word in how.split(":")[1:]) if how.startswith("pipe") else (0, 1)
        team = PipeTeam(rank, size) if size > 1 else Team(0, 1)
    from . import steps

    def tell(line: dict[str, Any]) -> None:
        if team.rank == 0:
            print(json.dumps(line), file=sys.stderr if team.size > 1 and how != "mpi" else None, flush=True)

    def done(check: Check) -> None:
        tell({"check": check.as_data()})

    def begun(key: str) -> None:
        tell({"begun": key})

    steps.together(team, scratch, plan, options["by_link"], options["keys"], begun, done)
    if isinstance(team, MpiTeam):
        if team.lost:
            team.abort(PATIENCE)
        team.close()


if __name__ == "__main__":
    main(sys.argv[1:])
