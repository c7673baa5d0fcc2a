"""HealingConfig in files: TOML in and out, round trips, the hook by name, and keys without effect."""

from __future__ import annotations

import copy
import json
import logging
import os
import pickle
import sys
import types
import warnings
from dataclasses import dataclass

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from self_healing.config import ConfigWarning, HealingConfig
from self_healing.config import keys as config_module
from self_healing.config.keys import PRESETS
from self_healing.config.sources import VERSION
from self_healing.core.capability import CAPABILITIES
from self_healing.core.detector import Detector
from self_healing.core.errors import ConfigError
from self_healing.core.failure import Mode


@dataclass(frozen=True, kw_only=True)
class LossSpike(Detector):
    """Loss far above its recent level."""

    sigmas: float = 6.0
    min_samples: int = 32
    factor: float = 5.0
    metrics: tuple[str, ...] = ("loss",)
    floor: float | None = 0.1


@dataclass(frozen=True, kw_only=True)
class LossNotFinite(Detector):
    """The loss is NaN or infinite."""

    patience: int = 3
    stop_after: int = 10
    action: str = "skip"


@dataclass(frozen=True, kw_only=True)
class GradientNotFinite(LossNotFinite):
    """The gradient norm is NaN or infinite."""


CATALOGUE = {rule.name(): rule for rule in (LossSpike, LossNotFinite, GradientNotFinite)}


def load(toml=None, code=None, overrides=()):
    return HealingConfig.load(toml, code, overrides, catalogue=CATALOGUE)


def refusal(*args, **kwargs):
    with pytest.raises(ConfigError) as caught:
        load(*args, **kwargs)
    assert "pydantic" not in str(caught.value)
    assert caught.value.__cause__ is None
    return str(caught.value)


def sources(config):
    return {row.key: row.source for row in config.provenance()}


