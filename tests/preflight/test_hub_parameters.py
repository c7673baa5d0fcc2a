"""The parameters of a model on the Hub come from its config.json: asked for once, and never waited for without end."""

from __future__ import annotations

import json
import time

import pytest

from self_healing.preflight.hardware.model_sources import shape_of_model
from self_healing.preflight.options import CheckOptions
from self_healing.preflight.runner import run_checks
from self_healing.preflight.subject import read_subject
from self_healing.preflight.surroundings.here import model_bytes
from self_healing.preflight.tools import Tools

from ..unit.loopback_servers import hanging
from .hub_server import Content, Repo, hub_server

LARGE = {
    "model_type": "llama", "vocab_size": 128256, "hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32,
    "num_key_value_heads": 8, "intermediate_size": 14336, "max_position_embeddings": 8192, "dtype": "bfloat16",
}  # fmt: skip
SCRIPT = "from trl import SFTConfig, SFTTrainer\nSFTTrainer('{}', args=SFTConfig('out', per_device_train_batch_size=8)).train()\n"


def counted(**parameters):
    return {"safetensors": {"parameters": parameters, "total": sum(parameters.values())}}


MODELS = {
    "acme/unnumbered": Repo(contents={"config.json": json.dumps(LARGE)}),
    "acme/misnamed-0.1B": Repo(contents={"config.json": json.dumps(LARGE)}),
    "acme/empty-3B": Repo(),
    "acme/odd-3B": Repo(contents={"config.json": "[1, 2"}),
    "acme/pinned": Repo(
        contents={
            "config.json": json.dumps(LARGE),
            "v1.0:config.json": json.dumps({**LARGE, "num_hidden_layers": 16}),
        }
    ),
    "acme/novel": Repo(
        contents={"config.json": json.dumps({**LARGE, "model_type": "novel"})}, extra=counted(BF16=9_000_000_000)
    ),
    "acme/config-less": Repo(files=("model.safetensors",), extra=counted(F16=7_000_000_000, I64=4096)),
    "acme/gated-and-counted": Repo(gated="manual", extra=counted(BF16=7_500_000_000)),
    "acme/packed-3B": Repo(files=(), extra=counted(I32=800_000_000, F16=200_000_000)),
    "acme/eight-bits-3B": Repo(files=(), extra=counted(I8=2_900_000_000, F32=100_000_000)),
    "acme/adapter-3B": Repo(files=("adapter_config.json",), extra=counted(BF16=4_000_000)),
    "acme/odd-count-3B": Repo(files=(), extra={"safetensors": {"parameters": {"BF16": "many"}}}),
    "acme/odder-count-3B": Repo(files=(), extra={"safetensors": [1]}),
    "acme/empty": Repo(files=("README.md",)),
    "acme/odd": Repo(contents={"config.json": "[1, 2"}),
    "acme/speech": Repo(contents={"config.json": '{"model_type": "codec"}'}),
    "acme/gated": Repo(gated="manual"),
    "acme/gated-3B": Repo(gated="manual", contents={"config.json": json.dumps(LARGE)}),
}


@pytest.fixture
def hub():
    with hub_server(Content(models=MODELS, datasets={})) as server:
        yield server


@pytest.fixture(autouse=True)
def no_proxy(monkeypatch):
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")


def tools_for(url, folder, *, limit_s=5.0, **options):
    given = CheckOptions.model_validate({"gpu": "a10g", **options})
    return Tools(options=given, environ={"HF_ENDPOINT": url, "PATH": "/nowhere"}, cwd=folder, hub_limit_s=limit_s)


def test_a_model_whose_name_tells_nothing_is_counted_by_its_config(hub, tmp_path):
    shape = shape_of_model("acme/unnumbered", tools_for(hub.url, tmp_path))
    assert (shape.parameters, shape.is_estimate) == (8_030_261_248, False)


def test_the_config_goes_before_the_name(hub, tmp_path):
    assert shape_of_model("acme/misnamed-0.1B", tools_for(hub.url, tmp_path)).parameters == 8_030_261_248


@pytest.mark.parametrize("name", ["acme/empty-3B", "acme/odd-3B", "acme/gated-3B", "acme/absent-3B"])
def test_where_there_is_no_config_to_read_the_name_tells(hub, tmp_path, name):
    shape = shape_of_model(name, tools_for(hub.url, tmp_path))
    assert (shape.parameters, shape.is_estimate) == (3_000_000_000, True)


def test_a_training_is_estimated_by_it_and_asks_once(hub, tmp_path):
    (tmp_path / "train.py").write_text(SCRIPT.format("acme/unnumbered"))
    tools = tools_for(hub.url, tmp_path, select=("memory-too-small", "disk-too-small"))
    subject = read_subject(["train.py"], [], tools.options, tmp_path)
    report = run_checks(subject, tools)
    [finding] = report.findings
    assert "acme/unnumbered (8.03 billion parameters)" in finding.message
    assert model_bytes(subject, tools) == (2.0 * 8_030_261_248, False)
    assert sum("config.json" in path for path in hub.paths()) == 1


@pytest.mark.parametrize(
    ("name", "parameters", "dtype"),
    [
        ("acme/novel", 9_000_000_000, "bfloat16"),
        ("acme/config-less", 7_000_000_000, "float16"),
        ("acme/gated-and-counted", 7_500_000_000, "bfloat16"),
    ],
)
def test_what_the_config_does_not_tell_the_hub_has_counted(hub, tmp_path, name, parameters, dtype):
    tools = tools_for(hub.url, tmp_path, select=("memory-too-small",))
    shape = shape_of_model(name, tools)
    assert (shape.parameters, shape.dtype, shape.is_estimate) == (parameters, dtype, True)
    (tmp_path / "train.py").write_text(SCRIPT.format(name))
    [finding] = run_checks(read_subject(["train.py"], [], tools.options, tmp_path), tools).findings
    assert (
        f"({parameters / 1e9:.2f} billion parameters by the Hub's count of its safetensors files; " in finding.message
    )


