"""HealingConfig: every key, every source, every refusal."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass, fields
from typing import Literal, get_args

import pytest

from self_healing.config import HealingConfig
from self_healing.config.keys import PRESETS
from self_healing.config.rules import SHORT_NAMES, discovered
from self_healing.config.sources import show
from self_healing.core.action import Action
from self_healing.core.detector import Detector
from self_healing.core.discover import discover_classes
from self_healing.core.errors import CatalogueError, ConfigError
from self_healing.core.failure import Effect, FailureType, Mode, Severity
from self_healing.core.settings import Settings

from .config_fields import FIELDS, INF, NAN


@dataclass(frozen=True, kw_only=True)
class LossSpike(Detector):
    """Loss far above its recent level."""

    sigmas: float = 6.0
    min_samples: int = 32
    max_samples: int = 64
    factor: float = 5.0
    metrics: tuple[str, ...] = ("loss",)
    floor: float | None = 0.1

    failure = FailureType.LOSS_SPIKE
    fine = "loss_spike"
    severity = Severity.WARNING

    def __post_init__(self):
        super().__post_init__()
        if self.min_samples > self.max_samples:
            raise ValueError(f"min_samples must be at most max_samples, which is {self.max_samples}")
        if len(self.metrics) > 2:
            raise ValueError("too many of them")


@dataclass(frozen=True, kw_only=True)
class LossNotFinite(Detector):
    """The loss is NaN or infinite."""

    patience: int = 3
    stop_after: int = 10
    action: Literal["skip", "warn", "rollback", "raise"] = "skip"

    failure = FailureType.NAN_LOSS
    fine = "nan_loss"
    severity = Severity.ERROR

    def __post_init__(self):
        super().__post_init__()
        if self.stop_after < self.patience:
            self.refuse("stop_after", f"must be at least patience, which is {self.patience}")


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


def rules_of(config, catalogue=CATALOGUE):
    return {rule.name(): rule for rule in config.build_rules(catalogue)}


def sources(config):
    return {row.key: row.source for row in config.provenance()}


@pytest.fixture
def toml(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    def write(text):
        (tmp_path / "healing.toml").write_bytes(text if isinstance(text, bytes) else text.encode())
        return "healing.toml"

    return write


def test_the_table_of_fields_covers_every_field():
    assert set(FIELDS) == set(HealingConfig.model_fields)


@pytest.mark.parametrize("key", FIELDS)
def test_every_field_has_its_default_a_docstring_and_takes_another_value(key):
    default, other, _ = FIELDS[key]
    assert getattr(HealingConfig(), key) == default
    assert type(getattr(HealingConfig(), key)) is type(default)
    assert getattr(load(code={key: other}), key) == other
    assert load(code={key: other}).to_dict() == {"v": 1, key: list(other) if isinstance(other, tuple) else other}
    assert HealingConfig.model_fields[key].description.endswith(".")
    if isinstance(other, tuple):
        assert getattr(HealingConfig(**{key: list(other)}), key) == getattr(HealingConfig(**{key: other}), key) == other


@pytest.mark.parametrize(("key", "value"), [(key, value) for key, row in FIELDS.items() for value in row[2]], ids=show)
def test_a_value_out_of_range_is_refused_by_key(key, value):
    text = refusal(code={key: value})
    assert key in text
    assert "\n" not in text
    assert len(text) < 300


@pytest.mark.parametrize(
    ("values", "text"),
    [
        ({"nan_patience": 0}, "nan_patience = 0: must be at least 1"),
        ({"nan_patience": True}, "nan_patience = true: must be a whole number"),
        ({"loss_spike_factor": NAN}, "loss_spike_factor = nan: must be a finite number"),
        ({"lr_factor": 1}, "lr_factor = 1: must be less than 1"),
        ({"zclip_enabled": "yes"}, "zclip_enabled = 'yes': must be true or false"),
        ({"mode": "on"}, "mode = 'on': must be 'off', 'observe', 'advise' or 'heal'"),
        ({"ignore": ["loss-spike", 3]}, "ignore = ['loss-spike', 3]: item 2 must be text"),
        ({"ignore": ["los_spike"]}, "ignore: unknown rule 'los_spike'; did you mean 'loss-spike'?"),
        ({"nan_patiense": 1}, "unknown key 'nan_patiense'; did you mean 'nan_patience'?"),
        ({3: 1}, "unknown key 3; keys must be text"),
        ({"v": 2}, "v = 2: written by a newer self-healing-training; this one reads v = 1, so update it"),
        ({"v": True}, "v = true: must be 1"),
        ({"v": 0}, "v = 0: must be 1"),
        ([], "a configuration is a table of keys, not []"),
        ({"rules": {"loss-spik": {}}}, "[rules] unknown rule 'loss-spik'; did you mean 'loss-spike'?"),
        ({"rules": {"loss-spike": {"sigma": 1}}}, "[rules.loss-spike] unknown key 'sigma'; did you mean 'sigmas'?"),
        ({"rules": {"loss-spike": {"sigmas": -1}}}, "[rules.loss-spike] sigmas = -1: must be greater than 0"),
        ({"rules": {"loss-spike": {"sigmas": True}}}, "[rules.loss-spike] sigmas = true: must be a number"),
        ({"rules": {"loss-spike": {"sigmas": INF}}}, "[rules.loss-spike] sigmas = inf: must be a finite number"),
        (
            {"rules": {"loss-spike": {"min_samples": 10**5000}}},
            "[rules.loss-spike] min_samples = 1e5000: must be at most 1e+15 in size",
        ),
        (
            {"rules": {"loss-spike": {"factor": 3, "min_samples": 90}}},
            "[rules.loss-spike] min_samples = 90: must be at most max_samples, which is 64",
        ),
        (
            {"rules": {"loss-spike": {"sigmas": 3, "metrics": ["a", "b", "c"]}}},
            "[rules.loss-spike] metrics = ['a', 'b', 'c']: too many of them",
        ),
        (
            {"nan_patience": 11},
            "nan_patience = 11: max_consecutive_skips = 10 must be at least nan_patience, which is 11",
        ),
        (
            {"preset": "conservative", "max_consecutive_skips": 4},
            "max_consecutive_skips = 4: must be at least nan_patience, which is 10",
        ),
        (
            {"rules": {"loss-not-finite": {"patience": 11}}},
            "[rules.loss-not-finite] patience = 11: stop_after = 10 must be at least patience, which is 11",
        ),
        ({"rules": {"loss-spike": {"floor": "x"}}}, "[rules.loss-spike] floor = 'x': must be a number"),
    ],
)
def test_errors_name_key_value_and_what_is_allowed(values, text):
    assert refusal(code=values) == text


def test_several_problems_are_named_together_one_a_line():
    text = refusal(code={"nan_patience": 0, "mode": "x", "rules": {"loss-spike": {"sigmas": -1}}})
    assert [line.split(" = ")[0] for line in text.splitlines()] == ["mode", "nan_patience", "[rules.loss-spike] sigmas"]


def test_given_is_not_an_option_of_a_rule():
    assert "unknown key 'given'" in refusal(code={"rules": {"loss-spike": {"given": ["factor"]}}})


def test_the_constructor_of_the_seed_works_and_speaks_the_same_way():
    assert HealingConfig(max_recovery_attempts=5, zclip_enabled=True).max_recovery_attempts == 5
    with pytest.raises(ConfigError, match=r"^unknown key 'zclip'; did you mean 'zclip_mode'"):
        HealingConfig(zclip=True)
    with pytest.raises(ConfigError, match=r"^mode cannot be changed: .* use replace\(mode=...\)$"):
        HealingConfig().mode = "off"
    with pytest.raises(ConfigError, match="nan_patience = 0"):
        HealingConfig().model_copy(update={"nan_patience": 0})
    assert HealingConfig(mode=Mode.ADVISE, max_effect=Effect.TIME) == HealingConfig(mode="advise", max_effect="time")
    assert repr(HealingConfig(nan_patience=5)) == "HealingConfig(nan_patience=5)"


def test_presets_have_the_numbers_of_the_issue():
    bold, calm = HealingConfig.aggressive(), HealingConfig.conservative()
    keys = ("nan_patience", "loss_spike_factor", "zclip_z_threshold", "max_recovery_attempts", "zclip_mode")
    assert [getattr(bold, key) for key in keys] == [1, 3.0, 2.0, 10, "always"]
    assert [getattr(calm, key) for key in keys] == [10, 10.0, 4.0, 2, "always"]
    assert bold.to_dict() == {"v": 1, "preset": "aggressive"}
    assert HealingConfig.aggressive(nan_patience=2).nan_patience == 2
    assert set(PRESETS) == set(get_args(get_args(HealingConfig.model_fields["preset"].annotation)[0]))
    assert sources(load(code=bold))["nan_patience"] == "preset aggressive"
    assert rules_of(bold)["loss-spike"].factor == 3.0
    assert rules_of(bold)["loss-spike"].given == frozenset(), "a preset chooses values, it is not a person's threshold"
    assert rules_of(bold)["loss-not-finite"] == LossNotFinite(patience=1)


def test_setting_the_zclip_threshold_changes_the_mode_even_to_its_default():
    assert HealingConfig(zclip_z_threshold=2.5).zclip_mode == "always"
    assert HealingConfig(zclip_z_threshold=2.5, zclip_mode="outliers").zclip_mode == "outliers"
    assert HealingConfig.aggressive(zclip_mode="outliers").zclip_mode == "outliers"
    assert HealingConfig.from_dict(HealingConfig().to_dict()).zclip_mode == "outliers"
    assert sources(load(code={"zclip_z_threshold": 2.5}))["zclip_mode"] == "zclip_z_threshold is set"


def test_later_sources_win_and_every_value_knows_its_own(toml):
    path = toml(
        'preset = "aggressive"\nnan_patience = 4\nlr_factor = 0.3\nmin_batch_size = 2\n\n'
        "[rules.loss-spike]\nsigmas = 7\nmin_samples = 8\nmetrics = ['loss']\n"
    )
    code = {"lr_factor": 0.4, "min_batch_size": 3, "rules": {"loss-spike": {"min_samples": 9}}}
    config = load(path, code, ["min_batch_size=4", "rules.loss-spike.sigmas=8", "mode=observe", "rollback_steps=none"])
    found = {row.key: tuple(row[1:]) for row in config.provenance()}
    assert found["max_recovery_attempts"] == (10, "preset aggressive")
    assert found["nan_patience"] == (4, "healing.toml:2")
    assert found["lr_factor"] == (0.4, "code")
    assert found["min_batch_size"] == (4, "command line")
    assert found["mode"] == ("observe", "command line")
    assert found["rollback_steps"] == (None, "command line")
    assert found["overfit_gap"] == (2.0, "default")
    assert found["rules.loss-spike.sigmas"] == (8.0, "command line")
    assert found["rules.loss-spike.min_samples"] == (9, "code")
    assert found["rules.loss-spike.metrics"] == (("loss",), "healing.toml:9")
    assert found["rules.loss-spike.factor"] == (3.0, "preset aggressive")
    assert found["rules.gradient-not-finite.patience"] == (4, "healing.toml:2")
    assert rules_of(config)["loss-spike"].given == {"sigmas", "min_samples", "metrics"}
    assert sources(load(code=load(path)))["nan_patience"] == "healing.toml:2", "a config in code keeps its sources"
    assert load(path, HealingConfig.conservative()).max_recovery_attempts == 2
    assert sources(config.replace(min_batch_size=5))["min_batch_size"] == "code"


@pytest.mark.parametrize(
    ("override", "text"),
    [
        ("mode", "command line: 'mode': must be written key=value"),
        ("=3", "command line: '=3': must be written key=value"),
        ("mode=on", "command line: mode = 'on': must be"),
        ("nan_patience=1e3", "command line: nan_patience = 1000.0: must be a whole number"),
        ("nan_patience=1 2", "command line: nan_patience = '1 2': must be a TOML value, or a bare word"),
        ("nan_patience=1\nmode='off'", "must be a TOML value"),
        ("nan_patience=" + "9" * 5000, "must be a TOML value"),
        ("rules.loss-spike=8", "command line: [rules] loss-spike = 8: must be a table"),
        ("rules.loss-spike.sigmas=-1", "command line: [rules.loss-spike] sigmas = -1: must be greater than 0"),
        ("rules.loss-spike.a.b=1", "unknown key 'a.b'"),
        ("mode.x=1", "unknown key 'mode.x'; did you mean 'mode'?"),
    ],
)
def test_a_bad_override_is_one_sentence(override, text):
    assert text in refusal(overrides=[override])


def test_overrides_read_toml_values_bare_words_and_lists():
    config = load(
        overrides=["nan_patience=2", "nan_patience=6", "ignore=['loss-spike']", "on_instability=os.path:join"]
    )
    assert (config.nan_patience, config.ignore, config.on_instability) == (6, ("loss-spike",), "os.path:join")
    assert load(overrides="mode=advise").mode == "advise"
    assert load(overrides=["zclip_enabled=false", "select=loss-spike"]).select == ("loss-spike",)


@pytest.mark.parametrize("short", SHORT_NAMES)
def test_a_short_name_and_its_option_together_are_an_error_that_names_both(short):
    rule, option = SHORT_NAMES[short][-1]
    with pytest.raises(ConfigError) as caught:
        HealingConfig.load(code={short: 3, "rules": {rule: {option: 3}}}, catalogue=CATALOGUE)
    assert str(caught.value) == f"{short} and [rules.{rule}] {option} are the same option; give one of them"


def test_between_sources_a_short_name_and_its_option_override_each_other(toml):
    config = load(toml("nan_patience = 7"), overrides=["rules.loss-not-finite.patience=2"])
    assert {name: rule.patience for name, rule in rules_of(config).items() if name != "loss-spike"} == {
        "loss-not-finite": 2,
        "gradient-not-finite": 7,
    }
    assert sources(config)["rules.gradient-not-finite.patience"] == "healing.toml:1"
    config = load(toml("[rules.loss-not-finite]\npatience = 7"), {"nan_patience": 2})
    assert {rule.patience for name, rule in rules_of(config).items() if name != "loss-spike"} == {2}
    assert config.to_dict() == {"v": 1, "nan_patience": 2}
    config = load(code={"preset": "aggressive", "rules": {"loss-not-finite": {"patience": 7}}})
    assert [rules_of(config)[name].patience for name in ("loss-not-finite", "gradient-not-finite")] == [7, 1]


def test_a_short_name_reads_as_its_option_where_that_was_set():
    config = load(code={"rules": {"loss-spike": {"factor": 8}}})
    assert (config.loss_spike_factor, sources(config)["loss_spike_factor"]) == (8.0, "code")
    assert config.to_dict() == {"v": 1, "rules": {"loss-spike": {"factor": 8.0}}}


def test_select_and_ignore_choose_the_rules():
    assert list(rules_of(load())) == list(CATALOGUE)
    assert list(rules_of(load(code={"select": ["loss-not-finite", "loss-spike"]}))) == ["loss-spike", "loss-not-finite"]
    assert list(rules_of(load(code={"select": ["loss-spike"], "ignore": ["loss-spike"]}))) == []


def test_a_short_name_whose_option_a_rule_lacks_is_a_fault_of_the_catalogue():
    with pytest.raises(CatalogueError, match="nan_patience is a short name of the option 'patience'"):
        HealingConfig(nan_patience=2).build_rules({"loss-not-finite": LossSpike})


def test_settings_and_the_environment_switch():
    assert HealingConfig().settings() == Settings()
    config = HealingConfig(mode="advise", max_effect="time", lr_factor=0.25, rollback_steps=7)
    assert config.settings() == Settings(mode=Mode.ADVISE, max_effect=Effect.TIME, lr_factor=0.25, rollback_steps=7)
    for word in Mode:
        assert config.effective_mode({"SELF_HEALING": word.upper()}) is Mode(word)
    assert config.settings({"SELF_HEALING": "off"}).mode is Mode.OFF
    assert config.effective_mode({}) is config.effective_mode({"SELF_HEALING": " "}) is Mode.ADVISE
    with pytest.raises(ConfigError, match=r"SELF_HEALING = 'no' in the environment: .* off, observe, advise, heal"):
        config.effective_mode({"SELF_HEALING": "no"})
    words = get_args(HealingConfig.model_fields["mode"].annotation)
    assert set(words) == set(Mode)


def test_every_value_the_core_reads_is_one_its_actions_accept():
    edges = {"lr_factor": (1e-9, 0.999), "lr_ramp_steps": (1, 10**9), "min_learning_rate": (0.0, 1.0, None)}
    edges |= {"min_batch_size": (1, 10**9), "rollback_steps": (1, 10**9, None), "backoff_base_s": (0.0, 86400.0)}
    for action in discover_classes("self_healing.actions", Action).values():
        for key in action.fills.values():
            for value in edges[key]:
                action().filled(HealingConfig(**{key: value}).settings())


# The package


def test_the_import_is_light():
    code = "import sys, self_healing.config; print({'torch', 'numpy', 'transformers', 'tomlkit'} & set(sys.modules))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "set()\n"


def test_the_defaults_of_short_names_are_those_of_the_rules():
    catalogue = discovered()
    for field, targets in SHORT_NAMES.items():
        for rule, option in targets:
            assert catalogue[rule].options()[option] == getattr(HealingConfig(), field), (field, rule)


def test_the_real_rules_take_their_options_through_the_configuration():
    options = {name: rule.options() for name, rule in discovered().items()}
    config = HealingConfig(rules={name: table for name, table in options.items() if table})
    for rule in config.build_rules():
        assert rule.given == set(options[rule.name()])
        assert {name: getattr(rule, name) for name in rule.options()} == options[rule.name()]
    assert HealingConfig.from_dict(config.to_dict()).resolved() == config.resolved()
    assert HealingConfig().resolved()["rules"].keys() == options.keys()
    assert {item.name for item in fields(Settings)} <= set(HealingConfig.model_fields)


def test_addresses_for_alerts_are_shown_without_what_lets_one_in():
    url = "https://example.com/services/T0SECRET99/averylongtoken"
    config = HealingConfig(alert_urls=[url, "tgram://123456:token/chat"])
    assert repr(config) == "HealingConfig(alert_urls=['https://example.com/***', 'tgram://***'])"
    assert config.alert_urls == (url, "tgram://123456:token/chat")
    assert HealingConfig.from_dict(config.to_dict()) == config
    assert url in config.to_toml()
    assert HealingConfig(alert_urls=url).alert_urls == (url,)
    for wrong in ("T0SECRET99", "https://SECRET99@/x", "SECRET 99://x"):
        with pytest.raises(ConfigError) as caught:
            HealingConfig(alert_urls=[wrong])
        assert "SECRET" not in str(caught.value)
        assert "must be an address such as 'https://example.com/hook'" in str(caught.value)
    with pytest.raises(ConfigError) as caught:
        HealingConfig.load(overrides=["alert_urls=https://example.com/SECRET?x=1"])
    assert "SECRET" not in str(caught.value)
