"""Out of memory in the step: the same micro-batch is run again, and its gradient is the one it would have been."""

from __future__ import annotations

import warnings

import pytest

from self_healing.adapters.memory.memory_plan import Lesson, MemoryPlan, Shape, Tactic

from . import tight_memory as tight

quick_collections = tight.quick_collections
pytestmark = pytest.mark.torch
MAKERS = {"trainer": tight.make_trainer, "sft": tight.make_sft, "dpo": tight.make_dpo, "reward": tight.make_reward}
FOREVER = 1000


@pytest.fixture(scope="module")
def driver(tmp_path_factory):
    """Trainers that were made once, by kind, number of micro-batches and precision."""
    made = {}

    def get(kind, steps=1, *, double=False, **more):
        key = (kind, steps, double, *sorted(more.items()))
        if key not in made:
            make = {**MAKERS, "kto": tight.make_kto, "orpo": tight.make_orpo, "cpo": tight.make_cpo}[kind]
            options = {"double": True} if double else {}
            trainer = make(tmp_path_factory.mktemp(kind), gradient_accumulation_steps=steps, **options, **more)
            made[key] = tight.Driver(trainer, steps)
        return made[key]

    return get


PLACES = [(1, 0), *((4, place) for place in range(4))]


@pytest.mark.parametrize("kind", MAKERS)
@pytest.mark.parametrize("phase", ["forward", "backward"])
def test_the_same_again_and_checkpointing_are_equal_to_the_bit(kind, phase, driver):
    for steps, place in PLACES:
        at = driver(kind, steps)
        clean, loss = at.gradients()
        for shortage in ({"times": 1}, {"times": FOREVER, "unless_checkpointing": True}):
            got, got_loss = at.gradients(at.retry(), at=place, phase=phase, **shortage)
            assert at.events[-1].kind == "recovered"
            assert at.events[0].phase == phase
            assert (at.events[0].micro_batch, at.events[0].step) == (place, 0)
            assert tight.equal(got, clean), (steps, place, shortage)
            assert got_loss.tolist() == loss.tolist()
            assert at.prepared == steps, "inputs are prepared once: some trainers generate there"


@pytest.mark.parametrize("kind", MAKERS)
@pytest.mark.parametrize("phase", ["forward", "backward"])
@pytest.mark.parametrize("precision", ["float32", "float64"])
def test_pieces_add_up_to_the_gradient_of_the_whole(kind, phase, precision, driver, monkeypatch):
    double = precision == "float64"
    bound = 1e-9 if double else 5e-6
    if double:
        tight.compute_heads_in_double(monkeypatch)
    paired = kind in ("dpo", "reward")
    for steps, place in PLACES:
        at = driver(kind, steps, double=double)
        clean, loss = at.gradients()
        for most_rows in (2, 4) if paired else (1, 2):
            got, got_loss = at.gradients(at.retry(), at=place, phase=phase, times=FOREVER, most_rows=most_rows)
            assert at.events[-1].kind == "recovered", [e.text for e in at.events]
            assert "pieces" in at.events[-1].tactic
            assert tight.relative_error(got, clean) <= bound, (steps, place, most_rows)
            assert got_loss.tolist() == pytest.approx(loss.tolist(), rel=1e-5)


@pytest.mark.parametrize("spared", [0, 1])
@pytest.mark.parametrize(("steps", "place"), PLACES)
def test_gradients_that_were_ahead_when_a_piece_failed_are_put_back_in_time(steps, place, spared, driver):
    at = driver("trainer", steps)
    clean, _ = at.gradients()
    got, _ = at.gradients(at.retry(), at=place, phase="both", times=FOREVER, most_rows=1, spared_pieces=spared)
    assert [event.phase for event in at.events] == ["forward"] * 3 + ["backward"] * 2
    assert tight.relative_error(got, clean) <= 5e-6


@pytest.mark.parametrize("phase", ["forward", "backward"])
@pytest.mark.parametrize(("steps", "place"), PLACES)
def test_pieces_that_are_done_stay_done_when_a_later_one_fails(steps, place, phase, driver):
    at = driver("trainer", steps)
    clean, loss = at.gradients()
    retry = at.retry()
    got, got_loss = at.gradients(retry, at=place, phase=phase, times=FOREVER, most_rows=1, spared_pieces=1)
    assert [event.tactic for event in at.events][3:] == ["pieces of at most 2 rows", "pieces of at most 1 row"]
    # Lost: three whole passes and the second piece of two rows. Four rows told how the loss adds up.
    assert retry.extra_forwards == pytest.approx(3 + 0.5 + 1.0)
    assert tight.relative_error(got, clean) <= 5e-6
    assert got_loss.tolist() == pytest.approx(loss.tolist(), rel=1e-5)


