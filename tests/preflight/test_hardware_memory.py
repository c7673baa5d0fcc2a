"""How much memory a training takes, whether it fits, and the smallest change that makes it."""

from __future__ import annotations

import json
import subprocess
import sys
import weakref
from dataclasses import replace

import pytest

from self_healing.preflight.finding import Severity
from self_healing.preflight.hardware.architectures import shape_of_config
from self_healing.preflight.hardware.devices import find_device
from self_healing.preflight.hardware.ladder import fits, larger_device, smallest_change
from self_healing.preflight.hardware.memory import GIB, estimate, logits_bytes
from self_healing.preflight.hardware.model_sources import shape_of_trainer
from self_healing.preflight.hardware.named_sizes import shape_of_parameters
from self_healing.preflight.hardware.plan import Dtype, Logits, Lora, Sharding, TrainingPlan
from self_healing.preflight.hardware.state import state_of, trained_parameters
from self_healing.preflight.options import CheckOptions
from self_healing.preflight.runner import run_checks
from self_healing.preflight.subject import read_subject
from self_healing.preflight.tools import Tools

SMALL = {
    "model_type": "llama", "hidden_size": 256, "intermediate_size": 688, "num_hidden_layers": 4, "num_attention_heads": 4,
    "num_key_value_heads": 2, "vocab_size": 2000,
}  # fmt: skip
EIGHT = shape_of_config({
    "model_type": "llama", "vocab_size": 128256, "hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32,
    "num_key_value_heads": 8, "intermediate_size": 14336,
})  # fmt: skip
BF16 = TrainingPlan(weights=Dtype.BF16, batch=1, length=1024)


def checked(folder, files, *inputs, argv=(), **options):
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content if isinstance(content, str) else json.dumps(content))
    given = CheckOptions.model_validate({"offline": True, "select": ("memory-too-small",), **options})
    tools = Tools(options=given, environ={"PATH": "/nowhere"}, cwd=folder)
    return run_checks(read_subject(list(inputs), list(argv), given, folder), tools)


# -- against torch itself ----------------------------------------------------------------------------


def peak_of_tensors(plan: TrainingPlan) -> int:
    """Go forward and back, and add up the tensors that are alive."""
    import torch
    from torch.utils._python_dispatch import TorchDispatchMode
    from torch.utils._pytree import tree_leaves
    from transformers import AutoConfig, AutoModelForCausalLM

    class Alive(TorchDispatchMode):
        def __init__(self):
            super().__init__()
            self.sizes, self.now, self.peak = {}, 0, 0

        def add(self, tensor):
            if isinstance(tensor, torch.Tensor) and tensor.untyped_storage()._cdata not in self.sizes:
                storage = tensor.untyped_storage()
                self.sizes[storage._cdata] = storage.nbytes()
                self.now += storage.nbytes()
                self.peak = max(self.peak, self.now)
                weakref.finalize(storage, self.drop, storage._cdata)

        def drop(self, key):
            self.now -= self.sizes.pop(key)

        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            out = function(*args, **(kwargs or {}))
            for each in tree_leaves(out):
                self.add(each)
            return out

    config = AutoConfig.for_model(**SMALL, use_cache=False)
    dtype = torch.bfloat16 if plan.weights is Dtype.BF16 else torch.float32
    model = AutoModelForCausalLM.from_config(config, dtype=dtype, attn_implementation=plan.attention).train()
    if plan.is_checkpointed:
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    tokens = torch.zeros(plan.batch, plan.length, dtype=torch.long)
    alive = Alive()
    for parameter in model.parameters():
        alive.add(parameter)

    def loss():
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=plan.has_autocast):
            return model(input_ids=tokens, labels=tokens).loss

    with alive:  # torch's own optimizers import its compiler, which takes longer than the rest: their states will do
        states = [torch.zeros_like(parameter) for parameter in model.parameters() for _ in range(2)]
        loss().backward()
    assert len(states) == 2 * sum(1 for _ in model.parameters())
    return alive.peak


