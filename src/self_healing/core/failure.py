"""The public words for what can go wrong, how bad it is, and what a remedy may cost."""

from __future__ import annotations

from enum import IntEnum, StrEnum


class FailureType(StrEnum):
    """The coarse class of a failure; every rule and every pattern declares one."""

    NAN_LOSS = "nan_loss"
    OOM = "oom"
    LOSS_SPIKE = "loss_spike"
    DIVERGENCE = "divergence"
    GRADIENT_EXPLOSION = "gradient_explosion"
    DPO_PLATEAU = "dpo_plateau"
    OVERFITTING = "overfitting"
    RL_COLLAPSE = "rl_collapse"
    API_ERROR = "api_error"
    DATA_ERROR = "data_error"
    CONFIG_ERROR = "config_error"
    HANG = "hang"
    CRASH = "crash"
    PREEMPTED = "preempted"
    DISK = "disk"
    CHECKPOINT = "checkpoint"
    HARDWARE = "hardware"
    OTHER = "other"


class _Ranked(IntEnum):
    """An ordered enum that is written in lower case everywhere a person or a file sees it."""

    def __str__(self) -> str:
        return self.name.lower()


class Severity(_Ranked):
    """How bad an incident is, and with it what may be done about it.

    `info` is recorded and starts nothing; `warning` may start actions of effect `nothing`;
    `error` may start the whole ladder below the user's ceiling.
    """

    INFO = 0
    WARNING = 1
    ERROR = 2


class Effect(_Ranked):
    """What an action does to the result: nothing, the same result for more time, or another recipe."""

    NOTHING = 0
    TIME = 1
    RECIPE = 2


class Mode(StrEnum):
    """How much of the healer is switched on."""

    OFF = "off"
    OBSERVE = "observe"
    ADVISE = "advise"
    HEAL = "heal"


FINE_CLASSES = frozenset(
    """
    oom_gpu oom_host oom_shm
    nan_loss nan_eval zero_loss fp16_overflow divergence loss_spike grad_spike grad_norm_growth unstable plateau
    plateau_at_chance slow_learning overfitting overfitting_suspected loss_collapse_anomalous loss_scale_mismatch
    transient_nonfinite_grad
    grpo_zero_signal grpo_no_gradient grpo_no_improvement grpo_truncation grpo_length_explosion grpo_kl_blowup
    grpo_collapse grpo_batch_config dpo_instability dpo_slow preference_imbalance ebft_off_course
    nccl_timeout nccl_error hang unknown_child_failure fsdp_param_shape checkpoint_recompute port_in_use
    gpu_hardware cuda_version_mismatch device_assert illegal_memory_access segfault
    disk_full permission_error checkpoint_corrupt resume_failure
    preempted user_interrupt killed_unknown
    version_mismatch compile_failure missing_dependency bf16_unsupported
    network hub_auth hub_xet hub_rate_limit hub_server_error tracker_error
    data_shape shape_mismatch pad_token_missing config_error script_error device_mismatch
    healthy healthy_misread insufficient_data truncated not_hf_format lfs_pointer
    nan_weights corrupted_state dead_run grad_vanishing learning_rate_unexpected throughput_drop memory_creep stalled
    crash rule_crashed ledger_unwritable
    """.split()
)
"""The fine classes a rule or pattern may declare; the coarse one is its `FailureType`."""
