"""What a return puts back besides weights, moments and data: averages of callbacks, counters, a reference that moves."""

from __future__ import annotations

from functools import partial

import pytest

from self_healing import HealingConfig, SelfHealingTrainer
from self_healing.adapters.rollback.memory_snapshots import MemorySnapshots

from .rehearsed import logged, quick_collections, same, weights  # noqa: F401
from .rolled_back import GuardedTraining, default, grpo, lora, made, rolled_back
from .test_restart_from_memory import guarded

pytestmark = [pytest.mark.torch, pytest.mark.timeout(60)]
STEPS = 7
SCRIPT = {5: 1, 7: 0}
"""States are taken before steps 1, 3, 5 and 7: back to before what is made in the third step, and once more."""
KINDS = ("BEMACallback", "InPlace", "Replacing", "Late", "OfAnObject", "OfTorch")


def harmed(trainer, by=float("nan")):
    """Spoil all weights once, in the fourth step: every average has them by the time of the return."""
    done = []

    def harm(module, *_):
        if module.training and trainer.state.global_step == 3 and not done:
            done.append(True)
            for parameter in module.parameters():
                parameter.data.mul_(by)

    trainer.model.register_forward_hook(harm)
    return trainer


def averaging(folder):
    from transformers import EarlyStoppingCallback
    from trl import BEMACallback

    from . import kept_by_callbacks as kinds

    trainer = default(folder, eval_strategy="steps", eval_steps=1, metric_for_best_model="loss")
    own = [getattr(kinds, name)() for name in (*KINDS[1:], "Counting")]
    for callback in (BEMACallback(update_freq=1), EarlyStoppingCallback(99, early_stopping_threshold=1e9), *own):
        trainer.add_callback(callback)
    return trainer


def callback_of(trainer, name):
    return next(each for each in trainer.callback_handler.callbacks if type(each).__name__ == name)


