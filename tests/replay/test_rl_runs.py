"""The rules for RL and preference runs on runs that were really trained, on long made-up ones, and on other people's."""

from __future__ import annotations

import json
import math
import random
from pathlib import Path

import pytest

from self_healing.core.capability import CAPABILITIES
from self_healing.core.cause import Cause
from self_healing.core.detector import Detector
from self_healing.core.discover import discover_classes
from self_healing.core.failure import FINE_CLASSES, Mode, Severity
from self_healing.core.healer import Healer
from self_healing.core.ledger import MemoryLedger
from self_healing.core.settings import Settings
from self_healing.core.signal import Facts, Metrics
from self_healing.readers import open_recording
from self_healing.replay import replay

RUNS = Path(__file__).parent / "runs"
CASES = Path(__file__).parents[2].parent / "shared" / "cases"
CAUSES = discover_classes("self_healing.causes", Cause)
RULES = discover_classes("self_healing.detectors", Detector)
RL_RULES = """
    reward-flat reward-no-signal reward-collapse policy-gradient-zero entropy-collapse entropy-runaway kl-runaway
    sampler-mismatch policy-steps-too-large completions-truncated length-runaway length-collapse value-loss-growing
    dpo-at-chance preference-margin-collapse preference-likelihood-falling preference-accuracy-stuck kto-imbalance
    odds-ratio-falling preference-nll-rising ebft-off-course
""".split()

TOLD = {
    "cpo-healthy": {},
    "dpo-healthy": {},
    "dpo-healthy-slow": {},
    "dpo-at-chance": {"dpo-at-chance": "warning"},
    "dpo-swapped-half": {"dpo-at-chance": "warning"},
    "dpo-rate-too-high": {"preference-likelihood-falling": "warning"},
    "grpo-healthy": {},
    "grpo-clipped": {"policy-steps-too-large": "warning"},
    "grpo-collapse": {
        "completions-truncated": "warning", "reward-no-signal": "warning", "entropy-collapse": "error",
        "reward-flat": "warning",
    },
    "grpo-kl-runaway": {
        "completions-truncated": "warning", "kl-runaway": "warning", "entropy-collapse": "warning",
        "reward-no-signal": "info",
    },
    "grpo-long": {"completions-truncated": "warning", "reward-no-signal": "info"},
    "grpo-no-reward": {"reward-flat": "warning"},
    "kto-healthy": {},
    "kto-healthy-other": {},
    "kto-imbalanced": {"kto-imbalance": "warning"},
    "orpo-healthy": {},
    "reward-healthy": {},
    "reward-at-chance": {"preference-accuracy-stuck": "warning"},
    "rloo-healthy": {},
}  # fmt: skip
"""What the rules say of each run recorded by `bench/record_rl_runs.py`, with the highest severity."""


def told(observations, facts=None):
    """Return what the rules of this part say, with the highest severity and the first step of each."""
    ledger = MemoryLedger()
    healer = Healer(
        settings=Settings(mode=Mode.OBSERVE), rules=[rule() for name, rule in RULES.items() if name in RL_RULES],
        ledger=ledger,
    )  # fmt: skip
    healer.observe(Facts(step=0, facts=facts or {}))
    for step, values in observations:
        healer.observe(Metrics(step=step, time_s=float(step), values=values))
    found = {}
    for entry in ledger.entries:
        if entry.kind == "incident":
            assert entry.name in RL_RULES, entry.body
            assert entry.body["class"] in FINE_CLASSES
            severity = Severity[str(entry.body["severity"]).upper()]
            found[entry.name] = max(found.get(entry.name, Severity.INFO), severity)
    return {name: str(severity) for name, severity in found.items()}


def observations_of(name):
    run = json.loads((RUNS / f"{name}.json").read_text())
    for place, step in enumerate(run["step"]):
        yield step, {key: float(col[place]) for key, col in run["metrics"].items() if col[place] is not None}


