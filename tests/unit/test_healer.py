"""The whole flow on real rules: signals in, plans out, what was done judged, the policy's memory kept."""

from __future__ import annotations

import math
import random
from collections import Counter
from dataclasses import dataclass, field, replace

import pytest

from self_healing.actions.alert import Alert
from self_healing.actions.scale_learning_rate import ScaleLearningRate
from self_healing.core.action import rung
from self_healing.core.cause import Pattern
from self_healing.core.detector import Detector
from self_healing.core.errors import ActionFailed
from self_healing.core.failure import FailureType, Mode, Severity
from self_healing.core.healer import Healer
from self_healing.core.ledger import MemoryLedger
from self_healing.core.settings import Settings
from self_healing.core.signal import Metrics, Raised, SnapshotTaken
from self_healing.detectors.crashed import Crashed
from self_healing.detectors.loss_divergence import LossDivergence
from self_healing.detectors.loss_not_finite import LossNotFinite
from self_healing.detectors.loss_spike import LossSpike

OOM = Pattern(
    name="gpu-out-of-memory", says="No room on the GPU.", failure=FailureType.OOM, fine="oom_gpu",
    exception=("OutOfMemoryError",), text="out of memory", remedy=(rung(Alert(text="x")),),
)  # fmt: skip


@dataclass
class Restored:
    key: str
    step: int


@dataclass
class Recorder:
    """A run that can do everything asked of it and remembers what was asked."""

    snapshot: Restored = field(default_factory=lambda: Restored("s100", 100))
    asked: list[str] = field(default_factory=list)
    broken: set[str] = field(default_factory=set)
    scale: float = 1.0

    def _note(self, what):
        self.asked.append(what)
        if what in self.broken:
            raise ActionFailed(f"{what} is broken")

    def roll_back(self, *, before_step, depth, min_steps):
        self._note("roll_back")
        return self.snapshot

    def skip_batches(self, *, margin):
        self._note("skip_batches")
        return "skipped"

    def scale_learning_rate(self, factor, *, floor):
        self._note("scale_learning_rate")
        self.scale *= factor
        return self.scale

    def rewarm_learning_rate(self, factor, *, ramp_steps, floor):
        self._note("rewarm_learning_rate")
        return factor

    def tighten_clipping(self, *, factor, initial):
        self._note("tighten_clipping")
        return initial

    def alert(self, text):
        self._note("alert")
        return "told"

    def stop_run(self, reason):
        self._note("stop_run")
        return "stopped"

    def restart_process(self):
        self._note("restart_process")
        return "restarted"


class Training:
    """Feeds a healer as an adapter does: observe, act, and go back where a rollback says so."""

    def __init__(self, *rules, past=(), patterns=(), hooks=(), run=None, **settings):
        from self_healing.core.capability import capabilities_of

        self.run = run or Recorder()
        self.ledger = MemoryLedger()
        self.healer = Healer(
            settings=Settings(**settings), rules=rules, ledger=self.ledger, past=past, patterns=patterns, hooks=hooks,
            capabilities=capabilities_of(self.run),
        )  # fmt: skip
        self.step = 0
        self.plans = []

    def feed(self, *losses, **more):
        for loss in losses:
            self.step += 1
            self.signal(Metrics(step=self.step, time_s=float(self.step), values={"loss": loss, **more}))

    def feed_until_rollback(self, loss, most=60):
        """Feed a bad loss until the run has been put back (or stopped)."""
        done = len(self.run.asked)
        for _ in range(most):
            self.feed(loss)
            if {"roll_back", "stop_run"} & set(self.run.asked[done:]):
                return
        raise AssertionError("nothing was done about it")

    def signal(self, signal):
        self.carry_out(self.healer.observe(signal))

    def carry_out(self, plan):
        while plan is not None:
            self.plans.append(plan)
            outcome = self.healer.act(plan, self.run, lambda: 0.0)
            if outcome is None:
                return
            self.step = outcome.step if outcome.step is not None else self.step
            plan = self.healer.next_plan(outcome)

    def names(self, kind):
        return [entry.name for entry in self.ledger.entries if entry.kind == kind]

    def events(self, name):
        return [e.body["event"] for e in self.ledger.entries if e.kind == "incident" and e.name == name]


