"""Configs: whose they are, what their keys are called, what they name, and on which line."""

from __future__ import annotations

import json

import pytest

from self_healing.preflight.options import CheckOptions
from self_healing.preflight.subject import UNKNOWN, Kind, read_subject


def read(tmp_path, text, name="config.yaml", argv=(), **files):
    for file, content in files.items():
        path = tmp_path / file.replace("__", "/").replace("_yaml", ".yaml").replace("_py", ".py").replace(
            "_json", ".json"
        )
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
    (tmp_path / name).write_text(text)
    return read_subject([name], list(argv), CheckOptions(), tmp_path)


FRAMEWORKS = {
    "axolotl": "base_model: org/m\nsequence_len: 2048\ndatasets:\n  - path: org/d\n    type: alpaca\n",
    "trl": "model_name_or_path: org/m\ndataset_name: org/d\n",
    "transformers": "model_name_or_path: org/m\ndo_train: true\noutput_dir: out\n",
    "hydra": "defaults:\n  - _self_\nlr: 1\n",
    "accelerate": "compute_environment: LOCAL_MACHINE\ndistributed_type: FSDP\nmixed_precision: bf16\n",
    "deepspeed": "zero_optimization: {stage: 3}\n",
    "llama-factory": "model_name_or_path: org/m\nstage: sft\ntemplate: qwen\ndataset: alpaca_en_demo\n",
    "job": "script: train.py\nflavor: t4-small\n",
    "": "lr: 1\n",
}


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_a_framework_is_known_by_its_keys(tmp_path, framework):
    (tmp_path / "train.py").write_text("")
    subject = read(tmp_path, FRAMEWORKS[framework])
    assert {config.framework for config in subject.configs} == {framework}
    assert {setting.owner for setting in subject.settings} == {framework}


AXOLOTL = """base_model: org/m
lora_model_dir: org/adapter
adapter: lora
sequence_len: 4096
micro_batch_size: 2
optimizer: adamw_torch
rl: grpo
trl:
  reward_funcs: [rewards.format_reward]
datasets:
  - path: org/d
    name: en
    split: train[:90%]
    type: chat_template
    field_messages: conversations
  - path: json
    data_files: local.jsonl
    type: alpaca
"""


def test_axolotl_names_its_data_with_their_parts(tmp_path):
    subject = read(tmp_path, AXOLOTL)
    found = {(each.kind, each.name): each for each in subject.references}
    assert set(found) == {
        (Kind.MODEL, "org/m"), (Kind.ADAPTER, "org/adapter"), (Kind.DATASET, "org/d"), (Kind.FILE, "local.jsonl"),
        (Kind.MODULE, "rewards.format_reward"),
    }  # fmt: skip
    data = found[Kind.DATASET, "org/d"]
    assert (data.config, data.split, data.columns, data.place.line) == ("en", "train[:90%]", ("conversations",), 11)
    assert (subject.number("max_length"), subject.number("per_device_train_batch_size")) == (4096, 2)
    assert subject.method == "grpo"
    assert subject.all("path", "type", "name") == [], "what is said of a data set is no setting of the training"


def test_trl_names_its_data_with_config_and_split(tmp_path):
    text = "model_name_or_path: org/m\nmodel_revision: v1\ndataset_name: org/d\ndataset_config: en\ndataset_train_split: tr\n"
    text += "reward_funcs:\n  - accuracy_reward\n  - my.rewards.good\n"
    found = {each.kind: each for each in read(tmp_path, text).references}
    assert (found[Kind.DATASET].config, found[Kind.DATASET].split) == ("en", "tr")
    assert (found[Kind.MODEL].revision, found[Kind.MODULE].name) == ("v1", "my.rewards.good")


def test_llama_factory_names_data_sets_of_its_own(tmp_path):
    subject = read(tmp_path, FRAMEWORKS["llama-factory"])
    assert [each.kind for each in subject.references] == [Kind.MODEL]
    assert subject.method == "sft"


def test_nested_settings_are_not_confused(tmp_path):
    text = (
        "model:\n  name: resnet50\n  type: cnn\ndata:\n  path: data/train\n  batch_size: 7\noptim:\n  name: adamw\n  lr: 0.1\n"
        "dataset:\n  name: org/d\nwandb:\n  name: run-5\n  tags: [a]\ntraining:\n  max_steps: 10\n"
    )
    subject = read(tmp_path, text)
    assert (subject.number("learning_rate"), subject.number("max_steps")) == (0.1, 10)
    assert subject.all("name", "type", "path", "model_name_or_path", "per_device_train_batch_size") == []
    assert [(each.kind, each.name) for each in subject.references] == [(Kind.DATASET, "org/d")]


