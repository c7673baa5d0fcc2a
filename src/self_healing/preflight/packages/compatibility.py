"""Which versions of distributions go together.

As of November 2026. Each row is what the releases themselves ask for in their metadata on PyPI (`Requires-Dist`,
`Requires-Python`), looked up for the first release of every minor version; a lower bound that a later release has too is
said once, from where it begins. Torchvision's and torchaudio's rows are the pins of their wheels. What is installed here is
asked besides: its own metadata is a row for exactly its version.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name
from packaging.version import Version

from .distributions import installed_needs, installed_version
from .version_ranges import have_common, lies_in

PYTHON = "python"
"""The name under which rows speak of the interpreter."""

CORE = ("transformers", "trl", "torch", "peft", "datasets", "accelerate")
"""The libraries whose releases change what a training script may write."""


@dataclass(frozen=True, slots=True)
class Row:
    """Every version of a distribution in a range needs a version of another in a range."""

    name: str
    at_least: str
    below: str
    needs: str
    range: str


_ROWS: dict[str, tuple[tuple[str, str, str, str], ...]] = {
    "trl": (
        ("0.17", "", "transformers", ">=4.46"), ("0.18", "", "transformers", ">=4.50"), ("0.19", "", "transformers", ">=4.51"),
        ("0.19", "", "accelerate", ">=1.4"), ("0.20", "", "transformers", ">=4.53.2"), ("0.21", "", "transformers", ">=4.55"),
        ("0.23", "", "transformers", ">=4.56.1"), ("0.27", "", "transformers", ">=4.56.2"), ("0.17", "", "datasets", ">=3.0"),
        ("1.0", "", "datasets", ">=4.7"), ("1.16", "", "accelerate", ">=1.10.1"), ("0.25", "", PYTHON, ">=3.10"),
        ("1.15", "", PYTHON, ">=3.11"),
    ),
    "transformers": (
        ("4.51", "5.0", "huggingface-hub", ">=0.30,<1.0"), ("5.0", "", "huggingface-hub", ">=1.3"),
        ("5.18", "", "huggingface-hub", ">=1.31"), ("4.51", "4.56", "tokenizers", ">=0.21,<0.22"),
        ("4.56", "5.16", "tokenizers", ">=0.22,<=0.23"), ("4.51", "", PYTHON, ">=3.9"), ("5.0", "", PYTHON, ">=3.10"),
        ("5.21", "", PYTHON, ">=3.11"),
    ),
    "peft": (("0.1", "", "torch", ">=1.13"), ("0.6", "", "accelerate", ">=0.21"), ("0.14", "", PYTHON, ">=3.9"), ("0.18", "", PYTHON, ">=3.10")),
    "accelerate": (
        ("1.3", "", "torch", ">=2.0"), ("0.33", "", "huggingface-hub", ">=0.21"), ("1.1", "", PYTHON, ">=3.9"),
        ("1.11", "", PYTHON, ">=3.10"),
    ),
    "datasets": (
        ("4.1", "", "pyarrow", ">=21"), ("5.1", "", "pyarrow", ">=24"), ("3.3", "", "huggingface-hub", ">=0.24"),
        ("5.1", "", "huggingface-hub", ">=1.31"), ("3.2", "", PYTHON, ">=3.9"), ("4.6", "", PYTHON, ">=3.10"),
    ),
    "vllm": (
        ("0.6", "", "torch", ">=2.4"), ("0.7", "", "torch", ">=2.5.1"), ("0.8", "", "torch", ">=2.6"), ("0.9", "", "torch", ">=2.7"),
        ("0.11", "", "torch", ">=2.8"), ("0.12", "", "torch", ">=2.9"), ("0.17", "", "torch", ">=2.10"), ("0.20", "", "torch", ">=2.11"),
        ("0.27", "", "torch", ">=2.13"), ("0.8", "", "transformers", ">=4.48.2"), ("0.9", "", "transformers", ">=4.51.1"),
        ("0.10", "", "transformers", ">=4.53.2"), ("0.11", "", "transformers", ">=4.55.2"), ("0.12", "0.20", "transformers", ">=4.56,<5"),
        ("0.24", "", "transformers", ">=5.5.3"), ("0.9", "0.11", PYTHON, ">=3.9,<3.13"), ("0.12", "0.20", PYTHON, ">=3.10,<3.14"),
    ),
    "torchvision": tuple((f"0.{15 + n}", f"0.{16 + n}", "torch", f"==2.{n}.*") for n in range(14)),
    "torchaudio": tuple((f"2.{n}", f"2.{n + 1}", "torch", f"==2.{n}.*") for n in range(9)),
}  # fmt: skip

KNOWN_VERSIONS = {
    "transformers": "5.22", "trl": "1.16", "torch": "2.13", "peft": "0.21", "datasets": "5.2", "accelerate": "1.15",
}  # fmt: skip
"""What to propose where a library is not installed here: versions that go together."""
_OLDER_TRL = ("0.27", "0.24", "0.23", "0.21", "0.20", "0.19", "0.18", "0.17")


def needs_of(name: str, wanted: SpecifierSet) -> Iterator[Row]:
    """Yield what every version of a range needs."""
    for at_least, below, other, versions in _ROWS.get(name, ()):
        if lies_in(wanted, at_least, below):
            yield Row(name, at_least, below, other, versions)
    here = installed_version(name)
    if (
        here is not None
        and any(each.operator == "==" and "*" not in each.version for each in wanted)
        and here in wanted
    ):
        for need in installed_needs(name) or ():
            if need.specifier:
                yield Row(name, str(here), str(here), str(canonicalize_name(need.name)), str(need.specifier))


def proposed_bound(name: str, others: dict[str, SpecifierSet]) -> str:
    """Return a bound for a core library that has none, from what is installed here; empty where nothing is known.

    `others` are the bounds that the rest of the header has: a bound that contradicts them is not proposed.
    """
    if name not in CORE:  # others have bounds for these, which are not known here
        return ""
    here = installed_version(name)
    offered = [str(here.public)] if here is not None else []
    if not any(installed_version(each) for each in CORE):  # versions of two sources may not go together
        offered += [KNOWN_VERSIONS[name]] if name in KNOWN_VERSIONS else []
    offered += _OLDER_TRL if name == "trl" else ()
    for each in offered:
        bound = _bound(Version(each))
        if _fits(name, SpecifierSet(bound), others):
            return bound
    return ""


def _fits(name: str, bound: SpecifierSet, others: dict[str, SpecifierSet]) -> bool:
    forward = all(
        have_common(others[row.needs], SpecifierSet(row.range)) for row in needs_of(name, bound) if row.needs in others
    )
    backward = all(
        have_common(bound, SpecifierSet(row.range))
        for other, wanted in others.items()
        for row in needs_of(other, wanted)
        if row.needs == name
    )
    return forward and backward


def _bound(version: Version) -> str:
    """Return a bound from a version on; up to the next that may break scripts."""
    lower = f">={version.major}.{version.minor}"
    return f"{lower},<{version.major + 1}" if version.major else f"{lower}.{version.micro},<0.{version.minor + 1}"
