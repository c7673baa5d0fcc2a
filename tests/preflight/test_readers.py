"""What reads a setting decides what it means: DeepSpeed, TRL, PyYAML, a tokenizer, a reward function's caller."""

from __future__ import annotations

import json

import pytest

from .configured import broken, checked, problems

ZERO = {"zero_optimization": {"stage": 2}}


def found(folder, check, *inputs, **options):
    report = checked(folder, *inputs, select=(check,), **options)
    assert broken(report) == []
    return problems(report)


# -- DeepSpeed ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("sizes", "gpus", "count"),
    [
        ({"train_batch_size": 64, "train_micro_batch_size_per_gpu": 4, "gradient_accumulation_steps": 4}, 4, 0),
        ({"train_batch_size": 64, "train_micro_batch_size_per_gpu": 4, "gradient_accumulation_steps": 4}, 2, 1),
        (
            {"train_batch_size": 64, "train_micro_batch_size_per_gpu": "auto", "gradient_accumulation_steps": "auto"},
            2,
            1,
        ),
        ({"train_batch_size": "auto", "train_micro_batch_size_per_gpu": 4, "gradient_accumulation_steps": 4}, 2, 0),
        ({"train_batch_size": "auto", "train_micro_batch_size_per_gpu": 2}, 2, 1),
        ({"gradient_accumulation_steps": 8}, 2, 1),
        ({"train_batch_size": 64}, 1, 0),
        ({"train_batch_size": 60}, 1, 1),
        ({}, 3, 0),
    ],
)
def test_the_batch_of_deepspeed_is_that_of_the_training(tmp_path, sizes, gpus, count):
    (tmp_path / "ds.json").write_text(json.dumps(ZERO | sizes))
    given = "per_device_train_batch_size=4, gradient_accumulation_steps=4"
    (tmp_path / "train.py").write_text(f"from trl import SFTConfig\nSFTConfig('o', deepspeed='ds.json', {given})\n")
    assert len(found(tmp_path, "odd-batch", "train.py", gpus=gpus)) == count
    (tmp_path / "train.py").write_text(
        f"from trl import SFTConfig\nSFTConfig('o', deepspeed={ZERO | sizes}, {given})\n"
    )
    assert len(found(tmp_path, "odd-batch", "train.py", gpus=gpus)) == count


def test_sizes_that_are_not_known_agree_with_deepspeed(tmp_path):
    (tmp_path / "ds.json").write_text(
        json.dumps(ZERO | {"train_batch_size": 60, "train_micro_batch_size_per_gpu": "auto"})
    )
    (tmp_path / "train.py").write_text("from trl import SFTConfig\nSFTConfig('o', deepspeed='ds.json', **given)\n")
    assert found(tmp_path, "odd-batch", "train.py", gpus=4) == []


def test_axolotl_has_a_batch_of_one_where_it_says_none(tmp_path):
    (tmp_path / "ds.json").write_text(json.dumps(ZERO | {"train_micro_batch_size_per_gpu": 1}))
    (tmp_path / "c.yaml").write_text("base_model: m\nadapter: lora\ndeepspeed: ds.json\n")
    assert found(tmp_path, "odd-batch", "c.yaml", gpus=4) == []
    (tmp_path / "c.yaml").write_text("base_model: m\nadapter: lora\ndeepspeed: ds.json\nmicro_batch_size: 2\n")
    assert len(found(tmp_path, "odd-batch", "c.yaml", gpus=4)) == 1


@pytest.mark.parametrize(
    ("content", "count"),
    [
        ({"optimizer": {"type": "AdamW", "params": {"lr": "2e-5"}}}, 1),
        ({"optimizer": {"type": "AdamW", "params": {"lr": "auto", "betas": ["0.9", 0.99]}}}, 1),
        ({"scheduler": {"type": "WarmupLR", "params": {"warmup_num_steps": "100"}}}, 1),
        ({"gradient_clipping": "1.0"}, 1),
        ({"optimizer": {"type": "AdamW", "params": "auto"}, "scheduler": [], "wandb": {"group": "7"}}, 0),
    ],
)
def test_deepspeed_makes_no_numbers_of_texts(tmp_path, content, count):
    (tmp_path / "ds.json").write_text(json.dumps(ZERO | content))
    assert len(found(tmp_path, "quoted-number", "ds.json")) == count
    (tmp_path / "train.py").write_text(f"from trl import SFTConfig\nSFTConfig('o', deepspeed={ZERO | content})\n")
    assert len(found(tmp_path, "quoted-number", "train.py")) == count


