"""Out of memory in evaluation and in saving, whole runs with a shortage, and the history of allocations."""

from __future__ import annotations

import pickle

import pytest

from self_healing.adapters.memory.evaluation_retry import EvaluationRetry
from self_healing.adapters.memory.memory_history import MemoryHistory, summary
from self_healing.adapters.memory.micro_batch_retry import MicroBatchRetry
from self_healing.adapters.memory.saving_retry import SavingRetry, on_cpu
from self_healing.adapters.step.window import MicroBatch
from self_healing.adapters.wrapping import Wrapping
from self_healing.core.discover import discover_classes
from self_healing.drills.fault import Fault
from self_healing.drills.tiny_training import tiny_trainer
from self_healing.drills.trained import losses, weights

from . import tight_memory as tight

quick_collections = tight.quick_collections
pytestmark = pytest.mark.torch
FAULTS = discover_classes("self_healing.drills.faults", Fault)


def evaluate_with_at_most(rows, trainer, *, unless=None, call=None, events=None):
    """Run an evaluation whose model cannot take more rows at a time, unless it is called with a certain argument."""
    import torch

    def hook(module, args, kwargs, output):
        if not module.training and kwargs["input_ids"].shape[0] > rows and unless not in kwargs:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")

    handle = trainer.model.register_forward_hook(hook, with_kwargs=True)
    wrapping, events = Wrapping(), [] if events is None else events
    EvaluationRetry(trainer, on_event=events.append).attach(wrapping)
    try:
        return (call or trainer.evaluate)(), events
    finally:
        wrapping.restore()
        handle.remove()


def figures(metrics):
    return {key: value for key, value in metrics.items() if not key.endswith(("runtime", "per_second"))}


@pytest.mark.parametrize("kind", ["trainer", "sft", "dpo", "reward", "kto"])
def test_an_evaluation_in_pieces_has_the_metrics_of_the_whole(kind, tmp_path):
    trainer = getattr(tight, f"make_{kind}")(tmp_path, per_device_eval_batch_size=6)
    trainer.eval_dataset = trainer.train_dataset
    trainer.args.prediction_loss_only = kind != "trainer"
    if kind == "trainer":
        trainer.compute_metrics = lambda p: {"digest": float(abs(p.predictions).sum()), "labels": p.label_ids.sum()}
    expected = figures(trainer.evaluate())
    evaluated, events = evaluate_with_at_most(2, trainer)
    assert events
    assert figures(evaluated) == pytest.approx(expected, rel=1e-5)
    logged = [entry for entry in trainer.state.log_history if "eval_loss" in entry]
    assert figures(logged[1]) == pytest.approx(figures(logged[0]), rel=1e-4, abs=1e-6)


def test_what_a_failed_evaluation_has_counted_is_not_counted_twice(tmp_path):
    trainer = tight.make_sft(tmp_path, per_device_eval_batch_size=6)
    trainer.eval_dataset = trainer.train_dataset
    trainer.compute_metrics = lambda p: {"rows": len(p.predictions)}
    trainer.evaluate()
    # The pass that counts gets through; the one for the logits, after it, does not.
    _, events = evaluate_with_at_most(2, trainer, unless="fused_lm_head")
    assert events
    logged = [figures(entry) for entry in trainer.state.log_history if "eval_loss" in entry]
    assert logged[1] == pytest.approx(logged[0], rel=1e-4, abs=1e-6)


def test_what_cannot_be_cut_is_evaluated_again_with_half_the_batch(tmp_path):
    trainer = tight.make_orpo(tmp_path, per_device_eval_batch_size=4)
    trainer.eval_dataset = trainer.train_dataset
    expected = trainer.evaluate()["eval_loss"]
    import torch

    def hook(module, args, output):
        if args and args[0].shape[0] > 2:  # ORPO puts chosen and rejected into one call
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")

    trainer.model.register_forward_hook(hook)
    wrapping, events = Wrapping(), []
    EvaluationRetry(trainer, on_event=events.append).attach(wrapping)
    got = trainer.evaluate()["eval_loss"]
    assert [event.kind for event in events] == ["out-of-memory", "out-of-memory", "recovered"], (
        "told once it has worked"
    )
    assert events[-1].tactic == "pieces of at most 1 row"
    assert got == pytest.approx(expected, rel=0.02)
    events.clear()
    trainer.evaluate()
    assert events == [], "the batch that fits is known now"
    assert trainer.args.per_device_eval_batch_size == 4
    wrapping.restore()


def unlabelled(batch):
    import torch

    return {name: torch.tensor([row[name] for row in batch]) for name in ("input_ids", "attention_mask")}


def test_a_batch_without_labels_has_the_predictions_of_the_whole(tmp_path):
    trainer = tight.make_trainer(tmp_path, per_device_eval_batch_size=6)
    rows = [{"input_ids": [3 + place % 7, 5, 9, 4 + place], "attention_mask": [1, 1, 1, 1]} for place in range(18)]
    trainer.data_collator = unlabelled
    expected = trainer.predict(rows)
    assert expected.label_ids is None
    got, events = evaluate_with_at_most(2, trainer, call=lambda: trainer.predict(rows))
    assert got.predictions == pytest.approx(expected.predictions, abs=1e-6)
    assert [event.kind for event in events] == ["out-of-memory", "out-of-memory", "recovered"], "then it is known"
    trainer.eval_dataset = rows
    metrics, _ = evaluate_with_at_most(2, trainer)
    assert "eval_loss" not in metrics


