"""What can be told of preference pairs by reading them: how many give a run nothing to learn, and why."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ...core.signal import Fact

MOST_PAIRS = 512
"""Pairs that are read, evenly spread over the data: enough to tell 5 % from nothing."""
NEARLY = 0.02
"""Share of the tokens in which two answers differ that is next to nothing."""
COLUMNS = (("prompt_ids", "chosen_ids", "rejected_ids"), ("prompt", "chosen", "rejected"))
"""How trainers name what they train on: tokens where they have made them, else what the user gave."""


def pair_facts(trainer: Any) -> dict[str, Fact]:
    """Return which shares of a sample of the pairs are of no use; nothing where the pairs cannot be read.

    Only data that lie there to be read are: a stream would be used up, and what the user makes of records when they are
    taken may draw random numbers.
    """
    pairs = _sample(getattr(trainer, "train_dataset", None))
    if not pairs:
        return {}
    args, tokenizer = trainer.args, getattr(trainer, "processing_class", None)
    ends = {getattr(tokenizer, name, None) for name in ("eos_token_id", "pad_token_id", "bos_token_id")}
    kinds = [
        _kind(pair, getattr(args, "max_length", None), getattr(args, "truncation_mode", ""), ends) for pair in pairs
    ]
    share = {kind: kinds.count(kind) / len(pairs) for kind in ("identical", "empty", "cut_alike", "nearly_alike")}
    there = {_key(*pair) for pair in pairs}
    contradicted = sum(
        _key(prompt, rejected, chosen) in there
        for (prompt, chosen, rejected), kind in zip(pairs, kinds, strict=True)
        if kind not in ("identical", "empty")
    )
    return {
        "pairs_read": len(pairs),
        **{f"pairs_{kind}": value for kind, value in share.items()},
        "pairs_alike": share["identical"] + share["empty"] + share["cut_alike"],
        "pairs_swapped": contradicted / len(pairs),
    }


Pair = tuple[Any, Any, Any]


def _sample(data: Any) -> list[Pair]:
    if hasattr(data, "select_columns") and hasattr(data, "_data"):  # of `datasets`, and lying in memory or on disk
        names = next((found for found in COLUMNS if set(found[1:]) <= set(data.column_names)), None)
        if names is None or not len(data):
            return []
        present = [name for name in names if name in data.column_names]
        rows = data.select_columns(present).with_format(None)[_places(len(data))]
        prompts = rows.get(names[0]) or [type(rows[names[1]][0])()] * len(rows[names[1]])
        return list(zip(prompts, rows[names[1]], rows[names[2]], strict=True))
    if type(data) in (list, tuple) and data and isinstance(data[0], Mapping):
        names = next((found for found in COLUMNS if set(found[1:]) <= set(data[0])), None)
        taken = [data[place] for place in _places(len(data))]
        return [] if names is None else [(row.get(names[0], ""), row[names[1]], row[names[2]]) for row in taken]
    return []


def _places(count: int) -> list[int]:
    """Return evenly spread places; no random number is drawn, for the run has a use for each."""
    read = min(count, MOST_PAIRS)
    return [place * count // read for place in range(read)]


def _kind(pair: Pair, most: int | None, mode: str, ends: set[Any]) -> str:
    """Say what is wrong with a pair: the first of identical, empty, cut alike and nearly alike; else nothing."""
    prompt, chosen, rejected = pair
    if chosen == rejected:
        return "empty" if not _content(chosen, ends) else "identical"
    if not _content(chosen, ends) or not _content(rejected, ends):
        return "empty"
    are_tokens = isinstance(chosen, list) and isinstance(prompt, list) and all(type(each) is int for each in chosen[:1])
    if most and are_tokens and _cut(prompt, chosen, most, mode) == _cut(prompt, rejected, most, mode):
        return "cut_alike"
    if are_tokens or isinstance(chosen, str):
        a, b = (chosen, rejected) if are_tokens else (chosen.split(), str(rejected).split())
        differing = sum(x != y for x, y in zip(a, b, strict=False)) + abs(len(a) - len(b))
        if differing <= NEARLY * max(len(a), len(b)):
            return "nearly_alike"
    return ""


def _content(answer: Any, ends: set[Any]) -> Any:
    """Return what an answer says, without the marks of its end."""
    return answer.strip() if isinstance(answer, str) else [each for each in answer if _hashable(each) not in ends]


def _hashable(value: Any) -> Any:
    return value if isinstance(value, int) else repr(value)


def _cut(prompt: Sequence[int], answer: Sequence[int], most: int, mode: str) -> Sequence[int]:
    """Return what is left of an answer where prompt and answer together may have so many tokens."""
    return answer[-most:] if mode == "keep_end" else answer[: max(0, most - len(prompt))]


def _key(prompt: Any, chosen: Any, rejected: Any) -> int:
    return hash((repr(prompt), repr(chosen), repr(rejected)))
