"""For and against every cause of trouble in RL and preference runs."""

from __future__ import annotations

from .story import ruled_out, speaks

RL_RULES = frozenset(
    """
    reward-flat reward-no-signal reward-collapse policy-gradient-zero entropy-collapse entropy-runaway kl-runaway
    sampler-mismatch policy-steps-too-large completions-truncated length-runaway length-collapse value-loss-growing
    dpo-at-chance preference-margin-collapse preference-likelihood-falling preference-accuracy-stuck kto-imbalance
    odds-ratio-falling preference-nll-rising ebft-off-course
    """.split()
)
"""The rules for RL and preference runs."""

SAMPLING = "sampling/sampling_logp_difference/mean"
RATIO = "sampling/importance_sampling_ratio/min"
CUT, LENGTH = "completions/clipped_ratio", "completions/mean_length"
UP = [0.01 * i for i in range(40)]

RL_STORIES = (
    speaks("reward-function-broken", "no reward in twenty steps", "reward-flat", {"reward": [0.0] * 22, "reward_std": [0.0] * 22}),
    speaks("reward-function-broken", "equal rewards everywhere", "gradient-vanishing", {"frac_reward_zero_std": [1.0] * 22}),
    ruled_out("reward-function-broken", "rewards flow", "loss-plateau", {"reward": [0.4] * 22, "reward_std": [0.2] * 22}),
    ruled_out("reward-function-broken", "no RL run", "loss-plateau", {"loss": [2.0, 2.1, 1.9] * 8}),
    speaks("entropy-collapsed", "entropy 0.004", "entropy-collapse", {"entropy": [0.4, 0.1, 0.004]}),
    ruled_out("entropy-collapsed", "entropy 0.3", "reward-flat", {"entropy": [0.3]}),
    speaks("stale-sampler", "ratios near zero", "loss-spike", {RATIO: [0.5, 0.001]}),
    speaks("stale-sampler", "log-probabilities apart", "kl-runaway", {SAMPLING: [0.01, 1.4]}),
    ruled_out("stale-sampler", "both healthy", "loss-spike", {RATIO: [0.6], SAMPLING: [0.02]}),
    speaks("completion-limit-too-short", "nine in ten are cut", "completions-truncated", {CUT: [0.9]}),
    ruled_out("completion-limit-too-short", "hardly any is cut", "reward-flat", {CUT: [0.02]}),
    speaks("length-rewarded", "they go together", "length-runaway", {"reward": UP, LENGTH: [100.0 + x for x in UP]}),
    ruled_out("length-rewarded", "short ones earn more", "length-runaway", {"reward": UP, LENGTH: [9.0 - x for x in UP]}),
    speaks("kl-penalty-too-weak", "no penalty", "kl-runaway", {"kl": [0.1, 5.0]}, beta=0.0),
    ruled_out("kl-penalty-too-weak", "a strong one", "entropy-collapse", {"kl": [0.1]}, beta=0.5),
    speaks("task-too-hard-or-too-easy", "always solved", "reward-no-signal", {"frac_reward_zero_std": [0.95] * 9, "reward": [0.98] * 9}),
    ruled_out("task-too-hard-or-too-easy", "most groups differ", "reward-flat", {"frac_reward_zero_std": [0.1], "reward": [0.4]}),
    speaks("preference-pairs-alike", "counted", "dpo-at-chance", pairs_alike=0.4),
    speaks("preference-pairs-alike", "the same probabilities", "dpo-at-chance", {"logps/chosen": [-9.0] * 9, "logps/rejected": [-9.0] * 9}),
    ruled_out("preference-pairs-alike", "counted, and different", "dpo-at-chance", pairs_alike=0.0),
    ruled_out("preference-pairs-alike", "they are told apart", "dpo-at-chance", {"rewards/accuracies": [0.9] * 9}),
    speaks("preference-pairs-swapped", "less than by chance", "preference-accuracy-stuck", {"rewards/accuracies": [0.3] * 9}),
    speaks("preference-pairs-swapped", "a reward model", "preference-accuracy-stuck", {"accuracy": [0.2] * 9}),
    ruled_out("preference-pairs-swapped", "the right way round", "dpo-at-chance", {"rewards/accuracies": [0.8] * 9}),
    speaks(
        "likelihood-displaced", "margins grow meanwhile", "preference-likelihood-falling",
        {"logps/chosen": [-200.0 - 10 * i for i in range(40)], "rewards/margins": [0.1 + x for x in UP]},
    ),
    ruled_out(
        "likelihood-displaced", "chosen ones become likelier", "preference-nll-rising",
        {"logps/chosen": [-200.0 + i for i in range(40)]},
    ),
    speaks("judgements-unbalanced", "ten to one", "kto-imbalance", desirable_records=1000, undesirable_records=100),
    ruled_out("judgements-unbalanced", "as many of each", "kto-imbalance", desirable_records=100, undesirable_records=100),
    speaks("completions-reused", "a third is clipped", "policy-steps-too-large", {"clip_ratio/region_mean": [0.35]}),
    ruled_out("completions-reused", "nothing is clipped", "kl-runaway", {"clip_ratio/region_mean": [0.0]}),
    speaks(
        "value-function-lagging", "rewards have another level", "value-loss-growing",
        {"reward": [*[0.1, 0.12] * 16, *[2.0, 2.1] * 16]},
    ),
    ruled_out("value-function-lagging", "rewards are what they were", "value-loss-growing", {"reward": [0.5] * 64}),
    speaks("features-collapsed", "a diversity term of 1.4", "ebft-off-course", {"ebft/diversity": [0.05, 1.4]}),
    ruled_out("features-collapsed", "a healthy one", "ebft-off-course", {"ebft/diversity": [0.05]}),
    speaks("nothing-trainable", "no parameter", "policy-gradient-zero", {"grad_norm": [0.0]}, trainable_parameters=0),
    speaks("nothing-trainable", "all cut off", "policy-gradient-zero", {"grad_norm": [0.0], CUT: [1.0]}),
    ruled_out("nothing-trainable", "there is a gradient", "policy-gradient-zero", {"grad_norm": [0.2]}),
    speaks("learning-rate-too-low", "right steps, too small", "dpo-at-chance", {"rewards/accuracies": [0.88] * 9}),
)  # fmt: skip
