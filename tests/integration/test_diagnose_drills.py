"""`heal diagnose` on what real trainers left behind: the fault that was planted is named, healed or not."""

from __future__ import annotations

import pytest

from self_healing import HealingConfig
from self_healing.adapters.transformers import SelfHealingTrainer
from self_healing.cli.main import main
from self_healing.core.discover import discover_classes
from self_healing.core.failure import Severity
from self_healing.diagnosis import diagnose_input
from self_healing.drills.fault import Fault
from self_healing.drills.tiny_training import tiny_trainer

pytestmark = pytest.mark.torch
FAULTS = discover_classes("self_healing.drills.faults", Fault)
NAMED = {
    "attention-scaled": "unstable",
    "collator-record": "data_shape",
    "flipped-bits": "nan_loss",
    "infinite-gradient": "transient_nonfinite_grad",
    "learning-rate-too-high": "divergence",
    "moments-corrupted": "unstable",
    "nan-from-then-on": "nan_loss",
    "nan-loss": "nan_loss",
    "nan-record": "nan_loss",
    "network-timeouts": "network",
    "oom-above-two-rows": "oom_gpu",
    "oom-once-in-backward": "oom_gpu",
    "oom-once-in-forward": "oom_gpu",
    "poisoned-batch": "grad_spike",
    "raising-record": "data_shape",
    "tracker-down": "tracker_error",
    "weight-nan": "nan_loss",
    "wrong-shape-record": "data_shape",
}
"""What each fault is called in the folder of a run that was guarded against it."""


def trained(folder, name=None, *, guarded=True, **arguments):
    """Train for a short while, with a fault planted; what it raises belongs to the drill."""
    settings = {"max_steps": 40, "save_strategy": "steps", "save_steps": 20, **arguments}
    trainer = tiny_trainer(folder, **settings)
    if name is not None:
        fault = FAULTS[name]
        (fault(at_step=15) if "at_step" in fault.__dataclass_fields__ else fault()).plant(trainer)
    try:
        (SelfHealingTrainer(trainer, HealingConfig()) if guarded else trainer).train()
    except Exception as error:  # what the planted fault raises
        return error
    return None


@pytest.mark.parametrize("name", NAMED)
def test_the_folder_of_a_guarded_run_names_the_fault(name, tmp_path):
    died = trained(tmp_path, name)
    report = diagnose_input(tmp_path)
    assert NAMED[name] in {finding.fine for finding in report.findings}
    assert report.healthy == (died is None), "what was healed is information, what was not is an alarm"


@pytest.mark.parametrize("guarded", [True, False])
def test_the_folder_of_a_clean_run_is_healthy(guarded, tmp_path):
    trained(tmp_path, guarded=guarded)
    report = diagnose_input(tmp_path)
    assert (report.healthy, report.findings) == (True, [])


@pytest.mark.parametrize("name", ["nan-loss", "weight-nan", "nan-from-then-on"])
def test_a_nan_that_the_trainer_hides_is_found_in_its_state(name, tmp_path):
    trained(tmp_path, name, guarded=False, logging_steps=2)
    (first, *_) = diagnose_input(tmp_path).findings
    assert (first.fine, first.severity) == ("nan_loss", Severity.ERROR)
    assert first.step <= 20, "where it began"


def test_a_real_log_of_a_trainer_that_ran_out_of_memory(tmp_path, capfd):
    error = trained(tmp_path, "oom-once-in-forward", guarded=False, logging_steps=2)
    printed = capfd.readouterr().out
    assert "'loss'" in printed
    log = tmp_path / "train.log"
    log.write_text(
        f"{printed}Traceback (most recent call last):\n{type(error).__module__}.{type(error).__name__}: {error}\n"
    )
    report = diagnose_input(log)
    assert (report.format, report.findings[0].fine) == ("log", "oom_gpu")
    assert main(["diagnose", str(log)]) == 1
