"""Ranges of versions: whether they have one in common."""

from __future__ import annotations

import pytest
from packaging.specifiers import SpecifierSet

from self_healing.preflight.packages import compatibility
from self_healing.preflight.packages.compatibility import CORE, KNOWN_VERSIONS, needs_of, proposed_bound
from self_healing.preflight.packages.version_ranges import have_common, lies_in


@pytest.mark.parametrize(
    "ranges",
    [
        ("",), (">=2,<3", ">=2.5"), ("==2.4.*", ">2.4.0"), (">=5.0,!=5.0.*,<6",), ("~=1.4", "<1.5"), (">1.0,<1.1",), ("<0.1",),
        ("==1.0+cu121", "==1.0+cu121"), (">=5.0.0rc1", "<5.1"), ("!=1.0", "!=2.0"),
    ],
)  # fmt: skip
def test_ranges_that_meet(ranges):
    assert have_common(*map(SpecifierSet, ranges))


@pytest.mark.parametrize(
    "ranges", [(">=2.6,<2.4",), ("==2.4.0", ">=2.6"), ("~=1.4.2", ">=1.5"), ("<2", "==2.*"), (">3,<=3",)]
)
def test_ranges_that_do_not(ranges):
    assert not have_common(*map(SpecifierSet, ranges))


def test_a_range_lies_in_another_only_as_a_whole():
    assert lies_in(SpecifierSet(">=0.23"), "0.23")
    assert lies_in(SpecifierSet("==0.30.1"), "0.23", "1.0")
    assert not lies_in(SpecifierSet(">=0.22"), "0.23")
    assert not lies_in(SpecifierSet(">=0.23"), "0.23", "1.0")
    assert not lies_in(SpecifierSet(""), "0.23")


@pytest.mark.parametrize("is_installed", [True, False])
def test_the_versions_to_propose_go_together(is_installed, monkeypatch):
    if not is_installed:
        monkeypatch.setattr(compatibility, "installed_version", lambda name: None)
    elif any(compatibility.installed_version(name) is None for name in CORE):
        pytest.skip("not all of them are installed here")
    bounds: dict[str, SpecifierSet] = {}
    for name in CORE:
        bounds[name] = SpecifierSet(proposed_bound(name, bounds))
        assert str(bounds[name]), f"{name}: a bound is found beside {bounds}"
    for name, wanted in bounds.items():
        for row in needs_of(name, wanted):
            if row.needs in bounds:
                assert have_common(bounds[row.needs], SpecifierSet(row.range)), row
    assert set(CORE) <= set(KNOWN_VERSIONS)


def test_an_old_library_gets_an_old_bound_beside_it():
    bound = SpecifierSet(proposed_bound("trl", {"transformers": SpecifierSet("==4.52.4")}))
    assert bound.contains("0.19.0")
    assert not bound.contains("0.21.0")
