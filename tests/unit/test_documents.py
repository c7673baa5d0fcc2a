"""What README and the documents show works as printed."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()
BLOCKS = re.findall(r"```python\n(.+?)```", README, re.DOTALL)


@pytest.mark.parametrize("code", [b for b in BLOCKS if "Trainer(" not in b], ids=lambda code: code.split("\n")[0][:50])
def test_the_readmes_python_runs(code, tmp_path):
    (tmp_path / "healing.toml").write_text('mode = "advise"\n[rules.loss-spike]\nsigmas = 8.0\n')
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == 0, done.stderr


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
        if not target.startswith("http"):
            assert (path.parent / target).exists(), f"{path.name} links to {target}"
