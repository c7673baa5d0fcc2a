"""Callbacks that keep averages of the weights, each in another way that people write them."""

from __future__ import annotations

import copy

import torch
from transformers import TrainerCallback

DECAY = 0.5


def trained(model):
    return [(name, parameter) for name, parameter in model.named_parameters() if parameter.requires_grad]


class InPlace(TrainerCallback):
    """A dictionary of tensors that are written to, a count of updates, and what belongs to the model, as many hold on to it."""

    def on_train_begin(self, args, state, control, model, **kwargs):
        self.model, self.updates = model, 0
        self.shadow = {name: parameter.detach().clone() for name, parameter in trained(model)}
        self.pairs = [(each.data, self.shadow.get(name)) for name, each in model.named_parameters()]

    def on_step_end(self, args, state, control, model, **kwargs):
        self.updates += 1
        for name, parameter in trained(model):
            self.shadow[name].lerp_(parameter.detach(), 1 / (1 + self.updates))

    def tensors(self):
        return list(self.shadow.values())


class Replacing(InPlace):
    """The same, with new tensors in every step."""

    def on_train_begin(self, args, state, control, model, **kwargs):
        super().on_train_begin(args, state, control, model)
        self.pairs = []

    def on_step_end(self, args, state, control, model, **kwargs):
        self.updates += 1
        for name, parameter in trained(model):
            self.shadow[name] = DECAY * self.shadow[name] + (1 - DECAY) * parameter.detach()


class Late(TrainerCallback):
    """A copy of the model that is made when it is first needed: in the third step."""

    module = None

    def __init__(self):
        self.seen, self.sums = 0, {}

    def on_step_end(self, args, state, control, model, **kwargs):
        self.seen += 1
        if self.seen < 3:
            return
        if self.module is None:
            self.module = copy.deepcopy(model).eval().requires_grad_(False)
        for mean, (name, parameter) in zip(self.module.parameters(), model.named_parameters(), strict=True):
            mean.lerp_(parameter.detach(), DECAY)
            self.sums[name] = self.sums.get(name, 0) + parameter.detach()

    def tensors(self):
        return [*self.module.parameters(), *self.sums.values()]


class Shadow:
    """An object of its own, as torch_ema and diffusers have one; filled in the first step."""

    def __init__(self):
        self.shadow_params, self.num_updates = [], None

    def update(self, parameters):
        if self.num_updates is None:
            self.num_updates, self.shadow_params = 0, [each.detach().clone() for each in parameters]
        self.num_updates += 1
        for mean, parameter in zip(self.shadow_params, parameters, strict=True):
            mean.sub_((mean - parameter.detach()) / (1 + self.num_updates))


class OfAnObject(TrainerCallback):
    def __init__(self):
        self.average = Shadow()

    def on_step_end(self, args, state, control, model, **kwargs):
        self.average.update([parameter for _, parameter in trained(model)])

    def tensors(self):
        return self.average.shadow_params


class OfTorch(TrainerCallback):
    """torch's own, which counts its updates in a buffer (and here in an attribute), with a judge that never changes."""

    def __init__(self):
        self.judge = torch.nn.Linear(300, 300).requires_grad_(False)

    def on_train_begin(self, args, state, control, model, **kwargs):
        self.average = torch.optim.swa_utils.AveragedModel(model)
        self.average.updates = 0

    def on_step_end(self, args, state, control, model, **kwargs):
        self.average.update_parameters(model)
        self.average.updates += 1

    def tensors(self):
        return list(self.average.state_dict().values())


class Counting(TrainerCallback):
    """Holds no tensor: what it counts is its own affair."""

    def __init__(self):
        self.steps = 0

    def on_step_end(self, args, state, control, **kwargs):
        self.steps += 1


class Server:
    """What TRL takes for vLLM: it generates with the weights that it was sent last."""

    def __init__(self, trainer):
        self.trainer, self.model, self.is_fresh = trainer, copy.deepcopy(trainer.model), []

    def sync_weights(self):
        self.model.load_state_dict(self.trainer.model.state_dict())

    @torch.no_grad()
    def generate(self, prompts, num_generations, **_):
        pairs = zip(self.model.parameters(), self.trainer.model.parameters(), strict=True)
        self.is_fresh.append(all(torch.equal(ours, theirs) for ours, theirs in pairs))
        longest = max(map(len, prompts))
        ids = torch.tensor([[0] * (longest - len(each)) + list(each) for each in prompts])
        made = self.model.generate(ids, attention_mask=(ids != 0).long(), do_sample=True, max_new_tokens=4)
        answers = made[:, longest:].tolist()
        return prompts, answers, [[[0.0] for _ in each] for each in answers], None
