"""A checkpoint folder is complete, holds what was written, and is not sick; or it says in a sentence why not."""

from __future__ import annotations

import json
import os
import pickle
import zipfile

import pytest

from self_healing.snapshots.checkpoint_check import check, differs_beside
from self_healing.snapshots.manifest import BESIDE, FILE_NAME, describe, promote, write_manifest
from self_healing.snapshots.verdicts import NOT_JUDGED, Condition, StateVerdict

pytestmark = pytest.mark.torch


def with_manifest(folder):
    write_manifest(folder, describe(folder, NOT_JUDGED))
    return folder


@pytest.mark.parametrize("weights", ["whole", "bin", "adapter", "adapters", "shards"])
def test_every_layout_is_usable_with_and_without_a_manifest(weights, checkpoint):
    folder = checkpoint(weights=weights)
    found = check(folder, finite=True)
    assert found.problems == ()
    assert not found.verified
    assert "no checksums" in found.remarks[0]
    found = check(with_manifest(folder), finite=True)
    assert (found.problems, found.remarks, found.verified) == ((), (), True)


@pytest.mark.parametrize(
    "name", ["model.safetensors", "optimizer.pt", "scheduler.pt", "rng_state.pth", "trainer_state.json"]
)
def test_a_flipped_bit_in_any_file_is_found_by_the_manifest(name, checkpoint, flip_bit):
    folder = with_manifest(checkpoint())
    flip_bit(folder / name)
    found = check(folder)
    assert not found.is_usable
    assert not found.verified
    assert f"{name} is damaged: its checksum is not the one written down" in found.problems


@pytest.mark.parametrize("damage", ["flipped", "cut", "gone"])
@pytest.mark.parametrize("name", sorted(BESIDE))
def test_what_lies_beside_the_trainers_own_files_costs_no_checkpoint(name, damage, checkpoint, flip_bit):
    folder = checkpoint()
    for each in BESIDE:
        (folder / each).write_text(json.dumps({"v": 1, "counts": {}}))
    with_manifest(folder)
    assert differs_beside(folder) is None
    assert check(folder).verified
    if damage == "flipped":
        flip_bit(folder / name)
    elif damage == "cut":
        (folder / name).write_bytes(b"{")
    else:
        (folder / name).unlink()
    found = check(folder)
    assert found.is_usable
    assert not found.verified
    assert name in found.remarks[0]
    assert found.remarks[1] == "counts and the history of the rules begin anew, as after a stock resume"
    assert name in differs_beside(folder)


def test_a_quick_look_does_not_read_the_weights_and_so_misses_a_flipped_bit(checkpoint, flip_bit):
    folder = with_manifest(checkpoint())
    flip_bit(folder / "model.safetensors")
    assert check(folder, thorough=False).is_usable


@pytest.mark.parametrize("name", ["optimizer.pt", "scheduler.pt", "rng_state.pth"])
def test_without_a_manifest_the_checksums_inside_torchs_files_are_compared(name, checkpoint, flip_bit):
    folder = checkpoint()
    with zipfile.ZipFile(folder / name) as archive:
        entry = next(e for e in archive.infolist() if e.filename.endswith("data.pkl"))
    flip_bit(folder / name, entry.header_offset + 200)
    assert check(folder, thorough=False).is_usable
    (problem,) = check(folder).problems
    assert problem.startswith(f"{name} is damaged")


def test_torchs_files_without_checksums_are_no_damaged_files(checkpoint):
    import torch

    folder = checkpoint()
    torch.serialization.set_crc32_options(False)
    try:
        torch.save({"step": 1}, folder / "optimizer.pt")
    finally:
        torch.serialization.set_crc32_options(True)
    assert check(folder).is_usable


@pytest.mark.parametrize("has_manifest", [False, True])
@pytest.mark.parametrize("kept", [0, 4, 300, -1])
@pytest.mark.parametrize("name", ["model.safetensors", "optimizer.pt", "scheduler.pt", "rng_state.pth"])
def test_a_truncated_file_is_found(name, kept, has_manifest, checkpoint):
    folder = with_manifest(checkpoint()) if has_manifest else checkpoint()
    path = folder / name
    os.truncate(path, kept if kept >= 0 else path.stat().st_size + kept)
    found = check(folder, thorough=False)
    assert found.problems
    assert all(name in problem for problem in found.problems)


