"""Sound trainings, checked where there is a Hub that has their models' files: more is known then, and nothing more is said."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import pytest

from self_healing.preflight.options import CheckOptions
from self_healing.preflight.runner import run_checks
from self_healing.preflight.subject import read_subject
from self_healing.preflight.tools import Tools

from .hub_server import Content, Repo, hub_server
from .test_sound_configurations import SOUND, SOUND_COMMANDS, SOUND_CONFIGS

FOLDER = Path(__file__).parent
CHECKS = ("pad-token", "missing-chat-template", "too-long-sequences", "missing-lora-target")
TEXTS = {
    **{path.name: path.read_text() for path in sorted((FOLDER / "sound_scripts").glob("*.py.txt"))},
    **{path.name: path.read_text() for path in sorted((FOLDER / "corpus" / "sound").glob("*.py"))},
    **SOUND,
}


def model(config, tokenizer, *others):
    contents = {"config.json": json.dumps(config), "tokenizer_config.json": json.dumps(tokenizer)}
    return Repo(files=("README.md", "tokenizer.json", *contents, *others), contents=contents)


def listed(*tokens):
    return {"added_tokens_decoder": {str(place): {"content": token} for place, token in enumerate(tokens)}}


ENDS = listed("<|endoftext|>", "<|im_start|>", "<|im_end|>")
CHATS = {"chat_template": "{% for message in messages %}{{ message.content }}{% endfor %}"}
QWEN = {"tokenizer_class": "Qwen2Tokenizer", "pad_token": "<|endoftext|>", **ENDS, **CHATS}
LLAMA_3 = {"tokenizer_class": "PreTrainedTokenizerFast", **listed("<|begin_of_text|>", "<|end_of_text|>", "<|eot_id|>")}
ROPE = {"rope_type": "llama3", "factor": 8.0, "original_max_position_embeddings": 8192}
LLAMA_31 = {"model_type": "llama", "max_position_embeddings": 131072, "rope_scaling": ROPE}
BERT = {"do_lower_case": True, "model_max_length": 512}
"""As the first models have it: everything else is what the class of the tokenizer brings."""
MODELS = {
    **{
        f"Qwen/Qwen2{name}": model({"model_type": "qwen2", "max_position_embeddings": 32768}, QWEN)
        for name in (".5-0.5B", ".5-0.5B-Instruct", "-0.5B-Instruct", ".5-3B", ".5-7B", ".5-1.5B-Instruct")
    },
    "Qwen/Qwen3-0.6B": model({"model_type": "qwen3", "max_position_embeddings": 40960}, QWEN),
    "HuggingFaceTB/SmolLM2-135M": model(
        {"model_type": "llama", "max_position_embeddings": 8192}, {"tokenizer_class": "GPT2Tokenizer", **ENDS}
    ),
    "meta-llama/Llama-3.1-8B": model(LLAMA_31, LLAMA_3),
    "NousResearch/Meta-Llama-3.1-8B": model(LLAMA_31, LLAMA_3),
    "meta-llama/Llama-3.1-70B-Instruct": model(LLAMA_31, {**LLAMA_3, **CHATS}),
    "TinyLlama/TinyLlama-1.1B-Chat-v1.0": model(
        {"model_type": "llama", "max_position_embeddings": 2048},
        {"tokenizer_class": "LlamaTokenizer", "pad_token": "</s>", **CHATS},
    ),
    **{
        name: model({"model_type": name.rpartition("/")[2].partition("-")[0], "max_position_embeddings": 512}, BERT)
        for name in ("distilbert-base-uncased", "distilbert/distilbert-base-uncased", "bert-base-uncased")
    },
    "gpt2": model({"model_type": "gpt2", "n_positions": 1024, "n_ctx": 1024}, {"model_max_length": 1024}),
}


@pytest.fixture(scope="module")
def url():
    with hub_server(Content(models=MODELS, datasets={})) as server:
        yield server.url


@pytest.fixture(autouse=True)
def no_proxy(monkeypatch):
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")


def said(folder, url, *paths, argv=""):
    options = CheckOptions(select=CHECKS)
    subject = read_subject(paths, shlex.split(argv), options, folder)
    report = run_checks(subject, Tools(options=options, environ={"HF_ENDPOINT": url}, cwd=folder))
    return [f"{each.check}: {each.message}" for each in report.findings], report.not_run


@pytest.mark.parametrize("name", TEXTS)
def test_nothing_is_said_about_a_sound_script_whose_models_are_known(tmp_path, url, name):
    (tmp_path / "train.py").write_text(TEXTS[name])
    assert said(tmp_path, url, "train.py") == ([], [])


@pytest.mark.parametrize("name", SOUND_CONFIGS)
def test_nothing_is_said_about_a_sound_config_whose_models_are_known(tmp_path, url, name):
    (tmp_path / "config.yaml").write_text(SOUND_CONFIGS[name])
    assert said(tmp_path, url, "config.yaml") == ([], [])


@pytest.mark.parametrize("argv", SOUND_COMMANDS)
def test_nothing_is_said_about_a_sound_command_whose_models_are_known(tmp_path, url, argv):
    assert said(tmp_path, url, argv=argv) == ([], [])