def calm(n, level=2.5, seed=0):
    noise = random.Random(seed)
    return [level + noise.gauss(0, 0.05) for _ in range(n)]


def test_a_healthy_run_gets_no_plan_and_no_incident():
    training = Training(LossSpike(), LossDivergence(), LossNotFinite())
    training.feed(*calm(500))
    assert training.plans == []
    assert training.names("incident") == []


def test_divergence_is_held_first_then_rolled_back_and_judged():
    training = Training(LossDivergence())
    training.feed(*calm(99))
    training.signal(SnapshotTaken(step=99, key="s100"))
    training.run.snapshot = Restored("s100", 99)
    training.feed(*calm(91, seed=1))
    training.feed_until_rollback(9.0)
    assert training.run.asked[:2] == ["roll_back", "skip_batches"]
    assert training.plans[0].rung.startswith("wait")
    assert training.step < 190, "the run is back before the trouble"
    training.run.asked.clear()
    training.feed(*calm(100, seed=2))
    assert training.names("verdict") == ["relapsed"], "the run has not come to where the trouble was"
    training.feed(*calm(20, seed=3))
    assert training.names("verdict") == ["relapsed", "recovered"]
    assert training.run.asked == []


def test_a_rollback_rewinds_the_history_but_not_the_memory():
    training = Training(LossDivergence())
    training.feed(*calm(99))
    training.signal(SnapshotTaken(step=99, key="s100"))
    training.run.snapshot = Restored("s100", 99)
    before = training.healer.history.state_dict()
    training.feed(*calm(20, seed=1))
    training.feed_until_rollback(9.0)
    rolled = next(i for i, e in enumerate(training.ledger.entries) if e.kind == "outcome" and e.body["restored"])
    assert training.ledger.entries[rolled].body["step_after"] == 99
    assert training.healer.memory.total == 1
    assert training.healer.memory.trained_steps > training.step
    again = Training(LossDivergence())
    again.healer.history.load_state_dict(before)
    assert again.healer.history.last("loss", 5) == before["series"]["loss"]["admitted"][-5:]


def test_the_same_class_again_within_the_watch_window_means_the_rung_failed():
    training = Training(LossDivergence())
    training.feed(*calm(99))
    training.signal(SnapshotTaken(step=99, key="s100"))
    training.run.snapshot = Restored("s100", 99)
    training.feed(*calm(20, seed=1))
    while "stop_run" not in training.run.asked:
        training.feed_until_rollback(9.0)
    assert training.names("verdict") == ["relapsed"] * len(training.names("verdict"))
    allowed = {rung.name: rung.repeats for rung in LossDivergence.remedy}
    tried = Counter(plan.rung for plan in training.plans if not plan.is_undo)
    assert all(times <= allowed[name] for name, times in tried.items()), "no rung is tried more often than it may"
    margins = [a.margin for plan in training.plans for a in plan.actions if a.name() == "skip-batches"]
    assert margins[:3] == [1, 4, 16], "more is left out each time"
    assert training.plans[-1].actions[0].name() == "stop-run"


def test_one_spike_is_a_warning_that_costs_nothing_and_passes():
    training = Training(LossSpike(), LossDivergence())
    training.feed(*calm(200), 6.0, *calm(100, seed=1))
    assert {plan.severity for plan in training.plans} == {Severity.WARNING}
    assert training.run.asked in ([], ["alert"])
    assert training.events("loss-spike")[-1] == "closed"


def test_a_nan_does_not_blind_the_baseline():
    training = Training(LossSpike(), LossNotFinite())
    training.feed(*calm(100), math.nan, 9.0)
    assert "loss-spike" in training.names("incident")


def test_non_finite_steps_in_a_row_start_the_ladder_and_then_stop_the_run():
    training = Training(LossNotFinite())
    training.feed(*calm(50))
    training.feed(math.nan, math.nan)
    assert all(plan.severity is Severity.WARNING for plan in training.plans)
    training.feed(math.nan)
    assert training.run.asked[-2:] == ["tighten_clipping", "rewarm_learning_rate"]
    training.run.snapshot = Restored("unknown", 40)
    training.feed(*[math.nan] * 12)
    assert training.run.asked[-1] == "stop_run"


