"""The tokenizer is not set up for training."""

from __future__ import annotations

from ..actions.stop_run import StopRun
from ..core.action import rung
from ..core.cause import Pattern
from ..core.failure import FailureType

SEED = "https://docs.axolotl.ai/docs/training_stability.html"

PATTERNS: tuple[Pattern, ...] = (
    Pattern(
        name="pad-token-missing",
        says="The tokenizer has no padding token.",
        failure=FailureType.CONFIG_ERROR,
        fine="pad_token_missing",
        text=(
            r"Asking to pad but the tokenizer does not\s{1,8}have\s{1,8}a\s{1,8}padding token|no padding token is defined|select a token to use as\s{1,8}`?pad_token"
            r"|pad_token(?:_id)?`? (?:is|was) (?:not set|None|not defined|missing)|(?:tokenizer|model) (?:has no|does not have a|lacks a) pad(?:ding)?[ _]token"
            r"|does not have a pad[ _]token|set `?(?:tokenizer\.)?pad_token"
        ),
        weight=0.95,
        remedy=(rung(StopRun()),),
        fixes=(
            (
                "Set tokenizer.pad_token, for example to tokenizer.eos_token or to a new [PAD]; in Axolotl "
                'special_tokens: {pad_token: "<|endoftext|>"}.'
            ),
        ),
        matches=(
            (
                "ValueError: Asking to pad but the tokenizer does not have a padding token. Please select a token to use as "
                "`pad_token`"
            ),
            "ValueError: You don't have a pad_token: pad_token is None, set tokenizer.pad_token before collating",
            "ValueError: Cannot handle batch sizes > 1 if no padding token is defined.",
        ),
        but_not=("UserWarning: the padding token is the same as the eos token",),
        source=SEED,
    ),
    Pattern(
        name="chat-template-does-not-fit",
        says="The chat template could not be taken apart into turns.",
        failure=FailureType.CONFIG_ERROR,
        fine="config_error",
        text=r"Content end boundary is before start boundary|tokenizer\.chat_template is not set",
        weight=0.93,
        remedy=(rung(StopRun()),),
        fixes=("Check that eos_token is the one the template writes, and that the tokenizer has a chat template.",),
        matches=(
            "ValueError: Content end boundary is before start boundary",
            "ValueError: Cannot use chat template functions because tokenizer.chat_template is not set",
        ),
        but_not=("applied chat template to 1,000 records",),
        source=SEED,
    ),
)