def test_a_model_with_its_owner_is_one_wherever_it_stands(tmp_path):
    subject = read(tmp_path, "model:\n  name: org/m\n")
    assert [(each.kind, each.name, each.place.line) for each in subject.references] == [(Kind.MODEL, "org/m", 2)]


def test_deepspeed_gives_way_to_the_script_and_auto_is_no_value(tmp_path):
    deepspeed = {
        "train_micro_batch_size_per_gpu": "auto", "train_batch_size": 64, "gradient_clipping": 0.5,
        "optimizer": {"params": {"lr": 1e-3}}, "bf16": {"enabled": True}, "zero_optimization": {"stage": 3},
    }  # fmt: skip
    text = 'TrainingArguments(per_device_train_batch_size=4, learning_rate=1e-5, deepspeed="ds.json")\n'
    subject = read(tmp_path, text, "train.py", ds_json=json.dumps(deepspeed, indent=1))
    assert subject.number("per_device_train_batch_size") == 4
    assert (subject.number("learning_rate"), subject.number("max_grad_norm")) == (1e-5, 0.5)
    assert (subject.is_on("bf16"), subject.number("zero_stage")) == (True, 3)
    assert (Kind.FILE, "ds.json") in {(each.kind, each.name) for each in subject.references}


def test_hydra_reads_the_parts_its_defaults_choose_and_misses_one(tmp_path):
    files = {
        "conf__config_yaml": "defaults:\n  - optim: adam\n  - model: big\n  - override hydra/launcher: x\nmax_steps: 5\n",
        "conf__optim__adam_yaml": "lr: 0.5\n",
        "conf__optim__sgd_yaml": "lr: 0.25\n",
        "conf__model__small_yaml": "name: x\n",
    }
    script = 'import hydra\n@hydra.main(config_path="conf", config_name="config")\ndef main(cfg):\n    pass\n'
    subject = read(tmp_path, script, "train.py", **files)
    assert (subject.number("learning_rate"), subject.number("max_steps")) == (0.5, 5)
    assert [(each.kind, each.name) for each in subject.references] == [(Kind.FILE, "conf/model/big.yaml")]
    subject = read(tmp_path, script, "train.py", ["python", "train.py", "optim=sgd", "model=small", "max_steps=7"])
    assert (subject.number("learning_rate"), subject.number("max_steps"), subject.references) == (0.25, 7, ())


def test_values_are_those_that_pyyaml_reads(tmp_path):
    import yaml

    text = (
        "a: 2e-4\nb: 2.0e-4\nc: on\nd: 'on'\ne: 0x1f\nf: 1_000\ng: ~\nh: .inf\ni: 010\nj: 1.0e4\nk: |\n  x\nl: !!str 12\n"
        "m: [1, two, 3.0]\nn: No\no: nO\np: 1.\nq: -.5\nr: 1.0e+4\nbase: &b {x: 1, y: 2}\ns:\n  <<: *b\n  y: 3\nt: 1\nt: 2\n"
    )
    config = read(tmp_path, text).configs[0]
    assert config.content == yaml.safe_load(text)


def test_json_numbers_are_numbers_and_keys_have_lines(tmp_path):
    text = '{\n\t"lr": 2e-4,\n\t"a": {"b": [1,\n {"c": "x: {y}"}]},\n\t"d": []\n}\n'
    config = read(tmp_path, text, "config.json").configs[0]
    assert config.content == json.loads(text)
    lines = {".".join(value.path): value.line for value in config.values}
    assert lines == {"lr": 2, "a.b.0": 3, "a.b.1.c": 4, "d": 5}


def test_toml_keys_have_lines(tmp_path):
    text = 'lr = 2e-4 # rate\n[model]\n"name" = "org/m"\nsub.key = 1\n[[data]]\npath = "a"\n[[data]]\npath = "b"\n'
    config = read(tmp_path, text, "config.toml").configs[0]
    lines = {".".join(value.path): value.line for value in config.values}
    assert lines == {"lr": 1, "model.name": 3, "model.sub.key": 4, "data.0.path": 6, "data.1.path": 8}


def test_what_a_tag_stands_for_is_unknown(tmp_path):
    assert read(tmp_path, "lr: !ENV ${LR}\n").setting("learning_rate").value is UNKNOWN


def test_merged_keys_keep_a_place(tmp_path):
    subject = read(tmp_path, "base: &b\n  lr: 0.1\nrun:\n  <<: *b\n")
    assert [setting.place.line for setting in subject.all("learning_rate")] == [2, 3]
