"""A training that a script does itself: a model is loaded, its parameters go to an optimizer, and a loss goes backward.

Only what can be followed counts: the optimizer is given all parameters of a model that `from_pretrained` makes. One that gets a part,
a model that is partly frozen, or shared out among GPUs by other means than the settings, is passed over.
"""

from __future__ import annotations

import ast
from dataclasses import dataclass

from ..finding import Place
from ..subject import Call, Script, Subject

_OPTIMIZERS = frozenset(
    """adam adamw adamax nadam radam sgd adagrad rmsprop adafactor lion adam8bit adamw8bit lion8bit pagedadam pagedadamw pagedadam8bit
    pagedadamw8bit pagedlion8bit fusedadam deepspeedcpuadam""".split()
)
_KEPT = frozenset({"cuda", "to", "train", "half", "float", "bfloat16", "requires_grad_"})
"""Methods of a model that give it back."""
_SHARED_OUT = frozenset(
    {"FSDP", "FullyShardedDataParallel", "fully_shard", "DeepSpeedPlugin", "FullyShardedDataParallelPlugin", "parallelize_module"}
)  # fmt: skip
_DEEPEST = 12


@dataclass(frozen=True, slots=True, kw_only=True)
class Loop:
    """A training loop."""

    model: str
    place: Place
    loading: Call
    """Where the weights are loaded."""
    optimizer: str
    """As the memory of its states is looked up: `adamw`, `sgd_momentum`."""
    batch: int
    is_checkpointed: bool
    has_autocast: bool
    turned: str
    """What the weights are turned into after they are loaded: `bfloat16`; empty where they are not."""


def loop_of(subject: Subject) -> Loop | None:
    """Return the training loop of a subject; None where there is none that can be followed, or more than one."""
    found = [loop for script in subject.scripts if (loop := _of_script(script)) is not None]
    return found[0] if len(found) == 1 else None


def _of_script(script: Script) -> Loop | None:
    called = {call.last for call in script.calls}
    if (
        "backward" not in called
        or "step" not in called
        or called & _SHARED_OUT
        or "deepspeed.initialize" in _names(script)
    ):
        return None
    if _is_partly_frozen(script) or not _is_on_a_gpu(script, called):
        return None
    optimizers = [call for call in script.calls if call.last.lower() in _OPTIMIZERS]
    if len(optimizers) != 1:
        return None
    [optimizer] = optimizers
    loading = _loading_of(script, _given_parameters(optimizer), optimizer.function)
    named = loading.given(0, "pretrained_model_name_or_path") if loading is not None else None
    if loading is None or named is None or not isinstance(named.value, str) or not named.value:
        return None
    return Loop(
        model=named.value, place=Place(script.named, loading.line), loading=loading, optimizer=_kind(optimizer),
        batch=_batch(script), is_checkpointed="gradient_checkpointing_enable" in called,
        has_autocast="autocast" in called or _has_mixed_precision(script), turned=_turned(script),
    )  # fmt: skip


def _names(script: Script) -> set[str]:
    return {call.name for call in script.calls}


def _is_partly_frozen(script: Script) -> bool:
    """Say whether some parameters are not trained, unless adapters are."""
    if any(call.last in ("get_peft_model", "LoraConfig") for call in script.calls):
        return False
    is_set = any(each.name == "requires_grad" for each in script.attributes)
    return (
        is_set
        or any(call.last in ("requires_grad_", "freeze") for call in script.calls)
        or "requires_grad" in script.text
    )


def _is_on_a_gpu(script: Script, called: set[str]) -> bool:
    is_moved = "cuda" in called or "to" in called or any("device_map" in call.keywords for call in script.calls)
    return is_moved or "Accelerator" in called


# -- the model of an optimizer -----------------------------------------------------------------------


def _given_parameters(optimizer: Call) -> ast.expr | None:
    """Return the model whose parameters, all of them, an optimizer is given."""
    node = optimizer.node.args[0] if optimizer.node.args else None
    given = [each.value for each in optimizer.node.keywords if each.arg == "params"]
    node = given[0] if given else node
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "list" and node.args:
        node = node.args[0]
    is_whole = isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "parameters"
    return node.func.value if is_whole and isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) else None


def _loading_of(script: Script, node: ast.expr | None, function: str) -> Call | None:
    found = _loaded_by(script, node, function, 0)
    return next((call for call in script.calls if call.node is found), None)