def test_a_failed_attempt_holds_no_memory_when_the_next_one_begins(driver):
    at = driver("trainer")
    for phase in ("forward", "backward"):
        at.gradients(at.retry(), at=0, phase=phase, times=1)
        assert (len(at.shortage.held), at.shortage.alive) == (2, 0)


@pytest.mark.parametrize("kind", ["sft", "dpo", "reward", "kto"])
def test_metrics_and_token_counts_are_those_of_a_step_without_trouble(kind, driver):
    at = driver(kind, 4)
    at.gradients()
    clean, tokens = at.metrics(), at.trainer._total_train_tokens
    for phase in ("forward", "backward"):
        at.gradients(at.retry(), at=2, phase=phase, times=1)
        assert at.metrics() == clean
        at.gradients(at.retry(), at=1, phase=phase, times=FOREVER, most_rows=1 if kind in ("sft", "kto") else 2)
        assert at.events[-1].kind == "recovered"
        got = at.metrics()
        assert {key: len(values) for key, values in got.items()} == {key: len(v) for key, v in clean.items()}
        for key, values in clean.items():
            assert got[key] == pytest.approx(values, rel=1e-4, abs=1e-6), key
        assert at.trainer._total_train_tokens == tokens


@pytest.mark.parametrize("most_rows", [2, 4])
def test_cpo_without_the_mean_over_tokens_is_cut(most_rows, driver):
    at = driver("cpo", loss_type="simpo", cpo_alpha=0.0)
    clean, loss = at.gradients()
    got, got_loss = at.gradients(at.retry(), at=0, times=FOREVER, most_rows=most_rows)
    assert "pieces" in at.events[-1].tactic, [event.text for event in at.events]
    assert tight.relative_error(got, clean) <= 5e-6
    assert got_loss.tolist() == pytest.approx(loss.tolist(), rel=1e-5)


@pytest.mark.parametrize("most_rows", [1, 2, 3])
def test_kto_keeps_the_baseline_of_the_whole_batch(most_rows, driver):
    at = driver("kto")
    clean, loss = at.gradients()
    assert at.metrics()["kl"][0] > 0.05, "with a baseline of zero this test would say nothing"
    got, got_loss = at.gradients(at.retry(), at=0, times=FOREVER, most_rows=most_rows)
    assert "pieces" in at.events[-1].tactic
    assert tight.relative_error(got, clean) <= 5e-6
    assert got_loss.tolist() == pytest.approx(loss.tolist(), rel=1e-5)


@pytest.mark.parametrize(
    ("kind", "more", "why"),
    [
        ("orpo", {}, "mean over tokens and a mean over pairs"),
        ("cpo", {}, "mean over tokens and a mean over pairs"),
        ("sft", {"packing": True, "padding_free": True}, "packed"),
        ("dpo", {"loss_type": "sft"}, "couples the rows"),
        ("trainer", {"per_device_train_batch_size": 1}, "single row"),
    ],
)
def test_where_pieces_would_be_wrong_checkpointing_is_used_or_the_error_comes_back(kind, more, why, driver):
    import torch

    at = driver(kind, **more)
    clean, _ = at.gradients()
    got, _ = at.gradients(at.retry(), at=0, times=FOREVER, unless_checkpointing=True)
    assert at.events[-1].tactic == "gradient checkpointing"
    assert tight.equal(got, clean)
    with pytest.raises(torch.OutOfMemoryError, match="Tried to allocate") as caught:
        at.gradients(at.retry(), at=0, times=FOREVER)
    assert why in caught.value.__notes__[0]
    assert "in _strikes" in caught.value.__notes__[0], "where it came from is still told"
    assert at.events[-1].kind == "gave-up"
    assert not any("pieces" in event.tactic for event in at.events)