def test_every_recorded_run_is_looked_at():
    assert set(TOLD) == {path.stem for path in RUNS.glob("*.json")}


@pytest.mark.parametrize("name", TOLD)
def test_a_trained_run_is_judged_as_it_deserves(name):
    facts = json.loads((RUNS / f"{name}.json").read_text())["facts"]
    assert told(observations_of(name), facts) == TOLD[name]


def test_a_run_that_crawls_is_told_from_one_whose_pairs_contradict_one_another():
    fine = {}
    for name in ("dpo-at-chance", "dpo-swapped-half"):
        ledger = MemoryLedger()
        healer = Healer(settings=Settings(mode=Mode.ADVISE), rules=[RULES["dpo-at-chance"]()], ledger=ledger,
                        causes=[cause() for cause in CAUSES.values()])  # fmt: skip
        for step, values in observations_of(name):
            healer.observe(Metrics(step=step, time_s=float(step), values=values))
        (incident, *_), (diagnosis, *_) = (
            [entry.body for entry in ledger.entries if entry.kind == kind] for kind in ("incident", "diagnosis")
        )
        fine[incident["class"]] = diagnosis["hypotheses"][0]["name"]
    assert fine == {"dpo_slow": "learning-rate-too-low", "plateau_at_chance": "preference-pairs-swapped"}


def test_a_collapse_with_its_reward_is_returned_from_and_anything_less_is_only_told():
    planned = {}
    for name in ("grpo-collapse", "grpo-kl-runaway"):
        ledger = MemoryLedger()
        healer = Healer(
            settings=Settings(mode=Mode.ADVISE), rules=[RULES["entropy-collapse"](), RULES["kl-runaway"]()], ledger=ledger,
            causes=[cause() for cause in CAUSES.values()], capabilities=CAPABILITIES,
        )  # fmt: skip
        for step, values in observations_of(name):
            healer.observe(Metrics(step=step, time_s=float(step), values=values))
        plans = [entry for entry in ledger.entries if entry.kind == "plan"]
        planned[name] = {(entry.name, action["name"]) for entry in plans for action in entry.body["actions"]}
    assert ("entropy-collapse", "roll-back") in planned["grpo-collapse"]
    assert ("entropy-collapse", "rewarm-learning-rate") in planned["grpo-collapse"]
    assert planned["grpo-kl-runaway"] == {("entropy-collapse", "alert"), ("kl-runaway", "alert")}


def test_a_warm_up_that_is_known_is_waited_for():
    assert "dpo-at-chance" not in told(observations_of("dpo-at-chance"), {"warmup_steps": 60})


# -- long, noisy, healthy ----------------------------------------------------------------------------


def grpo(draw, gain):
    return {
        "loss": draw.gauss(0.0, 0.01), "reward": 0.2 + 0.6 * gain + draw.gauss(0.0, 0.12), "reward_std": 0.3,
        "frac_reward_zero_std": min(1.0, max(0.0, 0.2 + 0.3 * gain + draw.gauss(0.0, 0.15))),
        "entropy": (0.4 - 0.3 * gain) * math.exp(draw.gauss(0.0, 0.2)), "kl": 0.5 * gain * math.exp(draw.gauss(0.0, 0.5)),
        "completions/mean_length": 200 * (1 + gain) * math.exp(draw.gauss(0.0, 0.2)),
        "completions/clipped_ratio": abs(draw.gauss(0.1, 0.1)), "clip_ratio/region_mean": abs(draw.gauss(0.03, 0.03)),
        "grad_norm": 0.0 if draw.random() < 0.2 else math.exp(draw.gauss(-1.0, 0.5)),
        "sampling/sampling_logp_difference/mean": 0.03 * math.exp(draw.gauss(0.0, 0.3)),
        "sampling/importance_sampling_ratio/min": 0.3 * math.exp(draw.gauss(0.0, 0.4)),
    }  # fmt: skip


