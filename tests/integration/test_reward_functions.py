"""Reward functions that raise, hang, or answer with what is no number, in real GRPO and RLOO runs."""

from __future__ import annotations

import asyncio
import math
import random
import time

import pytest

from self_healing import HealingConfig, SelfHealingTrainer, UnrecoverableError
from self_healing.core.ledger import read_ledger
from self_healing.drills.tiny_training import tiny_model
from self_healing.drills.tiny_trl import GENERATING, TINY, of_trl, share_of_letters, tiny_reward_model, word_tokenizer
from self_healing.drills.trained import same, updates, weights

from .rehearsed import quick_collections  # noqa: F401

pytestmark = pytest.mark.torch
STEPS = 10


class Judge:
    """A reward function that draws random numbers, logs, and has a mishap in some of its calls."""

    __name__ = "judge"

    def __init__(self, mishaps=None):
        self.mishaps = mishaps or {}
        self.calls = 0

    def __call__(self, completions, log_metric=None, **kwargs):
        self.calls += 1
        if log_metric is not None:
            log_metric("mishap", float(self.calls in self.mishaps))
        rewards = [reward + random.random() for reward in share_of_letters(completions)]
        mishap = self.mishaps.get(self.calls)
        return rewards if mishap is None else mishap(rewards)


class AsyncJudge(Judge):
    async def __call__(self, *args, **kwargs):
        await asyncio.sleep(0)
        found = super().__call__(*args, **kwargs)
        return await found if asyncio.iscoroutine(found) else found


def raises(_rewards):
    raise ValueError("the judge is confused\nand says more")


def hangs(_rewards):
    time.sleep(60)


async def hangs_async(_rewards):
    await asyncio.sleep(60)


def made(folder, kind, judge, *others, steps=STEPS):
    return TINY[kind](folder, reward_funcs=[judge, *others], max_steps=steps, logging_steps=1, learning_rate=1e-2)


def healed(folder, kind, judge, steps=STEPS, **config):
    trainer = made(folder, kind, judge, steps=steps)
    random.seed(4)
    output = SelfHealingTrainer(trainer, HealingConfig(**{"backoff_base_s": 0.0, **config})).train()
    return trainer, output.metrics


@pytest.fixture(scope="module")
def clean(tmp_path_factory):
    done = {}

    def get(kind, judge=Judge):
        if (kind, judge) not in done:
            done[kind, judge] = made(tmp_path_factory.mktemp("clean"), kind, judge())
            random.seed(4)
            done[kind, judge].train()
        return done[kind, judge]

    return get


def notes(folder, name):
    entries = read_ledger(folder / "healing/ledger.jsonl").entries
    return [entry.body["text"] for entry in entries if entry.kind == "note" and entry.name == name]


@pytest.mark.parametrize("kind", GENERATING)
@pytest.mark.parametrize(
    ("judge", "mishap"), [(Judge, raises), (Judge, hangs), (AsyncJudge, raises), (AsyncJudge, hangs_async)]
)
def test_a_function_that_answers_when_it_is_called_again_leaves_no_trace(kind, judge, mishap, clean, tmp_path):
    trainer, metrics = healed(tmp_path, kind, judge({4: mishap}), reward_timeout_s=0.5)
    assert metrics["healing/reward_retries"] == 1
    assert "healing/unscored_completions" not in metrics
    assert same(trainer, clean(kind, judge))
    logged = [entry["mishap"] for entry in trainer.state.log_history if "mishap" in entry]
    assert logged == [0.0] * STEPS, "what a failed call has logged is forgotten"


@pytest.mark.parametrize("kind", GENERATING)
def test_completions_of_a_function_that_keeps_failing_are_not_scored_and_the_run_goes_on(kind, tmp_path):
    judge = Judge(dict.fromkeys((4, 5, 6), raises))
    trainer, metrics = healed(tmp_path, kind, judge)
    assert metrics["healing/unscored_completions"] == 8
    assert updates(trainer) == STEPS
    assert bool(weights(trainer).isfinite().all())
    (told,) = notes(tmp_path, "reward-unscored")
    assert told.startswith("step 4: the reward function judge failed 3 times (ValueError: the judge is confused); 8 ")
    assert trainer.reward_funcs == [judge], "the trainer has its own function back"


UNUSABLE = {
    "nothing": (lambda _rewards: None, "TypeError: judge answered with None, not with one reward for each completion"),
    "one number": (lambda _rewards: 1.0, "TypeError: judge answered with 1.0, not with one reward for each completion"),
    "too few": (lambda rewards: rewards[:-1], "ValueError: judge answered with 7 rewards for 8 completions"),
    "words": (lambda rewards: ["fine"] * len(rewards), "TypeError: judge answered with ['fine', 'fine',"),
    "numbers in words": (lambda rewards: list(map(str, rewards)), "TypeError: judge answered with ['"),
    "a column": (lambda rewards: [[reward] for reward in rewards], "TypeError: judge answered with [["),
}


@pytest.mark.parametrize("answer", UNUSABLE)
def test_an_answer_that_cannot_be_used_is_a_failed_call(answer, tmp_path):
    mishap, told = UNUSABLE[answer]
    trainer, metrics = healed(tmp_path, "grpo", Judge(dict.fromkeys((3, 4, 5), mishap)), steps=4)
    assert metrics["healing/reward_retries"] == 2
    assert metrics["healing/unscored_completions"] == 8
    assert updates(trainer) == 4
    (noted,) = notes(tmp_path, "reward-unscored")
    assert noted.startswith(f"step 3: the reward function judge failed 3 times ({told}")
    assert noted.endswith("); 8 completions are not scored by it")


