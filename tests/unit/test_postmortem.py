"""The postmortem: from real ledgers of real healers, with hostile texts, and written whole under kill -9."""

from __future__ import annotations

import json
import math
import random
import tracemalloc
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from self_healing import HealingActions, HealingConfig
from self_healing.api import OpenRun
from self_healing.core.errors import CatalogueError, LedgerError, give_up
from self_healing.core.ledger import Entry, Ledger, LedgerReading, iter_ledger, read_ledger
from self_healing.core.run_ledgers import iter_run
from self_healing.core.signal import Metrics, Raised, SnapshotTaken
from self_healing.report import changes
from self_healing.report.postmortem import FILE_NAME, build_postmortem, postmortem_path
from self_healing.report.story import MOST_ADVICE, MOST_LISTED

from . import recorded_run

SEED = {
    "exit_reason": "exception", "exception_type": "OutOfMemoryError", "last_step": 847,
    "timestamp": "2026-04-30T15:26:04Z", "final_metrics": {"loss": 2.15, "grad_norm": 42.3},
    "recovery_actions": [{
        "failure": "oom", "diagnosis": "CUDA Out of Memory. Batch size exceeds GPU capacity.",
        "actions": ["halve_batch_size", "enable_gradient_checkpointing", "clear_cache"],
    }],
    "running_time_seconds": 1847.3,
}  # fmt: skip
OOM = "CUDA out of memory. Tried to allocate 2.00 GiB"
TOKEN = "hf_" + "aB3" * 11


@dataclass
class Restored:
    key: str
    step: int


class Run:
    """A run that does what it is asked, goes back where it is rolled back, and remembers what it was asked."""

    def __init__(self, folder, config=None):
        self.config, self.folder = config or HealingConfig(), folder
        self.step, self.now, self.saved, self.asked, self.stopped = 0, 1000.0, None, [], False
        self.opened = OpenRun(folder, self.config, self, environ={}, clock=lambda: self.now)

    def _did(self, what):
        self.asked.append(what)
        return what

    def roll_back(self, *, before_step, depth, min_steps):
        self._did("roll_back")
        return self.saved

    def skip_batches(self, *, margin):
        return self._did("skip_batches")

    def scale_learning_rate(self, factor, *, floor):
        self._did("scale")
        return 1e-4 * factor

    def rewarm_learning_rate(self, factor, *, ramp_steps, floor):
        self._did("rewarm")
        return 1e-4 * factor

    def tighten_clipping(self, *, factor, initial):
        self._did("clip")
        return initial

    def clear_cache(self):
        return self._did("clear")

    def alert(self, text):
        return self._did("told")

    def stop_run(self, reason):
        self.stopped = True
        return self._did("stopped")

    def signal(self, what):
        self.now += 1
        healer = self.opened.healer
        plan = healer.observe(what(step=self.step, time_s=self.now))
        while plan is not None:
            outcome = healer.act(plan, self, lambda: self.now)
            self.step = self.step if outcome is None or outcome.step is None else outcome.step
            plan = None if outcome is None else healer.next_plan(outcome)

    def train(self, *losses, **more):
        for loss in losses:
            if self.stopped:
                return
            self.step += 1
            self.signal(lambda loss=loss, **at: Metrics(values={"loss": loss, **more}, **at))

    def save(self):
        self.saved = Restored(f"s{self.step}", self.step)
        self.signal(lambda **at: SnapshotTaken(key=self.saved.key, **at))

    def raises(self, message, exception="torch.OutOfMemoryError"):
        self.signal(lambda **at: Raised(exception=exception, message=message, where="a.py:1 in f", **at))

    def end(self, reason, **given):
        self.opened.close()
        return postmortem(self.folder / "healing" / "ledger.jsonl", reason, **given)


def calm(n, level=2.5, seed=0):
    noise = random.Random(seed)
    return [level + noise.gauss(0, 0.05) for _ in range(n)]


def postmortem(ledger, reason="completed", **given):
    entries, reading = ledger, LedgerReading()
    if isinstance(ledger, Path):
        entries = iter_ledger(ledger, reading)
    facts = {"exception": None, "last_step": None, "final_metrics": None, "started_s": None, "ended_s": None}
    facts |= {"versions": {"python": "3"}, "hardware": {"cpus": 1}, "environ": {}, "reading": reading} | given
    built = build_postmortem(entries, exit_reason=reason, **facts)
    json.dumps(built.to_json(), allow_nan=False).encode("ascii")
    return built


