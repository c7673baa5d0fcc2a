"""Trainings that a script does itself are estimated too, where they can be followed."""

from __future__ import annotations

import pytest

from self_healing.preflight.hardware.plain_loop import loop_of
from self_healing.preflight.options import CheckOptions
from self_healing.preflight.runner import run_checks
from self_healing.preflight.subject import read_subject
from self_healing.preflight.tools import Tools

HEAD = "import torch\nfrom torch.utils.data import DataLoader\nfrom transformers import AutoModelForCausalLM\n"
LOAD = "model = AutoModelForCausalLM.from_pretrained('Qwen/Qwen2.5-3B', dtype=torch.float32).to('cuda')\n"
OPTIMIZER = "optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5)\n"
LOOP = "for batch in DataLoader(data, batch_size=4):\n    loss = model(**batch).loss\n    loss.backward()\n    optimizer.step()\n"
IN_FUNCTIONS = """
def load(name):
    model = AutoModelForCausalLM.from_pretrained(name)
    model.gradient_checkpointing_enable()
    return model.cuda()

def train(net, data):
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-5)
    for batch in data:
        net(**batch).loss.backward()
        optimizer.step()

def main():
    model = load("Qwen/Qwen2.5-3B")
    train(model, data)

main()
"""
IN_A_CLASS = """
class Training:
    def __init__(self):
        self.model = AutoModelForCausalLM.from_pretrained("Qwen/Qwen2.5-3B").cuda()
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-5)
    def step(self, batch):
        self.model(**batch).loss.backward()
        self.optimizer.step()
"""
PREPARED = (
    "from accelerate import Accelerator\na = Accelerator(mixed_precision='bf16')\n"
    "model = AutoModelForCausalLM.from_pretrained('Qwen/Qwen2.5-3B')\n" + OPTIMIZER
    + "model, optimizer = a.prepare(model, optimizer)\nfor batch in data:\n    a.backward(model(**batch).loss)\n    optimizer.step()\n"
)  # fmt: skip
FOLLOWED = {
    "as it is": LOAD + OPTIMIZER + LOOP,
    "compiled": LOAD + "model = torch.compile(model)\n" + OPTIMIZER + LOOP,
    "parallel": LOAD + "model = torch.nn.parallel.DistributedDataParallel(model)\n" + OPTIMIZER + LOOP,
    "in functions": IN_FUNCTIONS,
    "in a class": IN_A_CLASS,
    "by accelerate": PREPARED,
    "parameters by name": LOAD + "optimizer = torch.optim.AdamW(params=list(model.parameters()), lr=1e-5)\n" + LOOP,
    "an optimizer that is imported": LOAD
    + "from torch.optim import AdamW\noptimizer = AdamW(model.parameters())\n"
    + LOOP,
}
NOT_FOLLOWED = {
    "only the head": LOAD + "optimizer = torch.optim.AdamW(model.lm_head.parameters(), lr=1e-5)\n" + LOOP,
    "a part that is frozen": LOAD + "for p in model.base.parameters():\n    p.requires_grad = False\n" + OPTIMIZER + LOOP,
    "frozen at once": LOAD + "model.base.requires_grad_(False)\n" + OPTIMIZER + LOOP,
    "those that are trained": LOAD + "optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad])\n" + LOOP,
    "sharded": LOAD + "from torch.distributed.fsdp import FullyShardedDataParallel as FSDP\nmodel = FSDP(model)\n" + OPTIMIZER + LOOP,
    "no training": LOAD + "print(model.generate())\n",
    "without a GPU": LOAD.replace(".to('cuda')", "") + OPTIMIZER + LOOP,
    "a head over a model that is not trained": LOAD + "net = torch.nn.Linear(8, 8).cuda()\noptimizer = torch.optim.AdamW(net.parameters())\n" + LOOP,
    "a model of its own": "model = torch.nn.Linear(8, 8).cuda()\n" + OPTIMIZER + LOOP,
    "two models": LOAD + "if big:\n    model = AutoModelForCausalLM.from_pretrained('org/other-7B').cuda()\n" + OPTIMIZER + LOOP,
}  # fmt: skip


def read(folder, text, gpus=1):
    (folder / "train.py").write_text(HEAD + text)
    options = CheckOptions(offline=True, gpu="t4", gpus=gpus, select=("memory-too-small",))
    return read_subject(["train.py"], [], options, folder), Tools(options=options, cwd=folder)


@pytest.mark.parametrize("what", FOLLOWED)
def test_a_loop_that_can_be_followed_is_estimated(tmp_path, what):
    [finding] = run_checks(*read(tmp_path, FOLLOWED[what])).findings
    assert "Qwen/Qwen2.5-3B" in finding.message
    assert "per_device_train_batch_size" not in finding.fix  # there is nobody who would read it
    assert "get_peft_model(" in finding.fix


@pytest.mark.parametrize("what", NOT_FOLLOWED)
def test_nothing_is_said_of_a_loop_that_trains_a_part_or_elsewhere(tmp_path, what):
    report = run_checks(*read(tmp_path, NOT_FOLLOWED[what]))
    assert (report.findings, report.not_run) == ([], [])


def test_what_decides_the_memory_of_a_loop_is_read(tmp_path):
    text = LOAD + "model.gradient_checkpointing_enable()\nmodel.half()\n" + LOOP
    text = text.replace("for batch", "optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)\nfor batch")
    loop = loop_of(read(tmp_path, text)[0])
    assert (loop.optimizer, loop.batch, loop.is_checkpointed, loop.turned) == ("sgd_momentum", 4, True, "float16")
    loop = loop_of(read(tmp_path, PREPARED.replace("torch.optim.AdamW", "bnb.optim.AdamW8bit"))[0])
    assert (loop.optimizer, loop.has_autocast, loop.batch) == ("adamw8bit", True, 1)


def test_a_loop_with_adapters_takes_what_adapters_take(tmp_path):
    lora = "from peft import LoraConfig, get_peft_model\nmodel = get_peft_model(model, LoraConfig(r=8))\n"
    text = LOAD.replace("float32", "float16") + lora + OPTIMIZER + "model.gradient_checkpointing_enable()\n" + LOOP
    assert loop_of(read(tmp_path, text)[0]) is not None
    assert run_checks(*read(tmp_path, text)).findings == []


def test_a_loop_that_several_gpus_may_share_out_is_passed_over(tmp_path):
    assert run_checks(*read(tmp_path, PREPARED, gpus=4)).findings == []
    assert (
        run_checks(
            *read(tmp_path, (LOAD + OPTIMIZER + LOOP).replace("dtype=", "device_map='auto', dtype="), gpus=4)
        ).findings
        == []
    )
    assert len(run_checks(*read(tmp_path, LOAD + OPTIMIZER + LOOP, gpus=4)).findings) == 1
