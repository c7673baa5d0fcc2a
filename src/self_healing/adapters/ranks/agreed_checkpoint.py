"""One checkpoint for all processes to go on from: each has looked at the folders itself, and a disk may show them differently."""

from __future__ import annotations

import logging
from collections.abc import Callable

from ...core.errors import RanksParted
from ...snapshots.resume import Chosen
from .side_group import SideGroup

logger = logging.getLogger("self_healing.ranks")

FROM_THE_START = -1


def agreed_checkpoint(choose: Callable[[int | None], Chosen]) -> Chosen:
    """Return the newest checkpoint that every process would go on from; all have to come here at the same time.

    Args:
        choose: Returns the newest usable one from before a step, None for any.

    """
    chosen = choose(None)
    try:
        group = SideGroup.join()
        if group is None:
            return chosen
        try:
            while True:
                said = chosen.step if chosen.step is not None else FROM_THE_START
                steps = [step for (step,) in group.exchange([said])]
                if len(set(steps)) == 1:
                    return chosen
                logger.warning("the ranks would go on from different steps (%s): all take the oldest of them", steps)
                chosen = choose(min(steps) + 1)
        finally:
            group.close()
    except RanksParted as error:
        logger.warning("%s; each goes on from the newest checkpoint that it finds usable itself", error)
        return chosen