def test_a_run_without_trouble_has_the_seeds_fields_and_nothing_to_tell(tmp_path):
    run = Run(tmp_path)
    run.train(*calm(120), grad_norm=1.0)
    told = run.end("completed", started_s=1_777_562_764.0, ended_s=1_777_562_764.25)
    assert (told.v, told.exit_reason, told.exception_type, told.exception) == (1, "completed", None, None)
    assert (told.last_step, told.timestamp, told.running_time_seconds) == (120, "2026-04-30T15:26:04Z", 0.25)
    assert told.final_metrics == {"loss": calm(120)[-1], "grad_norm": 1.0}
    assert told.recovery_actions == told.incidents == told.advice == told.changes_in_force == told.incomplete == []
    assert (told.steps_lost, told.seconds_lost, told.skipped_steps, told.data_quarantined) == (0, 0, 0, [])
    assert told.attempts == [
        {"attempt": 1, "first_step": 0, "last_step": 120, "seconds": 120.0, "incidents": 0, "recovery_actions": 0,
         "steps_lost": 0, "seconds_lost": 0.0}
    ]  # fmt: skip
    assert told.ledger == "healing/ledger.jsonl"
    assert postmortem_path(tmp_path) == tmp_path / FILE_NAME
    with pytest.raises(ValueError, match="finished"):
        postmortem([], "finished")


def test_a_divergence_that_was_rolled_back_says_what_it_cost(tmp_path):
    run = Run(tmp_path)
    run.train(*calm(99))
    run.save()
    run.train(*calm(20, seed=1))
    while "roll_back" not in run.asked:
        bad_until = run.step + 1
        run.train(9.0)
    run.train(*calm(100, seed=2))
    told = run.end("completed")
    rolled = next(each for each in told.recovery_actions if "rollback" in each["actions"])
    assert rolled["actions"] == ["rollback", "skip_batch"]
    assert (rolled["failure"], rolled["verdict"], rolled["outcome"]) == ("divergence", "recovered", "done")
    assert (rolled["step"], rolled["steps_lost"]) == (bad_until, bad_until - 99)
    assert "above its level" in rolled["diagnosis"]
    incident = next(each for each in told.incidents if each["name"] == rolled["incident"])
    assert (incident["closed"], incident["class"], incident["severity"]) == ("recovered", "divergence", "error")
    assert incident["steps_lost"] == told.steps_lost == told.attempts[0]["steps_lost"] == bad_until - 99
    assert told.advice == [], "all was resolved"
    assert told.last_step == 199


def test_a_run_that_was_given_up_names_the_cause_and_advises(tmp_path):
    run = Run(tmp_path)
    run.train(*calm(60))
    run.save()
    run.train(*[math.nan] * 300)
    assert run.stopped
    told = run.end("unrecoverable")
    last = told.recovery_actions[-1]
    assert (last["failure"], last["actions"], last["verdict"]) == ("nan_loss", ["stop"], None)
    assert last["diagnosis"] == "Weights or optimizer moments hold numbers that training did not put there."
    assert {"alert", "rewarm_lr", "rollback"} <= {name for each in told.recovery_actions for name in each["actions"]}
    assert told.incidents[-1]["closed"] is None
    assert told.advice[0].startswith("Resume from a checkpoint written before the first NaN")
    assert len(set(told.advice)) == len(told.advice) <= MOST_ADVICE
    assert (told.final_metrics, told.non_finite_metrics) == ({"loss": None}, ["loss"])
    assert "learning_rate_ramp" in [each["change"] for each in told.changes_in_force], "it was still going on"


