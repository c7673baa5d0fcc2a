"""Every rule keeps the contract: docs, examples, names, options, remedies."""

from __future__ import annotations

import ast
import inspect
import re
from dataclasses import fields

import pytest

from self_healing.core.detector import DOC_SECTIONS, Detector
from self_healing.core.discover import discover_classes
from self_healing.core.failure import FINE_CLASSES, FailureType, Severity
from self_healing.testing import check_example

RULES = discover_classes("self_healing.detectors", Detector)
REQUIRED = """
    loss-not-finite gradient-not-finite weights-not-finite loss-spike loss-divergence loss-plateau gradient-explosion
    gradient-vanishing gradient-norm-growth eval-gap-growing eval-not-finite loss-exactly-zero
    learning-rate-unexpected throughput-drop memory-creep step-stalled crashed exited heartbeat-lost
    unexplained-state dead-run
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