@pytest.mark.parametrize(
    ("action", "asked"), [("raise", "stop_run"), ("rollback", "roll_back"), ("warn", "alert"), ("skip", "alert")]
)
def test_nan_action_decides_what_one_nan_does(action, asked):
    training = Training(LossNotFinite(action=action))
    training.feed(*calm(50), math.nan)
    assert training.run.asked[0] == asked


def test_observe_and_advise_touch_nothing():
    for mode, plans in ((Mode.OBSERVE, False), (Mode.ADVISE, True)):
        training = Training(LossDivergence(), mode=mode)
        training.feed(*calm(100), *[9.0] * 60)
        assert training.run.asked == []
        assert bool(training.plans) is plans
        assert training.names("incident")


def test_a_lasting_change_of_level_becomes_the_new_normal():
    training = Training(LossDivergence(), LossSpike(), mode=Mode.OBSERVE)
    training.feed(*calm(200), *calm(400, level=5.0, seed=3))
    assert training.events("loss-divergence") == ["opened", "closed"]
    assert training.healer.care.cases.held_metrics() == frozenset()
    training.feed(*calm(10, level=5.0, seed=4), *[12.0] * 10)
    assert training.events("loss-divergence")[-1] == "opened"


def test_a_crashing_rule_is_named_and_switched_off_and_the_run_goes_on():
    class Broken(Detector):
        """Divides by zero."""

        failure = FailureType.OTHER
        fine = "crash"
        severity = Severity.ERROR

        def check(self, now, past):
            return 1 / 0

    training = Training(Broken(), LossSpike())
    training.feed(*calm(200), 6.0)
    crashes = [e for e in training.ledger.entries if e.name == "rule-crashed" and e.body["event"] == "opened"]
    assert len(crashes) == 1
    assert "broken" in crashes[0].body["because"]
    assert "ZeroDivisionError" in crashes[0].body["trace"]
    assert "loss-spike" in training.names("incident"), "the others go on"


def test_an_exception_is_classified_by_its_pattern_and_its_ladder_is_used():
    training = Training(Crashed(), patterns=(OOM,))
    training.signal(Raised(step=3, exception="torch.OutOfMemoryError", message="CUDA out of memory. Tried"))
    assert training.plans[0].failure is FailureType.OOM
    assert training.plans[0].hypothesis == "gpu-out-of-memory"
    entry = next(e for e in training.ledger.entries if e.kind == "incident")
    assert entry.body["class"] == "oom_gpu"


def test_an_action_that_fails_leads_to_the_next_rung_at_once():
    run = Recorder(broken={"roll_back"})
    training = Training(Crashed(), run=run)
    training.signal(Raised(step=3, exception="builtins.KeyError", message="x", where="a.py:1"))
    assert run.asked == ["roll_back", "restart_process"]
    outcomes = [e.body for e in training.ledger.entries if e.kind == "outcome"]
    assert [o["succeeded"] for o in outcomes] == [False, True]
    assert "roll_back is broken" in outcomes[0]["results"][0]["text"]


def test_the_policy_remembers_across_processes():
    first = Training(Crashed())
    first.signal(Raised(step=3, exception="builtins.KeyError", message="x", where="a.py:1"))
    assert first.run.asked == ["roll_back"]
    second = Training(Crashed(), past=first.ledger.entries)
    second.signal(Raised(step=3, exception="builtins.KeyError", message="x", where="a.py:1"))
    assert second.run.asked == ["stop_run"], "the same failure after a faithful retry"
    assert "unrecoverable" in second.plans[0].because