def test_an_exception_is_told_like_the_seed_does_and_healing_by_hand_counts(tmp_path):
    run = Run(tmp_path)
    run.train(*calm(40), grad_norm=1.0)
    run.raises(OOM)
    HealingActions(run, run.opened.ledger, step=run.step).halve_lr()
    try:
        give_up("nothing else", RuntimeError(OOM))
    except RuntimeError as error:
        told = run.end("exception", exception=error, final_metrics={"loss": 2, "healing/skipped_steps": 3})
    shown = told.to_json()
    for key, value in SEED.items():
        assert type(shown[key]) is type(value), key
    assert set(SEED["recovery_actions"][0]) <= set(told.recovery_actions[0])
    assert (told.exception_type, told.exception["type"]) == ("RuntimeError", "RuntimeError")
    assert told.exception["message"] == OOM
    assert told.exception["where"].startswith("errors.py:")
    assert told.exception["notes"] == ["self-healing gave up: nothing else"]
    assert told.recovery_actions[0]["failure"] == "oom"
    assert told.recovery_actions[0]["diagnosis"] == "The GPU had no room for an allocation."
    assert told.recovery_actions[0]["actions"] == ["clear_cache"]
    assert any("checkpointing" in advice for advice in told.advice)
    by_hand = told.recovery_actions[-1]
    assert (by_hand["incident"], by_hand["actions"], by_hand["diagnosis"]) == (
        "by-hand",
        ["halve_lr"],
        "called by hand",
    )
    assert told.changes_in_force[0]["change"] == "learning_rate_scale"
    assert told.changes_in_force[0]["value"] == 0.5
    assert told.skipped_steps == 3
    assert postmortem(tmp_path / told.ledger, "exception").exception_type == "OutOfMemoryError", "as the ledger knows"
    assert postmortem(tmp_path / told.ledger, "killed").exception_type is None


def test_every_attempt_is_told_and_later_ones_are_left_out(tmp_path):
    path, _ = recorded_run.record(tmp_path, environ={})
    told, first = postmortem(path, "unrecoverable"), postmortem(iter_run(path, tmp_path / "none", up_to=1), "killed")
    assert [each["attempt"] for each in told.attempts] == [1, 2]
    assert {each["attempt"] for each in told.incidents} == {1, 2}
    for key in ("steps_lost", "seconds_lost"):
        assert sum(each[key] for each in told.attempts) == getattr(told, key)
    assert told.attempts[0] == first.attempts[0]
    assert first.recovery_actions == [each for each in told.recovery_actions if each["attempt"] == 1]
    assert (first.last_step, told.last_step) == (330, read_ledger(path).entries[-1].step)
    assert [c["value"] for c in first.changes_in_force] == [0.5]
    assert told.changes_in_force == [], "the second process began without the first's cut, and this run cannot ramp"
    failed = [each for each in told.recovery_actions if each["outcome"] == "failed"]
    assert [each["failed_actions"] for each in failed[:2]] == [["rollback"], ["rollback", "skip_batch"]]
    assert told == postmortem(path, "unrecoverable"), "same entries, same postmortem"
    assert told == postmortem(iter(read_ledger(path).entries), "unrecoverable")


def entry(seq, kind, name, *, step=1, attempt=1, **body):
    return Entry(1, seq, attempt, float(seq), step, 0, kind, name, body)


def outcome(seq, action, *, step=1, undo=False, effect="recipe", **parameters):
    plan = {"actions": [{"name": action, **parameters}], "effect": effect, "because": "b"}
    results = [{"action": action, "status": "done", "text": f"did {action}", "seconds": 1.0}]
    more = {"plan": plan, "results": results, "succeeded": True, "seconds": 1.0, "is_undo": undo}
    return entry(seq, "outcome", "loss-spike", step=step, incident="loss-spike", failure="loss_spike", rung="r", **more)