@pytest.mark.torch
@pytest.mark.parametrize(
    "plan",
    [
        TrainingPlan(weights=Dtype.BF16, batch=16, length=128),
        TrainingPlan(weights=Dtype.FP32, has_autocast=True, batch=16, length=128),
        TrainingPlan(weights=Dtype.BF16, batch=16, length=128, is_checkpointed=True),
    ],
    ids=["in 16 bit", "mixed precision", "checkpointed"],
)
def test_the_estimate_is_what_torch_holds_at_its_peak(plan):
    pytest.importorskip("transformers")
    predicted = estimate(shape_of_config(SMALL), plan).allocated_bytes
    assert predicted == pytest.approx(peak_of_tensors(plan), rel=0.03)


# -- single parts ------------------------------------------------------------------------------------


def test_the_logits_of_the_seed_are_what_it_says():
    assert f"{logits_bytes(8 * 16, 2048, 151936) / GIB:.1f}" == "74.2"


def test_full_training_holds_sixteen_bytes_in_32_bit_and_eight_in_16():
    state = state_of(EIGHT, TrainingPlan(weights=Dtype.FP32))
    assert state.weights + state.gradients + state.optimizer == 16 * EIGHT.parameters
    state = state_of(EIGHT, BF16)
    assert state.weights + state.gradients + state.optimizer == 8 * EIGHT.parameters


@pytest.mark.parametrize(
    ("optimizer", "bytes_each"),
    [
        ("adamw_torch", 4),
        ("adamw_bnb_8bit", 2.06),
        ("paged_adamw_8bit", 0),
        ("adafactor", 0.02),
        ("sgd", 0.02),
        ("lion_8bit", 1.03),
    ],
)
def test_states_of_optimizers(optimizer, bytes_each):
    held = state_of(EIGHT, replace(BF16, optimizer=optimizer)).optimizer / EIGHT.parameters
    assert held == pytest.approx(bytes_each, abs=0.01)


def test_adapters_have_gradients_and_the_frozen_weights_have_none():
    plan = replace(BF16, lora=Lora(16, ("q_proj", "v_proj")))
    assert trained_parameters(EIGHT, plan) == 16 * 32 * (4096 + 4096 + 4096 + 1024)
    state = state_of(EIGHT, plan)
    assert state.gradients == 4 * trained_parameters(EIGHT, plan)
    everything = trained_parameters(EIGHT, replace(BF16, lora=Lora(16, ("all-linear",))))
    assert everything == 41_943_040


def test_four_bit_weights_are_a_third_of_those_in_16_bit_because_embeddings_stay():
    held = state_of(EIGHT, replace(BF16, weights=Dtype.NF4, lora=Lora())).weights / GIB
    assert 5.2 < held < 5.8


@pytest.mark.parametrize(
    ("sharding", "bytes_each"),
    [(Sharding.ZERO_1, 4 + 12 / 8), (Sharding.ZERO_2, 2 + 14 / 8), (Sharding.ZERO_3, 16 / 8)],
)
def test_what_gpus_share_out_is_divided(sharding, bytes_each):
    state = state_of(EIGHT, replace(BF16, sharding=sharding, gpus=8))
    held = (state.weights + state.gradients + state.optimizer) / EIGHT.parameters
    assert held == pytest.approx(bytes_each, rel=0.01)


def test_several_gpus_without_sharding_hold_copies_of_the_gradients_to_send():
    assert state_of(EIGHT, replace(BF16, gpus=2)).buckets == 2 * EIGHT.parameters


def test_dpo_has_two_rows_for_a_pair_and_a_reference_unless_it_is_computed_before():
    dpo = replace(BF16, method="dpo", has_reference=True)
    assert dpo.rows == 2
    assert state_of(EIGHT, dpo).reference == 2 * EIGHT.parameters
    assert state_of(EIGHT, replace(dpo, lora=Lora())).reference == 0


