"""What lands in the repository: no machine paths, no hosts, no words about how it was written."""

from __future__ import annotations

import re
import subprocess
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def tracked() -> list[Path]:
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=False)
    if listed.returncode != 0:
        pytest.skip("not a git checkout: which files are tracked cannot be told")
    return [ROOT / name for name in listed.stdout.decode().split("\0") if name and (ROOT / name).is_file()]


def test_no_machine_path_is_in_the_tree():
    # Written so that this file does not match itself.
    pattern = re.compile("/" + "work/|/" + "root/")
    hits = [f"{p.relative_to(ROOT)}" for p in tracked() if pattern.search(p.read_text(errors="replace"))]
    assert hits == []


def test_torch_is_pinned_for_every_install():
    assert "torch==2.13.0" in (ROOT / "constraints.txt").read_text()
    makefile = (ROOT / "Makefile").read_text()
    assert "-c constraints.txt" in makefile
    for line in makefile.splitlines():
        assert "pip install" not in line or "constraints.txt" in line, line


def test_core_dependencies_hold_no_framework_and_readme_names_the_extras_there_are():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert not any(dep.startswith(("torch", "numpy", "transformers")) for dep in project["dependencies"])
    readme = (ROOT / "README.md").read_text()
    told = readme[readme.index("Extras:") : readme.index("Install with `-c constraints.txt`")]
    assert set(re.findall(r"`(\w+)`", told)) == set(project["optional-dependencies"])


def test_ci_is_the_readme_test_command():
    assert "make test" in (ROOT / ".ci" / "run").read_text()
    readme = (ROOT / "README.md").read_text()
    assert "make demo" in readme
    assert "make test" in readme
