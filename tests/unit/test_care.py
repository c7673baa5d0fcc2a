"""What becomes of open incidents: holds, relapses, undos, ranks, modes, silence."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import pytest

from self_healing.actions.alert import Alert
from self_healing.actions.restart_process import RestartProcess
from self_healing.actions.roll_back import RollBack
from self_healing.actions.scale_learning_rate import ScaleLearningRate
from self_healing.actions.skip_batches import SkipBatches
from self_healing.actions.stop_run import StopRun
from self_healing.actions.wait import Wait
from self_healing.core.action import rung
from self_healing.core.capability import capabilities_of
from self_healing.core.detector import Detector
from self_healing.core.errors import ActionFailed
from self_healing.core.failure import FailureType, Mode, Severity
from self_healing.core.healer import Healer
from self_healing.core.ledger import MemoryLedger
from self_healing.core.settings import Settings
from self_healing.core.signal import Heartbeat, Metrics, Resumed, SnapshotDropped, SnapshotTaken, Tick
from self_healing.detectors.heartbeat_lost import HeartbeatLost
from self_healing.detectors.loss_not_finite import LossNotFinite
from self_healing.detectors.step_stalled import StepStalled


@dataclass(frozen=True, kw_only=True)
class Alarm(Detector):
    """Fires while the metric `alarm` is positive, as badly as its value says."""

    failure = FailureType.DIVERGENCE
    fine = "divergence"
    severity = Severity.ERROR
    metric = "alarm"
    watch = 4

    def check(self, now, past):
        value = now.get("alarm")
        if not value:
            return None
        return self.incident(now, "alarm", severity=Severity(min(int(value), 2)), excess=value, onset_step=now.step)


@dataclass(frozen=True, kw_only=True)
class OtherAlarm(Alarm):
    """The same for the metric `other`, in another class of failure."""

    failure = FailureType.GRADIENT_EXPLOSION
    metric = "other"

    def check(self, now, past):
        value = now.get("other")
        return self.incident(now, "other", severity=Severity(min(int(value), 2))) if value else None


@dataclass
class Restored:
    key: str = "s"
    step: int = 0


class Able:
    def __init__(self):
        self.asked, self.scale, self.broken = [], 1.0, set()

    def _do(self, what):
        self.asked.append(what)
        if what in self.broken:
            raise ActionFailed(what)

    def roll_back(self, *, before_step, depth, min_steps):
        self._do("roll_back")
        return Restored()

    def skip_batches(self, *, margin):
        self._do("skip")
        return "skipped"

    def scale_learning_rate(self, factor, *, floor):
        self._do("scale")
        self.scale *= factor
        return self.scale

    def alert(self, text):
        self._do("alert")
        return "told"

    def stop_run(self, reason):
        self._do("stop")
        return "stopped"

    def restart_process(self):
        self._do("restart")
        return "restarted"


class Run:
    def __init__(self, *rules, mode=Mode.HEAL, hooks=(), **ladders):
        self.able = Able()
        self.ledger = MemoryLedger()
        for rule in rules:
            ladder = ladders.get(type(rule).__name__)
            if ladder is not None:
                object.__setattr__(rule, "ladder", lambda incident, ladder=ladder: ladder)
        self.healer = Healer(
            settings=Settings(mode=mode), rules=rules, ledger=self.ledger, hooks=hooks,
            capabilities=capabilities_of(self.able),
        )  # fmt: skip
        self.step = 0

    def feed(self, n=1, **values):
        for _ in range(n):
            self.step += 1
            self.signal(Metrics(step=self.step, time_s=float(self.step), values={"loss": 1.0, **values}))

    def signal(self, signal):
        plan = self.healer.observe(signal)
        while plan is not None:
            outcome = self.healer.act(plan, self.able, lambda: 0.0)
            plan = None if outcome is None else self.healer.next_plan(outcome)

    def names(self, kind):
        return [entry.name for entry in self.ledger.entries if entry.kind == kind]

    def plans(self):
        return [entry.body["rung"] for entry in self.ledger.entries if entry.kind == "plan"]


HOLD = (rung(Wait(steps=4, longest=12), success=0.9), rung(RollBack(), SkipBatches(), success=0.5))
CUT = (rung(ScaleLearningRate(factor=0.5), success=0.9),)


def test_a_hold_is_extended_while_it_heals_and_only_up_to_its_limit():
    run = Run(Alarm(), Alarm=HOLD)
    run.feed(alarm=100.0)
    for value in (90.0, 80.0, 70.0, 60.0):
        run.feed(alarm=value)
    assert run.able.asked == [], "at 60 % of the excess the hold goes on"
    run.feed(4, alarm=59.0)
    run.feed(3, alarm=58.0)
    assert run.able.asked == []
    run.feed(2, alarm=58.0)
    assert run.able.asked == ["roll_back", "skip"]


def test_a_hold_that_does_not_heal_ends_at_its_end():
    run = Run(Alarm(), Alarm=HOLD)
    run.feed(1, alarm=100.0)
    run.feed(3, alarm=100.0)
    assert run.able.asked == []
    run.feed(1, alarm=100.0)
    assert run.able.asked == ["roll_back", "skip"]


def test_after_a_plan_the_evidence_starts_anew_and_quiet_means_recovered():
    run = Run(Alarm(), Alarm=CUT)
    run.feed(3, alarm=0.0)
    run.feed(1, alarm=2.0)
    run.feed(4, alarm=0.0)
    assert run.names("verdict") == ["recovered"]
    assert run.able.scale == 0.5


def test_two_classes_at_once_get_one_plan_after_the_other():
    run = Run(Alarm(), OtherAlarm(), Alarm=CUT, OtherAlarm=(rung(RollBack(), success=0.9),))
    run.feed(1, alarm=2.0, other=2.0)
    assert run.able.asked == ["scale"], "the stronger effect goes first"
    run.feed(1, alarm=0.0, other=2.0)
    assert run.able.asked == ["scale", "roll_back"], "the other is asked for again"


def test_two_rules_of_one_class_get_one_plan():
    @dataclass(frozen=True, kw_only=True)
    class Twin(Alarm):
        """The same trouble seen by another rule."""

        metric = "twin"

        def check(self, now, past):
            value = now.get("twin")
            return self.incident(now, "twin", severity=Severity.ERROR) if value else None

    run = Run(Alarm(), Twin(), Alarm=CUT, Twin=CUT)
    run.feed(1, alarm=2.0, twin=2.0)
    run.feed(10, alarm=0.0, twin=0.0)
    assert run.able.asked == ["scale"]
    assert run.names("verdict") == ["recovered"]
    closed = [e.body["reason"] for e in run.ledger.entries if e.kind == "incident" and e.body["event"] == "closed"]
    assert closed == ["covered", "recovered"], "one was acted on, the other is covered by that"
    held = Run(Alarm(), Twin(), Alarm=HOLD, Twin=CUT)
    held.feed(1, alarm=2.0, twin=0.0)
    held.feed(2, alarm=0.0, twin=2.0)
    assert held.able.asked == [], "while one of the class holds, the other waits for it"


def test_every_change_that_did_harm_is_taken_back_even_two_at_once():
    run = Run(Alarm(), OtherAlarm(), Alarm=CUT, OtherAlarm=(rung(ScaleLearningRate(factor=0.2), success=0.9),))
    run.feed(1, eval_loss=1.0)
    run.feed(1, alarm=2.0, other=2.0)
    run.feed(1, alarm=0.0, other=2.0)
    run.feed(12, alarm=0.0, other=0.0)
    assert run.able.scale == pytest.approx(0.1)
    run.feed(1, alarm=0.0, other=0.0, eval_loss=2.0)
    run.feed(2, alarm=0.0, other=0.0)
    assert run.names("verdict").count("worse") == 2
    assert run.able.scale == pytest.approx(1.0)


def test_an_undo_that_fails_is_tried_again_but_not_for_ever():
    run = Run(Alarm(), Alarm=CUT)
    run.feed(1, eval_loss=1.0)
    run.feed(1, alarm=2.0)
    run.feed(6, alarm=0.0)
    run.able.broken = {"scale"}
    run.feed(1, alarm=0.0, eval_loss=2.0)
    run.able.broken = set()
    run.feed(1, alarm=0.0)
    assert run.able.scale == 1.0
    asked = len(run.able.asked)
    run.feed(5, alarm=0.0)
    assert len(run.able.asked) == asked


def test_what_a_broken_plan_had_done_is_taken_back():
    ladder = (rung(ScaleLearningRate(factor=0.5), SkipBatches(), success=0.9), rung(Alert(text="x"), success=0.1))
    run = Run(Alarm(), Alarm=ladder)
    run.able.broken = {"skip"}
    run.feed(1, alarm=2.0)
    run.feed(2, alarm=0.0)
    assert run.able.scale == 1.0


def test_a_trial_that_relapses_before_the_evaluation_has_failed():
    run = Run(Alarm(), Alarm=CUT)
    run.feed(1, eval_loss=1.0)
    run.feed(1, alarm=2.0)
    run.feed(6, alarm=0.0)
    run.feed(1, alarm=2.0)
    assert run.names("verdict") == ["relapsed"]


def test_an_evaluation_that_was_not_finite_before_is_no_reference():
    run = Run(Alarm(), Alarm=CUT)
    run.feed(1, eval_loss=math.nan)
    run.feed(1, alarm=2.0)
    run.feed(6, alarm=0.0)
    assert run.names("verdict") == ["recovered"]


def test_one_silence_is_one_incident_and_a_remedy_has_its_time():
    run = Run(StepStalled())
    for step in range(20):
        run.signal(Metrics(step=step, time_s=float(step), values={"loss": 1.0, "step_time_s": 1.0}))
    for later in range(81, 101):
        run.signal(Tick(step=19, time_s=19.0 + later))
    assert run.able.asked == ["alert"]
    run.signal(Tick(step=19, time_s=19.0 + 81 + 301))
    run.signal(Tick(step=19, time_s=19.0 + 81 + 302))
    assert run.able.asked == ["alert", "restart"]


def test_a_rollback_does_not_look_like_a_long_silence():
    run = Run(HeartbeatLost(), Alarm(), Alarm=(rung(RollBack(), success=0.9),))
    run.signal(Heartbeat(step=0, time_s=0.0))
    run.feed(1, alarm=0.0)
    run.signal(SnapshotTaken(step=1, time_s=1.0, key="s"))
    run.step = 9000
    run.feed(1, alarm=2.0)
    run.signal(Tick(step=0, time_s=9006.0))
    assert run.able.asked == ["roll_back"]


def test_advice_does_not_block_worse_advice():
    run = Run(LossNotFinite(), mode=Mode.ADVISE)
    run.feed(20)
    for _ in range(3):
        run.feed(loss=math.nan)
    assert run.plans() == ["alert", "roll-back+skip-batches"], "what it would do about three in a row is shown too"
    assert run.able.asked == []


def test_a_hook_cannot_touch_the_run_in_advise_mode_nor_change_the_incident():
    def cut(incident, plan, run):
        return replace(plan, actions=(ScaleLearningRate(factor=0.1),), incident="mine", failure=FailureType.OOM)

    run = Run(Alarm(), mode=Mode.ADVISE, hooks=[(None, cut)], Alarm=HOLD)
    run.feed(20, alarm=2.0)
    assert run.able.asked == []
    run = Run(Alarm(), hooks=[(None, cut)], Alarm=HOLD)
    run.feed(1, alarm=2.0)
    assert run.able.asked == ["scale"]
    outcome = next(e for e in run.ledger.entries if e.kind == "outcome")
    assert (outcome.name, outcome.body["failure"]) == ("alarm", "divergence")
    run.feed(10, alarm=0.0)
    assert run.names("verdict") == ["recovered"]


def test_a_vetoed_plan_is_not_asked_for_again_until_it_is_worse():
    asked = []
    run = Run(Alarm(), hooks=[(None, lambda i, p, r: asked.append(i.severity) or False)], Alarm=HOLD)
    run.feed(5, alarm=1.0)
    assert len(asked) == 1
    run.feed(1, alarm=2.0)
    assert len(asked) == 2


def test_two_rules_that_crash_together_are_both_named():
    class BrokenOne(Alarm):
        """Crashes."""

        def check(self, now, past):
            raise RuntimeError("CUDA out of memory")

    class BrokenTwo(BrokenOne):
        """Crashes too."""

    class Odd(Alarm):
        """Returns nonsense."""

        def check(self, now, past):
            return True

    run = Run(BrokenOne(), BrokenTwo(), Odd())
    run.feed(3)
    opened = [e for e in run.ledger.entries if e.name == "rule-crashed" and e.body["event"] == "opened"]
    assert sorted(e.body["subject"] for e in opened) == ["rule broken-one", "rule broken-two", "rule odd"]
    assert {e.body["class"] for e in opened} == {"rule_crashed"}, "our own traceback is not matched against patterns"
    assert run.plans() == []


def test_a_healer_that_breaks_steps_aside(monkeypatch):
    run = Run(Alarm())
    run.healer.is_strict = False
    monkeypatch.setattr(run.healer.care, "review", lambda *a: 1 / 0)
    run.feed(3, alarm=2.0)
    assert run.names("note") == ["healer-crashed"]


def test_what_is_no_number_is_left_out_of_the_metrics():
    run = Run(Alarm())
    run.signal(Metrics(step=1, values={"loss": None, "alarm": "high", "huge": 10**400, "count": 3}))
    assert run.healer.history.latest("count") == 3.0
    assert run.healer.history.latest("loss") is None


def test_snapshots_dropped_are_no_longer_known_and_a_resumed_history_is_taken_over():
    run = Run(Alarm())
    run.feed(3, alarm=0.0)
    run.signal(SnapshotTaken(step=3, key="s"))
    run.feed(2, alarm=0.0)
    assert run.healer.rewind("s")
    assert run.healer.history.count("loss") == 3
    run.signal(SnapshotDropped(step=3, key="s"))
    assert not run.healer.rewind("s")
    other = Run(Alarm())
    other.signal(Resumed(step=3, time_s=50.0, history=run.healer.history.state_dict()))
    assert other.healer.history.count("loss") == 3
    assert other.healer.history.time_s == 50.0


def test_metrics_that_rules_look_up_are_never_crowded_out():
    run = Run(Alarm())
    run.feed(1, **{f"layer{i}": 1.0 for i in range(600)})
    run.feed(1, reward=0.5)
    assert run.healer.history.latest("reward") == 0.5
    assert run.healer.history.latest("layer599") is None


def test_the_ladder_of_a_hang_ends_in_a_stop():
    assert [r.actions[0] for r in StepStalled.remedy] == [Alert(), RestartProcess(), StopRun()]


BACK = (rung(RollBack(), success=0.9), rung(RollBack(), SkipBatches(), success=0.5))


@pytest.mark.parametrize("known", [True, False], ids=["state-of-this-process", "checkpoint-of-another"])
def test_the_watch_after_a_return_lasts_until_the_run_is_beyond_where_the_trouble_was(known):
    run = Run(Alarm(), Alarm=BACK)
    if known:
        run.signal(SnapshotTaken(step=0, key="s"))
    run.feed(19, alarm=0.0)
    run.feed(alarm=2.0)
    run.step = 0  # where it has returned to; the watch is 4 observations
    run.feed(19, alarm=0.0)
    assert run.names("verdict") == [], "nothing was shown yet: the trouble was at step 20"
    run.feed(alarm=2.0)
    assert run.names("verdict") == ["relapsed"]
    run.step = 0
    run.feed(20, alarm=0.0)
    assert run.names("verdict") == ["relapsed"]
    run.feed(alarm=0.0)
    assert run.names("verdict") == ["relapsed", "recovered"]
    assert run.plans() == ["roll-back", "roll-back+skip-batches"]