# -- who reads a config ------------------------------------------------------------------------------

FLAT = "model_name_or_path: m\noutput_dir: o\nlearning_rate: 2e-4\n"
NESTED = "training:\n  learning_rate: 2e-4\n"


@pytest.mark.parametrize(
    ("script", "config", "count"),
    [
        ("c = yaml.safe_load(open('c.yaml'))", FLAT, 1),
        ("c = yaml.safe_load(open('c.yaml'))", NESTED, 1),
        ("c = yaml.load(open('c.yaml'), Loader=yaml.FullLoader)", FLAT, 1),
        ("c = HfArgumentParser(A).parse_yaml_file('c.yaml')", FLAT, 1),
        ("c = yaml.safe_load(open('c.yaml'))\nlr = float(c['training']['learning_rate'])", NESTED, 0),
        ("class C(pydantic.BaseModel): ...\nC(**yaml.safe_load(open('c.yaml')))", NESTED, 0),
        ("c = OmegaConf.load('c.yaml')", NESTED, 0),
        ("c = TrlParser((SFTConfig,)).parse_args_and_config()", NESTED, 0),
        ("c = yaml.safe_load(open('c.yaml'))\nsubprocess.run(['axolotl', 'train', 'c.yaml'], check=True)",
         "base_model: m\nadapter: lora\nlearning_rate: 2e-4\n", 0),
        ("print('reads nothing')", FLAT, 0),
        ("print('reads nothing')", NESTED, 1),
        ("print('reads nothing')", f"{FLAT}lr_scheduler_kwargs:\n  min_lr: 1e-6\n", 1),
        ("print('reads nothing')", "env:\n  SCALE: 1e5\n", 0),
    ],
)  # fmt: skip
def test_a_text_is_no_number_where_its_reader_leaves_it_a_text(tmp_path, script, config, count):
    names = "import subprocess, yaml, pydantic\n" if "pydantic" in script else "import subprocess, yaml\n"
    (tmp_path / "train.py").write_text(f"{names}from omegaconf import OmegaConf\n{script}\n" if "Omega" in script else f"{names}{script}\n")  # fmt: skip
    (tmp_path / "c.yaml").write_text(config)
    assert len(found(tmp_path, "number-is-text", "train.py", "c.yaml")) == count


@pytest.mark.parametrize(
    "command", ["trl sft --config c.yaml", "axolotl train c.yaml", "llamafactory-cli train c.yaml"]
)
def test_the_commands_of_frameworks_make_numbers_of_texts(tmp_path, command):
    (tmp_path / "c.yaml").write_text(NESTED)
    assert found(tmp_path, "number-is-text", argv=command) == []


def test_a_quoted_number_in_json_is_told_unless_its_reader_turns_it(tmp_path):
    (tmp_path / "c.json").write_text('{"training": {"learning_rate": "2e-4"}}')
    (tmp_path / "train.py").write_text("import json\nc = json.load(open('c.json'))\n")
    assert len(found(tmp_path, "quoted-number", "train.py", "c.json")) == 1
    (tmp_path / "train.py").write_text(
        "import json\nc = json.load(open('c.json'))\nx = float(c['training']['learning_rate'])\n"
    )
    assert found(tmp_path, "quoted-number", "train.py", "c.json") == []
    assert found(tmp_path, "quoted-number", argv="trl sft --config c.json") == []


# -- tokenizers --------------------------------------------------------------------------------------

TRAIN = "from trl import *\n{more}SFTTrainer(model='m', args=SFTConfig('o', {given}))\n"


