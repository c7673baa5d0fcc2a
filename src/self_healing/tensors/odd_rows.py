"""Batches taken apart into rows, which rows are guilty, and what is odd about them.

A batch may be a mapping of tensors (a `BatchEncoding` too), a tuple or list of tensors, or a list of records. What a
field means is told from its name, as transformers and TRL use them; without a name, from its dtype.
"""

from __future__ import annotations

import copy
import statistics
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

Role = Literal["tokens", "mask", "labels", "features", "numbers", "none"]

SMALL = 8
"""Rows up to which each is tried alone; of more, halves are."""
EXTREME_LENGTH = 4.0
"""Times the batch's median from which a sequence is extremely long."""
LONG = 32
"""Tokens below which no sequence is called long."""
EXTREME_FEATURE = 100.0
"""Times the batch's median from which a row's largest feature is extreme."""
REPEATED = 8
"""Identical tokens from which a sequence counts as constant."""

ATTENTION = ("attention_mask", "prompt_mask", "completion_mask")
PADDED = ("attention_mask", "prompt_mask")
"""Masks whose zeros are padding alone; those of a completion also leave out the prompt."""
TOKENS = ("input_ids", "prompt_ids", "completion_ids")


@dataclass(frozen=True, slots=True)
class Oddity:
    """Something unusual about rows of a batch."""

    name: str
    """Such as `empty-sequence`."""
    detail: str
    """What was found, to be read after "row 3: "."""
    rows: tuple[int, ...] = ()
    """The rows it is true of; none where it is about the computation rather than about rows."""
    explains: bool = False
    """Whether it is enough to make a loss or gradient NaN by itself."""

    def sentence(self) -> str:
        """Say which rows, and what about them."""
        return f"{name_rows(self.rows)}: {self.detail}" if self.rows else self.detail

    def to_json(self) -> dict[str, object]:
        """Return plain values."""
        return {"name": self.name, "detail": self.detail, "rows": list(self.rows), "explains": self.explains}


def name_rows(rows: Sequence[int]) -> str:
    """Name rows for people: `row 3`, `rows 1, 2, 3`, or the first of many."""
    shown = ", ".join(map(str, rows[:8]))
    more = f" and {len(rows) - 8} more" if len(rows) > 8 else ""
    return f"row{'s' if len(rows) > 1 else ''} {shown}{more}"


class CannotRun(Exception):
    """Part of a batch cannot be run, for a reason that the whole batch does not have."""


class _Spent(Exception):
    """No more runs are granted."""