def test_only_changes_that_are_not_taken_back_are_in_force():
    cut, back = outcome(1, "scale-learning-rate", factor=0.5), outcome(2, "scale-learning-rate", factor=2.0, undo=True)
    told = postmortem([cut, back])
    assert told.changes_in_force == []
    assert [each["actions"] for each in told.recovery_actions] == [["halve_lr"], ["scale_learning_rate"]]
    assert postmortem([cut, cut, back]).changes_in_force[0]["value"] == 0.5
    ramp = outcome(1, "rewarm-learning-rate", step=10, factor=0.1, ramp_steps=50)
    assert postmortem([ramp], last_step=59).changes_in_force[0]["until_step"] == 60
    assert postmortem([ramp], last_step=60).changes_in_force == []
    ended = outcome(3, "rewarm-learning-rate", step=12, factor=1.0, ramp_steps=50, undo=True)
    assert postmortem([ramp, ramp, ended], last_step=13).changes_in_force == []
    mine, twice = outcome(1, "my-own-change"), outcome(2, "my-own-change", undo=True)
    assert postmortem([mine, mine]).changes_in_force[0] | {"step": 0} == {
        "change": "my_own_change", "times": 2, "step": 0, "said": "did my-own-change"
    }  # fmt: skip
    assert postmortem([mine, twice]).changes_in_force == []
    assert postmortem([outcome(1, "my-own-change", effect="time")]).changes_in_force == []
    halved = postmortem([outcome(1, "halve-batch-size"), outcome(2, "skip-step"), outcome(3, "tighten-clipping")])
    assert [change["change"] for change in halved.changes_in_force] == ["halve_batch_size", "gradient_clipping"]
    (bad,) = postmortem([outcome(1, "quarantine-records", step=7)]).data_quarantined
    assert bad == {"step": 7, "attempt": 1, "said": "did quarantine-records"}


def incident(seq, name, event="opened", severity="error", **more):
    return entry(
        seq, "incident", name, **{"event": event, "failure": name, "class": name, "severity": severity, **more}
    )


def test_advice_is_on_what_the_last_attempt_left_open_the_worst_and_newest_first():
    def found(seq, name, *fixes, attempt=1):
        guess = {"name": "n", "says": "s", "weight": 0.9, "fixes": list(fixes)}
        return entry(seq, "diagnosis", name, attempt=attempt, incident=name, failure=name, hypotheses=[guess])

    story = [
        incident(1, "old"), found(2, "old", "old fix", "both"), incident(3, "mild", severity="warning"),
        found(4, "mild", "mild fix"), incident(5, "new"), found(6, "new", "new fix", "both"), incident(7, "healed"),
        found(8, "healed", "not needed"), incident(9, "healed", "closed", reason="recovered"), incident(10, "worse"),
        found(11, "worse", "worse fix"), incident(12, "worse", "closed", reason="worse"),
    ]  # fmt: skip
    assert postmortem(story, "killed").advice == ["worse fix", "new fix", "both", "old fix", "mild fix"]
    restarted = entry(13, "config", "resolved-configuration", attempt=2)
    assert postmortem([*story, restarted]).advice == [], "the next process goes on without them"
    back = replace(outcome(14, "roll-back", step=90), body={**outcome(14, "roll-back").body, "step_after": 40})
    assert postmortem([back], "killed").last_step == 40


def test_a_torn_thinned_or_unreadable_ledger_is_used_as_far_as_it_goes(tmp_path, monkeypatch):
    monkeypatch.setattr(Ledger, "THINNING", ((20, 10), (200, 100)))
    path, _ = recorded_run.record(tmp_path, attempts=1)
    whole = postmortem(path, "killed")
    lines = path.read_bytes().splitlines(keepends=True)
    assert any(b"signals-thinned" in line for line in lines)
    killed = "attempt 1 was killed: up to 1 s of its ledger may be missing, and its last step is 330 at least"
    assert whole.incomplete == [killed], "signals left out on purpose are no loss"
    assert postmortem(path).incomplete == []
    assert [each["attempt"] for each in whole.attempts] == [1]
    opening = next(n for n, line in enumerate(lines) if b'"event":"opened"' in line)
    lines[opening] = b"\0\0\0" + lines[opening][:50] + b"\n"
    path.write_bytes(b"".join(lines)[:-30])
    torn = postmortem(path, "killed")
    assert torn.incomplete[0] == "2 ledger lines are torn or damaged"
    assert torn.incidents[0]["closed"] == "recovered", "its closing tells of it"
    assert [i["name"] for i in torn.incidents] == [i["name"] for i in whole.incidents]

    def broken():
        yield entry(1, "note", "lines-lost", lines=12)
        yield entry(2, "incident", "x", **{"$unwritable": "too long"})
        raise LedgerError("the disk is gone\x1b[31m")

    told = postmortem(broken(), "killed")
    assert len(told.incomplete) == 4
    assert told.incomplete[0].endswith("to its end: the disk is gone")
    assert postmortem([], "killed", last_step=4).last_step == 4