@pytest.fixture
def toml(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    def write(text):
        (tmp_path / "healing.toml").write_bytes(text if isinstance(text, bytes) else text.encode())
        return "healing.toml"

    return write


# Files


@pytest.mark.parametrize(
    ("text", "error"),
    [
        (
            "mode = 'heal'\n\nnan_patiense = 1",
            "healing.toml:3: unknown key 'nan_patiense'; did you mean 'nan_patience'?",
        ),
        (
            "\n" * 5 + "[rules.loss-spike] # x\nsigmas = -1",
            "healing.toml:7: [rules.loss-spike] sigmas = -1: must be great",
        ),
        ("[rules]\n'loss-spike'.sigmas = -1", "healing.toml:2: [rules.loss-spike] sigmas = -1: must be greater than 0"),
        ("a = '''\nmode = 1\n'''\nmode = 2", "healing.toml:1: unknown key 'a'"),
        ("on_instability = '''\nmode = 1\n[x]'''\nmode = 2", "healing.toml:4: mode = 2: must be"),
        ("# it's [\nignore = [ # {\n  'loss-spike',\n]\nmode = 2", "healing.toml:5: mode = 2: must be"),
        ("rules = {loss-spike = {sigmas = -1}}", "healing.toml:1: [rules.loss-spike] sigmas = -1"),
        (
            "mode = 'heal'\n[rules.los-spike]",
            "healing.toml:2: [rules] unknown rule 'los-spike'; did you mean 'loss-spike'?",
        ),
        (
            "[loss-spike]\nsigmas = 1",
            "healing.toml:1: unknown key 'loss-spike'; options of rules belong in [rules.loss-spike]",
        ),
        ("\nrules = 3", "healing.toml:2: rules = 3: must be a table"),
        ("[[rules]]\nx = 3", "healing.toml:1: rules = [{'x': 3}]: must be a table"),
        ("\r\n\r\nmode = 3\r\n", "healing.toml:3: mode = 3"),
        ("mode = 'heal'\nv = 9", "healing.toml:2: v = 9: written by a newer"),
        ("nan_patience = 3\n[rules.loss-not-finite]\npatience = 3", "healing.toml:3: nan_patience and [rules.loss-not"),
        ("nan_patience = inf", "healing.toml:1: nan_patience = inf: must be a whole number"),
        ("lr_factor = nan", "healing.toml:1: lr_factor = nan: must be a finite number"),
        ("mode = 'a'\nmode 'heal'", "healing.toml:2: not valid TOML: expected '=' after a key"),
        ("mode = 'heal'\nmode = 'off'", "healing.toml:2: not valid TOML: cannot overwrite a value"),
        ("mode = 'heal'\n[rules", "healing.toml:2: not valid TOML"),
        ("nan_patience = " + "9" * 5000, "healing.toml: not valid TOML: a number is too long"),
        ("select = " + "[" * 5000, "healing.toml: not valid TOML"),
        (b"mode = 'heal'\n# \xff", "healing.toml:2: not valid TOML: not UTF-8 text"),
        (b"#" * (1 << 21), "healing.toml: cannot be read: larger than"),
    ],
)
def test_a_bad_file_is_one_sentence_with_file_and_line(toml, text, error):
    found = refusal(toml(text))
    assert found.startswith(error.split(":")[0])
    assert error in found
    assert "Traceback" not in found


def test_an_unreadable_file_is_one_sentence(tmp_path):
    for path in (tmp_path / "none.toml", str(tmp_path), "nul\0byte"):
        assert ": cannot be read: " in refusal(path)
    with pytest.raises(ConfigError, match="cannot be written"):
        HealingConfig().to_toml(tmp_path)


def test_a_file_with_a_byte_order_mark_is_read(toml):
    assert load(toml(b"\xef\xbb\xbfmode = 'advise'")).mode == "advise"


def test_toml_keeps_what_was_set(tmp_path):
    values = {"preset": "conservative", "lr_factor": 0.25, "ignore": ["loss-spike"], "rollback_steps": None}
    config = load(code=values | {"rules": {"loss-spike": {"sigmas": 8, "metrics": ["loss", "x"]}}})
    text = config.to_toml(tmp_path / "out.toml")
    again = HealingConfig.from_toml(tmp_path / "out.toml", catalogue=CATALOGUE)
    assert again.resolved() == config.resolved()
    assert again.to_toml() == text
    assert text.startswith("v = 1\n")
    assert "[rules.loss-spike]\nsigmas = 8.0\n" in text
    with pytest.raises(ConfigError, match=r"\[rules.loss-spike\] floor = None: cannot be written to TOML"):
        load(code={"rules": {"loss-spike": {"floor": None}}}).to_toml()


# Round trips

_VALUES = {
    "nan_patience": st.integers(1, 10),
    "loss_spike_factor": st.floats(1.5, 1e6) | st.integers(2, 9),
    "zclip_z_threshold": st.just(2.5) | st.floats(0.1, 9),
    "zclip_mode": st.sampled_from(["outliers", "always"]),
    "mode": st.sampled_from(list(Mode)),
    "preset": st.sampled_from([None, *PRESETS]),
    "min_learning_rate": st.none() | st.floats(0, 1),
    "select": st.none() | st.lists(st.sampled_from(list(CATALOGUE))),
    "ignore": st.lists(st.sampled_from(list(CATALOGUE))),
    "on_instability": st.sampled_from(
        [None, "os.path:join", json.dumps, {"oom": copy.deepcopy}, [json.dumps, {"loss-spike": "os.path:join"}]]
    ),
}
_OPTIONS = {
    "sigmas": st.floats(0.1, 1e6) | st.integers(1, 9),
    "min_samples": st.integers(1, 64),
    "metrics": st.lists(st.text(max_size=3), max_size=2),
}


@given(
    values=st.fixed_dictionaries({}, optional=_VALUES),
    options=st.fixed_dictionaries({}, optional=_OPTIONS),
    skips=st.none() | st.integers(10, 50),
)
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_what_was_set_survives_every_round_trip(tmp_path_factory, values, options, skips):
    rules = {"loss-spike": options} | ({"gradient-not-finite": {"stop_after": skips}} if skips else {})
    config = load(code=values | {"rules": rules})
    path = tmp_path_factory.getbasetemp() / "round.toml"
    config.to_toml(path)
    for again in (
        HealingConfig.from_dict(config.to_dict(), catalogue=CATALOGUE),
        HealingConfig.from_dict(json.loads(json.dumps(config.to_dict())), catalogue=CATALOGUE),
        pickle.loads(pickle.dumps(config)),
        copy.deepcopy(config),
    ):
        assert again == config
        assert hash(again) == hash(config)
        assert sources(again) == sources(config)
        _behave_alike(again, config)
    _behave_alike(HealingConfig.from_toml(path, catalogue=CATALOGUE), config)
    assert set(config.to_dict()) - {"v", "rules"} == set(values)


def _behave_alike(one, other):
    assert one.resolved() == other.resolved()
    assert one.build_rules(CATALOGUE) == other.build_rules(CATALOGUE), "equal, `given` included"
    assert one.settings() == other.settings()
    assert one.hooks() == other.hooks()
    json.dumps(one.resolved(), allow_nan=False)


def test_the_configuration_shares_nothing_with_what_it_was_made_from():
    values = {"rules": {"loss-spike": {"sigmas": 8.0}}, "ignore": ["loss-not-finite"]}
    config = load(code=values)
    values["rules"]["loss-spike"]["sigmas"] = 1
    values["ignore"].clear()
    config.to_dict()["rules"]["loss-spike"]["sigmas"] = 2
    assert config.to_dict() == {"v": VERSION, "ignore": ["loss-not-finite"], "rules": {"loss-spike": {"sigmas": 8.0}}}


# The hook


def hook(incident, plan, run):
    return None


def test_a_hook_is_kept_as_it_is_and_written_by_name_where_that_finds_it(tmp_path, monkeypatch):
    assert HealingConfig(on_instability=hook).hooks() == [(None, hook)]
    assert HealingConfig(on_instability=json.dumps).to_dict()["on_instability"] == "json:dumps"
    assert 'on_instability = "json:dumps"' in HealingConfig(on_instability=json.dumps).to_toml()
    bound = logging.getLogger().info  # its name finds the function of the class, which is another thing
    assert HealingConfig(on_instability=bound).to_dict()["on_instability"] == bound
    script = types.FunctionType(hook.__code__, {}, "script")  # only this process has it under that name
    script.__module__, script.__qualname__ = "__main__", "script"
    monkeypatch.setattr(sys.modules["__main__"], "script", script, raising=False)
    assert HealingConfig(on_instability=script).to_dict()["on_instability"] is script
    lonely = HealingConfig(on_instability=lambda *_: None)
    assert lonely.to_dict()["on_instability"] is lonely.on_instability
    assert "lambda" in load(code=lonely).resolved()["on_instability"]
    with pytest.raises(
        ConfigError, match=r"^on_instability = <function .*: cannot be written to TOML; give a function"
    ):
        lonely.to_toml()
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "my_hooks.py").write_text("import os\nclass A:\n    def f(*a): return 7\nX = 3\n")
    (tmp_path / "my_broken_hooks.py").write_text("def (:\n")
    assert HealingConfig(on_instability="my_hooks:A.f").hooks()[0][1]() == 7
    for name, text in {
        "my_absent_hooks:f": "the module cannot be imported: No module named 'my_absent_hooks'",
        "my_broken_hooks:f": "the module cannot be imported: invalid syntax",
        "my_hooks:g": "has no attribute 'g'",
        "my_hooks:X": "must name a function",
    }.items():
        config = HealingConfig(on_instability=name)
        with pytest.raises(ConfigError) as caught:
            config.hooks()
        assert str(caught.value).startswith(f"on_instability = '{name}': ")
        assert text in str(caught.value)


