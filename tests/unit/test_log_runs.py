"""Observations of a log: the right step where the lines give it, a sensible one where not, and runs told apart."""

from __future__ import annotations

import io

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from self_healing.config import HealingConfig
from self_healing.readers import Format, log_words
from self_healing.readers.log_runs import LogMetrics, read_metrics
from self_healing.readers.log_text import Block, read_blocks
from self_healing.readers.log_words import lines_with, lowered
from self_healing.replay.metrics import replay_observations
from self_healing.replay.result import ReplayResult

BAR = "\r {p}%|##  | {n}/{of} [00:01<00:02, 1.62it/s]"


def observed(*lines):
    data = "\n".join(["log begins", *lines]).encode()
    return list(read_metrics(read_blocks(io.BytesIO(data))))


def steps(*lines):
    """Return (run, step) of every observation."""
    return [(o.run, o.signal.step) for o in observed(*lines)]


def entry(loss, epoch):
    return f"{{'loss': {loss}, 'grad_norm': 0.5, 'epoch': {epoch}}}"


# --- steps ------------------------------------------------------------------------------------------------------


def test_the_line_and_the_step_are_those_of_the_log():
    found = observed("noise", "step 10: loss 2.5", "noise", "step 20: loss 2.25")
    assert [(o.line, o.signal.step, o.signal.values) for o in found] == [
        (3, 10, {"loss": 2.5}),
        (5, 20, {"loss": 2.25}),
    ]
    assert found[0].observation == (0, found[0].signal)


def test_entries_without_a_step_are_counted():
    assert steps(entry(2.5, 0.1), entry(2.4, 0.2), entry(2.3, 0.3)) == [(0, 0), (0, 1), (0, 2)]


def test_the_bar_before_an_entry_gives_its_step():
    lines = [BAR.format(p=n, n=n, of=1000) + "\r          \r" + entry(2.5, n / 100) for n in (10, 20, 30)]
    assert steps(*lines) == [(0, 10), (0, 20), (0, 30)]


def test_the_bar_of_a_resumed_run_that_is_late_at_first_makes_no_steps_up():
    lines = [BAR.format(p=0, n=n, of=1000) + "\r          \r" + entry(2.5, n / 100) for n in (0, 501, 501, 502)]
    assert [step for _, step in steps(*lines)] == [0, 501, 502, 503]


def test_the_bar_of_an_evaluation_gives_no_step():
    found = steps(
        BAR.format(p=1, n=10, of=1000) + "\r" + entry(2.5, 0.1),
        BAR.format(p=50, n=25, of=50) + "\r" + "{'eval_loss': 2.5, 'epoch': 0.1}",
        BAR.format(p=99, n=49, of=50) + "\r" + entry(2.5, 0.2),
    )
    assert found == [(0, 10), (0, 10), (0, 11)]


def test_an_evaluation_belongs_to_the_newest_step():
    assert steps("step 5 loss 1.5", "Validation loss: 1.25", "eval loss at step 2: 1.5", "step 6 loss 1.5") == [
        (0, 5),
        (0, 5),
        (0, 5),
        (0, 6),
    ]


def test_steps_that_begin_anew_with_every_epoch_go_on():
    lines = [f"Epoch {epoch} step {step} loss 1.5" for epoch in (1, 2, 3) for step in (1, 2, 3)]
    assert steps(*lines) == [(0, step) for step in range(1, 10)]


def test_epochs_announced_in_lines_of_their_own_explain_falling_steps():
    lines = ["Epoch 1/2", "step 100 loss 1.5", "step 200 loss 1.5", "Epoch 2/2", "step 100 loss 1.5"]
    assert steps(*lines) == [(0, 100), (0, 200), (0, 300)]


