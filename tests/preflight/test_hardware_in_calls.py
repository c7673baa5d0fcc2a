"""What plain calls of torch ask of the hardware: bf16 and compiling, wherever they stand, and nothing that a condition decides."""

from __future__ import annotations

import pytest

from self_healing.preflight.options import CheckOptions
from self_healing.preflight.runner import run_checks
from self_healing.preflight.subject import read_subject
from self_healing.preflight.tools import Tools

LOOP = """import torch
from transformers import AutoModelForCausalLM
{before}
model = AutoModelForCausalLM.from_pretrained("org/model-0.1B"{loading})
{made}
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5)
for batch in batches:
    {step}
    loss.backward()
    optimizer.step()
"""
CAST = "with torch.autocast('cuda', dtype={}):\n        loss = model(**batch).loss"


def loop(before="", loading="", made="model.cuda()", step="loss = model(**batch).loss"):
    return LOOP.format(before=before, loading=loading, made=made, step=step)


BF16 = {
    "autocast": loop(step=CAST.format("torch.bfloat16")),
    "autocast by its position": loop(step="with torch.autocast('cuda', torch.bfloat16):\n        loss = model(**batch).loss"),
    "autocast of torch.amp": loop("from torch.amp import autocast", step="with autocast('cuda', dtype=torch.bfloat16):\n        pass"),
    "autocast of torch.cuda.amp": loop(step="with torch.cuda.amp.autocast(dtype=torch.bfloat16):\n        pass"),
    "a name for the dtype": loop("DTYPE = torch.bfloat16", step=CAST.format("DTYPE")),
    "a dtype that is looked up": loop("DTYPE = getattr(torch, 'bfloat16')", step=CAST.format("DTYPE")),
    "a dtype that a flag names": loop("kind = 'bfloat16'\nDTYPE = getattr(torch, kind)", step=CAST.format("DTYPE")),
    "imported by itself": loop("from torch import bfloat16", step=CAST.format("bfloat16")),
    "a context that is made before": loop("cast = torch.autocast('cuda', dtype=torch.bfloat16)", step="with cast:\n        pass"),
    "a model that is moved": loop(made="model.to('cuda', torch.bfloat16)"),
    "a model that is moved by name": loop(made="model = model.to(device='cuda', dtype=torch.bfloat16)"),
    "a model that is turned": loop(made="model = model.bfloat16().cuda()"),
    "a model that is loaded so": loop(loading=", torch_dtype=torch.bfloat16"),
    "a model that is loaded so, as a text": loop(loading=", dtype='bfloat16'"),
    "the default of torch": loop("torch.set_default_dtype(torch.bfloat16)"),
    "accelerate": loop("from accelerate import Accelerator\na = Accelerator(mixed_precision='bf16')"),
    "where a GPU is": loop(made="if torch.cuda.is_available():\n    model.to('cuda', dtype=torch.bfloat16)"),
    "lightning": "import lightning as L\ntrainer = L.Trainer(precision='bf16-mixed')\n",
}  # fmt: skip
NOT_BF16 = {
    "float16": loop(step=CAST.format("torch.float16")),
    "what the GPU can do": loop("D = torch.bfloat16 if torch.cuda.is_bf16_supported() else torch.float16", step=CAST.format("D")),
    "asked for by a condition": loop("if torch.cuda.is_bf16_supported():\n    torch.set_default_dtype(torch.bfloat16)"),
    "under a condition that is not known": loop(made="if fast():\n    model.to(torch.bfloat16)"),
    "under a switch that is off": loop("import argparse\np = argparse.ArgumentParser()\np.add_argument('--half', action='store_true')\nargs = p.parse_args()", made="if args.half:\n    model.to(torch.bfloat16)"),
    "a script that ends by itself where it cannot": loop("if not torch.cuda.is_bf16_supported():\n    raise SystemExit('needs bf16')", step=CAST.format("torch.bfloat16")),
    "switched off": loop(step="with torch.autocast('cuda', dtype=torch.bfloat16, enabled=False):\n        pass"),
    "for the CPU": loop(step="with torch.autocast('cpu', dtype=torch.bfloat16):\n        pass"),
    "a merge, which trains nothing": "import torch\nfrom transformers import AutoModel\nm = AutoModel.from_pretrained('org/m', dtype=torch.bfloat16)\nm.save_pretrained('out')\n",
    "another thing that is moved": loop(made="model.to('cuda')"),
    "after what went wrong": loop(made="try:\n    model.half()\nexcept RuntimeError:\n    model.bfloat16()"),
}  # fmt: skip
COMPILED = {
    "the model": loop(made="model = torch.compile(model.cuda(), mode='max-autotune')"),
    "by its name": loop("from torch import compile", made="model = compile(model)"),
    "in a function": loop("def build(model):\n    return torch.compile(model)"),
    "a method of the model": loop(made="model.cuda()\nmodel.compile(mode='default')"),
    "a decorator": loop("@torch.compile\ndef step(x):\n    return x"),
    "a decorator with options": loop("@torch.compile(fullgraph=True)\ndef step(x):\n    return x"),
    "a mode of the arguments": "from transformers import TrainingArguments\na = TrainingArguments('out', torch_compile_mode='default')\n",
}  # fmt: skip
NOT_COMPILED = {
    "a pattern": loop("import re\nP = re.compile('x')"),
    "an expression": loop("code = compile('1', 'x', 'eval')"),
    "a model of Keras": "import keras\nimport torch\nmodel = keras.Model()\nmodel.compile()\n",
    "a model of Keras by another name": "import torch\nmodel.compile(optimizer='adam', loss='mse')\n",
    "switched off": loop(made="model = torch.compile(model, disable=True)"),
    "nothing is built": loop(made="model = torch.compile(model, backend='eager')"),
    "under a switch that is off": loop("FAST = False", made="if FAST:\n    model = torch.compile(model)"),
    "on the GPUs that can": loop(made="if torch.cuda.get_device_capability() >= (8, 0):\n    model = torch.compile(model)"),
}  # fmt: skip


def found(folder, text, check, gpu="t4"):
    (folder / "train.py").write_text(text)
    options = CheckOptions(offline=True, gpu=gpu, select=(check,))
    report = run_checks(read_subject(["train.py"], [], options, folder), Tools(options=options, cwd=folder))
    assert report.not_run == []
    return report.findings


@pytest.mark.parametrize("what", BF16)
def test_bf16_is_seen_wherever_it_is_asked_for(tmp_path, what):
    [finding] = found(tmp_path, BF16[what], "bf16-not-supported")
    assert "T4" in finding.message
    assert found(tmp_path, BF16[what], "bf16-not-supported", gpu="l4") == []


@pytest.mark.parametrize("what", NOT_BF16)
def test_nothing_is_said_of_bf16_that_is_not_used_there(tmp_path, what):
    assert found(tmp_path, NOT_BF16[what], "bf16-not-supported") == []


@pytest.mark.parametrize("what", COMPILED)
def test_compiling_is_seen_wherever_it_is_asked_for(tmp_path, what):
    assert len(found(tmp_path, COMPILED[what], "torch-compile-unreliable")) == 1
    assert found(tmp_path, COMPILED[what], "torch-compile-unreliable", gpu="h100") == []


@pytest.mark.parametrize("what", NOT_COMPILED)
def test_nothing_is_said_of_what_is_not_compiled(tmp_path, what):
    assert found(tmp_path, NOT_COMPILED[what], "torch-compile-unreliable") == []
