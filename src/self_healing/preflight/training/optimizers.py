"""The optimizers that a script makes by itself, for its own loop or to hand to a trainer."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from ..finding import Place
from ..subject import Script, Subject, Value

_MODULES = ("torch.optim", "optim.", "bitsandbytes", "bnb.", "transformers.", "apex.", "deepspeed.")
_OTHERS = frozenset({"SGD", "RMSprop", "Adagrad", "Adadelta"})
_OF_BITSANDBYTES = ("adamw_8bit", "lion_8bit", "lion_32bit", "rmsprop_bnb", "ademamix", "bnb", "paged_")


@dataclass(frozen=True)
class Optimizer:
    """One that is made: `torch.optim.AdamW(model.parameters(), lr=1e-3)`."""

    script: Script
    name: str
    place: Place
    given: dict[str, Value]
    """`lr` and `weight_decay`, where they are given."""

    @property
    def is_adam(self) -> bool:
        """Whether it is Adam or AdamW, in whatever precision."""
        return self.name.lower().startswith(("adam", "pagedadam", "fusedadam")) and "factor" not in self.name.lower()

    def number(self, name: str) -> float | None:
        """Return a value that is given and known."""
        value = self.given[name].value if name in self.given else None
        return value if isinstance(value, int | float) and not isinstance(value, bool) else None

    def where(self, name: str) -> Place:
        """Return where a value stands."""
        line = self.given[name].line if name in self.given else 0
        return Place(self.script.named, line) if line else self.place


def optimizers(subject: Subject) -> Iterator[Optimizer]:
    """Yield the optimizers that scripts make."""
    for script in subject.scripts:
        for call in script.calls:
            is_known = call.last in _OTHERS or "Adam" in call.last
            if not is_known or not call.name.startswith(_MODULES):
                continue
            rate, decay = call.given(1, "lr"), call.given(4, "weight_decay")
            given = {name: value for name, value in (("lr", rate), ("weight_decay", decay)) if value is not None}
            yield Optimizer(script, call.last, Place(script.named, call.line), given)


def is_of_bitsandbytes(optimizer: str) -> bool:
    """Say whether an optimizer of transformers is one of bitsandbytes."""
    plain = optimizer.lower()
    return not plain.startswith(("galore", "apollo", "adamw_torch")) and any(part in plain for part in _OF_BITSANDBYTES)