def dpo(draw, gain):
    margin, length = 1.2 * gain + 0.4 * gain * draw.gauss(0.0, 1.0), draw.gauss(0.0, 40.0)
    return {
        "loss": math.log1p(math.exp(-margin)), "rewards/margins": margin,
        "rewards/accuracies": min(1.0, max(0.0, 0.5 + 0.2 * gain + draw.gauss(0.0, 0.1))),
        "rewards/chosen": draw.gauss(-0.3, 0.2) * gain, "logps/chosen": -260 + length - 30 * gain,
        "logps/rejected": -250 + length - 110 * gain, "entropy": math.exp(draw.gauss(0.0, 0.1)),
    }  # fmt: skip


def kto(draw, gain):
    values = {"loss": 0.5 - 0.15 * gain + draw.gauss(0.0, 0.02), "kl": max(0.0, gain * draw.gauss(6.0, 3.0))}
    good, bad = draw.gauss(0.5, 0.3) * gain, draw.gauss(-0.4, 0.3) * gain
    kinds = [draw.random() < 0.5 for _ in range(2)]  # two examples a batch: a quarter has none of a kind
    if any(kinds):
        values |= {"rewards/chosen": good, "logps/chosen": draw.gauss(-250.0, 40.0)}
    if not all(kinds):
        values |= {"rewards/rejected": bad, "logps/rejected": draw.gauss(-250.0, 40.0) - 80 * gain}
    if any(kinds) and not all(kinds):
        values["rewards/margins"] = good - bad
    return values


@pytest.mark.parametrize("family", [grpo, dpo, kto])
@pytest.mark.parametrize("seed", range(3))
def test_nothing_is_said_of_a_long_healthy_run(family, seed):
    draw = random.Random(f"{family.__name__} {seed}")
    assert not told((i, family(draw, 1 - math.exp(-i / 80))) for i in range(3000))


@pytest.mark.parametrize(("metric", "value", "also", "rule"), [
    ("entropy", 0.002, {"reward": 0.1}, ("entropy-collapse", "error")),
    ("kl", 9.0, {"reward": 0.1}, ("kl-runaway", "error")),
    ("kl", 9.0, {}, ("kl-runaway", "warning")),
    ("completions/clipped_ratio", 0.95, {}, ("completions-truncated", "warning")),
    ("frac_reward_zero_std", 1.0, {"reward": 0.2}, ("reward-no-signal", "warning")),
])  # fmt: skip
def test_the_same_run_with_one_thing_wrong_is_named(metric, value, also, rule):
    draw = random.Random(5)
    run = [(i, grpo(draw, 1 - math.exp(-i / 80))) for i in range(400)]
    for _, values in run[300:]:
        values |= {metric: value, **also}
    found = told(run)
    assert found[rule[0]] == rule[1]
    assert {name for name, severity in found.items() if severity == "error"} <= {rule[0]}


# -- other people's runs -----------------------------------------------------------------------------

NAMED = {
    "grpo_no_improvement": "reward-flat",
    "grpo_length_explosion": "length-runaway",
    "grpo_truncation": "completions-truncated",
    "grpo_zero_signal": "reward-no-signal",
}


def cases():
    if not CASES.is_dir():
        return []
    rows = [json.loads(line) for line in (CASES / "states.jsonl").read_text().splitlines()]
    return [row for row in rows if any(label.startswith(("grpo", "healthy")) for label in row["labels"])]


@pytest.mark.skipif(not CASES.is_dir(), reason=f"the recorded cases are not here: {CASES} is absent")
@pytest.mark.parametrize("row", cases(), ids=lambda row: row["id"])
def test_other_peoples_runs_are_named_or_left_alone(row):
    found = {i.name: i for i in replay(open_recording(CASES / row["file"])).incidents if i.name in RL_RULES}
    expected = {NAMED[label] for label in row["labels"] if label in NAMED}
    assert set(found) == expected
    assert all(found[NAMED[label]].fine in row["labels"] for label in row["labels"] if label in NAMED)
