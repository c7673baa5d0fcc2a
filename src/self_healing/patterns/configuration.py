"""The configuration cannot work: trying again changes nothing, a person has to."""

from __future__ import annotations

from ..actions.stop_run import StopRun
from ..core.action import rung
from ..core.cause import Pattern
from ..core.failure import FailureType

GIVE_UP = (rung(StopRun()),)
SEED = "https://docs.axolotl.ai/docs/training_stability.html"

PATTERNS: tuple[Pattern, ...] = (
    Pattern(
        name="generations-do-not-divide-batch",
        says="The batch cannot be divided into whole groups of generations.",
        failure=FailureType.CONFIG_ERROR,
        fine="grpo_batch_config",
        text=(
            r"generation_batch_size.{0,80}divisible by"
            r"|(?:global|effective) (?:train|eval|evaluation)? ?batch size.{0,120}divisible by (?:the number of generations|`?num_generations)"
            r"|(?:steps_per_generation|num_generations\w*|generation batch size).{0,120}(?:divisible|divide|multiple of)|at least 2 generations"
            r"|divisible by (?:the number of generations|`?num_generations)|num_generations.{0,60}(?:must be|greater than|at least)"
        ),
        weight=0.95,
        remedy=GIVE_UP,
        fixes=("Make micro_batch_size a multiple of num_generations and at least as large.",),
        matches=(
            "ValueError: generation_batch_size (6) must be divisible by num_generations (4).",
            "generation_batch_size not divisible by num_generations",
            "ValueError: GRPO requires at least 2 generations per prompt to calculate the advantages. You provided 1",
            (
                "ValueError: The global train batch size (7 x 1) must be evenly divisible by the number of generations per prompt "
                "(8)."
            ),
        ),
        but_not=(
            "ValueError: global batch size 7 is not divisible by 8 processes",
            "ValueError: hidden_size must be divisible by num_heads",
        ),
        source="TRL, trainer/grpo_config.py",
    ),
    Pattern(
        name="deepspeed-on-one-gpu",
        says="DeepSpeed's stand-in optimizer was asked to step, which happens on a single GPU.",
        failure=FailureType.CONFIG_ERROR,
        fine="config_error",
        text=r"'DummyOptim' object has no attribute 'step'",
        weight=0.95,
        remedy=GIVE_UP,
        fixes=("Remove the deepspeed section from the configuration, or start through its launcher.",),
        matches=("AttributeError: 'DummyOptim' object has no attribute 'step'",),
        but_not=("AttributeError: 'AdamW' object has no attribute 'steps'",),
        source=SEED,
    ),
    Pattern(
        name="weights-flattened",
        says="FSDP 1 has flattened a weight that the model needs as a matrix.",
        failure=FailureType.CONFIG_ERROR,
        fine="fsdp_param_shape",
        text=r"'weight' must be 2-D",
        weight=0.95,
        remedy=GIVE_UP,
        fixes=("Set fsdp_version: 2, or do not unwrap the model while FSDP is on.",),
        matches=("RuntimeError: 'weight' must be 2-D",),
        but_not=("ValueError: weight must be positive",),
        source=SEED,
    ),
    Pattern(
        name="recomputation-differs",
        says="Gradient checkpointing recomputed other tensors than it had saved.",
        failure=FailureType.CONFIG_ERROR,
        fine="checkpoint_recompute",
        text=(
            r"A different number of tensors was saved during the original forward and recomputation"
            r"|have different metadata than during the forward pass|torch\.utils\.checkpoint\.CheckpointError"
        ),
        weight=0.95,
        remedy=GIVE_UP,
        fixes=(
            "Set use_reentrant: true in gradient_checkpointing_kwargs; DeepSpeed ZeRO-3 and flex attention need it.",
        ),
        matches=(
            (
                "torch.utils.checkpoint.CheckpointError: torch.utils.checkpoint: A different number of tensors was saved during "
                "the original forward and recomputation."
            ),
        ),
        but_not=("ValueError: No valid checkpoint found in output directory (./output)",),
        source=SEED,
    ),
    Pattern(
        name="reward-module-not-found",
        says="The module with the reward or prompt strategy cannot be imported.",
        failure=FailureType.CONFIG_ERROR,
        fine="config_error",
        text=r"unable to load strategy \S+",
        weight=0.9,
        remedy=GIVE_UP,
        fixes=('Try python -c "import my_rewards" in the folder the run starts in, and fix what it says.',),
        matches=("ERROR unable to load strategy my_rewards.accuracy",),
        but_not=("TypeError: 'NoneType' object is not callable",),
        source=SEED,
    ),
)
