"""A checkpoint whose files are written over, by us or by others, is told from one that is whole and from one that is damaged."""

from __future__ import annotations

import json
import os
import time

import pytest

from self_healing.snapshots.checkpoint_check import check, differs_beside
from self_healing.snapshots.disk_tier import DiskTier
from self_healing.snapshots.manifest import BESIDE, FILE_NAME, describe, read_manifest, write_manifest
from self_healing.snapshots.manifest_writer import ManifestWriter
from self_healing.snapshots.resume import choose
from self_healing.snapshots.verdicts import NOT_JUDGED, Condition, StateVerdict

from .conftest import write_checkpoint

pytestmark = pytest.mark.torch

INTACT = StateVerdict(Condition.INTACT, "finite")
SICK = StateVerdict(Condition.SICK, "loss-spike began at step 20")
DAMAGED = "model.safetensors is damaged: its checksum is not the one written down"


def with_manifest(folder, verdict=NOT_JUDGED):
    write_manifest(folder, describe(folder, verdict))
    return folder


def make_newer(path, than):
    later = than.stat().st_mtime_ns + 1
    os.utime(path, ns=(later, later))


def written_over(folder, *, but=()):
    """Write another training's files over those of a checkpoint, as one does that knows of no manifest."""
    other = write_checkpoint(folder.parent / "other", 30, seed=1)
    (other / "trainer_state.json").write_text(json.dumps({"global_step": 30, "log_history": [{"loss": 1.5}]}))
    for path in other.iterdir():
        if path.name not in but:
            (folder / path.name).write_bytes(path.read_bytes())
            make_newer(folder / path.name, folder / FILE_NAME)
    return folder


@pytest.mark.parametrize("thorough", [True, False])
@pytest.mark.parametrize("verdict", [NOT_JUDGED, SICK])
def test_a_manifest_of_files_that_were_written_over_says_nothing_of_the_new_ones(verdict, thorough, checkpoint):
    folder = checkpoint()
    for name in BESIDE:
        (folder / name).write_text("{}")
    found = check(written_over(with_manifest(folder, verdict)), thorough=thorough, finite=True)
    assert found.is_usable
    assert not found.verified
    assert found.verdict == NOT_JUDGED
    assert found.remarks[0] == "its manifest is of older files, which were written over by what writes none"
    assert differs_beside(folder) == found.remarks[0], "what was counted then is of another training"


def test_a_checkpoint_that_others_have_only_half_written_over_is_damaged(checkpoint):
    folder = written_over(with_manifest(checkpoint()), but=("rng_state.pth", "trainer_state.json"))
    assert DAMAGED in check(folder).problems


def test_a_damaged_file_in_a_copy_with_other_times_is_found_all_the_same(checkpoint, flip_bit):
    folder = with_manifest(checkpoint())
    flip_bit(folder / "model.safetensors")
    for path in folder.iterdir():
        if path.name != FILE_NAME:
            make_newer(path, folder / FILE_NAME)
    assert check(folder).problems == (DAMAGED,)


def test_a_sick_checkpoint_whose_state_was_edited_stays_sick(checkpoint):
    folder = with_manifest(checkpoint(), SICK)
    (folder / "trainer_state.json").write_text(json.dumps({"global_step": 30, "save_steps": 7}))
    make_newer(folder / "trainer_state.json", folder / FILE_NAME)
    assert check(folder).verdict == SICK


def test_what_is_written_over_file_by_file_is_no_checkpoint_until_that_is_done(checkpoint):
    folder, tier = checkpoint(), DiskTier()
    os.utime(folder, (1_700_000_000, 1_700_000_000))
    with tier.saving():
        tier.marked_first(folder, INTACT, writes_over=True)
        assert folder.stat().st_mtime > 1_700_000_001, "a trainer would delete it as the oldest"
        (passed,) = choose(folder.parent).passed_over
    assert passed.why == "it is marked sick: it was being written over, and that has not come to its end"
    tier.saved(folder, INTACT)
    assert tier.close(60)
    assert choose(folder.parent).checked.verified
    assert read_manifest(folder).verdict == INTACT
    with tier.saving():
        tier.marked_first(folder, INTACT, writes_over=True)
        assert choose(folder.parent).checked.verified, "its manifest tells by itself what is written over"
        tier.marked_first(folder, SICK, writes_over=True)
        assert read_manifest(folder).files == {}
    assert choose(folder.parent).path is None


def test_what_was_being_hashed_when_it_was_written_over_gets_no_manifest_of_a_mixture(checkpoint):
    folder, writer = checkpoint(), ManifestWriter()
    with writer.standing_still():
        writer.request(folder, INTACT)
        while writer._waiting:
            time.sleep(0.01)
        time.sleep(0.2)  # it is read by now, and waits to be put in place
        writer.is_written_over(folder)
    assert writer.finish(60)
    assert read_manifest(folder) is None
