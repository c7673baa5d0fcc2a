"""Every family of trackers knows a callback that transformers has, and says what it can do."""

from __future__ import annotations

import pytest

from self_healing.adapters.trainer.trackers import discover_families

FAMILIES = discover_families()
names = pytest.mark.parametrize("family", FAMILIES, ids=lambda family: type(family).__name__)


@pytest.mark.torch
@names
def test_its_callback_is_one_of_transformers(family):
    from transformers import integrations

    assert isinstance(getattr(integrations, family.callback), type)


@names
def test_it_writes_figures_in_one_way(family):
    writes = type(family).around_log is not family.__class__.__mro__[1].around_log
    assert writes is not family.rides_along(), "through its own handle, or with what is logged"


@names
def test_who_can_alert_has_a_way_to(family):
    assert (type(family).alert is not family.__class__.__mro__[1].alert) is family.can_alert()


def test_no_two_know_the_same_callback():
    callbacks = [family.callback for family in FAMILIES]
    assert len(set(callbacks)) == len(callbacks) == 4