def test_hooks_may_be_for_one_rule_or_class_of_failure(tmp_path):
    table = {"oom": json.dumps, "loss-spike": "os.path:join"}
    config = HealingConfig(on_instability=table, mode="advise", nan_patience=3)
    assert config.hooks() == [("oom", json.dumps), ("loss-spike", os.path.join)]
    (tmp_path / "healing.toml").write_text(config.to_toml())
    assert HealingConfig.from_toml(tmp_path / "healing.toml").hooks() == config.hooks()
    more = config.with_hook(hook).with_hook(copy.deepcopy, "nan_loss")
    assert more.hooks() == [*config.hooks(), (None, hook), ("nan_loss", copy.deepcopy)]
    assert config.hooks() == [("oom", json.dumps), ("loss-spike", os.path.join)]
    assert (more.mode, more.nan_patience) == ("advise", 3)
    with pytest.raises(
        ConfigError, match=r"'nan_los' is neither a rule nor a class of failure; did you mean 'nan_loss'\?"
    ):
        HealingConfig(on_instability={"nan_los": hook})
    with pytest.raises(ConfigError, match="must be a function or the text 'module:function'"):
        HealingConfig(on_instability={"oom": 3})
    (tmp_path / "broken.toml").write_text('mode = "heal"\n[on_instability]\noom = "os.path:nothing"\n')
    broken = HealingConfig.from_toml(tmp_path / "broken.toml")
    with pytest.raises(ConfigError, match=r"broken\.toml:\d: .*oom = 'os.path:nothing': not found"):
        broken.hooks()