def test_what_grows_makes_the_estimate_grow():
    base = estimate(EIGHT, replace(BF16, batch=4)).total_gib
    assert estimate(EIGHT, replace(BF16, batch=8)).total_gib > base
    assert estimate(EIGHT, replace(BF16, batch=4, length=2048)).total_gib > base
    assert estimate(EIGHT, replace(BF16, batch=4, is_checkpointed=True)).total_gib < base
    assert estimate(EIGHT, replace(BF16, batch=4, logits=Logits.CHUNKED)).total_gib < base
    assert estimate(EIGHT, replace(BF16, batch=4, attention="eager")).total_gib > base


def test_shared_keys_without_a_kernel_take_as_much_as_eager_attention():
    """Measured on an H200: 27.36 GiB for a Llama of 1 billion, in 32 bit, 2 rows of 1024 tokens."""
    one = shape_of_config({
        "model_type": "llama", "hidden_size": 2048, "intermediate_size": 8192, "num_hidden_layers": 16, "num_attention_heads": 32,
        "num_key_value_heads": 8, "vocab_size": 128256, "tie_word_embeddings": True,
    })  # fmt: skip
    full = TrainingPlan(weights=Dtype.FP32, batch=2, length=1024)
    assert estimate(one, full).allocated_bytes / GIB == pytest.approx(27.36, rel=0.02)
    assert estimate(one, replace(full, grouped_bytes=(2, 4))).allocated_bytes / GIB == pytest.approx(22.92, rel=0.02)
    older = replace(full, weights=Dtype.BF16, grouped_bytes=())
    assert estimate(one, older).allocated_bytes / GIB == pytest.approx(17.75, rel=0.02)
    every_head = replace(one, key_value=one.query)
    assert estimate(every_head, full) == estimate(every_head, replace(full, grouped_bytes=(2, 4)))


def test_the_device_says_for_which_numbers_there_is_a_kernel():
    kernels = {name: find_device(name).grouped_attention_bytes for name in ("t4", "a100", "mi300x", "cpu")}
    assert kernels == {"t4": (), "a100": (2,), "mi300x": (2,), "cpu": (2, 4)}


def test_the_parts_add_up_to_the_total_that_is_shown():
    estimated = estimate(EIGHT, replace(BF16, batch=4))
    *_, total = estimated.table().split(" = ")
    assert total == f"{estimated.total_gib:.1f} GiB"
    assert sum(part.bytes for part in estimated.parts) == estimated.allocated_bytes


# -- the ladder --------------------------------------------------------------------------------------


def change(plan, device, shape=EIGHT):
    return smallest_change(shape, plan, find_device(device))


def test_a_smaller_batch_is_the_first_step_and_no_smaller_than_it_must_be():
    plan = replace(BF16, batch=32, lora=Lora(), is_checkpointed=True)
    found = change(plan, "a100-40")
    assert len(found.steps) == 1
    assert found.plan.batch * found.plan.accumulation == 32
    assert fits(found.estimate, 39.4)
    larger = replace(plan, batch=found.plan.batch * 2)
    assert not fits(estimate(EIGHT, larger), 39.4)


def test_checkpointing_is_the_second():
    found = change(replace(BF16, batch=1, length=8192, lora=Lora()), "a100-40")
    assert found.steps == ("gradient_checkpointing=True",)


def test_fewer_bits_are_the_third():
    found = change(replace(BF16, is_checkpointed=True), "t4")
    assert found.plan.weights is Dtype.NF4
    assert "bnb_4bit_compute_dtype=torch.float16" in found.steps[0], "a T4 has no bf16"


def test_shorter_rows_are_the_fourth():
    plan = TrainingPlan(weights=Dtype.NF4, has_autocast=True, lora=Lora(), batch=1, length=8192, is_checkpointed=True)
    found = change(plan, "t4")
    assert [step.split("=")[0] for step in found.steps] == ["max_length"]