def _loaded_by(
    script: Script, node: ast.expr | None, function: str, depth: int, element: int | None = None
) -> ast.Call | None:
    """Return the call of `from_pretrained` that an expression comes from, through what wraps, moves and hands it on."""
    if depth > _DEEPEST:
        return None
    match node:
        case ast.Name():
            return _of_name(script, node, function, depth + 1)
        case ast.Attribute(value=ast.Name(id="self")):
            places = script.names.gathered.attributes.get(("self", node.attr), [])
            found = [_loaded_by(script, each.value, each.function, depth + 1) for each in places]
            return next((each for each in found if each is not None), None)
        case ast.Call():
            return _of_call(script, node, function, depth + 1, element)
        case ast.Tuple() if element is not None and element < len(node.elts):
            return _loaded_by(script, node.elts[element], function, depth + 1)
    return None


def _of_name(script: Script, node: ast.Name, function: str, depth: int) -> ast.Call | None:
    makers, gathered = script.names.makers, script.names.gathered
    for scope in makers.scopes(function):
        assigned = [
            each
            for each in gathered.assigned.get((scope, node.id), [])
            if each.line <= node.lineno or scope != function
        ]
        found = {
            id(call): call
            for each in assigned[-_DEEPEST:]
            if not _is_itself(each.value, node.id)
            and (call := _loaded_by(script, each.value, scope, depth, each.element)) is not None
        }
        if assigned and (scope, node.id) not in gathered.parameters:
            return next(iter(found.values())) if len(found) == 1 else None
        if (scope, node.id) in gathered.parameters:
            given = makers.argument(node.id, scope)
            return _loaded_by(script, given[0], given[1], depth) if given is not None else None
    return None


def _is_itself(node: ast.expr | None, name: str) -> bool:
    """Say whether an assignment makes something of the same name: `model = torch.compile(model)`."""
    return node is not None and any(isinstance(each, ast.Name) and each.id == name for each in ast.walk(node))


def _of_call(script: Script, node: ast.Call, function: str, depth: int, element: int | None) -> ast.Call | None:
    called = node.func
    if isinstance(called, ast.Attribute) and called.attr == "from_pretrained":
        is_model = "Model" in script.names.dotted(called) or "For" in script.names.dotted(called)
        return node if is_model and element is None else None
    if isinstance(called, ast.Attribute) and called.attr in _KEPT:
        return _loaded_by(script, called.value, function, depth, element)
    if (returned := script.names.makers.returned(node)) is not None:
        return _loaded_by(script, returned[0], returned[1], depth, element)
    if not node.args:
        return None
    last = script.names.dotted(called).rpartition(".")[2]
    if last == "prepare" and element is not None and element < len(node.args):
        return _loaded_by(script, node.args[element], function, depth)
    if last in (
        "compile",
        "get_peft_model",
        "prepare_model_for_kbit_training",
        "DistributedDataParallel",
        "DDP",
        "DataParallel",
        "prepare",
    ):
        return _loaded_by(script, node.args[0], function, depth)
    return None


# -- how it trains -----------------------------------------------------------------------------------


def _kind(optimizer: Call) -> str:
    name = optimizer.last.lower()
    momentum, fused = optimizer.keywords.get("momentum"), optimizer.keywords.get("fused")
    if name == "sgd":
        return "sgd" if momentum is None or momentum.value in (0, 0.0) else "sgd_momentum"
    return f"{name}_fused" if fused is not None and fused.value is True else name


def _batch(script: Script) -> int:
    """Return the rows of a step: the smallest batch of a loader, since it may not be the one that is trained with."""
    given = [
        value.value for call in script.calls_of("DataLoader") if (value := call.given(1, "batch_size")) is not None
    ]
    known = [each for each in given if isinstance(each, int) and not isinstance(each, bool) and each > 0]
    return min(known, default=1)


def _has_mixed_precision(script: Script) -> bool:
    said = [
        value for call in script.calls_of("Accelerator") if (value := call.keywords.get("mixed_precision")) is not None
    ]
    return any(value.value not in ("no", None) for value in said)


def _turned(script: Script) -> str:
    for call in script.calls:
        if isinstance(call.node.func, ast.Attribute) and call.last in ("half", "bfloat16"):
            return "float16" if call.last == "half" else "bfloat16"
        if call.last == "to":
            given = [*call.arguments, *(value for name, value in call.keywords.items() if name == "dtype")]
            for word in ("bfloat16", "float16"):
                if any(value.text.endswith(f"torch.{word}") for value in given):
                    return word
    return ""