def test_a_quick_look_compares_the_sizes_of_all_files_with_the_manifest(checkpoint):
    folder = checkpoint()
    (folder / "tokenizer.json").write_text("{...}")
    with_manifest(folder)
    (folder / "tokenizer.json").write_text("{..}")
    assert check(folder, thorough=False).problems == ("tokenizer.json has 4 bytes where 5 were written",)


def test_bytes_after_the_weights_are_found(checkpoint):
    folder = checkpoint()
    with (folder / "model.safetensors").open("ab") as file:
        file.write(b"more")
    (problem,) = check(folder).problems
    assert "cut off or grown" in problem


@pytest.mark.parametrize(
    "header",
    [
        [],
        {"w": 1},
        {"w": {"dtype": "F32", "shape": [3], "data_offsets": [0, 8]}},
        {"w": {"dtype": "F32", "shape": [2], "data_offsets": [4, 12]}},
        {"w": {"dtype": "F32", "shape": [-2], "data_offsets": [0, -8]}},
    ],
)
def test_a_header_that_cannot_be_right_is_found(header, checkpoint):
    folder = checkpoint()
    text = json.dumps(header).encode()
    (folder / "model.safetensors").write_bytes(len(text).to_bytes(8, "little") + text + bytes(8))
    (problem,) = check(folder).problems
    assert problem.startswith("model.safetensors is damaged")


@pytest.mark.parametrize(
    ("name", "instead"), [("optimizer.pt", "optimizer"), ("scheduler.pt", "learning-rate schedule")]
)
def test_a_missing_optimizer_or_scheduler_is_a_problem_and_not_a_silent_reset(name, instead, checkpoint):
    folder = checkpoint()
    (folder / name).unlink()
    assert check(folder).problems == (f"{name} is missing: training would go on with a fresh {instead}",)


def test_what_the_manifest_lists_and_is_gone_was_lost(checkpoint):
    folder = with_manifest(checkpoint())
    (folder / "optimizer.pt").unlink()
    assert check(folder, model_only=True).problems == ("optimizer.pt is missing",)


def test_a_folder_of_save_only_model_is_no_checkpoint_to_resume_from_unless_the_run_saves_only_that(checkpoint):
    folder = with_manifest(checkpoint(optimizer=False))
    assert len(check(folder).problems) == 2
    found = check(folder, model_only=True)
    assert found.is_usable
    assert found.remarks == ("it holds the model only: the optimizer and its schedule start anew",)


def test_a_missing_random_state_is_only_remarked(checkpoint):
    folder = checkpoint()
    (folder / "rng_state.pth").unlink()
    found = check(folder)
    assert found.is_usable
    assert any("rng_state.pth" in remark for remark in found.remarks)


@pytest.mark.parametrize("has_manifest", [False, True])
@pytest.mark.parametrize("name", ["model.safetensors", "optimizer.pt", "trainer_state.json"])
def test_a_folder_or_a_dead_link_or_a_pipe_in_the_place_of_a_file_is_said(name, has_manifest, checkpoint):
    folder = with_manifest(checkpoint()) if has_manifest else checkpoint()
    path = folder / name
    path.unlink()
    path.mkdir()
    assert f"{name} is a folder, not a file" in check(folder).problems
    path.rmdir()
    path.symlink_to("nowhere")
    assert f"{name} is a link that leads nowhere" in check(folder).problems
    path.unlink()
    os.mkfifo(path)
    assert f"{name} cannot be read: it is not a regular file" in check(folder).problems


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
@pytest.mark.parametrize("name", ["model.safetensors", "optimizer.pt", "trainer_state.json", FILE_NAME])
def test_a_file_that_may_not_be_read_is_said(name, checkpoint):
    folder = with_manifest(checkpoint())
    (folder / name).chmod(0)
    assert f"{name} cannot be read: Permission denied" in check(folder).problems


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
@pytest.mark.parametrize("mode", [0o000, 0o400, 0o100])
def test_a_folder_that_may_not_be_read_is_said(mode, checkpoint):
    folder = checkpoint()
    folder.chmod(mode)
    try:
        assert check(folder).problems
    finally:
        folder.chmod(0o700)


@pytest.mark.parametrize("state", ["", "[]", '{"global_step": "30"}', '{"global_step": 20}', "[" * 100_000])
def test_a_trainer_state_that_is_damaged_or_of_another_step_is_a_problem(state, checkpoint):
    folder = checkpoint()
    (folder / "trainer_state.json").write_text(state)
    (problem,) = check(folder).problems
    assert problem.startswith("trainer_state.json is ")