def test_attention_without_squares_is_the_fifth_and_makes_shorter_rows_needless():
    plan = TrainingPlan(
        weights=Dtype.NF4, has_autocast=True, lora=Lora(), batch=1, length=8192, is_checkpointed=True, attention="eager",
        logits=Logits.CHUNKED,
    )  # fmt: skip
    assert change(plan, "a10g").steps == ('attn_implementation="sdpa"',)


def test_a_step_that_a_later_one_makes_needless_is_not_asked_for():
    plan = replace(BF16, lora=Lora(), length=16384, is_checkpointed=True, attention="eager", logits=Logits.CHUNKED)
    four_bit = replace(plan, weights=Dtype.NF4)
    assert not fits(estimate(EIGHT, four_bit), 39.4), "fewer bits are tried in vain"
    assert change(plan, "a100-40").steps == ('attn_implementation="sdpa"',)


def test_offloading_is_the_last_and_a_model_that_is_far_too_large_has_none():
    seventy = shape_of_parameters(70_000_000_000, "the name")
    found = change(replace(BF16, is_checkpointed=True, length=256), "a100-80", seventy)
    assert found is not None
    assert smallest_change(shape_of_parameters(2_000_000_000_000, "the name"), BF16, find_device("t4")) is None


def test_a_larger_device_is_the_smallest_that_does():
    assert larger_device(EIGHT, replace(BF16, lora=Lora(), is_checkpointed=True)).name == "L4"
    assert larger_device(EIGHT, replace(BF16, is_checkpointed=True)).name == "A100 80 GB"


# -- the check ---------------------------------------------------------------------------------------

SFT = """from datasets import load_dataset
from trl import SFTConfig, SFTTrainer
args = SFTConfig(output_dir="out", per_device_train_batch_size={batch}, max_length=2048, packing=True{more})
SFTTrainer(model="{model}", args=args, train_dataset=load_dataset("org/data", split="train")).train()
"""


def test_a_model_in_a_folder_is_counted_from_its_config(tmp_path):
    files = {"train.py": SFT.format(batch=8, model="mine", more=""), "mine/config.json": SMALL}
    assert checked(tmp_path, files, "train.py", gpu="t4").findings == []
    files["mine/config.json"] = {**SMALL, "num_hidden_layers": 2000}
    (found,) = checked(tmp_path, files, "train.py", gpu="t4").findings
    assert "estimate" not in found.message
    assert found.where.line == 3


def test_a_model_known_by_name_only_is_marked_an_estimate(tmp_path):
    files = {"train.py": SFT.format(batch=8, model="meta-llama/Llama-3.1-8B", more="")}
    (found,) = checked(tmp_path, files, "train.py", gpu="a10g").findings
    assert found.severity is Severity.ERROR
    assert "an estimate: its size is guessed from the name Llama-3.1-8B" in found.message
    assert "per_device_train_batch_size=" in found.fix
    assert "GiB" in found.fix


def test_the_logits_of_grpo_come_out_as_the_seed_has_them(tmp_path):
    config = "base_model: Qwen/Qwen2.5-7B\nrl: grpo\nadapter: lora\nsequence_len: 2048\nmicro_batch_size: 8\nbf16: true\ntrl:\n  num_generations: 16\n"
    (found,) = checked(tmp_path, {"config.yaml": config}, "config.yaml", gpu="a100-80").findings
    assert "8 x 16 x 2048 x 151936 x 2 bytes = 74.2 GiB" in found.message
    assert "micro_batch_size: " in found.fix


def test_rows_that_may_be_shorter_are_a_warning_and_no_error(tmp_path):
    script = SFT.format(batch=64, model="Qwen/Qwen2.5-1.5B", more="").replace(", packing=True", "")
    (found,) = checked(tmp_path, {"train.py": script}, "train.py", gpu="a10g").findings or [None]
    assert found.severity is Severity.ERROR, "the state alone is too large"
    lora = script.replace("train_dataset", "peft_config=LoraConfig(r=8), train_dataset").replace(
        "max_length=2048", "max_length=32768"
    )
    (found,) = checked(tmp_path, {"train.py": lora}, "train.py", gpu="a10g").findings
    assert found.severity is Severity.WARNING


