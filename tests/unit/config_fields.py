"""Every key of HealingConfig: its default, another value it takes, and values that are refused."""

from __future__ import annotations

INF, NAN = float("inf"), float("nan")
WHOLE = (True, 3.0, "3", None, -1, 10**10, 10**5000)
NUMBER = (True, "3", None, -1.0, INF, -INF, NAN, 1e300, 10**400)
FIELDS = {  # key: default, another value, values refused
    "preset": (None, "aggressive", ("wild", 1, ["aggressive"])),
    "mode": ("heal", "observe", ("healing", "", None, 1, True)),
    "max_effect": ("recipe", "time", ("RECIPE", "all", 2, None)),
    "max_recovery_attempts": (5, 0, WHOLE),
    "nan_patience": (3, 7, (0, 11, *WHOLE)),
    "max_consecutive_skips": (10, 20, (0, *WHOLE)),
    "nan_action": ("skip", "warn", ("ignore", None, False)),
    "oom_action": ("split", "raise", ("halve", None, False)),
    "loss_spike_factor": (5.0, 8, (1.0, *NUMBER)),
    "divergence_patience": (50, 100, (0, *WHOLE)),
    "grad_norm_threshold": (100.0, 10.0, (0, *NUMBER)),
    "overfit_gap": (2.0, 0.5, (0, *NUMBER)),
    "zclip_enabled": (True, False, (1, 0, "yes", None)),
    "zclip_z_threshold": (2.5, 3.0, (0, *NUMBER)),
    "zclip_mode": ("outliers", "always", ("never", None)),
    "adagc_enabled": (False, True, (1, "no", None)),
    "lr_factor": (0.5, 0.25, (0, 1, *NUMBER)),
    "lr_ramp_steps": (200, 1, (0, *WHOLE)),
    "min_learning_rate": (None, 1e-7, (True, "3", -1.0, INF, NAN, 1e300)),
    "rollback_steps": (None, 100, (0, True, 3.0, "3", -1, 10**10)),
    "snapshot_every_steps": (None, 10, (0, True, 3.0, "3", -1, 10**10)),
    "max_lost_steps": (50, 10, (0, *WHOLE)),
    "good_after": (32, 8, (0, *WHOLE)),
    "min_batch_size": (1, 2, (0, *WHOLE)),
    "snapshot_memory_fraction": (0.5, 0, (1.0, *NUMBER)),
    "average_neighbours": (False, True, (1, "yes", None)),
    "exact_data_resume": (False, True, (1, "yes", None)),
    "shared_memory": (True, False, (1, 0, "yes", None)),
    "shared_memory_max_fraction": (0.5, 0.25, (0, 1.0, *NUMBER)),
    "preemption_signals": (
        ("SIGTERM", "SIGUSR1"),
        ("SIGHUP",),
        (3, True, "SIGTERM", ["SIGKILL"], ["sigterm"], [15], None),
    ),
    "grace_seconds": (25.0, 110, (0, *NUMBER)),
    "backoff_base_s": (30.0, 0, NUMBER),
    "reward_timeout_s": (600.0, 0, NUMBER),
    "collective_check_interval_s": (10.0, 0, NUMBER),
    "quarantine_fraction": (0.001, 0.5, (1.5, *NUMBER)),
    "quarantine_records": (10, 0, WHOLE),
    "profile_steps": ((), (1, 2, 3), (3, True, "1", [0], [1.5], [True], [-1], None)),
    "dry_run_steps": (0, 2, WHOLE),
    "alert_urls": (
        (),
        ("https://example.com/hook", "tgram://token/chat"),
        (3, True, None, ["example.com"], ["https://"], ["https:///path"], [" https://x"], [3], "://x", ""),
    ),
    "on_instability": (
        None,
        "os.path:join",
        ("nonsense", "a:", ":b", "a b:c", "a:b c", 3, ["a:b", 3], {"oom": 3}, {"oon": "a:b"}),
    ),
    "select": (None, ("loss-spike",), (3, True, ["loss-spike", 3], {"loss-spike": 1})),
    "ignore": ((), ("loss-spike",), (None, 3, ["los-spike"], ["loss-spike", 3])),
    "rules": ({}, {"loss-spike": {"sigmas": 8.0}}, (None, 3, [], {"loss-spike": 3}, {3: {}}, {"loss-spike": {3: 3}})),
}