def model_with(folder, **files):
    (folder / "m").mkdir()
    vocabulary = {"added_tokens": [{"id": 1, "content": "<|added|>"}], "model": {"vocab": {"</s>": 0, "a": 2}}}
    given = {"config": {}, "tokenizer": vocabulary, "tokenizer_config": {"eos_token": "</s>"}, **files}
    for name, content in given.items():
        (folder / "m" / f"{name}.json").write_text(json.dumps(content))


@pytest.mark.parametrize(
    ("given", "more", "count"),
    [
        ("eos_token='<|im_end|>'", "", 1),
        ("pad_token='<|pad|>'", "", 1),
        ("eos_token='</s>', pad_token='<|added|>'", "", 0),
        ("eos_token='<|im_end|>'", "t.add_special_tokens({'eos_token': '<|im_end|>'})\n", 0),
        ("eos_token='<|im_end|>', chat_template_path='other/model'", "", 0),
        ("eos_token=chosen()", "", 0),
    ],
)
def test_the_end_token_is_one_of_the_tokenizer(tmp_path, given, more, count):
    model_with(tmp_path)
    (tmp_path / "train.py").write_text(TRAIN.format(given=given, more=more))
    assert len(found(tmp_path, "pad-token", "train.py")) == count


@pytest.mark.parametrize(
    "files",
    [
        {"tokenizer": {"model": {"vocab": [["</s>", 0.0], ["<e>", -1.0]]}}},
        {"added_tokens": {"<e>": 7}},
        {"special_tokens_map": {"eos_token": {"content": "<e>"}}},
        {"tokenizer_config": {"added_tokens_decoder": {"5": {"content": "<e>"}}}},
        {"tokenizer": {}},
        {"tokenizer": {"model": {"vocab": None}}},
        {"tokenizer": {"added_tokens": [7], "model": {"vocab": [7, [], None, ["<e>"]]}}},
    ],
)
def test_a_token_is_looked_for_in_all_files_of_a_tokenizer(tmp_path, files):
    model_with(tmp_path, **files)
    (tmp_path / "train.py").write_text(TRAIN.format(given="eos_token='<e>'", more=""))
    assert found(tmp_path, "pad-token", "train.py") == []


@pytest.mark.parametrize(
    ("template", "more", "count"),
    [
        ("{{ messages[0].content }}", "", 1),
        ("{%- generation -%}{{ m }}{%- endgeneration -%}", "", 0),
        ("{% if add_generation_prompt %}<|assistant|>{% endif %}", "", 1),
        ("{{ messages[0].content }}", "t.chat_template = mine\n", 0),
    ],
)
def test_a_template_marks_the_answers_where_only_they_are_learned(tmp_path, template, more, count):
    pytest.importorskip("trl")
    model_with(tmp_path)
    (tmp_path / "train.py").write_text(TRAIN.format(given="assistant_only_loss=True", more=more))
    (tmp_path / "m" / "chat_template.jinja").write_text(template)
    assert len(found(tmp_path, "missing-chat-template", "train.py")) == count
    (tmp_path / "m" / "chat_template.jinja").unlink()
    variants = [{"name": "tools", "template": "x"}, {"name": "default", "template": template}]
    (tmp_path / "m" / "tokenizer_config.json").write_text(json.dumps({"chat_template": variants}))
    assert len(found(tmp_path, "missing-chat-template", "train.py")) == count


def test_a_template_that_trl_replaces_needs_no_marks(tmp_path):
    from self_healing.preflight.training.signatures import source_of

    pytest.importorskip("trl")
    model_with(tmp_path)
    (tmp_path / "m" / "chat_template.jinja").write_text(source_of("trl/chat_templates/qwen3.jinja"))
    (tmp_path / "train.py").write_text(TRAIN.format(given="assistant_only_loss=True", more=""))
    assert found(tmp_path, "missing-chat-template", "train.py") == []


