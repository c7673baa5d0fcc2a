"""Replay: the same recording gives the same plans, and what cannot be exact says so."""

from __future__ import annotations

import json
import math
import random
import subprocess
import sys
from dataclasses import replace as changed

import pytest

from self_healing.config import HealingConfig
from self_healing.core.errors import ConfigError, InputError
from self_healing.core.failure import Severity
from self_healing.core.history import History
from self_healing.core.ledger import read_ledger
from self_healing.core.ledger_lines import encode
from self_healing.core.secrets import Masker
from self_healing.readers import open_recording
from self_healing.replay import replay

from . import recorded_run


def told(plans):
    return [json.dumps([plan.step, plan.to_json()], sort_keys=True) for plan in plans]


def of(path, *args, **options):
    return replay(open_recording(path), *args, **options)


def rewritten(source, target, change):
    """Write a ledger again with its entries changed; a change to None leaves an entry out."""
    masker = Masker({})
    entries = [new for entry in read_ledger(source).entries if (new := change(entry)) is not None]
    target.write_bytes(b"".join(encode(entry, masker) for entry in entries))
    return target


class WorseForCuts(recorded_run.Training):
    """A training whose evaluations get worse with a smaller rate."""

    def scale_learning_rate(self, factor, *, floor):
        self.eval_harm = 1.0 if factor < 1 else 0.0
        return super().scale_learning_rate(factor, floor=floor)


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    return recorded_run.record(tmp_path_factory.mktemp("run"), seed=9, attempts=3, training=WorseForCuts)


# --- ledgers ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", [1, 2, 9])
@pytest.mark.parametrize("mode", ["heal", "advise", "observe"])
def test_a_ledger_gives_the_recorded_plans_again(tmp_path, seed, mode):
    config = HealingConfig(mode=mode, rules={"loss-not-finite": {"patience": 2}})
    path, plans = recorded_run.record(tmp_path, config=config, seed=seed, fail_first=seed % 2)
    result = of(path)
    assert result.exact is True
    assert (result.approximate, result.differences, result.torn) == ([], [], 0)
    assert told(p.plan for p in result.plans) == told(plans)
    assert result.runs == 2
    assert bool(plans) is (mode != "observe")


def test_the_recorded_run_has_everything_that_makes_replay_hard(recorded):
    entries = read_ledger(recorded[0]).entries
    outcomes = [e.body for e in entries if e.kind == "outcome"]
    assert {e.attempt for e in entries if e.kind == "outcome"} == {1, 2, 3}
    assert any(body["restored"] for body in outcomes), "a rollback"
    assert any(not body["succeeded"] for body in outcomes), "a failed plan and the next one"
    assert any(body["is_undo"] for body in outcomes), "a change taken back"
    assert any(e.name == "resumed" for e in entries), "a history from an earlier process"
    assert {e.name for e in entries if e.kind == "verdict"} >= {"relapsed", "worse"}
    assert of(recorded[0]).exact is True


class Stubborn(recorded_run.Training):
    """Its gradients explode at the same place whatever is done, and no data can be left out."""

    skip_batches = skip_step = None

    def loss(self):
        return super().loss() if self.step < 120 else 9.0

    def norm(self):
        return super().norm() if self.step < 120 else 50.0

    def tighten_clipping(self, *, factor, initial):
        return factor


def test_a_change_taken_back_right_after_a_plan_is_replayed(tmp_path):
    path, plans = recorded_run.record(tmp_path, fail_first=0, attempts=1, training=Stubborn)
    rungs = [plan.rung for plan in plans]
    back = rungs.index("undo:roll-back+tighten-clipping")
    assert "scale-learning-rate" in rungs[back - 1], "what is tried instead comes first"
    result = of(path)
    assert (result.exact, result.differences) == (True, [])
    assert told(p.plan for p in result.plans) == told(plans)


def test_two_other_processes_agree(recorded):
    command = [sys.executable, "-m", "self_healing", "replay", str(recorded[0]), "--json"]
    running = [subprocess.Popen(command, stdout=subprocess.PIPE) for _ in range(2)]
    first, second = (process.communicate()[0] for process in running)
    assert first == second
    assert json.loads(first)["recording"]["exact"] is True
    assert len(json.loads(first)["plans"]) == len(recorded[1])


