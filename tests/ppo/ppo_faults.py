"""Faults of a PPO training, through its model, and what is looked at afterwards."""

from __future__ import annotations

import json
import math
from pathlib import Path

SAMPLES = 6
"""Forward passes of the policy for samples, which come after an update and are counted to the next one here."""
MICRO_BATCHES = 4
"""Forward passes with gradients in each update: two micro-batches, twice."""


def weights(trainer):
    return {name: value.clone() for name, value in trainer.model.state_dict().items()}


def logged(trainer):
    """Return what was logged but for its clock."""
    return [{name: value for name, value in entry.items() if name != "eps"} for entry in trainer.state.log_history]


def is_same(one, other):
    import torch

    return all(torch.equal(one[name], other[name]) for name in one)


def is_finite(trainer):
    import torch

    return all(bool(torch.isfinite(value).all()) for value in weights(trainer).values())


def ledger(trainer):
    lines = Path(trainer.args.output_dir, "healing", "ledger.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines]


def postmortem(trainer):
    return json.loads(Path(trainer.args.output_dir, "postmortem.json").read_text())


def out_of_memory():
    import torch

    raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")


def on_forward(trainer, do, *, trains):
    """Call `do(output, input_ids)` after each forward pass of the policy, with gradients or without."""
    import torch

    def hook(_module, _args, kwargs, output):
        if torch.is_grad_enabled() == trains:
            return do(output, kwargs["input_ids"])
        return None

    trainer.model.policy.register_forward_hook(hook, with_kwargs=True)


def once(trainer, do, *, trains, update, at=2):
    """Do something at one forward pass of an update, in the first of its attempts."""
    seen = []

    def count(output, _ids):
        if trainer.state.global_step == update - 1:
            seen.append(None)
            if len(seen) == at:
                do(output)

    on_forward(trainer, count, trains=trains)


def raising(exception):
    def do(_output):
        raise exception

    return do


def nan_gradient(output):
    output.logits.register_hook(lambda gradient: gradient * math.nan)


def oom_in_backward(output):
    output.logits.register_hook(lambda _gradient: out_of_memory())


def break_a_weight(trainer, update):
    import torch

    def do(_output):
        with torch.no_grad():
            next(trainer.model.value_model.parameters())[0, 0] = math.nan

    once(trainer, do, trains=True, update=update, at=MICRO_BATCHES)


FAULTS = {
    "oom in generation": lambda t, u: once(t, lambda _o: out_of_memory(), trains=False, update=u, at=SAMPLES + 3),
    "oom in forward": lambda t, u: once(t, lambda _o: out_of_memory(), trains=True, update=u),
    "oom in backward": lambda t, u: once(t, oom_in_backward, trains=True, update=u),
    "gradient not finite": lambda t, u: once(t, nan_gradient, trains=True, update=u),
    "an exception": lambda t, u: once(t, raising(RuntimeError("a cable was pulled")), trains=True, update=u),
    "weight not finite": break_a_weight,
}


def without_pads(trainer):
    """Have the policy never say the words that end an answer, so that all are equally long."""
    trainer.model.policy.lm_head.register_forward_hook(
        lambda _module, _args, logits: logits.index_fill(-1, logits.new_tensor([0, 1]).long(), -30.0)
    )


def count_steps(trainer):
    import torch

    taken = []
    torch.optim.Optimizer.register_step_post_hook(
        trainer.optimizer.optimizer, lambda *_: taken.append(trainer.state.global_step)
    )
    return taken


def at_step_end(step, do):
    from transformers import TrainerCallback

    class AtStepEnd(TrainerCallback):
        def on_step_end(self, args, state, control, **kwargs):
            if state.global_step == step:
                do()

    return AtStepEnd()
