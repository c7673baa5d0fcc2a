"""What a script needs without importing it: known from the options it uses.

`Trainer` needs accelerate, `load_in_4bit` bitsandbytes, a conversion to GGUF sentencepiece: libraries look for these when
they are asked to use them, so they are missed only after the model was loaded, or never by an import that could be seen.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass

from ..finding import Place
from ..hardware.asked import asked_fp8, fp8_packages
from ..scripts.script_commands import name_of, started_by
from ..scripts.syntax import SAYING, Syntax, last_of, syntax_of, texts_in
from ..subject import Call, Script, Subject, Value


@dataclass(frozen=True, slots=True)
class Need:
    """One distribution that something asks for."""

    names: tuple[str, ...]
    """Any of them will do; the one to propose first."""
    why: str
    """`device_map needs it`, said behind the name."""
    place: Place
    is_certain: bool = True
    """Without it the run fails; else it may."""
    otherwise: str = ""
    """What to write to do without it."""


TRACKERS = {
    "wandb": ("wandb",), "trackio": ("trackio",), "tensorboard": ("tensorboard", "tensorboardx"), "mlflow": ("mlflow",),
    "comet_ml": ("comet-ml",), "clearml": ("clearml",), "swanlab": ("swanlab",), "dvclive": ("dvclive",), "neptune": ("neptune",),
    "codecarbon": ("codecarbon",),
}  # fmt: skip
_OPTIMIZERS = {
    "galore": ("galore-torch",), "lomo": ("lomo-optim",), "adalomo": ("lomo-optim",), "schedule_free": ("schedulefree",),
    "grokadamw": ("grokadamw",), "apollo": ("apollo-torch",), "stable_adamw": ("torch-optimi",), "adamw_torch_4bit": ("torchao",),
    "adamw_torch_8bit": ("torchao",),
}  # fmt: skip
_BNB_OPTIMIZERS = ("8bit", "bnb", "paged", "lion", "ademamix")
_QUANTIZERS = {
    "BitsAndBytesConfig": ("bitsandbytes",), "GPTQConfig": ("gptqmodel", "auto-gptq", "optimum"), "AwqConfig": ("autoawq", "gptqmodel"),
    "HqqConfig": ("hqq",), "TorchAoConfig": ("torchao",),
}  # fmt: skip
_SLOW_TOKENIZERS = frozenset(
    {"LlamaTokenizer", "T5Tokenizer", "XLMRobertaTokenizer", "GemmaTokenizer", "AlbertTokenizer", "MBartTokenizer", "CamembertTokenizer"}
)  # fmt: skip
_SENTENCEPIECE_MODELS = (
    "llama",
    "mistral",
    "mixtral",
    "gemma",
    "t5",
    "vicuna",
    "alpaca",
    "xlm-roberta",
    "albert",
    "mbart",
    "tinyllama",
)
_MODELS = ("AutoModel", "LlamaForCausalLM", "MistralForCausalLM", "GPT2LMHeadModel", "Qwen2ForCausalLM")
_METRICS = {
    "rouge": ("rouge-score",), "sacrebleu": ("sacrebleu",), "seqeval": ("seqeval",), "bertscore": ("bert-score",), "meteor": ("nltk",),
    "wer": ("jiwer",), "cer": ("jiwer",), "accuracy": ("scikit-learn",), "f1": ("scikit-learn",), "precision": ("scikit-learn",),
    "recall": ("scikit-learn",), "chrf": ("sacrebleu",), "ter": ("sacrebleu",), "roc_auc": ("scikit-learn",),
}  # fmt: skip
_GGUF = "convert_hf_to_gguf"
_OWN_PACKAGES = frozenset({"uv", "uvx", "pipx", "conda", "mamba", "docker", "podman", "ssh"})
"""What starts a program with packages of its own."""


def indirect_needs(subject: Subject, script: Script) -> Iterator[Need]:
    """Yield what the options of a script, of its configs and of its command need; the same may come twice."""
    yield from _of_settings(subject)
    yield from (Need(fp8_packages(subject), f"fp8 ({key})", place) for place, key in asked_fp8(subject))
    for call in script.calls:
        yield from _of_call(script, call)
    yield from _of_text(script)


def _of_settings(subject: Subject) -> Iterator[Need]:
    for name, needed, why in (
        ("use_vllm", ("vllm",), "use_vllm"), ("use_liger_kernel", ("liger-kernel",), "use_liger_kernel"),
        ("use_liger_loss", ("liger-kernel",), "use_liger_loss"), ("use_peft", ("peft",), "use_peft"),
        ("load_in_4bit", ("bitsandbytes",), "load_in_4bit"), ("load_in_8bit", ("bitsandbytes",), "load_in_8bit"),
        ("flash_attention", ("flash-attn", "kernels"), "flash_attention"),
    ):  # fmt: skip
        setting = subject.setting(name)
        if setting is not None and setting.value is True:
            yield Need(needed, why, setting.place)
    deepspeed = subject.setting("deepspeed")
    if deepspeed is not None and isinstance(deepspeed.value, str | dict) and deepspeed.value:
        yield Need(("deepspeed",), "deepspeed=...", deepspeed.place)
    yield from _of_optimizer(subject)
    report = subject.setting("report_to")
    if report is not None:
        named = report.value if isinstance(report.value, list | tuple) else [report.value]
        for tracker in named:
            if isinstance(tracker, str) and tracker in TRACKERS:
                yield Need(TRACKERS[tracker], f'report_to="{tracker}"', report.place)
    attention = subject.setting("attn_implementation")
    if attention is not None:
        yield from _of_attention(attention.value, attention.place)
    kwargs = subject.setting("model_init_kwargs")
    if kwargs is not None and isinstance(kwargs.value, dict):
        yield from _of_attention(kwargs.value.get("attn_implementation"), kwargs.place)


def _of_optimizer(subject: Subject) -> Iterator[Need]:
    setting = subject.setting("optim")
    if setting is None or not isinstance(setting.value, str):
        return
    optimizer = setting.value.lower()
    other = next((needed for part, needed in _OPTIMIZERS.items() if optimizer.startswith(part)), None)
    if other is not None:
        yield Need(other, f'optim="{setting.value}"', setting.place)
    elif any(part in optimizer for part in _BNB_OPTIMIZERS):
        yield Need(("bitsandbytes",), f'optim="{setting.value}"', setting.place)


def _of_attention(value: object, place: Place) -> Iterator[Need]:
    if value == "flash_attention_2":
        yield Need(
            ("flash-attn", "kernels"), 'attn_implementation="flash_attention_2"', place, otherwise='attn_implementation="sdpa"'
        )  # fmt: skip
    elif isinstance(value, str) and value.startswith("kernels-community/"):
        yield Need(("kernels",), f'attn_implementation="{value}"', place)


def _of_call(script: Script, call: Call) -> Iterator[Need]:
    place = Place(script.named, call.line)
    owner = call.name.rpartition(".")[0].rpartition(".")[2]
    if call.last == "from_pretrained":
        yield from _of_loading(script, call, owner, place)
    if call.name.startswith("transformers."):
        if call.last.endswith("Trainer") or call.last.endswith("TrainingArguments"):
            yield Need(("accelerate",), call.last, place)
        if call.last.endswith("Trainer") or call.last == "pipeline" or owner.startswith(_MODELS):
            yield Need(("torch",), "models of transformers", place)
    if call.last in _QUANTIZERS and call.name.startswith("transformers"):
        yield Need(_QUANTIZERS[call.last], call.last, place)
    adapter = _given(call, "peft_config")
    if adapter is not None and "get_peft_config" not in script.text:  # which is None where no adapter is asked for
        yield Need(("peft",), "peft_config", place)
    if call.name == "evaluate.load" and call.arguments and call.arguments[0].value in _METRICS:
        metric = str(call.arguments[0].value)
        yield Need(_METRICS[metric], f'evaluate.load("{metric}")', place)
    if call.last in ("to_pandas", "read_parquet", "to_parquet", "to_excel", "read_excel"):
        yield from _of_tables(call, place)
    if call.last == "push_to_hub":
        yield Need(("huggingface-hub",), "push_to_hub", place)


def _of_loading(script: Script, call: Call, owner: str, place: Place) -> Iterator[Need]:
    if _given(call, "device_map") is not None and "unsloth" not in call.name:
        yield Need(("accelerate",), "device_map", place)
    attention = _given(call, "attn_implementation")
    if attention is not None:
        yield from _of_attention(attention.value, Place(script.named, attention.line))
    for name in ("load_in_4bit", "load_in_8bit"):
        value = _given(call, name)
        if value is not None and value.value is True:
            yield Need(("bitsandbytes",), name, Place(script.named, value.line))
    named = call.given(0, "pretrained_model_name_or_path")
    model = named.value.lower() if named is not None and isinstance(named.value, str) else ""
    use_fast = _given(call, "use_fast")
    is_slow = use_fast is not None and use_fast.value is False and any(part in model for part in _SENTENCEPIECE_MODELS)
    if owner in _SLOW_TOKENIZERS or (owner == "AutoTokenizer" and is_slow):
        why = owner if owner in _SLOW_TOKENIZERS else "use_fast=False"
        yield Need(("sentencepiece",), why, place, is_certain=False)
        yield Need(("protobuf",), why, place, is_certain=False)
    if owner in ("AutoModelForVision2Seq", "AutoModelForImageTextToText", "AutoImageProcessor"):
        yield Need(("pillow",), owner, place)


def _of_tables(call: Call, place: Place) -> Iterator[Need]:
    if call.last == "to_pandas":
        yield Need(("pandas",), ".to_pandas()", place)
    elif call.last.endswith("parquet") and call.name.startswith("pandas."):
        yield Need(("pyarrow", "fastparquet"), f"pandas.{call.last}", place)
    elif call.last.endswith("excel"):
        yield Need(("openpyxl",), call.last, place)


def _of_text(script: Script) -> Iterator[Need]:
    """Yield what commands and variables of the environment need."""
    line = _converts_at(script)
    if line:
        place = Place(script.named, line)
        for name in ("sentencepiece", "protobuf", "gguf"):
            yield Need((name,), f"{_GGUF}.py", place, is_certain=False)
        for name in ("transformers", "torch", "numpy"):
            yield Need((name,), f"{_GGUF}.py", place)
    for node in script.tree.body:
        texts = set(texts_in(node))
        if "HF_HUB_ENABLE_HF_TRANSFER" in texts and "1" in texts:
            yield Need(
                ("hf-transfer",), "HF_HUB_ENABLE_HF_TRANSFER=1", Place(script.named, node.lineno), is_certain=False
            )


def _converts_at(script: Script) -> int:
    """Return the line that starts a conversion to GGUF with the packages of the script; 0 where none does."""
    commands = [(started.call.line, words) for started in started_by(script) for words in started.programs]
    converting = [(line, words) for line, words in commands if any(_GGUF in word for word in words)]
    if converting:
        return next((line for line, words in converting if name_of(words) not in _OWN_PACKAGES), 0)
    if not any(not started.programs or "?" in started.text for started in started_by(script)):
        return 0
    syntax = syntax_of(script)  # its path is put together from what is not known: `f"{root}/convert_hf_to_gguf.py"`
    for node in syntax.nodes:
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            is_path = node.value.endswith(f"{_GGUF}.py") and " " not in node.value
            if is_path and not _is_only_said(syntax, node):
                return node.lineno
    return 0


def _is_only_said(syntax: Syntax, node: ast.AST) -> bool:
    """Say whether a text is printed, or stands by itself."""
    for over in syntax.above(node):
        if isinstance(over, ast.Call) and last_of(over.func) != "join":
            return last_of(over.func) in SAYING
        if isinstance(over, ast.stmt):
            return isinstance(over, ast.Expr)
    return False


def _given(call: Call, name: str) -> Value | None:
    """Return a keyword that is given and not None."""
    value = call.keywords.get(name)
    return value if value is not None and value.value is not None else None
