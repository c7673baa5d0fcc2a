"""What README and the documents name is there: keys with their defaults, rules, actions, commands, files. tests/documents runs their blocks."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()
LOOPS = (ROOT / "docs" / "plain-loops.md").read_text()


def test_every_key_of_the_policy_is_in_the_manual_with_its_default(tmp_path):
    from self_healing import HealingConfig

    table = dict(re.findall(r"^\| `(\w+)` \| (.+?) \|", LOOPS[LOOPS.index("## The policy") :], re.MULTILINE))
    assert set(table) == set(HealingConfig.model_fields)
    told = [f"{key} = {value.strip('`')}" for key, value in table.items() if value != "not set"]
    (tmp_path / "all.toml").write_text("\n".join(told))
    config, defaults = HealingConfig.from_toml(tmp_path / "all.toml"), HealingConfig()
    for key, value in table.items():
        default = getattr(defaults, key)
        assert (value == "not set") == (default is None or default == {}), key
        assert key == "zclip_mode" or getattr(config, key) == default, key
    (example,) = re.findall(r"```toml\n(.+?)```", LOOPS, re.DOTALL)
    (tmp_path / "healing.toml").write_text(example)
    assert HealingConfig.from_toml(tmp_path / "healing.toml").rollback_steps == 100


def test_every_rule_action_and_command_the_readme_names_exists():
    from self_healing.core.action import Action
    from self_healing.core.detector import Detector
    from self_healing.core.discover import discover_classes, module_names

    rules = discover_classes("self_healing.detectors", Detector)
    table = README[README.index("## What is detected") : README.index("`nothing`: the trained")]
    named = set(re.findall(r"`([a-z]+(?:-[a-z]+)*)`", table)) - {"factor"}
    assert named <= set(rules) | set(discover_classes("self_healing.actions", Action)), named - set(rules)
    assert set(rules) <= named, "a rule the table leaves out"
    commands = set(re.findall(r"^heal (\w+)", README, re.MULTILINE))
    assert commands <= set(module_names("self_healing.cli.commands"))


@pytest.mark.parametrize(
    "path", [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))], ids=str
)
def test_links_lead_somewhere(path):
    for target in re.findall(r"\]\(([^)#]+)\)", path.read_text()):
        is_generated = "reference" in Path(target).parts  # by `make docs`, which fails where a link leads nowhere
        if not target.startswith("http") and not is_generated:
            assert (path.parent / target).exists(), f"{path.name} links to {target}"