def test_a_recipe_change_that_makes_things_worse_is_taken_back():
    class Rising(LossSpike):
        """As loss-spike, but it cuts the rate and means it."""

        severity = Severity.ERROR

        def ladder(self, incident):
            return (rung(ScaleLearningRate(factor=0.5), success=0.9),)

        def check(self, now, past):
            found = super().check(now, past)
            return None if found is None else replace(found, severity=Severity.ERROR)

    training = Training(Rising())
    training.feed(*calm(100), 8.0)
    assert training.run.scale == 0.5
    training.feed(*[8.0 + 0.2 * i for i in range(20)], *[15.0] * 30)
    assert "worse" in training.names("verdict") or "relapsed" in training.names("verdict")
    training = Training(Rising())
    training.feed(*calm(100), eval_loss=2.0)
    training.feed(8.0)
    training.feed(*calm(60, seed=1))
    assert training.names("verdict") == [], "the next evaluation decides"
    training.feed(2.5, eval_loss=3.0)
    assert training.names("verdict") == ["worse"]
    assert training.run.scale == 1.0, "taken back"
    training.feed(8.0)
    assert training.run.scale == 1.0, "what did harm is not tried again"


def test_a_recipe_change_that_did_no_harm_is_kept():
    class Cutting(LossSpike):
        """As loss-spike, but it cuts the rate."""

        def ladder(self, incident):
            return (rung(ScaleLearningRate(factor=0.5), success=0.9),)

        def check(self, now, past):
            found = super().check(now, past)
            return None if found is None else replace(found, severity=Severity.ERROR)

    training = Training(Cutting())
    training.feed(*calm(100), eval_loss=2.0)
    training.feed(8.0)
    training.feed(*calm(60, seed=1))
    training.feed(2.5, eval_loss=2.0)
    assert training.names("verdict") == ["recovered"]
    assert training.run.scale == 0.5


@pytest.mark.parametrize("answer", ["veto", "replace", "crash", "nonsense", "above"])
def test_the_users_hook_may_veto_or_replace_and_is_fenced(answer):
    def hook(incident, plan, run):
        assert incident.name == "loss-not-finite"
        if answer == "veto":
            return False
        if answer == "replace":
            return replace(plan, actions=(Alert(text="mine"),), rung="mine")
        if answer == "crash":
            raise RuntimeError("my hook is broken")
        if answer == "above":
            return replace(plan, actions=(ScaleLearningRate(factor=0.1),))
        return 42

    from self_healing.core.failure import Effect

    training = Training(LossNotFinite(action="raise"), hooks=[(None, hook)], max_effect=Effect.TIME)
    training.feed(*calm(20), math.nan)
    notes = training.names("note")
    asked = {"veto": [], "replace": ["alert"], "crash": ["stop_run"], "nonsense": ["stop_run"], "above": ["stop_run"]}
    assert training.run.asked == asked[answer]
    assert notes == [
        {"veto": "hook-vetoed", "replace": "hook-replaced", "crash": "hook-crashed"}.get(answer, "hook-misused")
    ]


def test_a_plan_wished_for_by_another_rank_is_carried_out_and_judged_here_too():
    training = Training(LossDivergence())
    other = Training(LossNotFinite(action="rollback"))
    other.feed(*calm(20), math.nan)
    training.feed(*calm(21))
    training.carry_out(other.plans[0])
    assert training.run.asked == ["roll_back", "skip_batches"]
    training.feed(*calm(60, seed=1))
    assert training.names("verdict") == ["recovered"]


def test_a_nan_that_has_passed_does_not_change_what_is_normal():
    """Its incident stays open for a while; the losses meanwhile were set aside, and the last few of them became the level."""
    losses = (
        2.25, 2.82, 4.49, 5.82, 4.0, 4.03, 3.61, 1.82, 6.74, 4.23, 5.35, 3.3, 3.75, 3.01, 4.62, 3.88, 3.67, 2.79, 4.81, 3.9, 2.44, 3.31, 2.84,
        4.82, 3.13, 2.43, 6.81, 5.25, 6.84, 3.83, 3.46, 3.38, 5.33, 3.64, 3.09, 2.24, 2.12, 2.34, 1.93, 4.22, 5.04, 4.79, 2.62, 3.28, 5.98,
    )  # fmt: skip
    told = {}
    for name, seen in (("well", losses), ("once NaN", (*losses[:12], math.nan, *losses[12:]))):
        training = Training(LossNotFinite(), LossSpike())
        training.feed(*seen)
        told[name] = set(training.names("incident"))
    assert told == {"well": set(), "once NaN": {"loss-not-finite"}}
