"""`SelfHealingTrainer.check()`: the same checks on a trainer that is built, which is left as it was."""

from __future__ import annotations

import random

import pytest

from self_healing.core.errors import ConfigError
from self_healing.preflight.check import Check
from self_healing.preflight.checks import job_cost
from self_healing.preflight.finding import Place

pytestmark = pytest.mark.torch


@pytest.fixture(scope="module")
def guarded(tmp_path_factory):
    from self_healing import SelfHealingTrainer
    from self_healing.drills.tiny_training import tiny_trainer

    folder = tmp_path_factory.mktemp("checked")
    trainer = tiny_trainer(folder / "out", hub_model_id="org/out", hub_token="hf_" + "aB3" * 12)
    return SelfHealingTrainer(trainer)


def test_the_settings_are_the_trainers_own_and_hold_no_token(guarded):
    from self_healing.preflight.options import CheckOptions
    from self_healing.preflight.subject.trainer import subject_of_trainer

    subject = subject_of_trainer(guarded.trainer, CheckOptions())
    setting = subject.setting("learning_rate")
    assert (setting.value, setting.owner, setting.place) == (
        5e-3,
        "TrainingArguments",
        Place("trainer", key="learning_rate"),
    )
    assert (subject.number("max_steps"), subject.setting("save_strategy").value, subject.is_on("use_cpu")) == (
        60,
        "no",
        True,
    )
    assert subject.setting("adam_beta1") is None, "what has its default and matters to nobody"
    assert "hf_" not in str(subject.settings)
    assert [each.name for each in subject.references] == ["org/out"]


def test_a_report_reads_like_the_command_and_nothing_is_changed(guarded, monkeypatch):
    import torch

    def draws(self, subject, tools):
        random.random()
        torch.rand(3)
        yield self.warning(
            Place("trainer", key="learning_rate"), f"{subject.number('learning_rate')} is odd", "Write 1e-4"
        )

    monkeypatch.setattr(job_cost.JobCost, "run", draws)
    before = (random.getstate(), torch.get_rng_state(), {n: p.clone() for n, p in guarded.model.named_parameters()})
    args, mode = guarded.args.to_dict(), guarded.model.training
    report = guarded.check(select=("job-cost",))
    assert str(report).splitlines()[0] == "trainer: learning_rate: warning: 0.005 is odd [job-cost]"
    assert str(report).splitlines()[1] == "    fix: Write 1e-4"
    assert ([found.check for found in report.findings], report.not_run) == (["job-cost"], [])
    assert random.getstate() == before[0]
    assert torch.equal(torch.get_rng_state(), before[1])
    assert all(torch.equal(before[2][name], value) for name, value in guarded.model.named_parameters())
    assert (guarded.args.to_dict(), guarded.model.training) == (args, mode)


def test_all_checks_can_be_made_on_a_trainer(guarded):
    report = guarded.check()
    assert [each for each in report.not_run if "the check itself failed" in each.because] == []


def test_an_option_that_is_none_is_refused(guarded):
    with pytest.raises(ConfigError, match="graphics"):
        guarded.check(graphics="t4")
    with pytest.raises(ConfigError, match="there is no such check"):
        guarded.check(select=("nothing",))


def test_the_checks_are_asked_offline_unless_told_otherwise(guarded, monkeypatch):
    seen = []

    def looks(self: Check, subject, tools):
        seen.append((tools.options.offline, subject.trainer is guarded.trainer))
        return ()

    monkeypatch.setattr(job_cost.JobCost, "run", looks)
    guarded.check(select=("job-cost",))
    guarded.check(select=("job-cost",), offline=False)
    assert seen == [(True, True), (False, True)]
