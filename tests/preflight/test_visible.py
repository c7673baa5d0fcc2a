"""What can be seen of a training: the settings it begins with, and how it goes on."""

from __future__ import annotations

import pytest

from .checked_scripts import checked

STEP = "loss = model(batch).mean()\n{0}loss.backward()\n{0}optimizer.step()\n"
LOOP = "import torch\nfor epoch in range(200):\n    for batch in loader:\n        " + STEP.format(" " * 8)
ONE_EPOCH = "import torch\ndef one_epoch(model, loader):\n    for batch in loader:\n        " + STEP.format(" " * 8)


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (LOOP, 2),
        (LOOP + "print('done', loss)\ntorch.save(model, 'm.pt')\n", 2),
        (LOOP + "    history.append(loss.item())\n", 2),
        ("print('training')\nfrom tqdm import tqdm\n" + LOOP, 4),
        ("import torch\nwhile step < most:\n    batch = next(batches)\n    " + STEP.format("    ") + "    step += 1\n", 2),
        ("from accelerate import Accelerator\na = Accelerator()\nfor batch in loader:\n    a.backward(model(batch).loss)\n", 3),
        (ONE_EPOCH + "def main():\n    for _ in range(100):\n        one_epoch(m, l)\n    print('done')\nmain()\n", 3),
        (ONE_EPOCH + "def test(model):\n    print(model)\nfor _ in range(100):\n    one_epoch(m, l)\ntest(m)\n", 3),
        ("class Fit:\n    def step(self, batch):\n        self.model(batch).backward()\n    def run(self):\n        for batch in self.data:\n            self.step(batch)\n", 5),
        ("import torch\nfor step in range(50_000):\n    " + STEP.format("    "), 2),
    ],
)  # fmt: skip
def test_a_loop_that_shows_nothing_while_it_trains_is_found(tmp_path, text, line):
    (found,) = checked(tmp_path, text, "no-progress-shown")
    assert found.where.line == line


@pytest.mark.parametrize(
    "text",
    [
        LOOP + "        if step % 100 == 0:\n            print(loss.item())\n",
        LOOP + "    logger.info('epoch %d: %f', epoch, loss)\n",
        LOOP + "    torch.save(model.state_dict(), f'{epoch}.pt')\n",
        LOOP + "    writer.add_scalar('loss', loss, epoch)\n",
        LOOP.replace("in loader", "in tqdm(loader)"),
        LOOP.replace("for epoch", "bar = tqdm(loader)\nfor epoch") + "        bar.update()\n",
        "def tell(loss):\n    print(loss)\n" + LOOP + "    tell(loss)\n",
        "def tell(loss):\n    print(loss)\ndef note(loss):\n    tell(loss)\n" + LOOP + "    note(loss)\n",
        ONE_EPOCH + "    return loss\nfor _ in range(100):\n    print(one_epoch(m, l))\n",
        ONE_EPOCH + "        yield loss.item()\nfor each in one_epoch(m, l):\n    print(each)\n",
        "from ours import tell\n" + LOOP + "    tell(loss)\n",
        "import lightning\n" + LOOP,
        "import torch\nfor step in range(20):\n    " + STEP.format("    ") + "print(loss)\n",
        "import torch\nN = 10\ndef main():\n    for step in range(1, N):\n        " + STEP.format(" " * 8) + "main()\n",
        "loss = model(batch)\nloss.backward()\n",
        "def compute(model, batch):\n    model(batch).backward()\n",
        "for batch in loader:\n    with torch.no_grad():\n        model(batch)\n",
    ],
)  # fmt: skip
def test_a_loop_that_shows_something_or_is_short_or_may_do_so_is_left_alone(tmp_path, text):
    assert checked(tmp_path, text, "no-progress-shown") == []


PARSED = "import argparse\nargs = argparse.ArgumentParser().parse_args()\n"
TRAINER = "trainer = Trainer(model=m, args=TrainingArguments('out'))\n{}trainer.train()\n"


@pytest.mark.parametrize(
    ("text", "is_found"),
    [
        (TRAINER.format(""), True),
        (TRAINER.format("") + "print(trainer.state)\n", True),
        (TRAINER.format("print('here we go')\n"), True),
        (PARSED + LOOP + "    print(loss)\n", True),
        (PARSED + LOOP + "print(loss)\n", True),
        (TRAINER.format("print(args)\n"), False),
        (TRAINER.format("logger.info('%s', args)\n"), False),
        (TRAINER.format("wandb.init(config=args)\n"), False),
        ("def main():\n    " + TRAINER.format("    ").replace("\ntr", "\n    tr") + "def show(a):\n    print(a)\n", False),
        (LOOP, False),
    ],
)  # fmt: skip
def test_settings_that_are_not_printed_before_the_training_are_told_of_as_a_hint(tmp_path, text, is_found):
    found = checked(tmp_path, text, "configuration-not-printed")
    assert [each.severity.name for each in found] == ["INFO"] * is_found
