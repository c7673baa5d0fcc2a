"""A model that judges completions is looked up like any other, and is not taken for the one that is trained."""

from __future__ import annotations

import pytest

from self_healing.preflight.hardware.reading import trained_model
from self_healing.preflight.options import CheckOptions
from self_healing.preflight.subject import read_subject
from self_healing.preflight.tools import Tools
from self_healing.preflight.training.models import only_model, only_tokenizer

LOADED = """from transformers import AutoModelForCausalLM
from trl import GRPOConfig, GRPOTrainer
model = AutoModelForCausalLM.from_pretrained("gpt2")
GRPOTrainer({}, args=GRPOConfig("out"{})).train()
"""


def subject_of(folder, given, more=""):
    (folder / "train.py").write_text(LOADED.format(given, more))
    return read_subject(["train.py"], [], CheckOptions(), folder)


@pytest.mark.parametrize(
    "given",
    ["model, 'acme/tinny-0.5B'", "model, reward_funcs='acme/tinny-0.5B'", "model=model, reward_funcs=[short, 'acme/tinny-0.5B']"],
)  # fmt: skip
def test_a_reward_model_that_is_not_there_is_found(check, given):
    [found] = [each for each in check("missing-model", LOADED.format(given, "")) if each.startswith("error")]
    assert "acme/tinny-0.5B: there is no such model" in found
    assert "did you mean acme/tiny-0.5B?" in found


def test_it_is_loaded_at_the_revision_of_the_model_that_is_trained(check):
    pinned = LOADED.format("model, reward_funcs='acme/tiny-0.5B'", ", model_init_kwargs={'revision': 'v9.0'}")
    [found] = check("missing-revision", pinned)
    assert "acme/tiny-0.5B: has no revision 'v9.0'" in found
    assert check("missing-revision", pinned.replace("v9.0", "v1.0")) == []


@pytest.mark.parametrize(
    "rewards", ["'acme/judge-7B'", "['acme/judge-7B', short]", "['acme/judge-7B', 'acme/other-7B']"]
)
def test_it_is_not_the_model_that_is_trained(tmp_path, rewards):
    subject = subject_of(tmp_path, f"model, reward_funcs={rewards}")
    assert trained_model(subject)[0] == "gpt2"
    tools = Tools(cwd=tmp_path)
    assert (only_model(subject, tools).name, only_tokenizer(subject, tools).name) == ("gpt2", "gpt2")


def test_where_the_trained_model_is_not_known_it_is_not_the_judge(tmp_path):
    text = LOADED.replace('"gpt2"', "chosen()").format("model, reward_funcs=['acme/judge-7B']", "")
    (tmp_path / "train.py").write_text(text)
    subject = read_subject(["train.py"], [], CheckOptions(), tmp_path)
    assert (trained_model(subject), only_tokenizer(subject, Tools(cwd=tmp_path))) == (None, None)


def test_a_text_in_a_config_names_a_function(check):
    [found] = check("missing-module", "reward_funcs: [my.rewards]\n", "config.yaml")
    assert "my.rewards" in found
    assert check("missing-module", LOADED.format("model, reward_funcs='judge.v2'", "")) == []
