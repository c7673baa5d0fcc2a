"""Keep the frameworks' own bars, warnings and remarks off the screen while a command shows its own."""

from __future__ import annotations

import logging
import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def quiet_frameworks() -> Iterator[None]:
    """Silence them for a while; our own warnings too, which the command tells in its own way."""
    # Read when the libraries are imported: nothing is asked of the network.
    os.environ.update(HF_HUB_OFFLINE="1", TOKENIZERS_PARALLELISM="false", TRL_EXPERIMENTAL_SILENCE="1")
    from datasets.utils import disable_progress_bars, enable_progress_bars
    from transformers.utils import logging as of_transformers

    disable_progress_bars()
    of_transformers.set_verbosity_error()
    usual = logging.root.manager.disable
    if not os.environ.get("SELF_HEALING_LOG_LEVEL"):  # who has asked for them gets them
        logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(usual)
        of_transformers.set_verbosity_warning()
        enable_progress_bars()