def test_shards_that_are_missing_damaged_or_lack_a_tensor_are_said(checkpoint):
    folder = checkpoint(weights="shards")
    first, second = sorted(folder.glob("model-*"))
    os.truncate(first, first.stat().st_size - 1)
    second.unlink()
    told = " ".join(check(folder).problems)
    assert f"{first.name} has" in told
    assert f"{second.name} is missing" in told
    first.unlink()
    from safetensors.torch import save_file
    from torch import ones

    for path in (first, second):
        save_file({"other": ones(1)}, path)
    assert len([p for p in check(folder).problems if "which the index promises" in p]) == 2
    index = folder / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {"w": "../model.safetensors"}}))
    assert "is no file beside it" in check(folder).problems[0]


def test_no_weights_at_all_is_a_problem(checkpoint):
    folder = checkpoint(weights="none")
    assert check(folder).problems == ("there are no weights",)


@pytest.mark.parametrize("weights", ["whole", "bin", "adapter", "shards"])
def test_values_that_are_not_finite_are_found_where_asked_for(weights, checkpoint):
    import torch
    from safetensors.torch import load_file, save_file

    folder = checkpoint(weights=weights)
    path = max([*folder.glob("*.safetensors"), *folder.glob("*.bin")])
    tensors = load_file(path) if path.suffix == ".safetensors" else torch.load(path, weights_only=True)
    name = max(tensors)
    tensors[name].view(-1)[-1] = float("inf")
    if path.suffix == ".safetensors":
        save_file(tensors, path)
    else:
        torch.save(tensors, path)
    assert check(folder).is_usable
    assert check(folder, finite=True).problems == (f"{path.name} holds values that are not finite: {name}",)
    promote(with_manifest(folder), StateVerdict(Condition.INTACT, "finite, but for what never was"))
    assert check(folder, finite=True).verified


def test_odd_kinds_of_tensors_are_looked_at_piece_by_piece(checkpoint, monkeypatch):
    import torch
    from safetensors.torch import save_file

    monkeypatch.setattr("self_healing.snapshots.file_checks._AT_ONCE", 8)
    folder = checkpoint()
    eight = torch.ones(5, 3).to(torch.float8_e4m3fn)
    tensors = {"one": torch.tensor(1.0), "empty": torch.zeros(0, 4), "whole": torch.arange(9), "eight": eight,
               "half": torch.ones(7, 3, dtype=torch.bfloat16)}  # fmt: skip
    save_file(tensors, folder / "model.safetensors")
    assert check(folder, finite=True).problems == ()
    tensors["half"][6, 2] = float("nan")
    tensors["eight"] = torch.full((5, 3), float("nan")).to(torch.float8_e4m3fn)
    save_file(tensors, folder / "model.safetensors")
    (problem,) = check(folder, finite=True).problems
    assert "eight, half" in problem


def test_nothing_in_a_checkpoint_is_executed(checkpoint, tmp_path):
    import torch

    class Trap:
        def __reduce__(self):
            return os.mkdir, (str(tmp_path / "executed"),)

    folder = checkpoint(weights="bin")
    torch.save({"w": Trap()}, folder / "pytorch_model.bin", pickle_module=pickle)
    torch.save(Trap(), folder / "optimizer.pt", pickle_module=pickle)
    weights, optimizer = check(folder, finite=True).problems
    assert weights == "pytorch_model.bin cannot be loaded: it holds more than tensors"
    assert "optimizer.pt was not unpickled, for it holds more than tensors and plain values (`posix.mk" in optimizer
    assert not (tmp_path / "executed").exists()


PLACE = {"epoch": 1, "index": 0, "fetched": 1, "number": 4, "steps": 4, "owed": 0, "left_out": [], "start": None}


@pytest.mark.parametrize(
    ("place", "why"),
    [
        ("null", None),
        (json.dumps({**PLACE, "is_between": False}), None),
        ("{", "healing_place.json is damaged: "),
        ('{"a": 1}', "healing_place.json is damaged: it does not say where the data stood"),
        (json.dumps(PLACE), "healing_place.json is damaged: it does not say where the data stood"),
    ],
)
def test_where_the_data_of_a_loop_stood_must_be_told(place, why, checkpoint):
    folder = checkpoint(weights="bin")
    (folder / "healing_place.json").write_text(place)
    found = check(folder).problems
    assert found == () if why is None else [why in problem for problem in found] == [True]
    (folder / "rng_state.pth").unlink()
    assert check(folder).problems[-1] == "rng_state.pth is missing: the loop would go on with other random numbers"