@pytest.mark.parametrize(
    ("model", "more", "gpu"),
    [
        ("Qwen/Qwen2.5-0.5B", "", "a100-40"), ("HuggingFaceTB/SmolLM2-135M", "", "a10g"), ("org/unknown", "", "h100"),
        ("Qwen/Qwen2.5-7B", ', model_init_kwargs={"dtype": "bfloat16"}', "h200"),
    ],
)  # fmt: skip
def test_sound_trainings_are_not_accused(tmp_path, model, more, gpu):
    script = SFT.format(batch=2, model=model, more=more)
    assert checked(tmp_path, {"train.py": script}, "train.py", gpu=gpu).findings == []


def test_without_a_gpu_or_a_size_it_is_not_made_and_says_so(tmp_path):
    files = {"train.py": SFT.format(batch=2, model="org/unknown", more="")}
    (no_gpu,) = checked(tmp_path, files, "train.py").not_run
    assert "--gpu" in no_gpu.because
    (no_size,) = checked(tmp_path, files, "train.py", gpu="t4").not_run
    assert "org/unknown" in no_size.because


def test_what_trains_nothing_is_not_estimated(tmp_path):
    script = 'from transformers import AutoModel\nAutoModel.from_pretrained("org/model-70B")\n'
    report = checked(tmp_path, {"infer.py": script}, "infer.py", gpu="t4")
    assert (report.findings, report.not_run) == ([], [])


def test_a_classifier_has_no_logits_over_the_vocabulary(tmp_path):
    script = """from transformers import AutoModelForSequenceClassification, Trainer, TrainingArguments
model = AutoModelForSequenceClassification.from_pretrained("{model}", num_labels=2)
tokens = tokenizer(texts, truncation=True, max_length=512)
Trainer(model=model, args=TrainingArguments("out", per_device_train_batch_size=32, fp16=True)).train()
"""
    for model in ("distilbert-base-uncased", "google-bert/bert-base-cased", "Qwen/Qwen2.5-0.5B"):
        report = checked(
            tmp_path, {"train.py": script.format(model=model)}, "train.py", gpu="a100-40" if "Qwen" in model else "t4"
        )
        assert (report.findings, report.not_run) == ([], []), model


@pytest.mark.torch
def test_a_model_that_is_built_is_counted_itself():
    transformers = pytest.importorskip("transformers")
    model = transformers.AutoModelForCausalLM.from_config(transformers.AutoConfig.for_model(**SMALL))
    shape = shape_of_trainer(type("Trainer", (), {"model": model})())
    assert (shape.parameters, shape.source) == (shape_of_config(SMALL).parameters, "the model itself")


def test_a_deepspeed_config_is_read_for_its_stage(tmp_path):
    zero = {
        "zero_optimization": {"stage": 3, "offload_optimizer": {"device": "cpu"}, "offload_param": {"device": "cpu"}}
    }
    script = SFT.format(batch=1, model="meta-llama/Llama-3.1-8B", more=', deepspeed="ds.json"').replace("2048", "512")
    files = {"train.py": script, "ds.json": zero}
    assert checked(tmp_path, files, "train.py", gpu="a100-40", gpus=8).findings == []
    files["ds.json"] = {"zero_optimization": {"stage": 1}}
    assert len(checked(tmp_path, files, "train.py", gpu="a100-40", gpus=2).findings) == 1


def test_the_estimate_needs_nothing_but_the_standard_library():
    code = (
        "import sys\n"
        "for name in ('pydantic', 'typer', 'psutil', 'ruamel', 'torch', 'transformers'): sys.modules[name] = None\n"
        "from self_healing.preflight.hardware import architectures, devices, ladder, memory, named_sizes\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
