"""Every rule keeps the contract: docs, examples, names, options, remedies."""

from __future__ import annotations

import ast
import inspect
import re
from dataclasses import fields

import pytest

from self_healing.core.detect import RuleSet
from self_healing.core.detector import DOC_SECTIONS, Detector
from self_healing.core.discover import discover_classes
from self_healing.core.failure import FINE_CLASSES, FailureType, Severity
from self_healing.core.history import History
from self_healing.core.signal import Facts, Metrics
from self_healing.testing import check_example

RULES = discover_classes("self_healing.detectors", Detector)
REQUIRED = """
    loss-not-finite gradient-not-finite weights-not-finite loss-spike loss-divergence loss-plateau gradient-explosion
    gradient-vanishing gradient-norm-growth eval-gap-growing eval-not-finite loss-exactly-zero
    learning-rate-unexpected throughput-drop memory-creep step-stalled crashed exited heartbeat-lost
    unexplained-state dead-run rank-straggling
    reward-flat reward-no-signal reward-collapse policy-gradient-zero entropy-collapse entropy-runaway kl-runaway
    sampler-mismatch policy-steps-too-large completions-truncated length-runaway length-collapse value-loss-growing
    dpo-at-chance preference-margin-collapse preference-likelihood-falling preference-accuracy-stuck kto-imbalance
    odds-ratio-falling preference-nll-rising ebft-off-course
""".split()
EXAMPLES = [(rule, example) for rule in RULES.values() for example in rule.examples]


def test_the_first_rules_are_all_there():
    assert set(REQUIRED) <= set(RULES)


@pytest.mark.parametrize("rule", RULES.values(), ids=RULES.keys())
def test_a_rule_documents_itself(rule):
    doc = inspect.cleandoc(rule.__doc__)
    assert doc.split("\n", 1)[0].endswith("."), "the first line is one sentence"
    for section in DOC_SECTIONS:
        body = re.search(rf"^## {section}\n(.+?)(?=^## |\Z)", doc, re.MULTILINE | re.DOTALL)
        assert body, f"no section {section!r}"
        assert len(body.group(1).split()) >= 5, f"section {section!r} says too little"


@pytest.mark.parametrize("rule", RULES.values(), ids=RULES.keys())
def test_a_rule_declares_what_it_is(rule):
    assert isinstance(rule.failure, FailureType)
    assert rule.fine in FINE_CLASSES
    assert isinstance(rule.severity, Severity)
    assert rule.remedy, "a rule without any remedy leaves the user alone"
    assert rule.watch > 0


@pytest.mark.parametrize("rule", RULES.values(), ids=RULES.keys())
def test_a_rule_has_examples_both_ways(rule):
    assert any(example.at_step is not None for example in rule.examples)
    assert any(example.at_step is None for example in rule.examples)


@pytest.mark.parametrize(("rule", "example"), EXAMPLES, ids=[f"{r.name()}: {e.title}" for r, e in EXAMPLES])
def test_a_rule_does_what_its_examples_say(rule, example):
    check_example(rule, example)


READERS = [
    (rule, example)
    for rule, example in EXAMPLES
    if rule.reads and example.at_step is not None and any(isinstance(signal, Metrics) for signal in example.signals)
]


@pytest.mark.parametrize(("rule", "example"), READERS, ids=[f"{r.name()}: {e.title}" for r, e in READERS])
def test_a_rule_has_nothing_to_say_of_an_observation_that_it_is_not_called_for(rule, example):
    made = rule(given=frozenset(example.options), **example.options)
    past = History(made.needs)
    spoke = []
    for signal in example.signals:
        if isinstance(signal, Facts):
            past.learn(signal.facts)
            continue
        past.see(signal.step, signal.time_s, signal.values)
        spoke.append(made.check(signal, past))
        others = {name: value for name, value in signal.values.items() if name not in rule.reads}
        assert made.check(Metrics(step=signal.step, values={**others, "loss": 1.0, "grad_norm": 1.0}), past) is None
        past.settle()
    assert any(spoke), "otherwise this shows nothing"


def test_rules_are_called_for_what_they_read():
    """By what is in an observation, whatever it is called with before; rules that say nothing of it are called for all."""
    called = []

    def rule(name, *reads):
        def check(self, now, past):
            called.append(name)

        return type(name, (Detector,), {"reads": reads, "check": check})()

    rules = RuleSet([rule("Always"), rule("OfReward", "reward"), rule("OfEither", "kl", "entropy")])
    for values in ({"loss": 1.0}, {"loss": 1.0, "kl": 0.1}, {"reward": 1.0, "entropy": 2.0}, {"loss": 2.0}):
        called.clear()
        rules.detect(Metrics(step=1, values=values), History())
        expected = [
            "Always",
            *(["OfReward"] * ("reward" in values)),
            *(["OfEither"] * bool({"kl", "entropy"} & {*values})),
        ]
        assert called == expected


@pytest.mark.parametrize("rule", RULES.values(), ids=RULES.keys())
def test_every_option_has_a_docstring_and_a_default(rule):
    documented = _documented_fields(rule)
    for field in fields(rule):
        if field.name == "given":
            continue
        assert field.name in documented, f"option {field.name} has no docstring under it"
        rule(**{field.name: field.default})


@pytest.mark.parametrize("rule", RULES.values(), ids=RULES.keys())
def test_a_senseless_number_is_refused(rule):
    for field in fields(rule):
        if isinstance(field.default, bool) or not isinstance(field.default, int | float):
            continue
        with pytest.raises(ValueError, match=re.escape(f"[rules.{rule.name()}]")):
            rule(**{field.name: type(field.default)(-1)})


def _documented_fields(rule) -> set[str]:
    body = ast.parse(inspect.getsource(inspect.getmodule(rule))).body
    cls = next(node for node in body if isinstance(node, ast.ClassDef) and node.name == rule.__name__)
    return {
        item.target.id
        for item, after in zip(cls.body, cls.body[1:], strict=False)
        if isinstance(item, ast.AnnAssign) and isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant)
    }