def test_a_loss_of_unknown_make_is_cut_only_if_its_rows_are_seen_to_add_up(tmp_path):
    import torch
    from transformers import Trainer

    class RowMean(Trainer):
        def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
            logits = model(**{name: value for name, value in inputs.items() if name != "labels"}).logits
            labels = inputs["labels"][:, 1:]
            losses = torch.nn.functional.cross_entropy(logits[:, :-1].transpose(1, 2), labels, reduction="none")
            means = losses.sum(1) / labels.ne(-100).sum(1)
            return means.mean() if self.separable else means.max()

    trainer = tight.make_trainer(tmp_path)
    trainer.__class__ = RowMean
    trainer.separable = True
    at = tight.Driver(trainer, 1)
    clean, _ = at.gradients()
    got, _ = at.gradients(at.retry(), at=0, times=FOREVER, most_rows=2)
    assert "pieces" in at.events[-1].tactic
    assert tight.relative_error(got, clean) <= 5e-6
    trainer.separable = False
    with pytest.raises(torch.OutOfMemoryError) as caught:
        at.gradients(at.retry(), at=0, times=FOREVER, most_rows=2)
    assert "no rule would explain" in caught.value.__notes__[0]


def test_dropout_draws_the_same_numbers_again_and_later_steps_see_no_difference(tmp_path):
    at = tight.Driver(tight.make_trainer(tmp_path, model=tight.language_model(dropout=0.3)), 4)
    clean, _ = at.gradients()
    random = at.random
    for phase in ("forward", "backward"):
        got, _ = at.gradients(at.retry(), at=1, phase=phase, times=FOREVER, unless_checkpointing=True)
        assert tight.equal(got, clean)
        assert at.random.equal(random)


@pytest.mark.parametrize("kind", ["trainer", "dpo"])
def test_checkpointing_leaves_the_model_as_it_found_it(kind, driver):
    def trace(model):
        modules = list(model.modules())
        own = [{k: v for k, v in vars(m).items() if "checkpointing" in k or "require_grads" in k} for m in modules]
        return own, [list(m._forward_hooks) for m in modules], model.config.use_cache, [m.training for m in modules]

    at = driver(kind, 4)
    at.gradients()
    at.trainer.model.config.use_cache = True
    before = trace(at.trainer.model)
    with warnings.catch_warnings():
        if kind == "trainer":  # TRL itself calls methods of the model by their old names
            warnings.filterwarnings("error", message=".*is deprecated and will be removed", category=FutureWarning)
        at.gradients(at.retry(), at=1, phase="backward", times=FOREVER, unless_checkpointing=True)
    assert at.events[-1].tactic == "gradient checkpointing"
    assert trace(at.trainer.model) == before


def test_what_worked_is_used_at_once_the_next_time_and_extra_passes_are_counted(driver):
    at = driver("trainer", 4, pad_to=16)
    clean, _ = at.gradients()
    at.shortage.forwards = 0
    retry = at.retry()
    got, _ = at.gradients(retry, at="every", times=FOREVER, most_rows=2)
    ooms = [event.tactic for event in at.events if event.kind == "out-of-memory"]
    assert ooms == ["whole micro-batch", "whole micro-batch", "gradient checkpointing"], "only in the first micro-batch"
    assert tight.relative_error(got, clean) <= 5e-6
    # Three whole passes were lost, and four rows were looked at to find out how the loss adds up.
    assert retry.extra_forwards == pytest.approx(3.0 + 4 / 4)
    assert at.shortage.forwards == 3 + 4 * 2


def test_a_lesson_that_does_not_suit_a_batch_is_replaced_by_one_that_does(driver):
    import torch

    at = driver("orpo")
    clean, _ = at.gradients()
    plan = MemoryPlan(lessons={Shape(1, 1): Lesson(Tactic(most_rows=2), since=0, quiet_steps=200)})
    got, _ = at.gradients(at.retry(plan=plan), at=0, times=FOREVER, unless_checkpointing=True)
    assert [event.tactic for event in at.events] == ["gradient checkpointing"], "known before memory ran out"
    assert tight.equal(got, clean)
    with pytest.raises(torch.OutOfMemoryError):
        at.gradients(at.retry(plan=plan), at=0, times=FOREVER)


