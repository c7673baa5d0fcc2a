"""What trainers that generate their own data have in common: GRPO and those made after it."""

from __future__ import annotations

from types import MappingProxyType

from ..family import Family


class Generating(Family):
    """Data are generated, for several steps at once if so set, and scored by functions."""

    metric_lists = ("_metrics",)
    step_counts = ("_step", "_current_train_step_time")
    micro_batch_counts = ("_step",)
    # As many answers at once as before: a smaller generation would split groups, and TRL's sampler repeat other prompts.
    micro_batch_settings = ("steps_per_generation",)
    data_settings = ("num_generations", "num_iterations", *micro_batch_settings)
    generated = ("_buffered_inputs",)
    moved_by_loss = ("entropy_coef", "_last_world_entropy", "_entropy_window_stats")
    adaptive = MappingProxyType({"entropy_coef": "use_adaptive_entropy"})
    told_by_rewards = ("_pending_extra_logs", "_pending_metrics")
    counts = (
        *("_metrics", "_total_train_tokens", *step_counts, *generated, "_logs"),
        *(*moved_by_loss, *told_by_rewards),
    )
    generates_by = ("_generate_single_turn",)
    scored_by = ("reward_funcs",)
    stale_marks = MappingProxyType({"_last_loaded_step": -1})

    def unit(self, metric: str) -> str:
        """Count tokens: what is a mean over completions is not computed in the loss."""
        return "tokens"
