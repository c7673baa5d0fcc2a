"""What to do, computed from the run's own values: which argument, under the name that it has here, and to what."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import NamedTuple

from .clues import Clue
from .facts import Facts

PACKAGES = {
    "cv2": "opencv-python", "sklearn": "scikit-learn", "PIL": "pillow", "yaml": "pyyaml", "skimage": "scikit-image",
    "bs4": "beautifulsoup4", "google.protobuf": "protobuf", "attr": "attrs", "Crypto": "pycryptodome",
    "flash_attn": "flash-attn --no-build-isolation", "flash_attn_2_cuda": "flash-attn --no-build-isolation",
    "mpi4py": "mpi4py", "apex": "git+https://github.com/NVIDIA/apex", "SentencePiece": "sentencepiece",
}  # fmt: skip
"""What a module is installed by, where the names differ."""
RENAMED = {
    "max_seq_length": "max_length", "tokenizer": "processing_class", "evaluation_strategy": "eval_strategy",
    "no_cuda": "use_cpu", "dataset_text_field": "dataset_text_field of SFTConfig", "num_proc": "dataset_num_proc",
    "torch_dtype": "dtype", "overwrite_output_dir": "nothing: it is gone", "logging_dir": "the TENSORBOARD_LOGGING_DIR variable",
    "push_to_hub_token": "hub_token", "group_by_length": "train_sampling_strategy", "use_auth_token": "token",
}  # fmt: skip
"""Arguments of transformers and TRL that have another name now."""

_PAST_LARGE = 2
_OTHER_PROCESS = re.compile(r"Process (\d{1,9}) has (\d{1,6}(?:\.\d{1,4})? [GM]i?B) memory in use")
_UNUSED = re.compile(r"(\d{1,6}(?:\.\d{1,4})?) GiB is reserved by PyTorch but unallocated")
_GENERATION_BATCH = re.compile(r"generation_batch_size \((\d{1,7})\)[^\n]{0,60}num_generations \(([1-9]\d{0,4})\)")
_GLOBAL_BATCH = re.compile(
    r"batch size \(([1-9]\d{0,6}) x (\d{1,7})\)[^\n]{0,120}generations per prompt \(([1-9]\d{0,4})\)"
)
_MODULE = re.compile(r"No module named ['\"]([\w.]{1,100})['\"]|requires the (\w{1,60}) library")
_ARGUMENT = re.compile(r"(?:(\w{1,80})(?:\.__init__)?\(\) )?got an unexpected keyword argument '(\w{1,80})'")
_PORT = re.compile(r"\bport:? (\d{2,5})\b|:(\d{4,5})\b[^\n]{0,40}in use")
_PATH = re.compile(r"['\"]((?:/|\./|~|[A-Za-z]:\\)[^'\"\n]{1,200})['\"]")
_TIMEOUT = re.compile(r"Timeout\(ms\)=(\d{1,9})")
_REPOSITORY = re.compile(r"huggingface\.co/(?:api/(?:models|datasets)/)?((?:datasets/)?[\w.-]{1,96}/[\w.-]{1,96})")
_ENTRY = re.compile(r"(?m)^\s{0,8}(time|host|rank|exitcode|error_file)\s{0,8}: ([^\n]{1,200})")


class Case(NamedTuple):
    """What a fix is computed from: the words of the failure, and what the text says of the run."""

    text: str
    facts: Facts


def fixes_for(clue: Clue, facts: Facts) -> tuple[str, ...]:
    """Return what to do about a clue, what was computed first."""
    computed = _COMPUTED.get(clue.fine)
    own = computed(Case(clue.text, facts)) if computed is not None else []
    return (*own, *(fix for fix in clue.hypothesis.fixes if fix not in own))


def _gpu_memory(case: Case) -> list[str]:
    found = []
    other = _OTHER_PROCESS.search(case.text)
    if other is not None and other[2].endswith(("GiB", "GB")) and float(other[2].split()[0]) >= _PAST_LARGE:
        found.append(
            f"Process {other[1]} holds {other[2]} of that GPU: end it, or choose another GPU with CUDA_VISIBLE_DEVICES."
        )
    batch, key = case.facts.whole("batch"), case.facts.key("batch")
    steps, steps_key = case.facts.whole("accumulation") or 1, case.facts.key("accumulation")
    if batch is not None and batch > 1:
        half = batch // 2
        steps_now = steps * batch // half
        found.append(
            f"Set {key}: {half} (it is {batch}) and {steps_key}: {steps_now} (it is {steps}): the effective batch stays."
        )
    if case.facts.is_on("checkpointing") is not True:
        found.append(
            f"Set {case.facts.key('checkpointing')}: true: it trades about a third more time for most of the activations."
        )
    for name in ("completion", "length"):
        length = case.facts.whole(name)
        if length is not None and length > 256:  # shorter ones are not what fills a GPU
            found.append(f"Set {case.facts.key(name)}: {length // 2} (it is {length}) if the data allow it.")
    unused = _UNUSED.search(case.text)
    if unused is not None and float(unused[1]) >= 1:
        found.append(f"PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True: {unused[1]} GiB were reserved and unused.")
    if batch is None:
        found.append(f"Halve {key}, and double {steps_key} so that the effective batch stays.")
    return found


def _host_memory(case: Case) -> list[str]:
    found = []
    for name in ("processes", "workers"):
        count = case.facts.whole(name)
        if count is not None and count > 1:
            found.append(f"Set {case.facts.key(name)}: {count // 2} (it is {count}): each holds memory of its own.")
    return found or [
        f"Lower {case.facts.key('processes')} and {case.facts.key('workers')}: each process holds memory of its own."
    ]


def _shared_memory(case: Case) -> list[str]:
    count = case.facts.whole("workers")
    now = f": {count // 2} (it is {count})" if count else ""
    return [f"Start the container with --shm-size=16g (or --ipc=host), or lower {case.facts.key('workers')}{now}."]


def _generations(case: Case) -> list[str]:
    key = case.facts.key("batch")
    said = _GENERATION_BATCH.search(case.text)
    if said is not None:
        batch, group = int(said[1]), int(said[2])
        larger = -(-batch // group) * group
        return [
            (
                f"Make the generation batch {larger} instead of {batch}, a multiple of {case.facts.key('generations')} ({group}): "
                f"set {key} to a multiple of {group}, or {case.facts.key('generations')} to one of {_divisors(batch)}."
            )
        ]
    said = _GLOBAL_BATCH.search(case.text)
    if said is not None:
        processes, each, group = int(said[1]), int(said[2]), int(said[3])
        fits = next((n for n in range(max(1, each), each + group + 1) if processes * n % group == 0), group)
        return [
            (
                f"Set {key}: {fits} (it is {each}; {processes} processes), so that the product divides by {group}, "
                f"or {case.facts.key('generations')} to one of {_divisors(processes * each)}."
            )
        ]
    return [f"Set {key} to a multiple of {case.facts.key('generations')}, and at least as large."]


def _divisors(number: int) -> str:
    small = [n for n in range(2, min(number, 4096) + 1) if number % n == 0]
    return ", ".join(map(str, small[:12])) or "(none: the batch is too small)"


def _missing(case: Case) -> list[str]:
    said = _MODULE.search(case.text)
    if said is None:
        return []
    module = said[1] or said[2]
    package = PACKAGES.get(module) or PACKAGES.get(module.split(".")[0]) or module.split(".")[0]
    return [f"pip install {package}, in the environment that the run uses."]


def _version(case: Case) -> list[str]:
    said = _ARGUMENT.search(case.text)
    if said is None:
        return []
    where = f" of {said[1]}" if said[1] and said[1] != "__init__" else ""
    if said[2] in RENAMED:
        return [f"Replace {said[2]}{where} by {RENAMED[said[2]]}, or install the version the script was written for."]
    return [f"Leave out {said[2]}{where}, or install the version the script was written for."]


def _port(case: Case) -> list[str]:
    said = _PORT.search(case.text)
    if said is None:
        return []
    port = int(said[1] or said[2])
    return [f"Port {port} is taken: start with --master_port {port + 1}, or end what holds it (lsof -i :{port})."]


def _disk(case: Case) -> list[str]:
    path = _PATH.search(case.text)
    folder = path[1].replace("\\", "/").rpartition("/")[0] if path else "the output folder"
    return [
        f"Free space at {folder or '/'} (df -h shows it; df -i too), or save elsewhere; save_total_limit: 2 keeps fewer."
    ]


def _damaged(case: Case) -> list[str]:
    path = _PATH.search(case.text)
    return [f"Resume from the checkpoint before {path[1]}; this one is not whole."] if path else []


def _collective(case: Case) -> list[str]:
    said = _TIMEOUT.search(case.text)
    if said is None:
        return []
    seconds = int(said[1]) // 1000
    return [
        (
            f"Find the rank that came late. Only if work of more than {seconds} s is expected (saving, tokenising on one rank), "
            f"set ddp_timeout: {2 * seconds}."
        )
    ]


def _access(case: Case) -> list[str]:
    said = _REPOSITORY.search(case.text)
    if said is None:
        return []
    return [
        f"Ask for access at https://huggingface.co/{said[1]}, then hf auth login (or HF_TOKEN) where the run starts."
    ]


def _slower(case: Case) -> list[str]:
    found = []
    if case.facts.is_on("fp16"):
        found.append("Set bf16: true and fp16: false if the GPU has it (Ampere or newer): fp16 ends at 65504.")
    rate = case.facts.number("rate")
    if rate:
        found.append(f"Set {case.facts.key('rate')}: {rate / 2:g} (it is {rate:g}).")
    clip = case.facts.number("clip")
    if clip is not None and not clip:
        found.append(f"Set {case.facts.key('clip')}: 1.0 (it is 0, which switches clipping off).")
    return found


def _pad_token(case: Case) -> list[str]:
    if case.facts.framework == "axolotl":
        return ['Add to the configuration: special_tokens: {pad_token: "<|endoftext|>"}.']
    return ["Set tokenizer.pad_token = tokenizer.eos_token before the data are collated."]


def _where_to_look(case: Case) -> list[str]:
    """Say where the cause is: the summary of a launcher names the rank, its machine and its error file."""
    said: dict[str, str] = {}
    for name, value in _ENTRY.findall(case.text):
        said.setdefault(name, value.strip())
    found = []
    if said.get("error_file", "<N/A>") != "<N/A>":
        found.append(f"Read {said['error_file']}: the failing process wrote its traceback there.")
    if "rank" in said:
        rank = said["rank"].split(" ")[0]
        host = f" on {said['host']}" if "host" in said else ""
        when = f" at {said['time']}" if "time" in said else ""
        found.append(
            f"Read the output of rank {rank}{host}, which failed first{when}; torchrun --log-dir logs --tee 3 keeps it."
        )
    return found


_COMPUTED: Mapping[str, Callable[[Case], list[str]]] = {
    "oom_gpu": _gpu_memory,
    "oom_host": _host_memory,
    "oom_shm": _shared_memory,
    "grpo_batch_config": _generations,
    "missing_dependency": _missing,
    "version_mismatch": _version,
    "port_in_use": _port,
    "disk_full": _disk,
    "checkpoint_corrupt": _damaged,
    "nccl_timeout": _collective,
    "hub_auth": _access,
    "nan_loss": _slower,
    "nan_eval": _slower,
    "fp16_overflow": _slower,
    "pad_token_missing": _pad_token,
    "unknown_child_failure": _where_to_look,
    "killed_unknown": _where_to_look,
}
