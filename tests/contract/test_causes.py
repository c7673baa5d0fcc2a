"""Every cause looks at numbers: it finds what it names, rules itself out elsewhere, and stays modest on no evidence."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from self_healing.core.cause import Cause, Evidence
from self_healing.core.detector import Detector
from self_healing.core.diagnosis import CONVINCING, diagnose
from self_healing.core.discover import discover_classes
from self_healing.core.failure import FailureType, Severity
from self_healing.core.history import History
from self_healing.core.incident import Incident

from .rl_stories import RL_RULES, RL_STORIES
from .story import Story, ruled_out, speaks

CAUSES = discover_classes("self_healing.causes", Cause)
RULES = frozenset(
    [
        "loss-not-finite",
        "gradient-not-finite",
        "weights-not-finite",
        "loss-spike",
        "loss-divergence",
        "loss-plateau",
        "gradient-explosion",
        "gradient-vanishing",
        "gradient-norm-growth",
        "eval-gap-growing",
        "eval-not-finite",
        "loss-exactly-zero",
        "learning-rate-unexpected",
        "throughput-drop",
        "memory-creep",
        "step-stalled",
        "unexplained-state",
        "dead-run",
    ]
)
"""The rules that are explained from numbers; those for crashes and exits are explained from text."""
STEP_TIMES_S = (0.01, 1.0, 60.0)
NAN, INF = math.nan, math.inf

each_cause = pytest.mark.parametrize("cls", CAUSES.values(), ids=list(CAUSES))


CALM = [2.0, 2.1, 1.9, 2.05] * 8
NORMS = [1.0, 1.1, 0.9, 1.05] * 8
GROWING = [1.3**i for i in range(32)]
SAMPLING = "sampling/sampling_logp_difference/mean"

STORIES = (
    speaks(
        "learning-rate-too-high", "ten times the usual rate", "loss-spike", {"learning_rate": [5e-4] * 20}, lora=False
    ),
    speaks(
        "learning-rate-too-high", "norms grew first", "loss-divergence",
        {"learning_rate": [2e-5] * 32, "grad_norm": GROWING},
    ),
    speaks(
        "learning-rate-too-high", "a jump of a few times, which a rate can do", "loss-spike",
        {"learning_rate": [5e-4] * 33, "loss": [*CALM, 20.0], "grad_norm": [*NORMS, 9.0]}, lora=False,
    ),
    ruled_out(
        "learning-rate-too-high", "far below the usual rate", "loss-spike", {"learning_rate": [1e-6] * 20}, lora=False
    ),
    speaks("learning-rate-too-high", "the first steps did it", "dead-run", {"learning_rate": [0.5] * 9}, step=9, onset=1),
    ruled_out("learning-rate-too-high", "a rate of zero", "loss-divergence", {"learning_rate": [0.0] * 20}),
    speaks("learning-rate-too-low", "a hundredth of the usual", "loss-plateau", {"learning_rate": [1e-6] * 20}, lora=True),
    speaks(
        "learning-rate-too-low", "zero long before the end", "learning-rate-unexpected", {"learning_rate": [0.0] * 20},
        max_steps=10_000,
    ),
    ruled_out("learning-rate-too-low", "above the usual", "loss-plateau", {"learning_rate": [1e-3] * 20}, lora=True),
    speaks("insufficient-warmup", "no warm-up, early spike", "loss-spike", step=30, warmup_steps=0, max_steps=1000),
    speaks("insufficient-warmup", "1% warm-up", "gradient-explosion", step=60, onset=40, warmup_steps=10, max_steps=1000),
    ruled_out("insufficient-warmup", "10% and long over", "loss-spike", step=700, warmup_steps=100, max_steps=1000),
    ruled_out("insufficient-warmup", "8% and just over", "loss-spike", step=95, warmup_steps=80, max_steps=1000),
    ruled_out("insufficient-warmup", "late in the run", "loss-divergence", step=900, warmup_steps=0, max_steps=1000),
    speaks("labels-masked-or-wrong", "nothing to learn", "loss-exactly-zero", {"loss": [0.0] * 9, "grad_norm": [0.0] * 9}),
    ruled_out(
        "labels-masked-or-wrong", "zero is normal in RL", "loss-exactly-zero",
        {"loss": [0.0] * 9, "grad_norm": [0.0] * 9, "reward": [0.4] * 9},
    ),
    ruled_out("labels-masked-or-wrong", "it worked until now", "loss-not-finite", {"loss": [*CALM, NAN]}),
    speaks("weight-decay-too-high", "0.3 on LoRA", "loss-plateau", weight_decay=0.3, lora=True),
    ruled_out("weight-decay-too-high", "the usual 0.01", "loss-plateau", weight_decay=0.01),
    speaks("bad-batch", "both jump out of calm", "loss-spike", {"loss": [*CALM, 9.0], "grad_norm": [*NORMS, 30.0]}),
    ruled_out("bad-batch", "norms were growing", "loss-spike", {"loss": [*CALM, 9.0], "grad_norm": GROWING}),
    ruled_out("bad-batch", "every batch is NaN", "loss-not-finite", {"loss": [*CALM, NAN, NAN, NAN]}),
    speaks("effective-batch-too-large", "four thousand", "loss-spike", effective_batch_size=4096, least=0.4),
    ruled_out("effective-batch-too-large", "an ordinary batch", "loss-spike", effective_batch_size=64),
    speaks(
        "half-precision-overflow", "the scale keeps falling", "gradient-not-finite",
        {"loss_scale": [65536.0 / 2**i for i in range(12)]}, precision="fp16",
    ),
    speaks("half-precision-overflow", "the scale is spent", "loss-not-finite", {"loss_scale": [1.0]}, precision="fp16"),
    ruled_out("half-precision-overflow", "fp32", "loss-not-finite", precision="fp32"),
    speaks("fp8-zero-scale", "both at once", "loss-not-finite", {"loss": [2.0, NAN], "grad_norm": [1.0, NAN]}, precision="fp8"),
    ruled_out("fp8-zero-scale", "bf16", "loss-not-finite", {"loss": [2.0, NAN], "grad_norm": [1.0, NAN]}, precision="bf16"),
    speaks("gradient-overflow", "the norm failed first", "gradient-not-finite", {"loss": CALM, "grad_norm": [*NORMS[:-1], NAN]}),
    speaks(
        "gradient-overflow", "grew, became infinite, then the loss", "loss-not-finite",
        {"loss": [*CALM, NAN], "grad_norm": [*GROWING[:-1], INF, INF]},
    ),
    ruled_out(
        "gradient-overflow", "the loss failed after a healthy norm", "loss-not-finite",
        {"loss": [*CALM, NAN], "grad_norm": [*NORMS, NAN]},
    ),
    speaks("found-by-probe", "the rows were named", "loss-not-finite", nan_kind="data", nan_because="row 3 did it"),
    ruled_out("found-by-probe", "nothing was examined", "loss-not-finite", {"loss": [*CALM, NAN]}),
    speaks("empty-or-bad-sequences", "NaNs come and go", "loss-not-finite", {"loss": [*CALM, NAN, *CALM, NAN]}),
    ruled_out("empty-or-bad-sequences", "NaN from now on", "loss-not-finite", {"loss": [*CALM, NAN, NAN, NAN, NAN]}),
    speaks("log-softmax-overflow", "infinite after calm norms", "loss-not-finite", {"loss": [*CALM, INF], "grad_norm": [*NORMS, INF]}),
    speaks("log-softmax-overflow", "probabilities far apart", "loss-not-finite", {"loss": [2.0, NAN], SAMPLING: [3.0, 3.0]}),
    ruled_out("log-softmax-overflow", "the norm failed first", "loss-not-finite", {"loss": [2.0, 2.0, NAN], "grad_norm": [1.0, NAN, NAN]}),
    speaks(
        "broken-frozen-weight", "an audit has named one", "unexplained-state",
        frozen_broken="wte.weight: it does not train, and holds values that are not finite",
    ),
    ruled_out("broken-frozen-weight", "nobody has found one", "weights-not-finite", {"weights_nonfinite": [0.0, 2.0]}),
    speaks(
        "broken-start", "seen before the first step", "weights-not-finite", {"weights_nonfinite": [1.0]},
        not_finite_at_start="lm_head.weight",
    ),
    ruled_out("broken-start", "they broke later", "weights-not-finite", {"weights_nonfinite": [0.0, 2.0]}),
    speaks("corrupted-state", "two tensors are broken", "weights-not-finite", {"weights_nonfinite": [0.0, 2.0]}),
    speaks("corrupted-state", "NaN whatever the batch", "loss-not-finite", {"loss": [*CALM, NAN, NAN, NAN, NAN]}),
    speaks("corrupted-state", "an audit had findings", "unexplained-state", {"state_unexplained": [0.0, 3.0]}),
    speaks("corrupted-state", "likewise, seen in the loss first", "loss-divergence", {"state_unexplained": [0.0, 3.0]}),
    speaks("corrupted-state", "three outliers in a row", "gradient-explosion", {"grad_norm": [*NORMS, 30.0]}, in_a_row=3),
    ruled_out("corrupted-state", "one outlier is a batch", "gradient-explosion", {"grad_norm": [*NORMS, 30.0]}, in_a_row=1),
    ruled_out("corrupted-state", "a rise that the state explains", "loss-divergence", {"loss": CALM, "state_unexplained": [0.0]}),
    ruled_out("corrupted-state", "the weights are fine", "loss-not-finite", {"loss": [*CALM, NAN], "weights_nonfinite": [0.0]}),
    speaks("too-many-epochs", "ten epochs, still falling", "eval-gap-growing", {"loss": [2.0 - i / 50 for i in range(60)]}, num_epochs=10),
    ruled_out("too-many-epochs", "everything seen once", "eval-gap-growing", num_epochs=1),
    speaks("data-exhausted", "the schedule is spent", "loss-plateau", {"learning_rate": [2e-5] * 30 + [0.0]}, max_steps=5000),
    ruled_out("data-exhausted", "the schedule is under way", "loss-plateau", {"learning_rate": [2e-5] * 30}),
    speaks("gradient-clipping-off", "off, and norms above ten", "gradient-explosion", {"grad_norm": [2.0, 40.0] * 16}, max_grad_norm=0.0),
    ruled_out("gradient-clipping-off", "clipped at one", "gradient-explosion", {"grad_norm": [2.0, 40.0] * 16}, max_grad_norm=1.0),
    speaks("memory-leak", "a little more every step", "memory-creep", {"memory_bytes": [1e9 * (1 + i / 100) for i in range(40)]}),
    ruled_out("memory-leak", "flat", "memory-creep", {"memory_bytes": [1e9] * 40}),
    speaks("slow-input-pipeline", "some steps take five times as long", "throughput-drop", {"step_time_s": ([1.0] * 7 + [5.0]) * 6}),
    ruled_out("slow-input-pipeline", "steps are as fast as ever", "throughput-drop", {"step_time_s": [1.0] * 40}),
    *RL_STORIES,
)  # fmt: skip


def incident_of(
    rule: str, step: int = 1000, onset: int | None = None, numbers: Mapping[str, float] | None = None
) -> Incident:
    return Incident(
        name=rule, failure=FailureType.OTHER, fine="unstable", severity=Severity.ERROR, step=step, because="numbers",
        onset_step=onset, numbers=numbers or {},
    )  # fmt: skip


def past_of(series: Mapping[str, Sequence[float]], facts: Mapping[str, float | int | str | bool]) -> History:
    """Feed the series so that they end together; the newest observation is seen and not yet settled."""
    history = History()
    history.learn(facts)
    length = max(map(len, series.values()), default=0)
    for i in range(length):
        history.see(
            i,
            float(i),
            {name: column[i - length] for name, column in series.items() if length - i <= len(column)},
        )
        if i + 1 < length:
            history.settle()
    return history


def test_the_rules_that_causes_explain_exist() -> None:
    assert set(discover_classes("self_healing.detectors", Detector)) >= RULES | RL_RULES


def test_there_is_a_cause_for_every_rule() -> None:
    explained = {rule for cls in CAUSES.values() for rule in cls.explains}
    assert explained >= RULES | RL_RULES


@each_cause
def test_a_cause_is_complete(cls: type[Cause]) -> None:
    assert cls.explains
    assert set(cls.explains) <= RULES | RL_RULES, set(cls.explains) - RULES - RL_RULES
    assert len(set(cls.explains)) == len(cls.explains)
    assert cls.confirm.endswith(".")
    assert cls.fixes
    assert all(fix.endswith(".") for fix in cls.fixes)
    summary = cls.summary()
    assert summary.endswith(".")
    assert len((cls.__doc__ or "").strip().splitlines()) > 2, "the sentence is followed by an explanation"


@each_cause
def test_on_no_evidence_a_cause_is_a_possibility_at_most(cls: type[Cause]) -> None:
    for rule in cls.explains:
        evidence = cls().evidence(incident_of(rule), History())
        assert evidence is None or evidence.weight < CONVINCING


@pytest.mark.parametrize("story", STORIES, ids=lambda story: f"{story.cause}: {story.title}")
def test_a_cause_speaks_up_and_rules_itself_out(story: Story) -> None:
    cls = CAUSES[story.cause]
    assert story.rule in cls.explains
    evidence = cls().evidence(
        incident_of(story.rule, story.step, story.onset, story.numbers), past_of(story.series, story.facts)
    )  # fmt: skip
    if story.weight is None:
        assert evidence is None
        return
    assert evidence is not None
    assert evidence.weight >= story.weight
    assert evidence.found, "support without a fact is a guess"


def test_every_cause_has_a_story_for_and_a_story_against() -> None:
    for name in CAUSES:
        told = [story.weight is None for story in STORIES if story.cause == name]
        assert True in told, f"{name} is never ruled out"
        assert False in told, f"{name} never speaks up"


def convincing(rule: str, series: Mapping[str, Sequence[float]], **facts: float | str | bool) -> dict[str, Evidence]:
    past = past_of(series, facts)
    return {
        name: evidence
        for name, cls in CAUSES.items()
        if rule in cls.explains
        and (evidence := cls().evidence(incident_of(rule), past)) is not None
        and evidence.weight >= CONVINCING
    }


def test_a_norm_that_fails_first_points_to_the_backward_pass() -> None:
    found = convincing("loss-not-finite", {"loss": [*CALM, NAN], "grad_norm": [*NORMS[:-1], INF, NAN]})
    assert "gradient-overflow" in found
    assert "log-softmax-overflow" not in found


def test_a_loss_that_fails_after_a_healthy_norm_points_to_the_forward_pass() -> None:
    found = convincing("loss-not-finite", {"loss": [*CALM, INF], "grad_norm": [*NORMS, INF]})
    assert "log-softmax-overflow" in found
    assert "gradient-overflow" not in found


def test_a_spike_out_of_nowhere_is_a_menu_and_not_a_verdict() -> None:
    assert not convincing("loss-spike", {"loss": [*CALM, 9.0]})


@pytest.mark.parametrize(
    ("in_a_row", "first"), [(1, "bad-batch"), (2, "bad-batch"), (3, "corrupted-state"), (8, "corrupted-state")]
)
def test_three_outliers_in_a_row_are_a_state_and_one_is_a_batch(in_a_row: int, first: str) -> None:
    past = past_of({"loss": [*CALM, 9.0], "grad_norm": [*NORMS, 30.0]}, {})
    incident = incident_of("gradient-explosion", numbers={"in_a_row": in_a_row})
    hypotheses = diagnose(incident, [cls() for cls in CAUSES.values()], (), past, on_crash=pytest.fail).hypotheses
    assert hypotheses[0].name == first
    (batch,) = (hypothesis for hypothesis in hypotheses if hypothesis.name == "bad-batch")
    assert (batch.weight >= CONVINCING) is (first == "bad-batch"), "bad batches in a row are possible, not likely"


def jumped(*, every: int = 1, losses: Sequence[float] = (2000.0,), rates: Sequence[float] = (5e-4,) * 33) -> History:
    """Calm steps, then losses of another kind, at a rate far above the usual one."""
    history = History()
    history.learn({"trainer": "SFTTrainer", "lora": False})
    loss, norm = [*CALM, *losses], [*NORMS, *(900.0 for _ in losses)]
    for number, values in enumerate(zip(loss, norm, (*rates, *rates[-1:] * len(loss)), strict=False)):
        history.see(
            every * number, float(number), dict(zip(("loss", "grad_norm", "learning_rate"), values, strict=True))
        )
        if number + 1 < len(loss):
            history.settle(held=("loss", "grad_norm") if number >= len(CALM) else ())
    return history


JUMPS = {
    "at once": (jumped(), "bad-batch"),
    "in a log of every hundredth step": (jumped(every=100), "learning-rate-too-high"),
    "over a few steps": (jumped(losses=(5.0, 12.0, 25.0, 45.0)), "learning-rate-too-high"),
    "with the rate": (jumped(rates=[*(2e-5 for _ in CALM), 5e-4]), "learning-rate-too-high"),
}


@pytest.mark.parametrize("rule", ["loss-spike", "gradient-explosion"])
@pytest.mark.parametrize(("past", "first"), JUMPS.values(), ids=JUMPS)
def test_what_no_update_can_do_in_one_step_is_a_batch_and_not_the_rate(rule: str, past: History, first: str) -> None:
    incident = incident_of(rule, step=past.step or 0)
    diagnosis = diagnose(incident, [cls() for cls in CAUSES.values()], (), past, on_crash=pytest.fail)
    assert diagnosis.leading is not None
    assert diagnosis.leading.name == first


@pytest.mark.parametrize(("cause", "rule"), [
    ("corrupted-state", "unexplained-state"), ("learning-rate-too-high", "dead-run"), ("insufficient-warmup", "dead-run"),
    ("learning-rate-too-low", "dpo-at-chance"), ("stale-sampler", "sampler-mismatch"),
])  # fmt: skip
def test_a_cause_leaves_an_incident_to_the_rule_that_knows_better(cause: str, rule: str) -> None:
    assert CAUSES[cause]().ladder(incident_of(rule)) == ()
    assert CAUSES[cause]().ladder(incident_of("gradient-explosion")) == CAUSES[cause].remedy != ()


@each_cause
def test_the_ladder_is_tried_in_the_order_written(cls: type[Cause]) -> None:
    final = [rung.is_final for rung in cls.remedy]
    assert True not in final[:-1], "nothing can follow the end of the run"
    rungs = [rung for rung in cls.remedy if not rung.is_final]
    for step_time_s in STEP_TIMES_S:
        index = [sum(action.assumed_cost_s(step_time_s) for action in rung.actions) / rung.success for rung in rungs]
        assert index == sorted(index), f"{cls.name()} at {step_time_s} s a step is tried in another order: {index}"


values = st.one_of(st.floats(), st.sampled_from([0.0, -0.0, 1.0, 1e308, NAN, INF, -INF]))
METRICS = sorted({metric for story in STORIES for metric in story.series})
FACTS = sorted({fact for story in STORIES for fact in story.facts})


@settings(max_examples=40, deadline=None, database=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    series=st.dictionaries(st.sampled_from(METRICS), st.lists(values, max_size=24), max_size=6),
    facts=st.dictionaries(
        st.sampled_from(FACTS), st.one_of(values, st.integers(), st.text(max_size=4), st.booleans()), max_size=5
    ),
    step=st.integers(min_value=0, max_value=10**9),
)
def test_no_past_is_strange_enough_to_crash_a_cause(
    series: dict[str, list[float]], facts: dict[str, float | int | str | bool], step: int
) -> None:
    past = past_of(series, facts)
    for cls in CAUSES.values():
        for rule in cls.explains:
            evidence = cls().evidence(incident_of(rule, step), past)
            if evidence is not None:
                assert 0 <= evidence.weight <= 1
                assert evidence.found or evidence.weight < CONVINCING, "support without a fact is a guess"


SEED_NUMBERS = {
    "learning-rate-too-low": ("2 to 5 times", "1e-5 to 5e-5", "1e-4 to 3e-4"),
    "learning-rate-too-high": ("2 to 5 times", "warm up"),
    "insufficient-warmup": ("5 to 10%",),
    "labels-masked-or-wrong": ("only the target tokens",),
    "weight-decay-too-high": ("0.01", "0.1"),
    "bad-batch": ("sample_packing: false", "long"),
    "effective-batch-too-large": ("micro_batch_size * gradient_accumulation_steps * num_gpus",),
    "half-precision-overflow": ("fp32", "bf16"),
    "too-many-epochs": ("val_set_size 0.05", "num_epochs", "0.01 and 0.1", "8 to 32", "lora_dropout 0.05"),
    "reward-function-broken": ("outside training", "**kwargs", "log_completions", "vLLM", "0.8"),
    "entropy-collapsed": ("0.8 to 1.0", "learning rate", "beta", "16"),
    "stale-sampler": ("vllm_sync_interval", "0.5", "importance_sampling_level: token"),
    "gradient-clipping-off": ("max_grad_norm 1.0", "learning rate", "gradient_accumulation_steps", "10.0"),
    "fp8-zero-scale": ("448", "nan_to_num", "zeros", "~/.triton/cache"),
    "gradient-overflow": ("set_detect_anomaly", "one GPU and one batch"),
    "empty-or-bad-sequences": ("empty", "token ids", "padding"),
    "log-softmax-overflow": ("exp()",),
}
"""What the stability guide of the seeds lists for each cause, by its numbers and names."""


@pytest.mark.parametrize("name", SEED_NUMBERS)
def test_what_the_stability_guide_lists_is_here(name: str) -> None:
    cls = CAUSES[name]
    text = " ".join((cls.__doc__ or "", cls.confirm, *cls.fixes))
    for words in SEED_NUMBERS[name]:
        assert words in text, words