def tensors_of(callback):
    if type(callback).__name__ == "BEMACallback":
        return [*callback.running_model.parameters(), *callback.ema_params, *callback.theta0_params]
    return callback.tensors()


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Return a run without a disturbance, and one that was harmed and has returned, each with every callback."""
    undisturbed = made(averaging, tmp_path_factory.mktemp("clean"), STEPS)
    undisturbed.train()
    run = rolled_back(harmed(made(averaging, tmp_path_factory.mktemp("returned"), STEPS)), SCRIPT)
    assert run.loop.returns == len(SCRIPT)
    assert same(list(weights(run.trainer).values()), list(weights(undisturbed).values()))
    return undisturbed, run.trainer


@pytest.mark.parametrize("kind", KINDS)
def test_an_average_of_weights_that_a_callback_keeps_is_that_of_a_run_without_returns(kind, runs):
    clean, returned = (callback_of(trainer, kind) for trainer in runs)
    assert len(tensors_of(returned)) > 10
    assert same(tensors_of(returned), tensors_of(clean))


def test_what_counts_the_updates_of_an_average_goes_back_with_it(runs):
    _, returned = runs
    assert callback_of(returned, "InPlace").updates == STEPS
    assert callback_of(returned, "Late").seen == STEPS
    assert callback_of(returned, "OfAnObject").average.num_updates == STEPS
    assert callback_of(returned, "OfTorch").average.n_averaged == STEPS
    assert callback_of(returned, "OfTorch").average.updates == STEPS


def test_what_a_callback_refers_to_is_still_the_same(runs):
    _, returned = runs
    callback = callback_of(returned, "InPlace")
    assert callback.model is returned.model
    for (name, parameter), (own, shadow) in zip(returned.model.named_parameters(), callback.pairs, strict=True):
        assert own.data_ptr() == parameter.data_ptr()
        assert shadow is callback.shadow[name]


def test_a_callback_without_a_tensor_goes_on_counting(runs):
    _, returned = runs
    assert callback_of(returned, "Counting").steps == STEPS + 3 + 1  # the steps that were repeated


def test_the_patience_of_early_stopping_goes_back(runs):
    counters = [callback_of(each, "EarlyStoppingCallback").early_stopping_patience_counter for each in runs]
    assert counters == [STEPS - 1, STEPS - 1]  # the first loss is the best there is


def test_averages_come_back_where_training_is_entered_anew_for_it(runs, tmp_path):
    trainer = harmed(made(averaging, tmp_path, STEPS))
    watch, _ = guarded(trainer, every=2)
    assert watch.entered == 2  # and each average was made once more at the beginning
    for kind in set(KINDS):
        assert same(tensors_of(callback_of(trainer, kind)), tensors_of(callback_of(runs[0], kind)))


# -- which tensors, and how much they take ---------------------------------------------------------------


def nbytes(tensors):
    return sum(each.numel() * each.element_size() for each in tensors)


def test_a_lora_state_grows_by_the_averages_alone_and_they_come_back(tmp_path):
    from .kept_by_callbacks import InPlace, OfTorch, Replacing

    def averaged(folder):
        trainer = lora(folder)
        for callback in (InPlace(), Replacing()):
            trainer.add_callback(callback)
        return trainer

    plain, clean = made(lora, tmp_path / "plain", STEPS), made(averaged, tmp_path / "clean", STEPS)
    clean.train()
    run = rolled_back(made(averaged, tmp_path / "returned", STEPS), SCRIPT)
    sizes = [each.loop.kept_at_the_end[-1][2] for each in (rolled_back(plain, SCRIPT), run)]
    kept = [tensors_of(callback_of(run.trainer, name)) for name in ("InPlace", "Replacing")]
    assert sizes[1] - sizes[0] == sum(map(nbytes, kept))  # not the model, which they refer to as well
    for name, tensors in zip(("InPlace", "Replacing"), kept, strict=True):
        assert same(tensors, tensors_of(callback_of(clean, name)))
    expected = MemorySnapshots(run.trainer).expected_nbytes()
    run.trainer.add_callback(OfTorch())  # with a judge, which does not count
    assert MemorySnapshots(run.trainer).expected_nbytes() == expected
    run.trainer.remove_callback(InPlace)
    assert MemorySnapshots(run.trainer).expected_nbytes() == expected - nbytes(kept[0])


def test_a_state_does_not_keep_tensors_alive_that_were_replaced_since(tmp_path):
    import weakref

    from .kept_by_callbacks import Replacing

    trainer, callback = default(tmp_path), Replacing()
    trainer.add_callback(callback)
    trainer.create_optimizer_and_scheduler(4)
    callback.on_train_begin(None, None, None, trainer.model)
    snapshot = (snapshots := MemorySnapshots(trainer)).take(None)
    then = {name: each.clone() for name, each in callback.shadow.items()}
    former = [weakref.ref(each) for each in callback.shadow.values()]
    callback.on_step_end(None, None, None, trainer.model.apply(lambda module: None))
    assert all(each() is None for each in former)
    for each in callback.shadow.values():
        each.fill_(7.0)
    snapshots.restore(snapshot)
    assert same(list(callback.shadow.values()), list(then.values()))
    assert callback.updates == 0


# -- a reference that moves ------------------------------------------------------------------------------


def test_a_reference_that_a_callback_moves_goes_back(tmp_path):
    from trl import DPOConfig
    from trl.experimental.bema_for_ref_model import BEMACallback, DPOTrainer

    from self_healing.drills.tiny_training import tiny_model
    from self_healing.drills.tiny_trl import sentences, word_tokenizer

    def moving(folder):
        from datasets import Dataset

        return DPOTrainer(
            model=tiny_model(), ref_model=tiny_model(), processing_class=word_tokenizer(),
            args=DPOConfig(
                output_dir=str(folder), logging_steps=1, per_device_train_batch_size=4, report_to="none",
                use_cpu=True, bf16=False, save_strategy="no", disable_tqdm=True,
            ),
            train_dataset=Dataset.from_dict(sentences(["prompt", "chosen", "rejected"])),
            callbacks=[BEMACallback(update_freq=1, update_ref_model=True, ref_model_update_freq=1)],
        )  # fmt: skip

    clean = made(moving, tmp_path / "clean", 5)
    before = [each.clone() for each in clean.ref_model.parameters()]
    clean.train()
    run = rolled_back(harmed(made(moving, tmp_path / "returned", 5)), {5: 1})
    references = [list(each.ref_model.parameters()) for each in (run.trainer, clean)]
    assert same(*references)
    assert not same(references[0], before)
    assert logged(run.trainer) == logged(clean)


# -- GRPO ------------------------------------------------------------------------------------------------


def adapting(folder, **more):
    """GRPO with an entropy bonus that adapts, and answers of a server for four steps at once."""
    from .kept_by_callbacks import Server

    bonus = {"use_adaptive_entropy": True, "entropy_coef": 0.1, "entropy_target": 10.0, "entropy_coef_delta": 0.05}
    trainer = grpo(folder, steps_per_generation=4, vllm_importance_sampling_correction=False, **bonus, **more)
    trainer.use_vllm, trainer.vllm_generation, trainer._last_loaded_step = True, Server(trainer), -1
    return trainer


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    trainer = made(adapting, tmp_path_factory.mktemp("clean"), STEPS)
    trainer.train()
    return trainer


@pytest.fixture(scope="module")
def returned(tmp_path_factory):
    run = rolled_back(harmed(made(adapting, tmp_path_factory.mktemp("returned"), STEPS), by=-3.0), {6: 1})
    assert run.loop.returns == 1
    return run.trainer


def test_an_entropy_bonus_that_adapts_goes_back(undisturbed, returned):
    assert logged(returned) == logged(undisturbed)  # the weight of the bonus is logged in every step
    assert returned.entropy_coef == undisturbed.entropy_coef != 0.1
    assert returned._last_world_entropy == undisturbed._last_world_entropy


def test_a_server_that_generates_is_sent_the_weights_anew_after_a_return(undisturbed, returned):
    assert undisturbed.vllm_generation.is_fresh == [True, True]
    assert returned.vllm_generation.is_fresh == [True, True, True]  # the fifth step twice
    assert same(list(weights(returned).values()), list(weights(undisturbed).values()))


def test_a_server_that_generates_is_sent_the_weights_anew_after_a_return_to_a_checkpoint(undisturbed, tmp_path):
    trainer = harmed(made(partial(adapting, save_strategy="steps", save_steps=3), tmp_path, STEPS), by=-3.0)
    raised = []

    def fail(*_):
        if trainer.model.training and trainer.state.global_step == 4 and not raised:  # after the answers were generated
            raised.append(True)
            raise RuntimeError("a glitch")

    trainer.model.register_forward_pre_hook(fail)
    SelfHealingTrainer(trainer, HealingConfig(snapshot_memory_fraction=0, backoff_base_s=0.0)).train()
    assert trainer.vllm_generation.is_fresh == [True, True, True]  # the fifth step twice
    assert same(list(weights(trainer).values()), list(weights(undisturbed).values()))


def test_a_step_that_is_made_up_moves_the_entropy_bonus_once(undisturbed, tmp_path):
    trainer, spoilt = made(adapting, tmp_path, STEPS), []
    guarded = GuardedTraining(trainer)

    def spoil(module, args, output):
        if module.training and trainer.state.global_step == 2 and not spoilt:
            spoilt.append(True)
            name = "logits" if "logits" in output else "log_probs"  # where TRL fuses the head into the loss
            output[name] = output[name] * float("nan")

    trainer.model.register_forward_hook(spoil)
    trainer.train()
    assert guarded.not_applied == [3]
    assert trainer.entropy_coef == undisturbed.entropy_coef
    assert trainer._last_world_entropy == undisturbed._last_world_entropy
    assert same(list(weights(trainer).values()), list(weights(undisturbed).values()))


def test_a_weight_of_the_entropy_bonus_that_does_not_adapt_is_that_of_the_arguments(tmp_path):
    from self_healing.adapters.rollback.trainer_capture import put_count_back

    trainer = grpo(tmp_path, entropy_coef=0.1)
    put_count_back(trainer, "entropy_coef", 0.5)  # of a checkpoint that was written with another argument
    assert trainer.entropy_coef == 0.1
    trainer.use_adaptive_entropy = True
    put_count_back(trainer, "entropy_coef", 0.5)
    assert trainer.entropy_coef == 0.5
