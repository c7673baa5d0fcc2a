"""AdaGC: clip each gradient tensor against the average of its own clipped norms (arXiv 2502.11034).

Two things differ from the formulas, both where they would do lasting harm. A step with a norm that is not finite
changes nothing. And a tensor whose gradient is exactly zero teaches nothing: the running minimum of the warm-up would
become zero and silence that tensor for good, which is what happens to the A matrices of LoRA at their first step and
to experts that get no tokens.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import torch
from torch import Tensor

from .fused import fused_or_none
from .fused_clipping import FusedAdaGC, can_scale
from .norms import Norms, clip_coefficient, parameters_of

Shape = tuple[int, ...]


class AdaGC:
    """Adaptive clipping tensor by tensor; call `step` between backward and the optimizer."""

    def __init__(
        self,
        lambda_rel: float = 1.05,
        lambda_abs: float = 1.0,
        beta: float = 0.98,
        warmup_steps: int = 100,
    ) -> None:
        if lambda_rel <= 0.0 or lambda_abs <= 0.0:
            raise ValueError("lambda_rel and lambda_abs must be positive")
        if not 0.0 < beta < 1.0:
            raise ValueError(f"beta must lie between 0 and 1, not {beta!r}")
        self.lambda_rel = lambda_rel
        """Times its own average that a tensor's norm may reach after the warm-up."""
        self.lambda_abs = lambda_abs
        """Limit of the global norm during the warm-up."""
        self.beta = beta
        self.warmup_steps = warmup_steps
        self.gammas = torch.zeros(0)
        """Average clipped norm of each tensor, in the order of the parameters; infinite until one was seen."""
        self.steps = torch.zeros(())
        """Finite steps seen."""
        self._shapes: list[Shape | None] = []
        self._present: tuple[int, ...] | None = None
        self._index: Tensor | None = None
        self.may_fuse = True
        """False keeps to ordinary operations also where a kernel could do the same."""
        self._fused: FusedAdaGC | None = None

    @torch.no_grad()
    def step(self, source: torch.nn.Module | Tensor | Iterable[Tensor]) -> Tensor:
        """Clip the gradients of a model or of its parameters in place and return the global norm they had before."""
        all_grads = [p.grad for p in parameters_of(source)]
        grads = [grad for grad in all_grads if grad is not None]
        norms = Norms(grads, self.gammas.device)
        self.clip_(all_grads, norms)
        return norms.total

    def clip_(
        self,
        all_grads: Sequence[Tensor | None],
        norms: Norms,
        max_norm: float | None = None,
        held: Tensor | None = None,
    ) -> Tensor:
        """Clip the gradients in place, by their common norm too; return what that norm was multiplied by.

        `all_grads` has one entry for each parameter, None for one without a gradient; `norms` are of the others.
        Where `held` is not zero, nothing is learned: the update is left out and comes again with its make-up.
        """
        total = norms.total.to(torch.float32)
        held = torch.zeros_like(total) if held is None else held
        fused = self._fused_for(all_grads, norms)
        if fused is not None:
            numbers = [self.lambda_rel, self.lambda_abs, self.beta, float(self.warmup_steps), max_norm or 0.0]
            fused.judge(total, held, norms.each, self.gammas, self.steps, numbers)
            fused.scale_(norms.only_part or [])
            return fused.whole
        before = norms.each.to(torch.float32)
        each = self._coefficients(all_grads, norms, held)
        after: Tensor = torch.linalg.vector_norm(each * before)
        finite = total < torch.inf
        one = torch.ones_like(total)
        if max_norm:
            rest = torch.where(finite, clip_coefficient(after, max_norm), one)
            each, after = each * rest, after * rest
        norms.scale_each_(each)
        return torch.where(finite & (total > 0.0), after / total, one)

    def _fused_for(self, all_grads: Sequence[Tensor | None], norms: Norms) -> FusedAdaGC | None:
        """Return the kernels where they can be used on these gradients."""
        tensors, device = norms.only_part, norms.total.device
        if not self.may_fuse or not tensors or not can_scale(tensors, device):
            return None
        if not (
            self._is_whole and self.gammas.device == device and len(tensors) == len(all_grads) == len(self._shapes)
        ):
            self._match(all_grads, device)
        if self._index is not None:
            return None
        if self._fused is None:
            self._fused = fused_or_none(lambda: FusedAdaGC(len(tensors), device), device)
            self.may_fuse = self._fused is not None
        return self._fused

    @property
    def _is_whole(self) -> bool:
        """Say whether all tensors had gradients when they were last matched, and nothing was loaded since."""
        return self._present is not None and self._index is None

    def _coefficients(self, all_grads: Sequence[Tensor | None], norms: Norms, held: Tensor) -> Tensor:
        """Learn from the norms and return what each gradient that is there is to be multiplied by."""
        total = norms.total.to(torch.float32)
        each = norms.each.to(torch.float32)
        if not len(each):
            return each
        self._match(all_grads, total.device)
        gammas = self.gammas if self._index is None else self.gammas.index_select(0, self._index)
        finite = total < torch.inf
        warming = self.steps < self.warmup_steps
        one = torch.ones_like(total)
        shrink = torch.where(warming, self.lambda_abs / total, self.lambda_rel * gammas / each).clamp(max=1.0)
        shrink = torch.where(finite, shrink, one)
        clipped = shrink * each
        average = torch.where(gammas.isinf(), clipped, self.beta * gammas + (1.0 - self.beta) * clipped)
        learned = torch.where(warming, torch.minimum(gammas, clipped), average)
        learns = finite & (held == 0)
        gammas = torch.where(learns & (each > 0.0), learned, gammas)
        if self._index is None:
            self.gammas = gammas
        else:
            self.gammas = self.gammas.index_copy(0, self._index, gammas)
        self.steps = self.steps + learns
        return shrink

    def state_dict(self) -> dict[str, object]:
        """Return copies of what has been learned, with the shapes it belongs to (None where not known yet)."""
        return {"gammas": self.gammas.clone(), "steps": self.steps.clone(), "shapes": list(self._shapes)}

    def load_state_dict(self, state: Mapping[str, object]) -> None:
        """Continue from what `state_dict` returned; the shapes are compared with the next gradients."""
        gammas, steps, shapes = state["gammas"], state["steps"], state["shapes"]
        if not (isinstance(gammas, Tensor) and isinstance(steps, Tensor) and isinstance(shapes, list)):
            raise TypeError("not a state of AdaGC: gammas and steps must be tensors, shapes a list")
        if len(gammas) != len(shapes):
            raise ValueError(f"a damaged state of AdaGC: {len(gammas)} averages for {len(shapes)} tensors")
        self.gammas = gammas.detach().clone()
        self.steps = steps.detach().clone()
        self._shapes = [None if shape is None else tuple(shape) for shape in shapes]
        self._present = None

    def __getstate__(self) -> dict[str, object]:
        return {**self.__dict__, "_fused": None}  # a kernel belongs to its process

    def _match(self, all_grads: Sequence[Tensor | None], device: torch.device) -> None:
        """Make room for the tensors, or see that they are the ones the averages belong to."""
        if not self._shapes:
            self._shapes = [None] * len(all_grads)
            self.gammas = torch.full((len(all_grads),), torch.inf)
        if len(all_grads) != len(self._shapes):
            raise ValueError(f"AdaGC has averages of {len(self._shapes)} tensors, but {len(all_grads)} were given")
        if self.gammas.device != device:
            self.gammas = self.gammas.to(device)
            self.steps = self.steps.to(device)
            self._present = self._fused = None
        present = tuple(i for i, grad in enumerate(all_grads) if grad is not None)
        if present == self._present:
            return
        # Only when another set of parameters has gradients: an index made on the host costs a wait.
        for i in present:
            grad = all_grads[i]
            shape = tuple(grad.shape) if grad is not None else None
            if self._shapes[i] is not None and self._shapes[i] != shape:
                raise ValueError(f"AdaGC knows tensor {i} with shape {self._shapes[i]}, but it has {shape}")
            self._shapes[i] = shape
        self._present = present
        self._index = None if len(present) == len(all_grads) else torch.tensor(present, device=device)
