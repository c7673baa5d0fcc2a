"""The check `versions-contradict`: a PEP 723 header that no set of versions satisfies."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

from packaging.specifiers import SpecifierSet
from packaging.version import Version

from ..check import Check, Example
from ..finding import Finding
from ..packages.compatibility import PYTHON, needs_of
from ..packages.dependencies import place_of, with_header
from ..packages.header import Header, Listed
from ..packages.version_ranges import have_common
from ..subject import Script, Subject
from ..tools import Tools

_HEAD = "# /// script\n# dependencies = [{}]\n# ///\n"


class VersionsContradict(Check):
    """The version ranges of a PEP 723 header can be had together.

    uv ends before the script starts: `No solution found when resolving script dependencies`. Which releases need which is
    known from their own metadata: trl 0.23 and later, for example, need transformers 4.56.1.
    """

    passes = (
        Example(_HEAD.format('"trl>=0.23", "transformers>=4.56.1,<5"')), Example(_HEAD.format('"trl", "transformers==4.40.0"')),
        Example(_HEAD.format('"torch==2.6.*", "torchvision==0.21.0"')), Example(_HEAD.format('"torch>=2.4,!=2.5.0,<3"')),
    )  # fmt: skip
    fails = (
        Example(_HEAD.format('"trl>=0.23", "transformers<4.50"')), Example(_HEAD.format('"torch>=2.6,<2.4"')),
        Example(_HEAD.format('"torch==2.4.0", "torchvision==0.21.0"')), Example(_HEAD.format('"torch>=2.6", "torch==2.4.0"')),
    )  # fmt: skip

    def run(self, subject: Subject, tools: Tools) -> Iterator[Finding]:
        """Compare the ranges with themselves, with each other, and with what the releases need."""
        for script, header, _ in with_header(subject):
            plain = [each for each in header.listed if each.requirement.marker is None]
            by_name: dict[str, list[Listed]] = {}
            for each in plain:
                by_name.setdefault(each.name, []).append(each)
            for same in by_name.values():
                yield from self._of_one(script, same)
            yield from self._of_pairs(script, header, by_name)

    def _of_one(self, script: Script, same: list[Listed]) -> Iterator[Finding]:
        for each in same:
            if not have_common(each.requirement.specifier):
                yield self.error(
                    place_of(script, each.line), f"{each.text}: no version is in this range",
                    f"Write a range whose lower end is below its upper one, such as {each.name}>=1.2,<2",
                )  # fmt: skip
                return
        for first, second in pairwise(same):
            if not have_common(first.requirement.specifier, second.requirement.specifier):
                yield self.error(
                    place_of(script, second.line), f"{second.text} contradicts {first.text} in line {first.line}",
                    f"Keep one of the two lines: delete {first.text!r} or {second.text!r}",
                )  # fmt: skip

    def _of_pairs(self, script: Script, header: Header, by_name: dict[str, list[Listed]]) -> Iterator[Finding]:
        told: set[tuple[str, str]] = set()
        for name, same in by_name.items():
            wanted = _together(same)
            rows = (
                sorted(needs_of(name, wanted), key=lambda row: Version(row.at_least), reverse=True)
                if have_common(wanted)
                else []
            )
            for row in rows:
                other = by_name.get(row.needs)
                if (
                    row.needs == PYTHON
                    or other is None
                    or (name, row.needs) in told
                    or not have_common(_together(other))
                ):
                    continue
                if not have_common(_together(other), SpecifierSet(row.range)):
                    told.add((name, row.needs))
                    yield self.error(
                        place_of(script, other[0].line),
                        f"{other[0].text} does not go with {same[0].text}: {name} from {row.at_least} on needs "
                        f"{row.needs}{row.range}",
                        f"Write {row.needs}{row.range} in the header, or a version of {name} below {row.at_least}",
                    )  # fmt: skip


def _together(same: list[Listed]) -> SpecifierSet:
    together = SpecifierSet()
    for each in same:
        together &= each.requirement.specifier
    return together