def test_what_fails_with_single_rows_too_is_not_called_recovered(tmp_path):
    import torch

    trainer = tight.make_trainer(tmp_path, per_device_eval_batch_size=4)
    trainer.eval_dataset = trainer.train_dataset
    events = []
    with pytest.raises(torch.OutOfMemoryError):
        evaluate_with_at_most(0, trainer, events=events)
    assert {event.kind for event in events} == {"out-of-memory", "gave-up"}


def test_a_save_that_runs_out_of_memory_goes_through_the_cpu(tmp_path):
    import torch
    from safetensors.torch import load_file

    trainer = tight.make_trainer(tmp_path, model=tight.language_model(tie_word_embeddings=True))
    trainer.save_model(tmp_path / "expected")
    strikes = [True]

    def hook(module, state, prefix, local):
        if strikes:
            strikes.pop()
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")

    trainer.model.register_state_dict_post_hook(hook)
    wrapping, events = Wrapping(), []
    SavingRetry(trainer, on_event=events.append).attach(wrapping)
    trainer.save_model(tmp_path / "saved")
    wrapping.restore()
    assert [event.tactic for event in events] == ["through the CPU"]
    expected, saved = (load_file(tmp_path / name / "model.safetensors") for name in ("expected", "saved"))
    assert expected.keys() == saved.keys()
    assert all(torch.equal(expected[name], saved[name]) for name in expected)


def test_tied_weights_stay_tied_on_the_way_through_the_cpu():
    import torch

    whole = torch.arange(12.0).reshape(3, 4)
    given = {"a": whole, "b": whole, "part": whole[1:].t(), "other": whole.clone(), "step": 7}
    copied = on_cpu(given, copy=lambda storage: storage.clone())  # as a copy from another device would be
    assert copied["a"].data_ptr() == copied["b"].data_ptr() != copied["other"].data_ptr()
    assert copied["part"].data_ptr() == copied["a"][1:].data_ptr()
    assert copied["part"].equal(whole[1:].t())
    assert copied["step"] == 7


def train(trainer, fault=None):
    """Train with the retry around each micro-batch, as the loop calls it."""
    from self_healing.tensors.random_state import RandomState

    events = []
    retry = MicroBatchRetry(trainer, on_event=events.append)
    step, prepare, current = trainer.training_step, trainer._prepare_inputs, []

    def training_step(model, inputs, num_items=None):
        current[:] = [MicroBatch(inputs, RandomState.capture())]
        return retry.run(step, model, current[0], num_items)

    def _prepare_inputs(inputs):
        prepared = prepare(inputs)
        if trainer.model.training:
            current[0].keep(prepared, RandomState.capture())
        return prepared

    trainer.training_step, trainer._prepare_inputs = training_step, _prepare_inputs
    if fault is not None:
        fault.plant(trainer)
    trainer.train()
    return events, retry


@pytest.fixture(scope="module")
def clean(tmp_path_factory):
    trainer = tiny_trainer(tmp_path_factory.mktemp("clean"), gradient_accumulation_steps=2, max_steps=30)
    trainer.train()
    return trainer


@pytest.mark.parametrize("fault", ["oom-once-in-forward", "oom-once-in-backward"])
def test_a_run_with_one_shortage_ends_equal_to_the_bit(fault, clean, tmp_path):
    trainer = tiny_trainer(tmp_path, gradient_accumulation_steps=2, max_steps=30)
    events, retry = train(trainer, FAULTS[fault]())
    assert [event.kind for event in events] == ["out-of-memory", "recovered"]
    assert weights(trainer).equal(weights(clean))
    assert losses(trainer) == losses(clean)
    assert retry.extra_forwards == 1.0


def test_a_run_in_which_only_two_rows_fit_makes_every_update(clean, tmp_path):
    trainer = tiny_trainer(tmp_path, gradient_accumulation_steps=2, max_steps=30)
    events, retry = train(trainer, FAULTS["oom-above-two-rows"]())
    assert trainer.state.global_step == 30
    assert [event.kind for event in events].count("recovered") == 1, "then it is known"
    assert losses(trainer) == pytest.approx(losses(clean), rel=1e-4)
    # The whole batch, again, with checkpointing, one piece of four rows and four rows to find out how the loss adds up.
    assert retry.extra_forwards == pytest.approx(3 + 0.5 + 0.5)


def test_history_is_nothing_without_cuda(tmp_path):
    import torch

    if torch.cuda.is_initialized():
        pytest.skip("CUDA is in use here")
    history = MemoryHistory(tmp_path / "healing")
    assert history.out_of_memory(1) is None
    assert history.out_of_memory(2) is None
    history.stop()
    assert not (tmp_path / "healing").exists()


def test_the_summary_names_who_held_the_memory():
    def block(size, *frames, state="active_allocated"):
        return {"size": size * 2**20, "state": state, "frames": [{"filename": f, "line": 7} for f in frames]}

    model = ("/x/torch/nn/functional.py", "/home/a/src/models/llama.py", "train.py")
    blocks = [block(5, *model), block(4, *model), block(2), block(64, *model, state="inactive")]
    told = summary(pickle.loads(pickle.dumps({"segments": [{"blocks": blocks}]})))
    assert (
        told == "11 MiB were held, most of it by models/llama.py:7 9 MiB, what was there before recording began 2 MiB"
    )
    assert summary({"segments": []}) == "no memory was held"