def test_checkpointing_that_does_not_suit_the_model_is_passed_over(tmp_path):
    at = tight.Driver(tight.make_trainer(tmp_path), 1)
    clean, _ = at.gradients()
    layer = at.trainer.model.model.layers[0].mlp
    calls = []

    def different_each_time(module, args, output):
        if not module.training:  # how the loss adds up is looked at in evaluation mode
            return output
        calls.append(1)
        return output.sigmoid().exp().log().sigmoid() if len(calls) % 2 else output + 1.0

    handle = layer.register_forward_hook(different_each_time)
    at.gradients(at.retry(), at=0, times=FOREVER, most_rows=2, unless_checkpointing=True)
    handle.remove()
    assert "pieces" in at.events[-1].tactic
    got, _ = at.gradients(at.retry())
    assert tight.equal(got, clean)


def test_a_failure_that_is_not_about_memory_is_raised_at_once(driver):
    at = driver("trainer")
    at.shortage.error = ValueError
    try:
        with pytest.raises(ValueError, match="out of memory"):  # the words alone do not make it one
            at.gradients(at.retry(), at=0, times=1)
        assert at.events == []
        at.shortage.error = RuntimeError
        at.gradients(at.retry(), at=0, times=1)
        assert at.events[-1].kind == "recovered"
    finally:
        import torch

        at.shortage.error = torch.OutOfMemoryError


def test_where_checkpointing_is_on_already_pieces_come_next(driver):
    at = driver("sft", 4, gradient_checkpointing=True)
    at.trainer.model.gradient_checkpointing_enable()  # the loop does so when training begins
    clean, _ = at.gradients()
    got, _ = at.gradients(at.retry(), at=2, phase="backward", times=FOREVER, most_rows=2)
    assert [event.tactic for event in at.events] == ["whole micro-batch"] * 2 + ["pieces of at most 2 rows"]
    assert tight.relative_error(got, clean) <= 5e-6
    assert at.trainer.model.is_gradient_checkpointing


def test_where_only_what_is_equal_to_the_bit_is_allowed_nothing_is_cut(driver):
    import torch

    at = driver("trainer")
    clean, _ = at.gradients()
    got, _ = at.gradients(at.retry(whole_because="oom_action is retry"), at=0, times=FOREVER, unless_checkpointing=True)
    assert tight.equal(got, clean)
    with pytest.raises(torch.OutOfMemoryError) as caught:
        at.gradients(at.retry(whole_because="oom_action is retry"), at=0, times=FOREVER, most_rows=2)
    assert "oom_action is retry" in caught.value.__notes__[0]


def test_a_backward_pass_that_uses_up_its_gradients_is_not_repeated(tmp_path):
    import torch

    at = tight.Driver(tight.make_trainer(tmp_path), 1)
    used = []
    next(at.trainer.model.parameters()).register_post_accumulate_grad_hook(used.append)
    with pytest.raises(torch.OutOfMemoryError) as caught:
        at.gradients(at.retry(), at=0, phase="backward", times=1)
    assert "used up during the backward pass" in caught.value.__notes__[0]
    at.gradients(at.retry(), at=0, phase="forward", times=FOREVER, unless_checkpointing=True)
    assert at.events[-1].tactic == "gradient checkpointing", "nothing was used up yet"


def test_the_loss_of_a_class_below_a_trl_trainer_is_not_cut(driver):
    import torch
    from trl import SFTTrainer

    class Mine(SFTTrainer):
        def compute_loss(self, *args, **kwargs):
            return super().compute_loss(*args, **kwargs) ** 2

    at = driver("sft", per_device_train_batch_size=3)
    at.trainer.__class__ = Mine
    with pytest.raises(torch.OutOfMemoryError) as caught:
        at.gradients(at.retry(), at=0, times=FOREVER)
    assert "overridden below a TRL trainer" in caught.value.__notes__[0]


def test_after_giving_up_nothing_of_the_micro_batch_is_left_where_it_was_the_first(driver):
    import torch

    at = driver("trainer")
    for phase in ("forward", "backward"):
        with pytest.raises(torch.OutOfMemoryError):
            at.gradients(at.retry(), at=0, phase=phase, times=FOREVER)
        assert at.events[-2].tactic == "pieces of at most 1 row with gradient checkpointing"
        assert all(p.grad is None for p in at.trainer.model.parameters())
        assert not at.trainer.model.is_gradient_checkpointing
        assert "compute_loss" not in vars(at.trainer)
