"""The training that a subject describes, as far as memory is concerned: what is said, and the defaults of whoever reads it."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from ..finding import Place
from ..subject import Subject
from ..subject.files import json_object
from ..tools import Tools
from ..training.signatures import completion_length
from .plain_loop import Loop, loop_of
from .plan import Dtype, Logits, Lora, Sharding, TrainingPlan
from .shape import ModelShape
from .target import Target
from .versions import version_of
from .writing import Style

_TRL = frozenset({"sft", "dpo", "grpo", "kto", "rloo", "reward", "orpo", "cpo"})
_NOT_TRAINED = (
    "ref_model",
    "reward_model_path",
    "reward_funcs",
    "teacher_model",
    "teacher_model_name_or_path",
    "sft_model_path",
)
_CHUNKED_SINCE = {"sft": (1, 10), "dpo": (1, 15), "grpo": (1, 15), "rloo": (1, 15), "kto": (1, 15)}
"""TRL's losses that never hold all logits: since which version without being asked."""
_ASSUMED_LENGTH = 512
_ARGUMENTS = ("TrainingArguments", *(f"{name}Config" for name in ("SFT", "DPO", "GRPO", "KTO", "RLOO", "Reward")))
_RECOMPUTES = ("gradient_checkpointing_enable", "prepare_model_for_kbit_training")


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedTraining:
    """A training to be estimated."""

    model: str
    place: Place
    """Where the model, or the batch, is named."""
    plan: TrainingPlan
    is_length_sure: bool
    """Every batch is that long: packing, or a length that is filled up."""
    is_length_said: bool
    style: Style
    """How a change is written."""


def trained_model(subject: Subject) -> tuple[str, Place] | None:
    """Return the model that is trained, and where it is named; None where none is, or nothing is trained."""
    if not is_training(subject):
        return None
    if subject.trainer is not None:
        return type(getattr(subject.trainer, "model", None)).__name__, Place("trainer")
    if subject.options.model is not None:
        return subject.options.model, Place("--model")
    others = {setting.value for setting in subject.all(*_NOT_TRAINED) if isinstance(setting.value, str)}
    if not _has_trainer(subject) and (loop := loop_of(subject)) is not None:
        return loop.model, loop.place
    named = subject.setting("model", "model_name_or_path")
    if named is not None and isinstance(named.value, str) and named.value:
        return named.value, named.place
    models = [each for each in subject.models if each.name not in others]
    return (models[0].name, models[0].place) if models and len({each.name for each in models}) == 1 else None


def is_training(subject: Subject) -> bool:
    """Say whether something is trained with the Trainer, TRL or Axolotl, or in a loop that can be followed."""
    if _has_trainer(subject) or loop_of(subject) is not None:
        return True
    return not subject.scripts and not subject.configs and subject.command is None and subject.options.model is not None


def _has_trainer(subject: Subject) -> bool:
    if subject.trainer is not None or (subject.command is not None and subject.command.method):
        return True
    if any(call.last.endswith("Trainer") or call.last.endswith("TrainingArguments") for _, call in subject.calls()):
        return True
    return any(config.get("base_model") for config in subject.configs)


def read_training(subject: Subject, tools: Tools, target: Target, shape: ModelShape) -> PlannedTraining | None:
    """Return the training a subject describes; None where no model is trained that has a name."""
    named = trained_model(subject)
    if named is None:
        return None
    loop = loop_of(subject) if not _has_trainer(subject) else None
    reader = _Reader(subject, tools, target, shape, loop)
    if loop is not None and target.count > 1 and reader.may_be_spread():
        return None
    length, is_said = reader.length()
    batch = subject.setting("per_device_train_batch_size")
    return PlannedTraining(
        model=named[0], place=batch.place if batch is not None else named[1], plan=reader.plan(length),
        is_length_sure=is_said and (subject.is_on("packing", "sample_packing", "pad_to_sequence_len")),
        is_length_said=is_said, style=Style.AXOLOTL if reader.is_axolotl else Style.LOOP if loop is not None else Style.TRAINER,
    )  # fmt: skip