# Keys without effect


@pytest.mark.parametrize(
    ("values", "sentences"),
    [
        ({}, []),
        ({"preset": "aggressive", "max_effect": "nothing", "zclip_enabled": False}, []),
        ({"mode": "off"}, []),
        ({"mode": "off", "loss_spike_factor": 3.0}, ["loss_spike_factor has no effect: mode is off"]),
        ({"lr_ramp_steps": 5}, []),
        (
            {"lr_ramp_steps": 5, "max_effect": "time"},
            ["lr_ramp_steps has no effect: max_effect is time, which rules out"],
        ),
        ({"rollback_steps": 5, "max_effect": "time"}, []),
        ({"rollback_steps": 5, "max_effect": "nothing"}, ["rollback_steps has no effect: max_effect is nothing"]),
        ({"lr_factor": 0.4, "mode": "observe"}, ["lr_factor has no effect: mode is observe"]),
        (
            {"zclip_z_threshold": 3.0, "zclip_enabled": False},
            ["zclip_z_threshold has no effect: zclip_enabled is false"],
        ),
        ({"nan_patience": 2, "nan_action": "raise"}, ["nan_patience has no effect: nan_action is raise"]),
        (
            {"max_consecutive_skips": 9, "nan_action": "warn"},
            ["max_consecutive_skips has no effect: nan_action is warn"],
        ),
        ({"nan_patience": 2, "ignore": ["loss-not-finite"]}, []),
        (
            {"nan_patience": 2, "select": ["loss-spike"]},
            ["nan_patience has no effect: loss-not-finite and gradient-not-finite do not run"],
        ),
        (
            {"rules": {"loss-spike": {"sigmas": 3}}, "ignore": ["loss-spike"]},
            ["[rules.loss-spike] sigmas has no effect: loss-spike does not run"],
        ),
        ({"select": ["loss-spike"], "ignore": ["loss-spike"]}, ["select has no effect: loss-spike is ignored as well"]),
        ({"overfit_gap": 3.0}, ["overfit_gap has no effect: eval-gap-growing does not run"]),
    ],
)
def test_keys_without_effect_are_named_with_the_reason(values, sentences):
    found = load(code=values).ineffective()
    assert len(found) == len(sentences), found
    assert all(one.startswith(sentence) for one, sentence in zip(found, sentences, strict=True)), found


def test_a_run_that_cannot_do_it_makes_a_key_ineffective():
    config = load(code={"lr_ramp_steps": 5, "rollback_steps": 7})
    assert config.ineffective(frozenset(CAPABILITIES)) == []
    assert config.ineffective(frozenset(CAPABILITIES) - {"can-roll-back"}) == [
        "rollback_steps has no effect: this run does not offer can-roll-back"
    ]


def test_a_warning_is_given_once(caplog, monkeypatch):
    monkeypatch.setattr(config_module, "_warned", set())
    config = load(code={"nan_patience": 2, "nan_action": "raise"})
    with warnings.catch_warnings(record=True, action="always") as caught:
        config.warn_ineffective()
        config.warn_ineffective()
        load(code={"nan_patience": 2, "nan_action": "raise"}).warn_ineffective()
    assert [(one.category, str(one.message).split(":")[0]) for one in caught] == [
        (ConfigWarning, "nan_patience has no effect")
    ]
    assert caught[0].filename == __file__
    assert [(r.name, r.levelno) for r in caplog.records] == [("self_healing.config", logging.WARNING)]
