"""Optimizers as other packages write them: what they keep is not all in `state`."""

from __future__ import annotations

from collections import defaultdict

import torch


class Lookahead(torch.optim.Optimizer):
    """Slow weights and a count of its own beside an optimizer that it wraps."""

    def __init__(self, base, k=3):
        self.base, self.k, self.count = base, k, 0
        self.param_groups, self.defaults, self.state = base.param_groups, base.defaults, {}
        self._optimizer_step_pre_hooks, self._optimizer_step_post_hooks = {}, {}
        self.slow = {p: p.detach().clone() for group in self.param_groups for p in group["params"]}

    @torch.no_grad()
    def step(self, closure=None):
        self.base.step(closure)
        self.count += 1
        if self.count % self.k == 0:
            for parameter, slow in self.slow.items():
                parameter.copy_(slow.lerp_(parameter, 0.5))

    def state_dict(self):
        return {"base": self.base.state_dict(), "slow": list(self.slow.values()), "count": self.count}

    def load_state_dict(self, state):
        self.base.load_state_dict(state["base"])
        self.param_groups = self.base.param_groups
        self.count = state["count"]
        for slow, values in zip(self.slow.values(), state["slow"], strict=True):
            slow.copy_(values)


class Wrapped(Lookahead):
    """Slow weights in the state of the optimizer that it wraps, and an empty one of its own."""

    def __init__(self, base, k=3):
        super().__init__(base, k)
        self.slow, self.state = None, defaultdict(dict)

    @torch.no_grad()
    def step(self, closure=None):
        self.base.step(closure)
        for group in self.param_groups:
            group["lookahead"] = group.get("lookahead", 0) + 1
            for parameter in group["params"] if group["lookahead"] % self.k == 0 else ():
                slow = self.base.state[parameter].setdefault("slow", parameter.clone())
                parameter.copy_(slow.lerp_(parameter, 0.5))

    def state_dict(self):
        return self.base.state_dict()

    def load_state_dict(self, state):
        self.base.load_state_dict(state)
        self.param_groups = self.base.param_groups


class Projector:
    """What is kept of one parameter: new tensors in every step, and a count."""

    def __init__(self):
        self.count, self.mean = 0, None

    def __call__(self, gradient):
        self.count += 1
        self.mean = gradient.clone() if self.mean is None else 0.9 * self.mean + 0.1 * gradient
        return self.mean * (1 + 0.1 * (self.count % 3))


class Projected(torch.optim.Optimizer):
    """An object for each parameter in its state, a list of numbers, and a generator, which nobody puts back."""

    def __init__(self, parameters):
        super().__init__(parameters, {"lr": 1e-2})
        self.seen, self.generator = [], torch.Generator()

    @torch.no_grad()
    def step(self, closure=None):
        self.seen.append(len(self.seen))
        for group in self.param_groups:
            for parameter in (each for each in group["params"] if each.grad is not None):
                projector = self.state[parameter].setdefault("projector", Projector())
                parameter.add_(projector(parameter.grad), alpha=-group["lr"] / len(self.seen) ** 0.1)

    def state_dict(self):
        kept = [(each["projector"].count, each["projector"].mean) for each in self.state.values()]
        return {"kept": kept, "seen": self.seen}


MADE = {
    "slow weights": lambda model: Lookahead(torch.optim.AdamW(model.parameters(), lr=1e-2)),
    "a wrapped optimizer": lambda model: Wrapped(torch.optim.AdamW(model.parameters(), lr=1e-2)),
    "objects": lambda model: Projected(model.parameters()),
}
