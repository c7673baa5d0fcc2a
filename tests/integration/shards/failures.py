"""A step that fails at the same point on all ranks."""

from __future__ import annotations

from harness import Collectives, backward, case, copies_of, gradients_of, is_same, made, state_of, train


class Failure(Exception):
    pass


class Fails:
    """Has a model raise once, at the same point on every rank."""

    def __init__(self, model, point):
        self.left = 1
        layer, _, when = point.partition(" ")
        module = getattr(model, layer, model)
        # In front of FSDP2's own hook the parameters are still gathered.
        self._handle = module.register_forward_hook(getattr(self, f"_in_{when}"), prepend=when == "added")

    def remove(self):
        self._handle.remove()

    def _raise(self, *_):
        if self.left:
            self.left = 0
            raise Failure

    _in_forward = _raise

    def _in_backward(self, module, _, output):
        if self.left:
            output.register_hook(self._raise)

    def _in_added(self, module, _, output):
        """After autograd has added to one gathered parameter of the layer, and not to the others."""
        if self.left:
            module.weight.register_post_accumulate_grad_hook(self._raise)


POINTS = ["second forward", "model forward", "last backward", "first backward", "second added", "first added"]


def failed(model, step):
    try:
        backward(model, step)
    except Failure:
        model.seen.sub_(1)  # what is not FSDP2's is for whoever retries
        return True
    return False


def parameters_are_sharded(model):
    return all(hasattr(each, "_local_tensor") for each in model.parameters())


@case
def retried(folder):
    from self_healing.adapters.memory.gradient_marks import GradientMarks
    from self_healing.adapters.ranks.sharded_reset import reset_after_failure

    undisturbed, its_optimizer = made()
    train(undisturbed, its_optimizer, range(2))
    backward(undisturbed, 2)
    clean = copies_of(gradients_of(undisturbed))
    its_optimizer.step()
    its_optimizer.zero_grad()
    train(undisturbed, its_optimizer, range(3, 5))
    end = state_of(undisturbed, its_optimizer)

    found = {}
    for point in POINTS:
        for by in ("us", "torch alone", "nobody"):
            model, optimizer = made()
            train(model, optimizer, range(2))
            fails = Fails(model, point)
            has_failed = failed(model, 2)
            fails.remove()
            with Collectives() as counted:
                reset = reset_after_failure(model) if by == "us" else None
            if by == "torch alone":
                model.reset_iter_state()
            told = [] if reset is None else [len(reset.gathered), len(reset.unreduced)]
            if reset is None:
                optimizer.zero_grad()
            backward(model, 2)
            sharded = parameters_are_sharded(model)
            same = sharded and is_same(copies_of(gradients_of(model)), clean)
            ends_same = None
            if reset is not None:
                optimizer.step()
                optimizer.zero_grad()
                train(model, optimizer, range(3, 5))
                ends_same = is_same(state_of(model, optimizer), end)
            found[f"{point}, reset by {by}"] = {
                "failed": has_failed,
                "collectives": counted.count,
                "told": told,
                "same": same,
                "sharded": sharded,
                "ends same": ends_same,
            }

    # The second of two micro-batches fails: the first one's gradients are kept.
    model, _ = made()
    for number in (7, 8):
        backward(model, number)
    wanted = copies_of(gradients_of(model))
    for point in POINTS:
        model, _ = made()
        backward(model, 7)
        marks, fails = GradientMarks(model.parameters()), Fails(model, point)
        failed(model, 8)
        fails.remove()
        reset_after_failure(model, keep_gradients=True)
        aside = marks.undo()
        backward(model, 8)
        aside.put_back()
        found[f"{point}, accumulated"] = is_same(copies_of(gradients_of(model)), wanted)
    return found