def test_a_function_that_never_gives_an_answer_that_can_be_used_ends_the_run(tmp_path):
    judge = Judge(dict.fromkeys(range(1, 99), lambda _rewards: None))
    with pytest.raises(TypeError, match="judge answered with None") as caught:
        healed(tmp_path, "grpo", judge, steps=4)
    assert any("has never answered" in note for note in caught.value.__notes__)
    assert judge.calls == 2 * 3, "the step and its repetition: no other answers are made and scored to find the blame"
    told = read_ledger(tmp_path / "healing/ledger.jsonl").entries
    assert [entry.name for entry in told if entry.kind == "plan"] == ["crashed"] * 2, "it was answered, not let through"


def test_rewards_that_can_be_read_once_reach_the_trainer(clean, tmp_path):
    trainer, _ = healed(tmp_path, "grpo", Judge(dict.fromkeys(range(1, 99), iter)))
    assert same(trainer, clean("grpo"))


def test_another_function_still_scores_what_one_has_failed_for(tmp_path):
    trainer = made(tmp_path, "grpo", Judge(dict.fromkeys((4, 5, 6), raises)), share_of_letters)
    SelfHealingTrainer(trainer).train()
    logged = [entry for entry in trainer.state.log_history if "rewards/share_of_letters/mean" in entry]
    assert len(logged) == STEPS
    assert [entry.get("rewards/judge/mean") is None for entry in logged] == [n == 3 for n in range(STEPS)]
    assert all(math.isfinite(entry["reward"]) for entry in logged)


def test_what_another_function_logs_meanwhile_is_kept(tmp_path):
    asked = []

    async def fails_late(completions, **_):
        asked.append(1)
        await asyncio.sleep(0.05)
        if len(asked) == 3:
            raises(completions)
        return share_of_letters(completions)

    async def logs_at_once(completions, log_metric, log_extra, **_):
        log_metric("logged", 1.0)
        log_extra("words", [text.split()[:1] for text in completions])
        return share_of_letters(completions)

    trainer = made(tmp_path, "grpo", fails_late, logs_at_once)
    output = SelfHealingTrainer(trainer).train()
    assert output.metrics["healing/reward_retries"] == 1
    logged = [entry.get("logged") for entry in trainer.state.log_history if "loss" in entry]
    assert logged == [1.0] * STEPS


@pytest.mark.parametrize("odd", [math.nan, math.inf, 1e39], ids=["nan", "infinity", "too large for the trainer"])
def test_rewards_that_are_no_numbers_are_named(odd, tmp_path):
    trainer, metrics = healed(tmp_path, "grpo", Judge({3: lambda rewards: [rewards[0], odd, *rewards[2:]]}))
    (told,) = notes(tmp_path, "reward-not-finite")
    assert told.startswith(
        "step 3: the reward function judge answered NaN or infinity for 1 of 8 completions (rows 1);"
    )
    assert metrics["healing/unscored_completions"] == 1
    assert updates(trainer) == STEPS
    assert bool(weights(trainer).isfinite().all())


@pytest.mark.parametrize("odd", [math.nan, math.inf])
def test_rewards_of_a_model_that_are_no_numbers_are_named(odd, tmp_path):
    judge, calls = tiny_reward_model(), []

    def spoil(module, args, output):
        calls.append(1)
        if len(calls) == 3:
            output["logits"][2] = odd

    judge.register_forward_hook(spoil)
    more = {"reward_funcs": [judge], "reward_processing_classes": [word_tokenizer()], "model": tiny_model()}
    sizes = {"num_generations": 4, "max_completion_length": 4, "per_device_train_batch_size": 8}
    trainer = of_trl(tmp_path, "GRPO", ["prompt"], more, **sizes)
    output = SelfHealingTrainer(trainer).train()
    (told,) = notes(tmp_path, "reward-not-finite")
    assert told.startswith("step 3: the reward function ")
    assert "for 1 of 8 completions (rows 2);" in told
    assert output.metrics["healing/unscored_completions"] == 1
    assert updates(trainer) == 4
    assert bool(weights(trainer).isfinite().all())


FAILING = {
    "from the beginning": (range(1, 99), {}, 3, "has never answered"),
    "for good": (range(4, 99), {}, 3 + 3 * 6, "generations in a row"),
    "where nothing may be left out": (range(4, 99), {"max_effect": "time"}, 3 + 3, "generations in a row"),
}


@pytest.mark.parametrize("when", FAILING)
def test_a_function_that_is_broken_ends_the_run_with_its_own_error(when, tmp_path):
    calls, config, expected, told = FAILING[when]
    judge = Judge(dict.fromkeys(calls, raises))
    with pytest.raises((ValueError, UnrecoverableError)) as caught:
        healed(tmp_path, "grpo", judge, **config)
    error = caught.value if isinstance(caught.value, ValueError) else caught.value.__cause__
    assert any(told in note for note in error.__notes__)
    assert judge.calls >= expected


def test_a_function_may_have_a_timer_of_its_own(tmp_path):
    import signal

    def times_itself(rewards):
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(5)
        signal.alarm(0)
        return rewards

    before = signal.getsignal(signal.SIGALRM)
    assert signal.getitimer(signal.ITIMER_REAL)[0] > 9, "the limit of this test itself, which must go on afterwards"
    trainer, _ = healed(tmp_path, "grpo", Judge(dict.fromkeys(range(1, 9), times_itself)), steps=4, reward_timeout_s=9)
    assert updates(trainer) == 4
    assert signal.getsignal(signal.SIGALRM) is before
    assert signal.getitimer(signal.ITIMER_REAL)[0] > 0
