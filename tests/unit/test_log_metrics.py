"""Metrics of one line: every common form is read, prose and settings are not, and no line is slow to read."""

from __future__ import annotations

import json
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from self_healing.readers.log_metrics import MOST_PAIRS, Place, parse_line
from self_healing.readers.log_names import Kind, meaning_of_name, meaning_of_words
from self_healing.readers.log_words import METRIC_WORDS

FORMS = {
    "prose, no number": ("step 7: train loss nan, 512 tokens", {"loss": math.nan}, 7),
    "a dict of numbers": (
        "{'loss': 2.5, 'grad_norm': 0.25, 'learning_rate': 1e-05, 'epoch': 0.1}",
        {"loss": 2.5, "grad_norm": 0.25, "learning_rate": 1e-5, "epoch": 0.1},
        None,
    ),
    "a dict of texts": (
        "{'loss': '2.5', 'grad_norm': '0.25', 'epoch': '0.1'}",
        {"loss": 2.5, "grad_norm": 0.25, "epoch": 0.1},
        None,
    ),
    "a dict after a bar": (
        " 1%|#   | 10/1000 [00:05<08:00, 2.06it/s]      {'loss': 2.5, 'epoch': 0.1}",
        {"loss": 2.5, "epoch": 0.1},
        None,
    ),
    "a dict of an evaluation": (
        "2026-01-01 10:00:00,1 - INFO - Evaluation results: {'loss': nan, 'accuracy': 0.5}.",
        {"eval_loss": math.nan, "eval_accuracy": 0.5},
        None,
    ),
    "RL, older spellings": (
        "{'loss': 0.0, 'reward': 0.5, 'rewards/format_reward': 0.25, 'completion_length': 310.5, 'kl': 0.001}",
        {"loss": 0.0, "reward": 0.5, "rewards/format_reward/mean": 0.25, "completions/mean_length": 310.5, "kl": 0.001},
        None,
    ),
    "JSON": ('{"step": 4, "train/loss": 1.5, "eval/loss": "2.5"}', {"loss": 1.5, "eval_loss": 2.5}, 4),
    "nested JSON": ('{"global_step": 4, "metrics": {"loss": 1.5}, "val": {"loss": 2}}', {"loss": 1.5, "eval_loss": 2.0}, 4),
    "JSON that is cut off": ('{"step": 4, "loss": 1.5, "messa', {"loss": 1.5}, 4),
    "JSON in a line": ('INFO | train_inner | {"epoch": 1, "loss": "11.5", "num_updates": "200"}', {"loss": 11.5, "epoch": 1.0}, 200),
    "key=value": ("step=7 loss=0.5 lr=1e-4 grad_norm=inf", {"loss": 0.5, "learning_rate": 1e-4, "grad_norm": math.inf}, 7),
    "key: value": ("Step: 7, train_loss: 0.5, Grad Norm: 1.5", {"loss": 0.5, "grad_norm": 1.5}, 7),
    "table of bars": ("INFO - Epoch: 1 | Step: 50 | Train loss: 0.5 | Eval loss: 0.75 | Eval accuracy: 0.5", {"loss": 0.5, "eval_loss": 0.75, "eval_accuracy": 0.5}, 50),
    "epochs in brackets": ("Epoch [3/50], Loss: 1.5, Accuracy: 47.5%", {"loss": 1.5, "accuracy": 47.5}, None),
    "nanoGPT, evaluation": ("step 250: train loss 2.5, val loss 2.75", {"loss": 2.5, "eval_loss": 2.75}, 250),
    "nanoGPT, step": ("iter 250: loss 2.5, time 55.32ms, mfu 12.34%", {"loss": 2.5}, 250),
    "Keras": ("100/100 [=====] - 12s 7ms/step - loss: 1.5 - accuracy: 0.5 - val_loss: 1.25", {"loss": 1.5, "accuracy": 0.5, "eval_loss": 1.25}, None),
    "Lightning": ("Epoch 3:  45%|###| 45/100 [00:10<00:12, 4.5it/s, loss=0.5, v_num=0, val_loss=0.75]", {"loss": 0.5, "eval_loss": 0.75}, None),
    "the MNIST example, test": ("Test set: Average loss: 0.25, Accuracy: 9893/10000 (99%)", {"eval_loss": 0.25, "eval_accuracy": 9893.0}, None),
    "timm, test": ("Test: [  50/195]  Time: 0.1 (0.1)  Loss:  1.5 (1.25)  Acc@1: 60.5 (61.0)", {"eval_loss": 1.5}, None),
    "a logger called test": ("test_run/train.py - step 5, loss 2.5", {"loss": 2.5}, 5),
    "diffusers": ("Steps:  1%|# | 10/1000 [00:11<18:00, 1.1s/it, lr=1e-4, step_loss=0.125]", {"learning_rate": 1e-4, "loss": 0.125}, None),
    "verl": (
        "(TaskRunner pid=9) step:12 - actor/entropy:0.5 - actor/kl_loss:0.25 - actor/pg_loss:-0.5 - actor/grad_norm:1.5 - critic/rewards/mean:0.75 - response_length/mean:300.0",
        {"entropy": 0.5, "kl": 0.25, "loss": -0.5, "grad_norm": 1.5, "reward": 0.75, "completions/mean_length": 300.0},
        12,
    ),
    "Megatron": (
        " iteration      100/  500000 | consumed samples: 51200 | learning rate: 1.000E-04 | lm loss: 7.5E+00 | loss scale: 1.0 | grad norm: 1.5 |",
        {"learning_rate": 1e-4, "loss": 7.5, "loss_scale": 1.0, "grad_norm": 1.5},
        100,
    ),
    "estimators": ("INFO:tensorflow:loss = 1.5, step = 100 (162.563 sec)", {"loss": 1.5}, 100),
    "estimators, evaluation": ("INFO:tensorflow:Saving dict for global step 90: loss = 0.5, global_step = 90", {"eval_loss": 0.5}, 90),
    "loss at a step": ("loss at 404 1.75", {"loss": 1.75}, 404),
    "evaluation at a step": ("INFO | main:217 - Eval loss at step 404: 3.25,tokens_seen: 12", {"eval_loss": 3.25}, 404),
    "Megatron, evaluation": (" validation loss at iteration 1000 | lm loss value: 2.5E+00 | lm loss PPL: 1.2E+01 |", {"eval_loss": 2.5, "eval_perplexity": 12.0}, 1000),
    "LLaMA-Factory": ('{"current_steps": 10, "total_steps": 100, "loss": 1.5, "lr": 1e-05, "epoch": 0.5}', {"total_steps": 100.0, "loss": 1.5, "learning_rate": 1e-5, "epoch": 0.5}, 10),
    "swift": ("{'loss': 0.5, 'token_acc': 0.75, 'epoch': 0.5, 'global_step/max_steps': '5/870', 'percentage': '0.57%'}", {"loss": 0.5, "accuracy": 0.75, "epoch": 0.5, "percentage": 0.57}, 5),
    "NeMo": ("Epoch 0:   1%| | 10/1000 [00:10<16:30, reduced_train_loss=10.5, global_step=9.000, train_step_timing in s=0.5]", {"loss": 10.5}, 9),
    "MaxText": ("completed step: 10, seconds: 0.123, TFLOP/s/device: 12.5, total_weights: 65536, loss: 10.5", {"loss": 10.5, "TFLOP/s/device": 12.5}, 10),
    "torchtune": ("1|10|Loss: 1.25:   1%|#  | 10/1000 [00:10<16:30,  1.0s/it]", {"loss": 1.25}, None),
    "a tensor": ("step 3 loss: tensor(0.5, device='cuda:0', grad_fn=<NllLossBackward0>)", {"loss": 0.5}, 3),
    "context before it": ("INFO - Validation - Loss: 0.5, F1: 0.25", {"eval_loss": 0.5}, None),
    "not a number": ("step 8 loss: nan grad_norm: -inf", {"loss": math.nan, "grad_norm": -math.inf}, 8),
}  # fmt: skip


