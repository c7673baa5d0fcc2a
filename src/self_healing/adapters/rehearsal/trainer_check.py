"""The checks of `heal check` on a trainer that is built; nothing is trained, and the trainer is left as it was."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from ...core.errors import ConfigError

if TYPE_CHECKING:
    from ...preflight.runner import CheckReport

logger = logging.getLogger("self_healing.check")


def check_trainer(trainer: Any, **options: Any) -> CheckReport:
    """Look at a trainer before it trains.

    Args:
        trainer: One of transformers or TRL.
        options: Those of `heal check` by their names, such as `gpu="t4"`; nobody outside is asked unless `offline=False`.

    Raises:
        ConfigError: an option is not known or has no such value.

    """
    from pydantic import ValidationError

    from ...preflight.options import CheckOptions
    from ...preflight.runner import run_checks
    from ...preflight.subject.trainer import subject_of_trainer
    from ...preflight.tools import Tools
    from ...tensors.random_state import RandomState, devices_of

    try:
        chosen = CheckOptions.model_validate({"offline": True, **options})
    except ValidationError as error:
        first = error.errors()[0]
        raise ConfigError(f"{first['loc'][0]}: {first['msg']}") from error
    drawn = RandomState.capture(devices_of(trainer.model))
    try:
        report = run_checks(subject_of_trainer(trainer, chosen), Tools(options=chosen))
    finally:
        drawn.restore()  # a check that takes samples may draw: what training draws must not depend on having been checked
    logger.info("%s", report)
    return report