# -- resuming and rewards ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "count"),
    [
        ("resume_from_checkpoint=any(Path('o').glob('checkpoint-*'))", 1),
        ("resume_from_checkpoint=get_last_checkpoint('o') if os.path.isdir('o') else None", 1),
        ("resume_from_checkpoint=False", 0),
        ("resume_from_checkpoint=None", 0),
        ("resume_from_checkpoint=args.resume_from_checkpoint", 0),
        ("", 0),
    ],
)
def test_a_run_that_may_resume_saves_its_optimizer(tmp_path, given, count):
    text = "import os\nfrom pathlib import Path\nfrom trl import *\nt = SFTTrainer('m', args=SFTConfig('o', save_only_model={}))\nt.train({})\n"
    (tmp_path / "train.py").write_text(text.format("True", given))
    assert len(found(tmp_path, "resume-from-nothing", "train.py")) == count
    (tmp_path / "train.py").write_text(text.format("False", given))
    assert found(tmp_path, "resume-from-nothing", "train.py") == []


@pytest.mark.parametrize(
    ("text", "given", "count"),
    [
        ("def r(completions): ...", "[r]", 1),
        ("def r(completions): ...\ndef s(prompts, completions, **kwargs): ...", "[s, r]", 1),
        ("async def r(prompts, completions): ...", "r", 1),
        ("def r(completions, n): ...\np = functools.partial(r, n=3)", "p", 1),
        ("def make(n):\n    def inner(completions): ...\n    return inner", "make(3)", 1),
        ("def make(n):\n    def inner(completions, **kw): ...\n    return inner", "make(3)", 0),
        ("class R(Base): ...", "R()", 0),
        ("from rewards import r", "[r]", 0),
        ("if fast:\n    def r(completions): ...\nelse:\n    def r(completions, **kwargs): ...", "r", 0),
        ("def r(*args, **kwargs): ...", "r", 0),
        ("def r(completions): ...", "[wrap(r)]", 0),
        ("def r(completions): ...", "'org/model'", 0),
    ],
)
def test_a_reward_function_takes_all_it_is_given(tmp_path, text, given, count):
    (tmp_path / "train.py").write_text(f"import functools\nfrom trl import *\n{text}\nGRPOTrainer('m', {given})\n")
    assert len(found(tmp_path, "narrow-reward", "train.py")) == count


# -- numbers that are texts to PyYAML ----------------------------------------------------------------


@pytest.mark.parametrize(
    ("argv", "text"),
    [
        ("trl sft --config run.yaml", "learning_rate: 5e-1\n"),
        ("trl sft --config run.yaml", "learning_rate: '0.5'\n"),
        ("axolotl train run.yaml", "base_model: m\nlearning_rate: 5e-1\n"),
        ("llamafactory-cli train run.yaml", "stage: sft\nfinetuning_type: full\noptim: adamw_torch\nlearning_rate: 5e-1\n"),
        ("python train.py", "model_name_or_path: m\noutput_dir: o\nlearning_rate: 5e-1\n"),
    ],
)  # fmt: skip
def test_a_text_that_its_reader_turns_into_a_number_is_judged_as_one(tmp_path, argv, text):
    (tmp_path / "run.yaml").write_text(text)
    (tmp_path / "train.py").write_text("from omegaconf import OmegaConf\n")
    checks = ("odd-learning-rate", "number-is-text")
    report = checked(tmp_path, *(["run.yaml"] if "run.yaml" not in argv else []), argv=argv, select=checks)
    assert [(each.check, each.where.line, "0.5" in each.message) for each in report.findings] == [
        ("odd-learning-rate", text.count("\n"), True)
    ]


def test_a_text_that_stays_one_is_said_to_be_one_and_judged_as_nothing_else(tmp_path):
    (tmp_path / "run.yaml").write_text("model_name_or_path: m\noutput_dir: o\nlearning_rate: 5e-1\n")
    (tmp_path / "train.py").write_text("import yaml\nyaml.safe_load(open('run.yaml'))\n")
    checks = ("odd-learning-rate", "number-is-text")
    report = checked(tmp_path, "run.yaml", argv="python train.py", select=checks)
    assert [each.check for each in report.findings] == ["number-is-text"]