def test_bars_of_epochs_go_on_from_one_to_the_next():
    lines = []
    for epoch in (1, 2):
        lines.append(f"Epoch {epoch}/2")
        lines.append("\r".join(f"{n}/4 [==>..] - ETA: 0s - loss: {2.5 - n / 8} - acc: 0.5" for n in (1, 2, 3, 4)))
    assert steps(*lines) == [(0, step) for step in range(1, 9)]
    silent = [f"Epoch {epoch}/2\n4/4 - 12s - 8ms/step - accuracy: 0.5 - loss: {1.5 - epoch / 8}" for epoch in (1, 2)]
    assert steps(*silent) == [(0, 4), (0, 8)]
    drawn = [
        f"Epoch {epoch}/2\n\x1b[1m{n}/4\x1b[0m \x1b[32m\u2501\u2501\x1b[0m 1s 3ms/step - loss: {n / 8}"
        for epoch in (1, 2)
        for n in (2, 4)
    ]
    assert steps(*drawn) == [(0, 2), (0, 4), (0, 6), (0, 8)]
    unnamed = [f" 5%|# | {n}/4 [00:01<00:19, 4.5it/s, loss={1 + n / 8}]" for n in (2, 4, 2, 4)]
    assert steps(*unnamed) == [(0, 2), (0, 4), (0, 6), (0, 8)]


def test_what_a_bar_goes_on_showing_is_told_once():
    bar = "Epoch 3:  45%|##| {n}/100 [00:10<00:12, 4.5it/s, loss={loss}, val_loss=0.75]"
    found = observed(*(bar.format(n=n, loss=n / 64) for n in (1, 2, 2, 3)))
    assert [(o.signal.step, dict(o.signal.values)) for o in found] == [
        (1, {"loss": 1 / 64, "eval_loss": 0.75}),
        (2, {"loss": 2 / 64}),
        (3, {"loss": 3 / 64}),
    ]


def test_the_mean_over_an_epoch_is_no_step():
    found = observed("step 1 loss 1.5", "step 2 loss 1.25", "Epoch 1/3: train_loss=1.375, val_loss=1.5")
    assert [dict(o.signal.values) for o in found] == [{"loss": 1.5}, {"loss": 1.25}, {"eval_loss": 1.5}]
    alone = observed("Epoch 1/3: train_loss=1.375, val_loss=1.5", "Epoch 2/3: train_loss=1.25, val_loss=1.5")
    assert [o.signal.values["loss"] for o in alone] == [1.375, 1.25]


# --- runs -------------------------------------------------------------------------------------------------------


def test_a_step_that_falls_to_the_beginning_is_a_new_run_and_elsewhere_a_return():
    lines = [f"step {n} loss 1.5" for n in (10, 20, 30, 20, 30, 40, 10, 20)]
    assert [run for run, _ in steps(*lines)] == [0] * 6 + [1, 1]


def test_an_epoch_that_falls_to_the_beginning_is_a_new_run():
    assert steps(entry(2.5, 0.5), entry(2.5, 1.0), entry(2.5, 0.5), entry(2.5, 1.0)) == [(0, 0), (0, 1), (1, 0), (1, 1)]
    lines = [f"Epoch {n}/3 | Loss: 0.5 | Val Acc: 0.5" for n in (1, 2, 1, 2, 3)]
    assert [run for run, _ in steps(*lines)] == [0, 0, 1, 1, 1]


def test_an_epoch_that_is_announced_again_from_the_beginning_is_a_new_run():
    lines = ["Epoch 1/2", "loss: 1.5", "Epoch 2/2", "loss: 1.25", "Epoch 1/2", "loss: 1.5"]
    assert steps(*lines) == [(0, 0), (0, 1), (1, 0)]


def test_a_summary_and_the_next_run_are_told_apart():
    summary = "{'train_runtime': 10.5, 'train_loss': 2.0, 'epoch': 3.0}"
    assert steps(entry(2.5, 1.0), entry(2.5, 3.0), summary, entry(2.5, 1.0)) == [(0, 0), (0, 1), (1, 0)]


@pytest.mark.parametrize(
    "banner",
    ["***** Running training *****", "2026 - INFO - Starting training with the arguments", "Training started."],
)
def test_a_banner_makes_what_falls_a_new_run_and_what_goes_on_a_resumed_one(banner):
    assert steps("step 10 loss 1.5", "step 20 loss 1.5", banner, "step 15 loss 1.5") == [(0, 10), (0, 20), (1, 15)]
    assert steps("step 10 loss 1.5", "step 20 loss 1.5", banner, "step 30 loss 1.5") == [(0, 10), (0, 20), (0, 30)]
    assert steps("loss: 1.5", "loss: 1.25", banner, "loss: 1.5") == [(0, 0), (0, 1), (1, 0)]
    assert steps("Epoch 1/1 - train loss: 1.5", banner, "step 5 loss 1.5") == [(0, 0), (1, 5)]


