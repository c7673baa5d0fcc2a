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
LOOPS = (ROOT / "docs" / "plain-loops.md").read_text()
OF_LOOPS = [block for block in (*BLOCKS, *re.findall(r"```python\n(.+?)```", LOOPS, re.DOTALL)) if "loss_fn" in block]
AROUND_A_LOOP = """
import torch
torch.manual_seed(0)
model = torch.nn.Linear(4, 2)
optimizer = torch.optim.AdamW(model.parameters())
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 10)
data = torch.utils.data.TensorDataset(torch.randn(24, 4), torch.randint(0, 2, (24,)))
loader = torch.utils.data.DataLoader(data, batch_size=4, shuffle=True)
loss_fn = lambda batch: torch.nn.functional.cross_entropy(model(batch[0]), batch[1])
evaluate = lambda model: 1.0
from self_healing import guard
"""


@pytest.mark.parametrize(
    "code", [b for b in BLOCKS if "Trainer(" not in b and "loss_fn" not in b], ids=lambda code: code.split("\n")[0][:50]
)
def test_the_readmes_python_runs(code, tmp_path):
    (tmp_path / "healing.toml").write_text('mode = "advise"\n[rules.loss-spike]\nsigmas = 8.0\n')
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.torch
@pytest.mark.parametrize("code", OF_LOOPS, ids=lambda code: code.strip().split("\n")[0][:50])
def test_the_loops_that_are_shown_run(code, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    exec(compile(AROUND_A_LOOP + code, "plain-loops.md", "exec"), {})  # our own page


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