def as_trained(subject: Subject, shape: ModelShape) -> ModelShape:
    """Return a shape without logits where a head of a few classes takes the place of the one for tokens."""
    is_classifier = subject.method == "reward" or any("Classification" in call.name for _, call in subject.calls())
    return replace(shape, has_head=False) if is_classifier else shape


class _Reader:
    """Reads one subject."""

    def __init__(
        self, subject: Subject, tools: Tools, target: Target, shape: ModelShape, loop: Loop | None = None
    ) -> None:
        self._loop = loop
        self._subject, self._tools, self._target, self._shape = subject, tools, target, shape
        self._method = subject.method
        self.is_axolotl = any(config.get("base_model") for config in subject.configs)
        self._is_trl = self._method in _TRL and not self.is_axolotl

    def plan(self, length: int) -> TrainingPlan:
        subject = self._subject
        lora = self._lora()
        loop = self._loop
        batch = loop.batch if loop is not None else self._count("per_device_train_batch_size", 8)
        accumulation = self._count("gradient_accumulation_steps", 1)
        completion = self._count("max_completion_length", completion_length(self._method)) if self._is_rl else 0
        return TrainingPlan(
            weights=self._weights(), has_autocast=self._autocast(), optimizer=loop.optimizer if loop is not None else self._text("optim") or "adamw_torch_fused",
            batch=batch, length=length, logits_length=0 if self.is_axolotl else completion, accumulation=accumulation,
            is_checkpointed=loop.is_checkpointed if loop is not None else self._switch("gradient_checkpointing", default=self._is_trl),
            attention=self._attention(), grouped_bytes=self._target.device.grouped_attention_bytes, lora=lora, gpus=self._target.count, sharding=self._sharding(),
            offloads_optimizer=self._offloads("optimizer"), offloads_weights=self._offloads("param"),
            method=self._method, logits=self._logits(), has_reference=lora is None and self._reference(),
            eval_batch=self._eval_batch(), elsewhere_gib=self._vllm(),
            generated_rows=batch * accumulation if self._is_rl and not subject.is_on("use_vllm") else 0,
            generations=self._count("num_generations", 1) if self._is_rl and self.is_axolotl else 0,
        )  # fmt: skip

    def length(self) -> tuple[int, bool]:
        """Return the tokens of a row, and whether somebody says so."""
        if self._is_rl and not self.is_axolotl:
            completion = self._subject.number("max_completion_length")
            prompt = self._count("max_prompt_length", 512)
            return round(completion or completion_length(self._method)) + prompt, completion is not None
        said = self._subject.number("max_length")
        if said is not None and said > 0:
            longest = self._shape.longest
            return (min(round(said), longest) if longest else round(said)), True
        tokenized = [
            value.value
            for _, call in self._subject.calls()
            if (value := call.keywords.get("max_length")) is not None and "truncation" in call.keywords
        ]
        whole = [each for each in tokenized if isinstance(each, int) and not isinstance(each, bool) and each > 0]
        if whole:
            return max(whole), True
        return (1024 if self._is_trl else _ASSUMED_LENGTH), False

    @property
    def _is_rl(self) -> bool:
        return self._method in ("grpo", "rloo")

    # -- single settings -----------------------------------------------------------------------------

    def _count(self, name: str, default: int) -> int:
        found = self._subject.number(name)
        if found is not None and found >= 1:
            return round(found)
        return 1 if self._is_partly_seen else default

    @property
    def _is_partly_seen(self) -> bool:
        """Whether arguments come from where they cannot be read, so that what is not seen need not have its default."""
        return any(call.last.endswith(_ARGUMENTS) and call.has_unknown_keywords for _, call in self._subject.calls())

    def _text(self, *names: str) -> str:
        setting = self._subject.setting(*names)
        return setting.value if setting is not None and isinstance(setting.value, str) else ""

    def _switch(self, name: str, *, default: bool) -> bool:
        setting = self._subject.setting(name)
        if setting is None:
            return default or self._is_partly_seen or (name == "gradient_checkpointing" and _enables(self._subject))
        return setting.value is not False and setting.value is not None  # unknown counts as on: silence when in doubt

    def _autocast(self) -> bool:
        if self._loop is not None:
            return self._loop.has_autocast
        said = [self._subject.setting(name) for name in ("bf16", "fp16")]
        if any(setting is not None and setting.value in (True, "auto", "full") for setting in said):
            return True
        bf16 = said[0]
        return self._is_trl and (bf16 is None or bf16.value is not False)

    def _weights(self) -> Dtype:
        subject = self._subject
        if subject.is_on("load_in_4bit") or self._text("adapter") == "qlora":
            return Dtype.NF4
        if subject.is_on("load_in_8bit"):
            return Dtype.INT8
        if self._loop is not None and self._loop.turned:
            return Dtype.BF16 if self._loop.turned == "bfloat16" else Dtype.FP16
        written = [setting.text for setting in subject.all("dtype", "torch_dtype", "model_init_kwargs")]
        written += [
            value.text
            for _, call in subject.calls(lambda call: call.last == "from_pretrained")
            for name in ("dtype", "torch_dtype")
            if (value := call.keywords.get(name)) is not None
        ]
        for text in reversed(written):
            for word, dtype in (
                ("bfloat16", Dtype.BF16),
                ("float16", Dtype.FP16),
                ("half", Dtype.FP16),
                ("float32", Dtype.FP32),
            ):
                if word in text:
                    return dtype
        if any(written):  # auto, or something only the program knows
            return self._stored()
        return self._unsaid()

    def _unsaid(self) -> Dtype:
        """Return what the weights are loaded in where nobody says."""
        if self.is_axolotl:
            return Dtype.BF16 if self._autocast() else Dtype.FP32
        loaded = any(call.last == "from_pretrained" and "Model" in call.name for _, call in self._subject.calls())
        if self._is_trl and not loaded:
            return Dtype.FP32  # TRL loads a model that is only named in 32 bit
        version = version_of(self._subject, "transformers")
        return self._stored() if version is None or version >= (5,) else Dtype.FP32

    def _stored(self) -> Dtype:
        return {"bfloat16": Dtype.BF16, "float16": Dtype.FP16}.get(self._shape.dtype, Dtype.FP32)

    def _attention(self) -> str:
        said = self._text("attn_implementation")
        for _, call in self._subject.calls(lambda call: call.last == "from_pretrained"):
            value = call.keywords.get("attn_implementation")
            if value is not None and isinstance(value.value, str):
                said = value.value
        return "eager" if said == "eager" else (said or "sdpa")

    def _lora(self) -> Lora | None:
        subject = self._subject
        is_adapter = self._text("adapter") in ("lora", "qlora") or subject.is_on("use_peft")
        if not is_adapter and not any(call.last in ("LoraConfig", "get_peft_model") for _, call in subject.calls()):
            return None
        targets = subject.setting("target_modules", "lora_target_modules")
        names: tuple[str, ...] = ()
        if targets is not None and isinstance(targets.value, str):
            names = (
                (targets.value,) if "all" in targets.value else tuple(re.findall(r"[a-z_]+_proj|\w+", targets.value))
            )
        elif targets is not None and isinstance(targets.value, list | tuple):
            names = tuple(str(each) for each in targets.value)
        if subject.is_on("lora_target_linear"):
            names = ("all-linear",)
        saved = subject.setting("modules_to_save", "lora_modules_to_save")
        count = len(saved.value) if saved is not None and isinstance(saved.value, list | tuple) else 0
        dropout = subject.number("lora_dropout") or 0
        rank = round(subject.number("r", "lora_r") or 8)
        return Lora(rank, names, has_dropout=dropout > 0, saved_modules=count)

    def _reference(self) -> bool:
        if self._method in ("dpo", "kto"):
            return not self._subject.is_on("precompute_ref_log_probs", "reference_free")
        return self._is_rl and (self._subject.number("beta", "kl_coef") or 0) > 0

    def _logits(self) -> Logits:
        if self._subject.is_on("use_liger_kernel", "use_liger_loss", "liger_fused_linear_cross_entropy"):
            return Logits.CHUNKED
        since = _CHUNKED_SINCE.get(self._method) if self._is_trl else None
        version = version_of(self._subject, "trl")
        return Logits.CHUNKED if since is not None and (version is None or version >= since) else Logits.WHOLE

    def _eval_batch(self) -> int:
        strategy = self._subject.setting("eval_strategy", "evaluation_strategy", "eval_steps")
        if strategy is None or strategy.value in ("no", None, False):
            return 0
        return self._count("per_device_eval_batch_size", 8)

    def _vllm(self) -> float:
        mode = self._text("vllm_mode") or "colocate"
        if not self._subject.is_on("use_vllm") or mode != "colocate":
            return 0.0
        return (self._subject.number("vllm_gpu_memory_utilization") or 0.3) * self._target.device.memory_gib

    def may_be_spread(self) -> bool:
        """Say whether several GPUs share out a loop's model in a way that is not said: by layers, or by a config of accelerate."""
        assert self._loop is not None
        by_accelerate = any(call.last == "Accelerator" for _, call in self._subject.calls())
        return "device_map" in self._loop.loading.keywords or (by_accelerate and self._sharding() is Sharding.NONE)

    # -- sharding ------------------------------------------------------------------------------------

    def _sharding(self) -> Sharding:
        stage = self._stage()
        if stage is not None:
            return {1: Sharding.ZERO_1, 2: Sharding.ZERO_2, 3: Sharding.ZERO_3}.get(stage, Sharding.NONE)
        fsdp = self._subject.setting("fsdp")
        is_fsdp = fsdp is not None and fsdp.value not in ("", None, False, [])
        is_fsdp |= self._text("accelerate_config").startswith("fsdp")  # TRL's own, by its name
        return Sharding.FSDP if is_fsdp or self._text("distributed_type").upper() == "FSDP" else Sharding.NONE

    def _stage(self) -> int | None:
        said = self._subject.number("zero_stage")
        if said is not None:
            return round(said)
        content = self._deepspeed()
        zero = content.get("zero_optimization")
        if isinstance(zero, dict) and isinstance(zero.get("stage"), int):
            return int(zero["stage"])
        named = re.search(r"(?i)zero[-_]?([123])", self._text("deepspeed") or self._text("accelerate_config"))
        return int(named[1]) if named is not None else None

    def _offloads(self, what: str) -> bool:
        if self._text(f"offload_{what}_device") == "cpu":
            return True
        zero = self._deepspeed().get("zero_optimization")
        part = zero.get(f"offload_{what}") if isinstance(zero, dict) else None
        return isinstance(part, dict) and part.get("device") in ("cpu", "nvme")

    def _deepspeed(self) -> dict[str, object]:
        setting = self._subject.setting("deepspeed")
        if setting is None:
            return {}
        if isinstance(setting.value, dict):
            return setting.value
        path = self._tools.cwd / setting.value if isinstance(setting.value, str) and setting.value else None
        return (json_object(path) if path is not None else None) or {}


def _enables(subject: Subject) -> bool:
    """Say whether the model itself is told to recompute, by name or with the rest that 4-bit weights need."""
    for _, call in subject.calls(lambda call: call.last in _RECOMPUTES):
        given = call.keywords.get("use_gradient_checkpointing")
        if given is None or given.value is not False:
            return True
    return False