# --- what is left out -------------------------------------------------------------------------------------------


def test_source_in_a_traceback_is_no_metric():
    assert not observed('  File "train.py", line 5, in step', "    loss = 0.5")
    assert not observed('[rank1]:   File "train.py", line 5, in step', "[rank1]:     loss = 0.5")
    assert observed("step 1 done", "  loss = 0.5")


def test_of_many_ranks_the_first_is_heard():
    found = observed(*(f"[rank{r}]: step={n} loss={r + 0.5}" for n in (1, 2) for r in (3, 0, 1)))
    assert [(o.signal.step, o.signal.values["loss"]) for o in found] == [(1, 3.5), (2, 3.5)]


# --- into the rules ---------------------------------------------------------------------------------------------


def test_the_rules_judge_each_run_of_a_log_by_itself():
    losses = [2.5 - n / 100 for n in range(60)]
    lines = [f"step {n} | loss: {loss} | lr: 1e-4" for n, loss in enumerate(losses)]
    lines += ["Starting training", *lines[:40], "step 40 | loss: nan | lr: 1e-4"]
    result = ReplayResult(path="run.log", format=Format.JSON_LINES)
    found = observed(*lines)
    replay_observations((o.observation for o in found), HealingConfig(), result)
    assert (result.runs, result.observations) == (2, 101)
    assert [(i.run, i.name, i.step) for i in result.incidents] == [(1, "loss-not-finite", 40)]


# --- any log ----------------------------------------------------------------------------------------------------

LINES = st.sampled_from(
    ["step 3 loss 1.5", "step 1 loss nan", "Epoch 1/3", "Epoch 2/3", "Starting training", "val loss: 2", entry(1.5, 0.5), "{'eval_loss': 1.0}",
     BAR.format(p=1, n=10, of=1000), "3/4 [=>.] - loss: 1.5", '{"step": 1e300, "loss": 2}', "[rank1]: loss=2", "epoch: -1 loss 3", "epoch inf loss 3"]
)  # fmt: skip


@given(st.lists(LINES | st.text(st.characters(exclude_categories=("Cc", "Cs")), max_size=30), max_size=40))
@settings(max_examples=300, deadline=None)
def test_any_mixture_gives_lines_and_runs_in_order(lines):
    found = observed(*lines)
    assert [o.line for o in found] == sorted(o.line for o in found)
    assert [o.run for o in found] == sorted(o.run for o in found)
    assert {o.run for o in found} <= set(range(len(lines) + 1))
    assert all(o.signal.step >= 0 and o.signal.values for o in found)


@given(st.lists(st.tuples(st.integers(1, 50), st.floats(0, 9, width=16)), min_size=1, max_size=40))
@settings(max_examples=200, deadline=None)
def test_steps_that_rise_come_back_as_they_were(rises):
    wanted, step = [], 0
    for rise, loss in rises:
        step += rise
        wanted.append((step, loss))
    found = observed(*(f"noise\nstep {step} loss {loss}" for step, loss in wanted))
    assert [(o.signal.step, o.signal.values["loss"]) for o in found] == wanted


@pytest.mark.parametrize("has_re2", [True, False])
@given(st.lists(st.text(st.sampled_from("los\u0130\u00e9K \tR"), max_size=12), max_size=12))
@settings(max_examples=200, deadline=None)
def test_lines_with_words_are_found_where_they_are(has_re2, lines):
    with pytest.MonkeyPatch.context() as patch:
        if not has_re2:
            patch.setattr(log_words, "re2", None)
        check_that_lines_are_found(lines)


def check_that_lines_are_found(lines):
    text = "\n".join(lines)
    low = lowered(text)
    assert len(low) == len(text)
    found = [(text[start:end], above) for start, end, above in lines_with(("los", "k"), low)]
    assert found == [
        (line, n) for n, line in enumerate(lines) if "los" in (low_line := lowered(line)) or "k" in low_line
    ]


def test_blocks_without_metrics_are_passed_over():
    assert not list(LogMetrics().of(Block(range(1, 3), "nothing\nhere")))