def test_a_sick_checkpoint_is_complete_and_not_usable(checkpoint):
    folder = with_manifest(checkpoint())
    assert promote(folder, StateVerdict(Condition.SICK, "divergence began at step 21"))
    found = check(folder)
    assert (found.problems, found.is_usable) == ((), False)
    assert found.why_not == ("it is marked sick: divergence began at step 21",)


@pytest.mark.parametrize("text", ["", "{", "{}", '{"v": 1}', "[" * 100_000])
def test_a_manifest_that_cannot_be_understood_is_a_problem(text, checkpoint):
    folder = checkpoint()
    (folder / FILE_NAME).write_text(text)
    (problem,) = check(folder).problems
    assert problem.startswith(f"{FILE_NAME} is damaged")


@pytest.mark.parametrize("left_out", ["optimizer.pt", "trainer_state.json", "model-00001-of-00002.safetensors"])
def test_a_checkpoint_is_verified_only_where_all_that_a_resume_needs_has_a_checksum(left_out, checkpoint, flip_bit):
    folder = with_manifest(checkpoint(weights="shards"))
    manifest = json.loads((folder / FILE_NAME).read_text())
    del manifest["files"][left_out]
    (folder / FILE_NAME).write_text(json.dumps(manifest))
    found = check(folder)
    assert (found.is_usable, found.verified) == (True, False)
    assert found.remarks == (f"its manifest has no checksum of {left_out}: only their structure was looked at",)
    if left_out == "optimizer.pt":  # so that the checksums inside of it count
        flip_bit(folder / left_out)
        assert not check(folder).is_usable


def test_a_shard_whose_name_no_file_can_have_is_told_and_not_raised(checkpoint):
    folder = checkpoint(weights="shards")
    (folder / "model.safetensors.index.json").write_text('{"weight_map": {"a": "x\\ud800"}}')
    assert "is no file beside it" in check(folder).problems[0]


def test_a_manifest_of_another_checkpoint_is_a_problem(checkpoint):
    folder = with_manifest(checkpoint())
    other = checkpoint(20)
    (folder / FILE_NAME).rename(other / FILE_NAME)
    assert "its manifest is of step 30" in check(other).problems


def test_what_an_interrupted_writer_leaves_makes_the_folder_unverified_and_no_more(checkpoint):
    folder = checkpoint()
    (folder / f".{FILE_NAME}.0a1b2c3d.tmp").write_text('{"v": 1, "st')
    found = check(folder)
    assert (found.is_usable, found.verified) == (True, False)
    assert check(with_manifest(folder)).verified


def test_a_folder_that_is_gone_or_is_a_file_is_a_problem(tmp_path):
    assert check(tmp_path / "checkpoint-1").problems == ("there is no such folder",)
    (tmp_path / "checkpoint-2").write_text("")
    assert check(tmp_path / "checkpoint-2").problems == ("there is no such folder",)


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
def test_what_fsdp_writes_is_known(checkpoint):
    import torch
    from torch.distributed import checkpoint as distributed

    folder = checkpoint(weights="none")
    (folder / "optimizer.pt").unlink()
    for name in ("pytorch_model_fsdp_0", "optimizer_0"):
        distributed.save({"w": torch.ones(3)}, checkpoint_id=folder / name, no_dist=True)
    assert check(folder).problems == ()
    (folder / "optimizer_0" / ".metadata").unlink()
    assert check(folder).problems == ("optimizer_0 is incomplete: .metadata is missing",)


def test_what_deepspeed_writes_is_known(checkpoint):
    folder = checkpoint(weights="none")
    for name in ("optimizer.pt", "scheduler.pt"):
        (folder / name).unlink()
    (folder / "global_step30").mkdir()
    (folder / "global_step30" / "mp_rank_00_model_states.pt").write_bytes(b"x")
    (folder / "latest").write_text("global_step30")
    assert check(folder).problems == ()
    (folder / "latest").write_text("global_step40")
    assert check(folder).problems == ("latest names 'global_step40', which is not there",)
