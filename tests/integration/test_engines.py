"""What else runs a trainer's steps: a GradScaler, torch.compile, several processes, and engines that step themselves."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from contextlib import ExitStack, suppress
from importlib.metadata import version
from pathlib import Path

import pytest

from self_healing import HealingConfig, UnrecoverableError
from self_healing.adapters.engines import COMPILED, DEEPSPEED, FSDP1, GRAD_SCALER, Surroundings, engines_of
from self_healing.adapters.trainer.trainer_session import TrainerSession
from self_healing.adapters.transformers import SelfHealingTrainer
from self_healing.core.discover import discover_classes
from self_healing.core.failure import Mode
from self_healing.core.ledger import read_ledger
from self_healing.drills.disk_faults import CannotMountError, small_disk
from self_healing.drills.fault import Fault
from self_healing.drills.tiny_training import tiny_model, tiny_trainer
from self_healing.drills.trained import losses, weights

pytestmark = pytest.mark.torch
FAULTS = discover_classes("self_healing.drills.faults", Fault)


@pytest.fixture(autouse=True)
def environment_is_put_back():
    """The arguments of a trainer leave precision and compilation in the environment, for all that come after."""
    before = dict(os.environ)
    yield
    os.environ.clear()
    os.environ.update(before)


def entries(folder):
    return read_ledger(Path(folder) / "healing" / "ledger.jsonl").entries


def incidents(folder):
    return [e.name for e in entries(folder) if e.kind in ("incident", "plan") and e.name != "throughput-drop"]


def notes(folder):
    return [e.name for e in entries(folder) if e.kind == "note" and e.name not in ("run-ended", "goodput")]


# -- GradScaler --------------------------------------------------------------------------------------


def scaled(folder, *, first_scale=2.0**22, **arguments):
    """Return a trainer in float16 with a real scaler; accelerate makes one by itself only where there is a GPU."""
    import torch

    trainer = tiny_trainer(folder, fp16=True, **{"max_steps": 16, "logging_steps": 4, **arguments})
    trainer.accelerator.scaler = torch.amp.GradScaler("cpu", init_scale=first_scale)
    trainer.accelerator.native_amp = True
    return trainer


@pytest.mark.parametrize("mode", ["heal", "observe"])
@pytest.mark.parametrize(
    "arguments", [{}, {"optim": "adamw_torch"}, {"max_grad_norm": 0.0}], ids=["fused", "not-fused", "unclipped"]
)
def test_a_scaler_that_looks_for_its_scale_is_no_trouble(arguments, mode, tmp_path):
    stock = scaled(tmp_path / "stock", **arguments)
    stock.train()
    assert stock.accelerator.scaler.get_scale() < 2.0**20, "it overflowed more than twice"
    trainer = scaled(tmp_path / "guarded", **arguments)
    output = SelfHealingTrainer(trainer, HealingConfig(mode=mode)).train()
    assert weights(trainer).equal(weights(stock))
    assert losses(trainer) == losses(stock)
    assert trainer.accelerator.scaler.get_scale() == stock.accelerator.scaler.get_scale()
    assert incidents(tmp_path / "guarded") == []
    assert output.metrics["healing/made_up_steps"] == output.metrics["healing/skipped_steps"] == 0
    assert notes(tmp_path / "guarded") == ["engine-grad-scaler"]


def test_the_norm_of_scaled_gradients_is_that_of_the_gradients(tmp_path):
    reported = {}
    for scale in (1.0, 1024.0):
        trainer = scaled(tmp_path / str(scale), first_scale=scale, max_grad_norm=0.0, max_steps=3)
        SelfHealingTrainer(trainer).train()
        seen = [e.body["values"] for e in entries(tmp_path / str(scale)) if e.kind == "signal" and e.name == "metrics"]
        reported[scale] = [values["grad_norm"] for values in seen if "grad_norm" in values]
    assert reported[1024.0] == pytest.approx(reported[1.0], rel=0.05)


def test_gradients_that_overflow_at_any_scale_are_an_incident(tmp_path):
    trainer = scaled(tmp_path, first_scale=4.0)
    parameter = next(p for p in trainer.model.parameters() if p.requires_grad)
    parameter.register_hook(lambda gradient: gradient * float("inf"))
    with pytest.raises(UnrecoverableError):
        SelfHealingTrainer(trainer).train()
    first = next(e for e in entries(tmp_path) if e.kind == "incident")
    assert first.name == "gradient-not-finite"
    assert first.step == 3, "two halvings make a scale of one; the third overflow is not the scale's"


def test_a_nan_loss_is_an_incident_with_a_scaler_too(tmp_path):
    trainer = scaled(tmp_path, first_scale=2.0)
    FAULTS["nan-loss"](at_step=9).plant(trainer)
    SelfHealingTrainer(trainer).train()
    assert {"loss-not-finite", "gradient-not-finite"} <= set(incidents(tmp_path)), "the norm is not kept back"
    assert weights(trainer).isfinite().all(), "the scaler has skipped it"


# -- torch.compile -----------------------------------------------------------------------------------


def compiled(folder, how, model=None, **arguments):
    import torch

    model = tiny_model() if model is None else model
    arguments = {"max_steps": 16, "logging_steps": 4, **arguments}
    if how == "by-arguments":
        return tiny_trainer(folder, model=model, torch_compile=True, torch_compile_backend="aot_eager", **arguments)
    if how == "wrapped":
        model = torch.compile(model, backend="aot_eager")
        return tiny_trainer(folder, model=model, remove_unused_columns=False, **arguments)
    model.compile(backend="aot_eager")
    return tiny_trainer(folder, model=model, **arguments)


@pytest.mark.parametrize("how", ["by-arguments", "wrapped", "in-place"])
def test_a_compiled_model_is_guarded_like_any_other(how, tmp_path):
    stock, guarded, healed = (compiled(tmp_path / name, how) for name in ("stock", "guarded", "healed"))
    assert engines_of(stock) == [COMPILED]
    stock.train()
    SelfHealingTrainer(guarded).train()
    FAULTS["nan-loss"](at_step=9).plant(healed)
    output = SelfHealingTrainer(healed).train()
    assert output.metrics["healing/made_up_steps"] == 1
    for trainer in (guarded, healed):
        assert weights(trainer).equal(weights(stock))
        assert losses(trainer) == losses(stock)
    assert incidents(tmp_path / "guarded") == []
    assert notes(tmp_path / "guarded") == ["engine-torch-compile"]


@pytest.mark.parametrize("how", ["by-arguments", "wrapped", "in-place"])
def test_the_probe_names_the_module_inside_a_compiled_model(how, tmp_path):
    import torch

    model = tiny_model()
    with torch.no_grad():
        for name in ("gate_proj", "up_proj", "down_proj"):  # each by itself is a number that a weight may be
            model.model.layers[1].mlp.get_submodule(name).weight.mul_(1e17)
    with pytest.raises(UnrecoverableError):
        SelfHealingTrainer(compiled(tmp_path, how, model)).train()
    facts = [e.body["facts"] for e in entries(tmp_path) if e.name == "facts" and "nan_module" in e.body["facts"]]
    assert facts[0]["nan_module"] == "model.layers.1.mlp.down_proj"


# -- several processes -------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def together(tmp_path_factory):
    """What each of two processes saw that trained together."""
    folder = tmp_path_factory.mktemp("together")
    disk = ExitStack()
    with suppress(CannotMountError):
        disk.enter_context(small_disk(folder / "small", 2_000_000))
    script = str(Path(__file__).with_name("together.py"))
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    with disk, subprocess.Popen([*launcher, script, str(folder)], stderr=subprocess.PIPE, text=True) as process:
        try:
            _, told = process.communicate(timeout=150)
        finally:  # processes that no longer do the same wait for each other; the launcher ends them
            process.terminate()
    assert process.returncode == 0, told
    return [json.loads((folder / f"rank{rank}.json").read_text()) for rank in (0, 1)]


def test_two_processes_are_neutral_when_healthy(together):
    for seen in together:
        assert seen["healthy"]["weights"] == seen["stock"]["weights"]
        assert seen["healthy"]["losses"] == seen["stock"]["losses"]
        assert seen["healthy"]["incidents"] == []
        assert "engine-several-processes" in seen["healthy"]["notes"]


def test_a_transient_fault_in_one_process_leaves_no_trace_in_either(together):
    for seen in together:
        assert seen["once"]["weights"] == seen["stock"]["weights"]
        assert seen["once"]["losses"] == seen["stock"]["losses"]
        assert seen["once"]["figures"]["healing/made_up_steps"] == 1


def test_a_lasting_fault_in_one_process_is_answered_alike_by_both(together):
    first, second = (seen["always"] for seen in together)
    assert first["weights"] == second["weights"]
    assert first["finite"]
    for figures in (first["figures"], second["figures"]):
        assert 0 < figures.pop("healing/goodput") < 1  # each has its own clock
    assert first["figures"] == second["figures"]
    assert first["figures"]["healing/replaced_steps"] >= 1


def test_a_loss_that_is_nan_in_one_process_alone_does_not_part_them(together):
    first, second = (seen["apart"] for seen in together)
    assert first["weights"] == second["weights"], "its gradients were finite, so both have applied the step"
    assert first["finite"]


def test_what_one_process_wishes_is_voted_on_and_done_by_both_at_the_same_step(together):
    first, second = (seen["voted"] for seen in together)
    assert first["outcomes"] == second["outcomes"]
    assert first["outcomes"][0] == [15, "loss-not-finite", "roll-back", True, 1]
    assert first["weights"] == second["weights"] != together[0]["stock"]["weights"]
    assert first["finite"]


def test_weights_that_are_broken_in_one_process_are_returned_from_by_both(together):
    first, second = (seen["weight"] for seen in together)
    assert first["weights"] == second["weights"] == together[0]["stock"]["weights"]
    assert [seen["figures"]["healing/rollbacks"] for seen in (first, second)] == [1, 1]
    assert first["outcomes"] == second["outcomes"] != []


def test_a_process_that_runs_out_of_memory_in_its_forward_pass_gets_through_by_itself(together):
    first, second = (seen["memory"] for seen in together)
    assert first["weights"] == second["weights"] == together[0]["stock"]["weights"]
    assert second["figures"]["healing/out_of_memory"] >= 1


RANDOM_NUMBERS = {"rng_state_0.pth", "rng_state_1.pth"}


def test_checkpoints_of_two_processes_get_manifests_that_say_what_is_sick(together):
    kept = together[0]["saved"]["kept"]
    assert {name: verdict for name, (verdict, _, _) in kept.items()} == {
        "checkpoint-4": "intact",
        "checkpoint-8": "intact",
        "checkpoint-12": "sick",
        "checkpoint-13": "sick",
    }
    assert all(set(files) >= {"model.safetensors", "optimizer.pt"} | RANDOM_NUMBERS for _, files, _ in kept.values())


def test_two_processes_go_on_from_the_newest_checkpoint_that_is_neither_sick_nor_damaged(together):
    first, second = (seen["saved"] for seen in together)
    if "trained" not in first:
        pytest.skip("before transformers 5 the stock trainer cannot resume on several processes of a CPU")
    assert first["trained"] == second["trained"] == [5, 6], "checkpoint-8 was damaged"
    assert first["weights"] == second["weights"]


def test_two_processes_whose_disks_hold_different_checkpoints_agree_on_one(together):
    assert [seen["saved"]["agreed"] for seen in together] == [4, 4]


def test_a_full_disk_costs_two_processes_checkpoints_and_not_the_run(together):
    if "refused" not in together[0]:
        pytest.skip("this process may not mount a small disk")
    first, second = (seen["refused"] for seen in together)
    assert first["weights"] == second["weights"]
    assert first["best"] == "checkpoint-24"
    if not version("transformers").startswith("4."):  # there one may look for the folder before the other has made it
        assert second["best"] == "checkpoint-24"
    assert first["not_written"] == 2
    assert first["losses"] == second["losses"]
    assert sorted(first["checkpoints"]) == ["checkpoint-18", "checkpoint-24"], "nothing is left of those given up"
    assert first["said"] == ["checkpoint-12 was written from host memory", True], "it was given up by another way"
    for verdict, files, is_usable in first["checkpoints"].values():
        assert (verdict, is_usable) == ("intact", True)
        assert set(files) >= RANDOM_NUMBERS


def test_two_processes_load_the_same_checkpoint_in_the_place_of_a_sick_best(together):
    first, second = (seen["best"] for seen in together)
    assert first["best"] == second["best"] == "checkpoint-25", "checkpoint-50 is the best by what was measured"
    assert first["weights"] == second["weights"]


def test_a_process_that_fails_alone_saves_without_the_other_and_leaves(together):
    first, second = (seen["left"] for seen in together)
    assert first["error"] == "KeyError"
    assert second["error"] is not None, "it does not wait for a process that has left"
    ((name, (verdict, _, is_usable)),) = first["checkpoints"].items()
    assert (name, verdict, is_usable) == ("checkpoint-9", "intact", True)


def test_nothing_is_done_and_nobody_is_named_where_both_are_healthy(together):
    for seen in together:
        assert seen["healthy"]["outcomes"] == []
        assert "rank-absent" not in seen["healthy"]["notes"]


# -- engines that step themselves --------------------------------------------------------------------


def under(engine, folder):
    """Return a trainer that says of itself that it runs under an engine which cannot run here."""
    from accelerate.utils import DistributedType

    trainer = tiny_trainer(folder, max_steps=4)
    trainer.is_deepspeed_enabled = engine == "deepspeed"
    if engine != "deepspeed":
        trainer.accelerator.state.distributed_type = DistributedType[engine]
    return trainer


@pytest.fixture
def distributed_type_is_put_back():
    from accelerate.state import AcceleratorState, PartialState

    yield
    AcceleratorState._reset_state(reset_partial_state=True)
    assert not PartialState._shared_state


@pytest.mark.usefixtures("distributed_type_is_put_back")
@pytest.mark.parametrize("engine", ["deepspeed", "MEGATRON_LM", "XLA"])
def test_an_engine_that_steps_itself_is_only_watched(engine, tmp_path):
    session = TrainerSession(under(engine, tmp_path), HealingConfig(), Mode.HEAL)
    try:
        session.attach()
        assert session.mode is Mode.ADVISE
        assert session.desk.healer.settings.mode is Mode.ADVISE
        assert not session.guard.acts
        assert not session.guard.clips
        session.trainer.state.global_step = 1
        assert "every process must take part" in session.emergency_checkpoint()
    finally:
        session.close()
    (told,) = [e for e in entries(tmp_path) if e.kind == "note"]
    assert told.name == f"engine-{engine.lower().replace('_', '-')}"
    assert "plans are only shown" in told.body["text"]


@pytest.mark.usefixtures("distributed_type_is_put_back")
def test_fsdp1_clips_by_itself_and_its_norm_is_judged(tmp_path):
    import torch
    from accelerate import FullyShardedDataParallelPlugin

    trainer = under("FSDP", tmp_path)
    assert engines_of(trainer) == [FSDP1]
    trainer.accelerator.state.fsdp_plugin = FullyShardedDataParallelPlugin(fsdp_version=1)
    model, asked = trainer.model, []

    def clip_grad_norm_(max_norm, norm_type):  # FSDP1's own method, which accelerate calls
        asked.append((max_norm, norm_type))
        return torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm, norm_type)

    model.clip_grad_norm_ = clip_grad_norm_
    trainer.accelerator._models.append(model)
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    session = TrainerSession(trainer, HealingConfig(), Mode.HEAL)
    try:
        session.guard.attach()
        norm = trainer.accelerator.clip_grad_norm_(model.parameters(), 1.0)
        assert session.guard.acts
    finally:
        session.close()
    assert asked == [(1.0, 2)]
    assert (
        session.guard.gate.norm.item() == pytest.approx(norm.item()) == pytest.approx(weights(trainer).numel() ** 0.5)
    )
    assert session.guard.gate.found_inf.item() == 0.0
    assert Surroundings(trainer).why_nothing_is_saved() is not None


def test_a_plain_run_has_nothing_to_remark(tmp_path):
    surroundings = Surroundings(tiny_trainer(tmp_path, max_steps=1))
    assert list(surroundings.remarks()) == []
    assert not surroundings.only_measures
    assert surroundings.why_nothing_is_saved() is None


def test_each_engine_says_what_it_limits():
    for engine in (DEEPSPEED, FSDP1, GRAD_SCALER):
        assert engine.is_limit
        assert "\n" not in engine.sentence