@pytest.mark.parametrize("name", ["packed", "eight-bits", "adapter", "odd-count", "odder-count"])
def test_a_count_of_something_else_is_not_taken_for_one_of_parameters(hub, tmp_path, name):
    assert shape_of_model(f"acme/{name}-3B", tools_for(hub.url, tmp_path)).parameters == 3_000_000_000


def test_where_the_config_tells_all_nothing_else_is_asked(hub, tmp_path):
    shape_of_model("acme/unnumbered", tools_for(hub.url, tmp_path))
    assert hub.paths() == ["/acme/unnumbered/resolve/main/config.json"]


def test_a_folder_is_counted_here_and_never_by_the_hub(hub, tmp_path):
    (tmp_path / "acme" / "config-less").mkdir(parents=True)
    assert shape_of_model("acme/config-less", tools_for(hub.url, tmp_path)) is None
    assert not any(path.startswith("/api") for path in hub.paths())


HALF = 8_030_261_248 - 16 * (2 * 4096**2 + 2 * 4096 * 1024 + 3 * 4096 * 14336 + 2 * 4096)


def test_a_pinned_revision_is_the_one_that_is_counted(hub, tmp_path):
    tools = tools_for(hub.url, tmp_path, select=("memory-too-small",))
    assert shape_of_model("acme/pinned", tools, "v1.0").parameters == HALF
    assert shape_of_model("acme/pinned", tools).parameters == 8_030_261_248
    (tmp_path / "train.py").write_text(
        "from transformers import AutoModelForCausalLM\nfrom trl import SFTConfig, SFTTrainer\n"
        "m = AutoModelForCausalLM.from_pretrained('acme/pinned', revision='v1.0')\nSFTTrainer(m, args=SFTConfig('o')).train()\n"
    )
    subject = read_subject(["train.py"], [], tools.options, tmp_path)
    [finding] = run_checks(subject, tools).findings
    assert f"acme/pinned ({HALF / 1e9:.2f} billion parameters)" in finding.message
    assert model_bytes(subject, tools) == (2.0 * HALF, False)


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("acme/empty", "the Hub has no config.json of it"),
        ("acme/absent", "the Hub has no such model that may be seen from here"),
        ("acme/gated", "the Hub does not give its config.json away without a token that may read it (set HF_TOKEN)"),
        ("acme/speech", "the Hub has a config.json of it, which does not say how large its layers are"),
        ("acme/odd", "the Hub has a config.json of it, which is no JSON object"),
        ("./acme/x", "the Hub was not asked, since this is no name of it"),
    ],
)
def test_where_the_size_is_not_known_it_is_said_what_the_hub_answered(hub, tmp_path, name, says):
    assert because(hub.url, tmp_path, name) == (
        f"the size of {name} is not known: it is no folder with a config.json, {says}, and its name does not tell it"
    )


def because(url, folder, name, **options):
    (folder / "train.py").write_text(SCRIPT.format(name))
    tools = tools_for(url, folder, limit_s=0.3, select=("memory-too-small",), **options)
    [missed] = run_checks(read_subject(["train.py"], [], tools.options, folder), tools).not_run
    return missed.because


def test_where_the_hub_was_not_asked_or_silent_that_is_said(hub, tmp_path):
    offline = because(hub.url, tmp_path, "acme/unnumbered", offline=True)
    assert "the Hub could not be asked (--offline is given; leave it out)" in offline
    with hanging() as url:
        assert "the Hub gave no answer (127.0.0.1" in because(url, tmp_path, "acme/unnumbered")


def test_a_folder_whose_config_has_no_sizes_says_so(hub, tmp_path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "config.json").write_text("{}")
    assert because(hub.url, tmp_path, "mine").endswith(
        "the config.json of this folder does not say how large its layers are"
    )


@pytest.mark.parametrize("name", ["./acme/unnumbered", "/acme/unnumbered", "a/b/c", "acme/../x", "acme/x?y=1", ""])
def test_a_path_is_no_name_to_ask_for(hub, tmp_path, name):
    assert tools_for(hub.url, tmp_path).hub.fetch_config(name) is None
    assert hub.asked == []


def test_small_files_of_a_model_are_fetched_and_others_never(hub, tmp_path):
    asked = tools_for(hub.url, tmp_path).hub
    assert asked.fetch_json("acme/pinned", "config.json", "v1.0")["num_hidden_layers"] == 16
    assert asked.fetch_json("acme/pinned", "tokenizer_config.json") == {}
    assert asked.fetch_json("acme/pinned", "added_tokens.json") is None
    hub.asked.clear()
    for file in ("model.safetensors", "tokenizer.json", "../x"):
        with pytest.raises(AssertionError, match="none that is fetched"):
            asked.fetch_json("acme/pinned", file)
    assert hub.asked == []


def test_offline_nobody_is_asked(hub, tmp_path):
    assert shape_of_model("acme/unnumbered", tools_for(hub.url, tmp_path, offline=True)) is None
    assert hub.asked == []


def test_a_hub_that_does_not_answer_is_not_waited_for(tmp_path):
    with hanging() as url:
        begun = time.monotonic()
        assert shape_of_model("acme/model-3B", tools_for(url, tmp_path, limit_s=0.2)).is_estimate
        assert time.monotonic() - begun < 2