def test_a_ledger_cut_anywhere_is_replayed_up_to_there(recorded, tmp_path):
    content = recorded[0].read_bytes()
    dice = random.Random(3)
    plan_starts = [content.index(b'"kind":"plan"', at) for at in (0, len(content) // 2, len(content) * 3 // 4)]
    for cut in [30, 200, len(content) - 1, *plan_starts, *(dice.randrange(100, len(content)) for _ in range(12))]:
        path = tmp_path / "cut.jsonl"
        path.write_bytes(content[:cut])
        result = of(path)
        assert result.exact is not False, (cut, result.differences)


def test_a_changed_plan_is_a_difference(recorded, tmp_path):
    seen = []

    def change(entry):
        if entry.kind == "plan" and not seen:
            seen.append(entry)
            return changed(entry, body={**entry.body, "rung": "dance", "watch": 1})
        return entry

    result = of(rewritten(recorded[0], tmp_path / "x.jsonl", change))
    assert result.exact is False
    real = seen[0].body
    assert result.differences == [
        f'step {seen[0].step}, {seen[0].name}: rung was "dance", is "{real["rung"]}", watch was 1, is {real["watch"]}'
    ]


def test_a_plan_that_is_missing_or_too_many_is_a_difference(recorded, tmp_path):
    plans = [e.seq for e in read_ledger(recorded[0]).entries if e.kind == "plan"]
    missing = of(rewritten(recorded[0], tmp_path / "x.jsonl", lambda e: None if e.seq == plans[0] else e))
    assert missing.exact is False
    assert "recorded no plan, replayed wait" in missing.differences[0]
    calm = next(e for e in read_ledger(recorded[0]).entries if e.kind == "signal" and e.step == 50)
    extra = changed(read_ledger(recorded[0]).entries[plans[0] - 1], seq=calm.seq)
    path = rewritten(recorded[0], tmp_path / "y.jsonl", lambda e: e)
    lines = path.read_bytes().splitlines(keepends=True)
    lines.insert(calm.seq, encode(extra, Masker({})))
    path.write_bytes(b"".join(lines))
    assert "replayed no plan" in of(path).differences[0]


def test_another_threshold_shows_its_consequences(recorded):
    strict = of(recorded[0], overrides=["rules.loss-spike.relative=20"])
    assert strict.exact is None
    assert "warning" not in {str(i.severity) for i in strict.incidents if i.name == "loss-spike" and i.run == 0}
    assert "warning" in {str(i.severity) for i in of(recorded[0]).incidents if i.name == "loss-spike" and i.run == 0}
    assert any("loss-spike: recorded wait, replayed no plan" in d for d in strict.differences)
    tame = of(recorded[0], overrides=["max_effect=nothing"])
    assert {str(p.plan.effect) for p in tame.plans} == {"nothing"}
    assert any("is not what is planned now" in sentence for sentence in tame.approximate)
    quiet = of(recorded[0], HealingConfig(ignore=["loss-spike", "loss-divergence", "loss-not-finite", "crashed"]))
    assert not quiet.plans
    assert of(recorded[0], overrides=["mode=observe"]).plans == []


def test_the_recorded_mode_counts_whatever_the_configuration_said(recorded, tmp_path):
    def observing(entry):
        return changed(entry, body={**entry.body, "mode": "observe"}) if entry.kind == "config" else entry

    path = rewritten(recorded[0], tmp_path / "x.jsonl", observing)
    assert of(path).plans == []
    assert of(path, overrides=["mode=heal"]).plans


def test_a_rollback_that_is_not_planned_now_still_rewinds_what_is_known(tmp_path, monkeypatch):
    path, _ = recorded_run.record(tmp_path, attempts=1)
    went_back = sum(bool(e.body["restored"]) for e in read_ledger(path).entries if e.kind == "outcome")
    rewinds = []
    load = History.load_state_dict
    monkeypatch.setattr(History, "load_state_dict", lambda self, state: (rewinds.append(1), load(self, state)))
    assert not of(path, HealingConfig(select=["memory-creep"])).plans
    assert len(rewinds) == went_back > 0


def test_a_bad_override_names_the_key(recorded):
    with pytest.raises(ConfigError, match="loss-spike"):
        of(recorded[0], overrides=["rules.loss-spice.sigmas=3"])


def test_what_is_missing_makes_a_replay_approximate(recorded, tmp_path):
    def thinned(entry):
        if entry.seq == 3:
            return changed(entry, kind="note", name="signals-thinned", body={"after": 1, "every": 10})
        return entry

    assert any("thinned" in s for s in of(rewritten(recorded[0], tmp_path / "a.jsonl", thinned)).approximate)
    lost = rewritten(
        recorded[0],
        tmp_path / "b.jsonl",
        lambda e: e if e.seq != 3 else changed(e, kind="note", name="lines-lost", body={"lines": 7}),
    )
    assert any("7 lines were lost" in s for s in of(lost).approximate)
    bare = rewritten(recorded[0], tmp_path / "c.jsonl", lambda e: e if e.kind != "config" else None)
    assert any("configuration is missing" in s for s in of(bare).approximate)


def test_damaged_lines_are_left_out_and_said(recorded, tmp_path):
    bodies = {
        "signal": [{"values": 3}, {"values": {"loss": "much"}}, {"values": {"loss": 1.0}, "time_s": "late"}, {}],
        "outcome": [{}, {"rung": 1, "failure": "oom", "results": 3}],
        "verdict": [{}],
    }
    for kind, bad in bodies.items():
        for index, body in enumerate(bad):
            done = []

            def damage(entry, kind=kind, body=body, done=done):
                if entry.kind == kind and entry.step > 100 and entry.name != "snapshot-taken" and not done:
                    done.append(entry)
                    return changed(entry, body=body)
                return entry

            result = of(rewritten(recorded[0], tmp_path / f"{kind}{index}.jsonl", damage))
            assert any(f"line {done[0].seq} ({kind} " in s for s in result.approximate), (kind, body)
    odd = rewritten(recorded[0], tmp_path / "odd.jsonl", lambda e: e if e.seq != 5 else changed(e, name="unheard-of"))
    assert any("unheard-of" in s for s in of(odd).approximate)


def test_a_veto_and_an_action_by_hand_are_replayed(tmp_path):
    def hook(incident, plan, run):
        return None if plan.incident == "loss-spike" else False

    path, plans = _record_with_hook(tmp_path, hook)
    assert [e for e in read_ledger(path).entries if e.name == "hook-vetoed"]
    body = next(e.body for e in read_ledger(path).entries if e.kind == "outcome")
    by_hand = rewritten(
        path, tmp_path / "x.jsonl",
        lambda e: changed(e, kind="outcome", name="by-hand", body={**body, "incident": "by-hand"}) if e.name == "facts" else e,
    )  # fmt: skip
    for ledger in (path, by_hand):
        result = of(ledger)
        assert (result.exact, result.differences, result.approximate) == (True, [], [])
        assert told(p.plan for p in result.plans) == told(plans)


def test_a_plan_of_the_users_hook_is_replayed_as_it_was(tmp_path):
    def hook(incident, plan, run):
        return changed(plan, actions=plan.actions[:1], rung="of-mine")

    path, _ = _record_with_hook(tmp_path, hook)
    result = of(path)
    assert result.approximate == []
    assert result.exact


def test_a_hook_that_changes_what_takes_a_change_back_does_not_have_it_asked_for_again_for_ever(tmp_path, monkeypatch):
    def hook(incident, plan, run):
        return changed(plan, actions=plan.actions[:1], rung="of-mine")

    def ramp(self, factor, *, ramp_steps, floor):
        return self.scale_learning_rate(factor, floor=floor)

    monkeypatch.setattr(recorded_run.Training, "rewarm_learning_rate", ramp, raising=False)
    monkeypatch.setattr(
        recorded_run.Training, "tighten_clipping", lambda self, *, factor, initial: initial * factor, raising=False
    )
    path, _ = _record_with_hook(tmp_path, hook)
    plans = [entry for entry in read_ledger(path).entries if entry.kind == "plan"]
    assert any(entry.body["is_undo"] for entry in plans)
    assert len(plans) < 100
    assert of(path).exact


def _record_with_hook(folder, hook):
    made = recorded_run.Healer

    def with_hook(**options):
        return made(**options, hooks=[(None, hook)])

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(recorded_run, "Healer", with_hook)
        return recorded_run.record(folder, attempts=1, fail_first=0)


def test_a_ledger_that_could_not_be_written_shows_it(recorded, tmp_path):
    body = {"event": "opened", "failure": "disk", "class": "ledger_unwritable", "severity": "warning",
            "because": "the ledger cannot be written: No space left", "onset_step": None, "numbers": {}}  # fmt: skip
    path = rewritten(recorded[0], tmp_path / "x.jsonl", lambda e: e)
    lines = path.read_bytes().splitlines(keepends=True)
    entry = next(e for e in read_ledger(path).entries if e.kind == "signal" and e.step == 50)
    lines.insert(entry.seq, encode(changed(entry, kind="incident", name="ledger-unwritable", body=body), Masker({})))
    path.write_bytes(b"".join(lines))
    result = of(path)
    assert [(i.step, i.because) for i in result.incidents if i.name == "ledger-unwritable"] == [(50, body["because"])]
    assert result.exact is True


def test_secrets_that_were_masked_do_not_make_a_difference(tmp_path):
    words = "CUDA out of memory. Tried to allocate blue-giraffe for hf_abcdefghijklmnopqrstuvwxyz"
    path, _ = recorded_run.record(tmp_path, environ={"MY_TOKEN": "blue-giraffe"}, last_words=words)
    assert b"Tried to allocate *** for ***" in path.read_bytes()
    assert b"giraffe" not in path.read_bytes()
    assert of(path).exact is True


# --- metrics alone ----------------------------------------------------------------------------------------------


def series(path, losses):
    path.write_text("step,loss\n" + "".join(f"{step},{loss}\n" for step, loss in enumerate(losses)))
    return path


def noisy(n, level=2.0, seed=0):
    dice = random.Random(seed)
    return [level + dice.gauss(0, 0.05) for _ in range(n)]


def test_plain_metrics_are_replayed_without_doing_anything(tmp_path):
    path = series(tmp_path / "x.csv", [*noisy(150), *(2 + 0.2 * i for i in range(40))])
    result = of(path)
    assert result.exact is None
    assert not result.healthy
    assert (result.observations, result.runs) == (190, 1)
    climbing = [i for i in result.incidents if i.name == "loss-divergence"]
    assert climbing
    assert climbing[0].severity is Severity.ERROR
    assert 150 <= climbing[0].step <= 165
    rungs = [p.plan.rung for p in result.plans if p.plan.incident == "loss-divergence"]
    assert rungs[0] == "wait"
    assert any(rung.startswith("roll-back") for rung in rungs), "waiting was done, so the next rung is shown"
    assert told(p.plan for p in of(path).plans) == told(p.plan for p in result.plans)


def test_the_environment_does_not_switch_a_replay_off(tmp_path, monkeypatch):
    monkeypatch.setenv("SELF_HEALING", "off")
    path = series(tmp_path / "x.csv", [*noisy(150), *(2 + 0.2 * i for i in range(40))])
    assert of(path, HealingConfig(mode="off")).plans


def test_each_run_of_a_file_has_its_own_healer(tmp_path):
    sick = [*noisy(100), 50.0, *noisy(10)]
    path = tmp_path / "x.csv"
    rows = [f"{step},{loss}" for run in (sick, sick) for step, loss in enumerate(run)]
    path.write_text("step,loss\n" + "\n".join(rows))
    result = of(path)
    assert result.runs == 2
    assert [(i.run, i.step) for i in result.incidents if i.name == "loss-spike"] == [(0, 100), (1, 100)]


def test_information_alone_is_healthy(tmp_path):
    values = [*noisy(100), 2.0]
    path = tmp_path / "x.csv"
    path.write_text(
        "step,loss,grad_norm\n" + "".join(f"{i},{v},{101 if i == 0 else 100.5}\n" for i, v in enumerate(values))
    )
    result = of(path)
    assert {str(i.severity) for i in result.incidents} <= {"info"}
    assert result.healthy


def test_too_few_observations_are_no_error(tmp_path):
    for losses in ([], [2.0], [math.nan]):
        result = of(series(tmp_path / "x.csv", losses))
        assert result.observations == len(losses)


def test_a_file_that_ends_badly_is_an_input_error(tmp_path):
    path = tmp_path / "x.json"
    path.write_text('{"log_history": [{"loss": 1}')
    with pytest.raises(InputError, match="ends in the middle"):
        of(path)