def test_whatever_a_damaged_line_holds_there_is_a_postmortem(tmp_path):
    path, _ = recorded_run.record(tmp_path, attempts=1)
    entries = [each for each in read_ledger(path).entries if each.kind != "signal"]
    for odd in (None, [[], 3], {"actions": "a", "name": 5}, "x", math.nan, 10**5000, True):
        for key in {key for each in entries for key in each.body}:
            postmortem([replace(each, body={**each.body, key: odd}) for each in entries], "killed")
    postmortem([replace(each, time=math.nan, step=-5) for each in entries], "killed", ended_s=1e300, started_s=math.nan)


def test_texts_are_masked_stripped_and_bounded(tmp_path):
    class Unprintable(Exception):
        def __str__(self):
            raise KeyError("no")

    error = ValueError(f"\x1b[31mred\x07 {TOKEN[:9]}\x1b[0m{TOKEN[9:]} swordfish-1234\n" + "x" * 2**20)
    error.add_note(f"note {TOKEN}\u202e")
    run = Run(tmp_path)
    run.raises(f"\x1b]0;title\x07 password=hunter2hunter2 {TOKEN} " + "y" * 2**14, "a.B")
    hostile = {"GPU \x1b[1m": [TOKEN], "api_key": "abcdefgh", "deep": [[[[[[[[[[[[1]]]]]]]]]]]]}
    metrics = {"m\x1b[2J": 1, "swordfish-1234": "swordfish-1234"} | {f"k{n}": n for n in range(10_000)}
    told = run.end(
        "exception", exception=error, hardware=hostile, final_metrics=metrics, environ={"MY_TOKEN": "swordfish-1234"}
    )
    text = json.dumps(told.to_json(), ensure_ascii=False)
    assert len(text) < 100_000
    assert told.exception["message"].startswith("red *** ***\nxxx")
    assert told.exception["notes"] == ["note ***"]
    for secret in (TOKEN, TOKEN[9:], "swordfish", "hunter2", "abcdefgh", "\x1b", "\\u001b", "\x07", "\u202e"):
        assert secret not in text, ascii(secret)
    shown = postmortem([], "exception", exception=Unprintable())
    assert shown.exception_type == "Unprintable"
    assert "str() failed" in shown.exception["message"]


def test_metrics_that_are_not_finite_are_null_and_named():
    class Scalar:
        def __float__(self):
            return math.inf

    given = {"loss": math.nan, "grad_norm": Scalar(), "steps": 10**5000, "lr": 1e-4, "ok": True, "name": "nan"}
    told = postmortem([], final_metrics=given)
    assert told.final_metrics == dict.fromkeys(("loss", "grad_norm", "steps")) | {"lr": 1e-4, "ok": True, "name": "nan"}
    assert told.non_finite_metrics == ["grad_norm", "loss", "steps"]


def test_memory_does_not_grow_with_signals_and_lists_are_bounded():
    def signals(count):
        for n in range(count):
            yield entry(n, "signal", "metrics", step=n, values={"loss": 2.0, f"expert_{n}": 1.0})

    def peak(count):
        tracemalloc.start()
        postmortem(signals(count))
        most = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return most

    peak(10)
    assert peak(40_000) < peak(2_000) + 100_000
    told = postmortem([incident(n, "x", attempt=n) for n in range(1, MOST_LISTED + 8)])
    assert (len(told.incidents), told.not_listed["incidents"], told.not_listed["attempts"]) == (MOST_LISTED, 7, 7)
    assert told.incidents[-1]["attempt"] == MOST_LISTED + 7, "the newest are listed"


def test_a_broken_plugin_does_not_cost_the_postmortem(monkeypatch, caplog):
    def refuse(*_):
        raise CatalogueError("plugin x cannot be loaded")

    monkeypatch.setattr(changes, "discover_classes", refuse)
    told = postmortem([outcome(1, "roll-back"), outcome(2, "of-a-plugin")])
    assert [each["actions"] for each in told.recovery_actions] == [["rollback"], ["of_a_plugin"]]
    assert "plugin x" in caplog.text
