"""What a script asks of the hardware in plain calls of torch: dtypes, autocast, compiling; nothing that a condition decides."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from ..finding import Place
from ..scripts.syntax import syntax_of
from ..subject import UNKNOWN, Call, Script, Subject
from ..subject.gathering import is_main_guard

_ASKS_THE_GPU = frozenset(
    {"is_bf16_supported", "get_device_capability", "is_torch_bf16_gpu_available", "is_bfloat16_supported", "get_device_properties"}
)  # fmt: skip
_ALWAYS_ON_A_GPU = frozenset({"torch.cuda.is_available", "is_available"})
_DEEPEST = 12
_BF16 = frozenset({"bfloat16", "bf16", "torch.bfloat16", "bf16-mixed", "bf16-true"})
_HOLDERS = frozenset({"from_pretrained", "from_config", "pipeline", "set_default_dtype"})


def asks_the_gpu(script: Script) -> bool:
    """Say whether a script looks at what the GPU can do: then it decides by itself."""
    return any(call.last in _ASKS_THE_GPU for call in script.calls)


def happens(script: Script, node: ast.AST) -> bool:
    """Say whether what stands here is reached whatever the program finds out: under no condition that is not known."""
    syntax = syntax_of(script)
    function = getattr(syntax.scope(node), "name", "")
    below = node
    for over in syntax.above(node):
        if isinstance(over, ast.If | ast.IfExp) and below is not over.test:
            is_else = below is over.orelse if isinstance(over, ast.IfExp) else below in over.orelse
            if not _holds(script, over, function, is_else=is_else):
                return False
        elif isinstance(over, ast.ExceptHandler | ast.BoolOp | ast.match_case):
            return False
        below = over
    return True


def _holds(script: Script, condition: ast.If | ast.IfExp, function: str, *, is_else: bool) -> bool:
    test = condition.test
    if isinstance(condition, ast.If) and is_main_guard(condition):
        return not is_else
    if isinstance(test, ast.Call) and script.names.dotted(test.func) in _ALWAYS_ON_A_GPU:
        return not is_else
    value = script.names.value_of(test, function).value
    return value is not UNKNOWN and bool(value) is not is_else


def bf16_in_calls(subject: Subject, *, trains: bool) -> Iterator[tuple[Place, str, str]]:
    """Yield where calls ask for bf16: the place, what is written, and what to write instead.

    Args:
        subject: What is looked at.
        trains: Weights are trained; else only their computation counts, not what they are held in.

    """
    for script in subject.scripts:
        if asks_the_gpu(script):
            continue
        for call in script.calls:
            found = _of_call(script, call, trains=trains)
            if found is not None and happens(script, call.node):
                yield Place(script.named, call.line), *found


def _of_call(script: Script, call: Call, *, trains: bool) -> tuple[str, str] | None:
    if call.last == "autocast":
        return _of_autocast(script, call)
    if call.last in ("Accelerator", "Fabric") or (call.last == "Trainer" and "precision" in call.keywords):
        name = "mixed_precision" if call.last == "Accelerator" else "precision"
        value = call.keywords.get(name)
        if value is None or not isinstance(value.value, str) or value.value not in _BF16:
            return None
        return f'{call.last}({name}="{value.value}")', f'{name}="{_as_fp16(name)}"'
    if not trains:
        return None
    if call.last == "bfloat16" and isinstance(call.node.func, ast.Attribute) and not call.node.args:
        return (
            ".bfloat16()",
            "weights in 32 bit (leave .bfloat16() out) with torch.autocast in float16 and a GradScaler",
        )
    nodes = {each.arg or "": each.value for each in call.node.keywords}
    given = [nodes[name] for name in ("dtype", "torch_dtype") if name in nodes]
    if call.last in ("to", "set_default_dtype"):
        given += call.node.args
    elif call.last not in _HOLDERS:
        return None
    if any(is_bf16(script, node, call.function) for node in given):
        written = (
            f"{call.last}(..., {next((n for n in ('dtype', 'torch_dtype') if n in nodes), 'dtype')}=torch.bfloat16)"
        )
        return written, "float32 there, with fp16=True (or torch.autocast in float16 and a GradScaler)"
    return None


def _as_fp16(name: str) -> str:
    return "fp16" if name == "mixed_precision" else "16-mixed"


def _of_autocast(script: Script, call: Call) -> tuple[str, str] | None:
    device, enabled = call.given(0, "device_type"), call.keywords.get("enabled")
    is_for_cpu = "cpu" in call.name or (device is not None and device.value == "cpu")
    if is_for_cpu or (enabled is not None and enabled.value is not True):
        return None
    nodes = [each.value for each in call.node.keywords if each.arg == "dtype"] + call.node.args[1:2]
    if any(is_bf16(script, node, call.function) for node in nodes):
        return (
            "autocast in torch.bfloat16",
            "dtype=torch.float16 there, and scale the loss: scaler = torch.amp.GradScaler()",
        )
    return None


def is_bf16(script: Script, node: ast.expr | None, function: str, depth: int = 0) -> bool:
    """Say whether an expression is torch.bfloat16, also by a name that stands for it; a choice between two is none."""
    if node is None or depth > _DEEPEST:
        return False
    names = script.names
    if isinstance(node, ast.Attribute | ast.Name) and names.dotted(node) == "torch.bfloat16":
        return True
    if isinstance(node, ast.Call) and names.dotted(node.func) == "getattr" and len(node.args) > 1:
        return names.dotted(node.args[0]) == "torch" and is_bf16(script, node.args[1], function, depth + 1)
    if isinstance(node, ast.Name):
        found = names.makers.assignment(node, function)
        if found is not None and found[0].element is None:
            return found[0].is_sure and is_bf16(script, found[0].value, found[1], depth + 1)
        given = names.makers.argument(node.id, function) if found is None else None
        if given is not None and given[0] is not None:
            return is_bf16(script, given[0], given[1], depth + 1)
    value = names.value_of(node, function).value
    return isinstance(value, str) and value in _BF16


def compiled_in_calls(subject: Subject) -> Iterator[tuple[Place, str]]:
    """Yield where a script has something compiled: `torch.compile(...)`, `@torch.compile`, `model.compile()`."""
    for script in subject.scripts:
        if asks_the_gpu(script):
            continue
        for call in script.calls:
            if _compiles(script, call) and happens(script, call.node):
                yield Place(script.named, call.line), f"{call.name.removesuffix('()')}(...)"
        for node in syntax_of(script).nodes:
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                for each in node.decorator_list:
                    is_plain = (
                        isinstance(each, ast.Name | ast.Attribute) and script.names.dotted(each) == "torch.compile"
                    )
                    if is_plain and happens(script, node):
                        yield Place(script.named, each.lineno), "@torch.compile"


def _compiles(script: Script, call: Call) -> bool:
    if call.name == "torch.compile":
        is_own = True
    else:  # of a module; Keras has a method of that name too, and it takes an optimizer
        modules = {each.module.partition(".")[0] for each in script.imports}
        is_module = isinstance(call.node.func, ast.Attribute) and call.last == "compile" and not call.arguments
        is_plain = set(call.keywords) <= {"mode", "dynamic", "fullgraph", "backend", "options", "disable"}
        is_own = is_module and is_plain and "torch" in modules and not modules & {"keras", "tensorflow", "re", "regex"}
    disable, backend = call.keywords.get("disable"), call.keywords.get("backend")
    is_off = disable is not None and disable.value is not False
    return is_own and not is_off and (backend is None or backend.value == "inductor")