@pytest.mark.parametrize("form", FORMS)
def test_common_forms_are_read(form):
    line, wanted, step = FORMS[form]
    found = parse_line(line)
    assert found is not None
    values = dict(found.values)
    assert values.keys() == wanted.keys()
    assert all(a == b or (math.isnan(a) and math.isnan(b)) for a, b in ((values[k], wanted[k]) for k in wanted))
    assert found.step == step


@pytest.mark.parametrize("form", FORMS)
def test_every_form_holds_a_word_that_is_looked_for_first(form):
    assert any(word in FORMS[form][0].lower() for word in METRIC_WORDS)


@pytest.mark.parametrize(
    "line",
    [
        "    loss = model(**batch, labels=labels).loss",
        "lr                             0.001",
        "learning_rate: 5e-5",
        "  max_grad_norm: 1.0",
        "Initialized loss: output_weight=1.0, kl_weight=0.1",
        "New best model saved with val_loss=0.0040",
        "Best validation loss: 0.25",
        "Loss for final step: 0.03.",
        "{'accuracy': 1.0}",
        "GPU 5 access at 10:30:22, memory: 17.16 GB",
        "loss computed in 12.5ms by torch 2.6.0",
        "[--ignore_pad_token_for_loss [IGNORE_PAD_TOKEN_FOR_LOSS]]",
        "gradient_accumulation_steps: 8",
        "loss: 12:30:55",
        "loss: 2024-01-01",
        "",
    ],
)
def test_prose_settings_and_source_are_no_metrics(line):
    found = parse_line(line)
    assert found is None or not found.values


def test_the_summary_of_a_finished_run_is_no_observation():
    found = parse_line("{'train_runtime': 10.5, 'train_loss': 2.0, 'epoch': 3.0}")
    assert found is not None
    assert not found.values