class GuiltyRows:
    """The search for the rows that fail alone, in a batch that fails as a whole."""

    def __init__(self, size: int, fails: Callable[[Sequence[int]], bool], budget: int) -> None:
        self.size = size
        self.guilty: list[int] = []
        self.notes: list[str] = []
        """What was found, in sentences."""
        self._fails = fails
        self._budget = budget
        self._known: dict[tuple[int, ...], bool] = {}

    def find(self) -> None:
        """Try each row of a small batch; halve a larger one, in about 2 log2(rows) runs for each guilty row."""
        try:
            if self.size <= SMALL:
                for row in range(self.size):
                    self._confirm(row)
            elif all(self._test([self.size * i // 4]) for i in range(4)) and self._test([self.size - 1]):
                # Trying all the others as well would tell nothing new.
                self.guilty = list(range(self.size))
                self.notes.append(f"five rows of {self.size} were tried alone and all failed: it is not single rows")
                return
            else:
                self._halve(list(range(self.size)))
        except _Spent:
            self.notes.append("the runs granted for finding guilty rows were used up: there may be more")
        if not self.guilty:
            self.notes.append(f"no single row of {self.size} fails alone")
        elif len(self.guilty) == self.size:
            self.notes.append(f"each of the {self.size} rows fails alone")
        else:
            alone = "fails alone" if len(self.guilty) == 1 else "fail each alone"
            self.notes.append(f"{name_rows(self.guilty)} of {self.size} {alone}")

    def acquit(self, suspicious: set[int]) -> None:
        """Let go of rows that fail alone but not beside healthy ones, and see whether the healthy ones are fine."""
        healthy = [row for row in range(self.size) if row not in self.guilty]
        try:
            for row in [row for row in self.guilty if row in suspicious] if healthy else []:
                if not self._test(sorted([*healthy, row])):
                    self.guilty.remove(row)
                    self.notes.append(f"row {row} fails alone, but does no harm beside other rows")
            if self.guilty and healthy:
                fine = "fail as well" if self._test(healthy) else "are finite"
                self.notes.append(f"the other {len(healthy)} rows together {fine}")
        except _Spent:
            pass

    def _test(self, rows: list[int]) -> bool:
        key = tuple(rows)
        if key not in self._known:
            if self._budget <= 0:
                raise _Spent
            self._budget -= 1
            self._known[key] = self._fails(rows)
        return self._known[key]

    def _confirm(self, row: int) -> None:
        if self._test([row]):
            self.guilty.append(row)

    def _halve(self, rows: list[int]) -> None:
        """Search among rows that fail together."""
        if len(rows) == 1:
            self._confirm(rows[0])
            return
        left, right = rows[: len(rows) // 2], rows[len(rows) // 2 :]
        left_fails = self._test(left)
        if left_fails:
            self._halve(left)
        if not left_fails or self._test(right):
            self._halve(right)


def count_rows(batch: Any) -> int | None:
    """Return the number of rows, or None where the batch has none to be told apart."""
    if _is_list_of_records(batch):
        return len(batch)
    sizes = {name: len(value) for name, value in _fields(batch) if isinstance(value, Tensor) and value.dim() > 0}
    for name, size in sizes.items():
        if name.endswith(("input_ids", "inputs_embeds", "pixel_values")):
            return size
    return Counter(sizes.values()).most_common(1)[0][0] if sizes else None


def select_rows(batch: Any, rows: Sequence[int], size: int) -> Any:
    """Return a batch of these rows; what does not have `size` rows stays as it is."""
    if _is_list_of_records(batch):
        return [batch[row] for row in rows]
    if isinstance(batch, Mapping):
        taken = {key: _take(value, rows, size) for key, value in batch.items()}
        try:
            chosen = copy.copy(batch)
            chosen.update(taken)  # type: ignore[attr-defined]
        except (AttributeError, TypeError):  # a read-only mapping
            return taken
        return chosen
    if isinstance(batch, (tuple, list)):
        values = [_take(value, rows, size) for value in batch]
        return type(batch)(*values) if hasattr(batch, "_fields") else type(batch)(values)
    return _take(batch, rows, size)


def find_oddities(
    batch: Any, size: int, *, vocabulary_size: int | None = None, ignore_index: int = -100, fp8: bool = False
) -> list[Oddity]:
    """Look at every row of the batch for what is known to make trouble, without running anything."""
    found: list[Oddity] = []
    columns = {name: rows for name, rows in _columns(batch, size) if rows}
    tokens_shape = next((rows[0].shape for name, rows in columns.items() if name.endswith(TOKENS)), None)
    for name, rows in columns.items():
        role = _role(name, rows[0])
        if role == "features":
            found += _odd_features(name, rows, fp8=fp8)
        elif role == "mask":
            found += _odd_masks(name, rows)
        if role in ("labels", "numbers"):
            found += _odd_labels(name, rows, ignore_index, shifted=role == "labels" and rows[0].shape == tokens_shape)
        if role == "tokens" or (role in ("labels", "numbers") and rows[0].dim() > 0):
            found += _odd_tokens(name, rows, vocabulary_size, None if role == "tokens" else ignore_index)
    return found


def _odd_features(name: str, rows: list[Tensor], *, fp8: bool) -> Iterator[Oddity]:
    largest = [max(map(abs, finite_extremes(row))) for row in rows]
    broken = _where(rows, lambda row: not bool(row.isfinite().all()))
    if broken:
        what = "NaN" if any(bool(rows[i].isnan().any()) for i in broken) else "infinity"
        yield Oddity("feature-not-finite", f"'{name}' holds {what}", broken, explains=True)
    typical = statistics.median(largest)
    extreme = tuple(i for i, x in enumerate(largest) if x > EXTREME_FEATURE * typical)
    if extreme and typical > 0:
        top = max(largest[i] for i in extreme)
        yield Oddity("extreme-feature", f"'{name}' reaches {top:.3g} where {typical:.3g} is usual", extreme)
    if rows[0].numel() < 2:
        return
    zero = _where(rows, lambda row: not bool(row.any()))
    if zero and fp8:
        yield Oddity("fp8-zero-scale", f"'{name}' is all zero, and so would be its FP8 scale", zero, explains=True)
    elif zero:
        yield Oddity("all-zero-row", f"'{name}' is all zero", zero)
    constant = _where(rows, lambda row: bool((row == row.flatten()[0]).all()))
    constant = tuple(i for i in constant if i not in zero)
    if constant:
        yield Oddity("constant-row", f"'{name}' has the same value everywhere", constant)


def _odd_masks(name: str, rows: list[Tensor]) -> Iterator[Oddity]:
    if not name.endswith(ATTENTION) or rows[0].dim() != 1:
        return
    empty = _where(rows, lambda row: not bool(row.any()))
    if empty:
        yield Oddity("empty-sequence", f"'{name}' is all zero: an empty sequence", empty, explains=True)
    yield from _odd_lengths(name, [int(row.count_nonzero()) for row in rows])
    if name.endswith(PADDED):
        yield from _odd_padding(name, rows)


def _odd_padding(name: str, rows: list[Tensor]) -> Iterator[Oddity]:
    kept = {i: row.nonzero().flatten().tolist() for i, row in enumerate(rows) if bool(row.any())}
    inside = tuple(i for i, at in kept.items() if len(at) < at[-1] - at[0] + 1)
    if inside:
        yield Oddity("padding-inside", f"'{name}' has zeros between ones", inside)
    left = {i for i, at in kept.items() if at[0] > 0}
    right = {i for i, at in kept.items() if at[-1] < len(rows[i]) - 1}
    if left & right:
        yield Oddity("mixed-padding", f"'{name}' is padded on both sides", tuple(sorted(left & right)))
    elif left and right:
        # The minority is what is odd.
        fewer, side = (left, "left") if len(left) < len(right) else (right, "right")
        detail = f"'{name}' is padded on the {side}, unlike other rows"
        yield Oddity("mixed-padding", detail, tuple(sorted(fewer)))


def _odd_lengths(name: str, lengths: list[int]) -> Iterator[Oddity]:
    typical = statistics.median(lengths)
    long = tuple(i for i, n in enumerate(lengths) if n >= LONG and n > EXTREME_LENGTH * typical)
    if long:
        top = max(lengths[i] for i in long)
        yield Oddity("extreme-length", f"'{name}' has {top} tokens where {typical:g} are usual", long)


def _odd_labels(name: str, rows: list[Tensor], ignore_index: int, *, shifted: bool) -> Iterator[Oddity]:
    masked = _where(rows, lambda row: row.numel() > 0 and bool((row == ignore_index).all()))
    if masked:
        yield Oddity("labels-masked", f"every value of '{name}' is {ignore_index}", masked, explains=True)
    if shifted:
        lost = _where(rows, lambda row: bool((row[1:] == ignore_index).all()) and bool((row != ignore_index).any()))
        if lost:
            detail = f"'{name}' trains only the first token, which a causal model never predicts"
            yield Oddity("labels-masked", detail, lost, explains=True)


def _odd_tokens(name: str, rows: list[Tensor], vocabulary: int | None, ignored: int | None) -> Iterator[Oddity]:
    top = torch.iinfo(torch.int64).max if vocabulary is None else vocabulary
    outside: dict[int, int] = {}
    for i, row in enumerate(rows):
        wrong = row[(row < 0) | (row >= top)]
        wrong = wrong if ignored is None else wrong[wrong != ignored]
        if wrong.numel():
            outside[i] = int(wrong[0])
    if outside:
        example = next(iter(outside.values()))
        limit = f"the vocabulary of {vocabulary}" if vocabulary is not None else "any vocabulary"
        detail = f"'{name}' holds {example}, which is outside {limit}"
        yield Oddity("token-out-of-range", detail, tuple(outside), explains=True)
    if ignored is not None:
        return
    empty = _where(rows, lambda row: row.numel() == 0)
    if empty:
        yield Oddity("empty-sequence", f"'{name}' has no token", empty, explains=True)
    if len({len(row) for row in rows}) > 1:  # records that nothing has padded yet
        yield from _odd_lengths(name, [len(row) for row in rows])
    constant = _where(rows, lambda row: row.numel() >= REPEATED and bool((row == row[0]).all()))
    if constant:
        yield Oddity("constant-row", f"'{name}' repeats one token throughout", constant)


def finite_extremes(values: Tensor) -> tuple[float, float]:
    """Return the smallest and largest of the finite values, or zeros."""
    finite = values[values.isfinite()]
    return (float(finite.min()), float(finite.max())) if finite.numel() else (0.0, 0.0)


def _where(rows: list[Tensor], test: Any) -> tuple[int, ...]:
    return tuple(i for i, row in enumerate(rows) if test(row))


def _role(name: str, row: Tensor) -> Role:
    if name.endswith(("mask", "masks")):
        return "mask"
    if row.is_floating_point():
        return "features"
    if row.is_complex():
        return "none"
    if name.endswith("labels"):
        return "labels"
    if name.endswith(TOKENS) and row.dim() == 1:
        return "tokens"
    # Numbers without a name may be tokens or labels: only what is wrong for both is looked for.
    return "numbers" if name.startswith("[") and row.dtype != torch.bool else "none"


def _is_list_of_records(batch: Any) -> bool:
    """Tell a list of records from a list of tensors that each hold a column."""
    return isinstance(batch, list) and bool(batch) and all(isinstance(row, (Mapping, tuple, list)) for row in batch)


def _fields(batch: Any) -> list[tuple[str, Any]]:
    if isinstance(batch, Mapping):
        return [(str(key), value) for key, value in batch.items()]
    if isinstance(batch, (tuple, list)):
        return [(f"[{i}]", value) for i, value in enumerate(batch)]
    return [("[0]", batch)]


def _take(value: Any, rows: Sequence[int], size: int) -> Any:
    if isinstance(value, Tensor):
        if value.dim() == 0 or len(value) != size:
            return value
        return value[torch.tensor(rows, dtype=torch.long, device=value.device)]
    if isinstance(value, list) and len(value) == size:
        return [value[row] for row in rows]
    if isinstance(value, Mapping):
        return {key: _take(inner, rows, size) for key, inner in value.items()}
    return value


def _columns(batch: Any, size: int) -> Iterator[tuple[str, list[Tensor]]]:
    """Yield each field's rows as tensors in host memory, float8 and the like widened."""
    if _is_list_of_records(batch):
        records = [dict(_fields(record)) for record in batch]
        for name in records[0]:
            yield name, _all_or_nothing([record.get(name) for record in records])
        return
    for name, value in _fields(batch):
        if isinstance(value, Tensor) and value.dim() > 0 and len(value) == size:
            yield name, list(_widened(value.detach()).cpu())
        elif isinstance(value, list) and len(value) == size:
            yield name, _all_or_nothing(value)


def _all_or_nothing(values: Sequence[Any]) -> list[Tensor]:
    rows = [row for value in values if (row := _as_tensor(value)) is not None]
    return rows if len(rows) == len(values) else []


def _as_tensor(value: Any) -> Tensor | None:
    if isinstance(value, Tensor):
        return _widened(value.detach()).cpu()
    if not isinstance(value, (int, float, list, tuple)):
        return None
    try:
        # An empty list has no dtype of its own; torch would make it one of floats.
        return torch.as_tensor(value) if value != [] else torch.zeros(0, dtype=torch.int64)
    except (TypeError, ValueError, RuntimeError):
        return None


def _widened(value: Tensor) -> Tensor:
    return value.float() if value.is_floating_point() and value.itemsize < 2 else value
