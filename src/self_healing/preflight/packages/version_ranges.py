"""Whether ranges of versions have a version in common."""

from __future__ import annotations

from collections.abc import Iterator

from packaging.specifiers import SpecifierSet
from packaging.version import InvalidVersion, Version


def have_common(*ranges: SpecifierSet) -> bool:
    """Say whether some version lies in all ranges.

    Ranges begin and end at versions that they name, so it is enough to try those and their neighbours. Where only
    versions that nobody would release lie between two ends, they count as having something in common.
    """
    together = SpecifierSet()
    for each in ranges:
        together &= each
    return any(together.contains(version, prereleases=True) for version in _candidates(together))


def lies_in(inner: SpecifierSet, at_least: str, below: str = "") -> bool:
    """Say whether every version of a range is at least one version, and below another."""
    if not have_common(inner):
        return False
    too_high = bool(below) and have_common(inner, SpecifierSet(f">={below}"))
    return not too_high and not have_common(inner, SpecifierSet(f"<{at_least}"))


def _candidates(ranges: SpecifierSet) -> Iterator[Version]:
    yield Version("0")
    for each in ranges:
        try:
            version = Version(each.version.removesuffix(".*"))
        except InvalidVersion:  # `===` takes any text
            continue
        yield version
        release = version.release
        for place in range(len(release)):
            yield _made((*release[:place], release[place] + 1), version.epoch)
        for longer in ((0, 0, 1), (0, 0, 2), (1,)):
            yield _made((*release, *longer), version.epoch)
        if any(release):
            yield _made(_just_below(release), version.epoch)


def _just_below(release: tuple[int, ...]) -> tuple[int, ...]:
    last = max(place for place, number in enumerate(release) if number)
    return (*release[:last], release[last] - 1, 99_999)


def _made(release: tuple[int, ...], epoch: int) -> Version:
    text = ".".join(map(str, release))
    return Version(f"{epoch}!{text}" if epoch else text)