def test_where_the_run_is_is_read_without_metrics_too():
    assert parse_line("Epoch 2/10").epoch == 2.0
    assert parse_line(" 38%|###  | 1020/2696 [9:55<2:01, 5.6s/it]").place == Place(1020, 2696)


def test_ranks_are_read_at_the_beginning():
    assert parse_line("[rank3]: step=4 loss=0.5").rank == 3
    assert parse_line("[RANK 2] loss=0.5").rank == 2
    assert parse_line("loss=0.5 lora_rank=8").rank is None


def test_words_mean_what_people_mean():
    said = {
        "Train Loss": "loss",
        "Val Acc": "eval_accuracy",
        "learning rate": "learning_rate",
        "Average loss": "loss",
        "LR": "learning_rate",
    }
    assert {words: meaning_of_words(words).name for words in said} == said
    assert meaning_of_words("gpu memory").kind is Kind.NOTHING
    assert meaning_of_words("steps").kind is Kind.NOTHING
    assert meaning_of_name("eval_f1").name == "eval_f1"
    assert meaning_of_name("x" * 1000).kind is Kind.NOTHING


# --- any line ---------------------------------------------------------------------------------------------------

NUMBERS = st.floats(allow_nan=False, allow_infinity=False, width=32)
WRITERS = {
    "dict": repr,
    "texts": lambda row: repr({name: str(value) for name, value in row.items()}),
    "JSON": json.dumps,
    "equals": lambda row: ", ".join(f"{name}={value}" for name, value in row.items()),
    "colons": lambda row: " | ".join(f"{name}: {value}" for name, value in row.items()),
    "postfix": lambda row: f" 5%|# | 5/100 [00:01<00:19, 4.5it/s, {', '.join(f'{n}={v}' for n, v in row.items())}]",
    "verl": lambda row: "step:3 - " + " - ".join(f"{name}:{value}" for name, value in row.items()),
}
PREFIXES = st.sampled_from(
    ["", "2026-01-05 10:00:01,123 - trainer - INFO - ", "[rank0]: ", "(Worker pid=12) ", "I0105 x.py:12] "]
)


@given(
    st.sampled_from(sorted(WRITERS)),
    PREFIXES,
    st.dictionaries(st.sampled_from(["loss", "grad_norm", "learning_rate", "reward", "eval_loss", "kl"]), NUMBERS).map(
        lambda d: {"loss": 1.5} | d
    ),
)
@settings(max_examples=400, deadline=None)
def test_what_was_written_is_read_back_in_every_form(writer, prefix, row):
    found = parse_line(prefix + WRITERS[writer](row))
    assert found is not None
    assert dict(found.values) == row


@given(st.text(st.sampled_from("loss eval:=,'\"{}[]()0123456789.-+e%|/\\nanif\tEpochstep"), max_size=300))
@settings(max_examples=600, deadline=None)
def test_any_line_is_read_without_an_error(line):
    found = parse_line(line)
    if found is not None:
        assert all(type(value) is float for value in found.values.values())
        assert found.step is None or found.step >= 0


@given(st.text(max_size=200))
@settings(max_examples=300, deadline=None)
def test_any_text_around_metrics_is_survived(text):
    parse_line(f"{text} loss: 0.5 {text}")
    parse_line('{"loss": 0.5, ' + text)


def test_a_line_of_numbers_without_end_is_read_up_to_a_limit():
    found = parse_line("".join(f"a/x{n}:{n} " for n in range(3 * MOST_PAIRS)) + "loss: 1.5")
    assert found is None or len(found.values) <= MOST_PAIRS
    assert len(parse_line("loss: 1.5 " + "".join(f"a/x{n}:{n} " for n in range(3 * MOST_PAIRS))).values) == MOST_PAIRS


HOSTILE = {
    "one word": "a", "words": "a ", "words with blanks": "loss   ", "quotes": "'", "colons": "loss:", "digits": "1", "steps": "loss at step 1 ",
    "points": "1.", "exponents": "1e", "braces": '{"a":', "brackets": "[", "slashes": "1/", "places": "1/2 ", "tensors": "loss: tensor(",
    "dashes": "-", "underscores": "_", "ranks": "rank", "evals": "eval ", "signs": "+-", "nans": "nan", "blanks": " ", "tabs": "loss\t",
    "names": "loss_", "quoted": "'loss': ", "dots": "a.b.", "letters beyond ASCII": "\u00e9",
}  # fmt: skip


@pytest.mark.timeout(60)
@pytest.mark.parametrize("name", HOSTILE)
def test_no_line_takes_more_than_linear_time(name):
    """A megabyte takes a fraction of a second; an expression that looks back for every character would take hours."""
    parse_line((HOSTILE[name] * 2**20)[: 2**20])
    parse_line("loss: 0.5 " + (HOSTILE[name] * 2**20)[: 2**20] + " loss 1.5")
