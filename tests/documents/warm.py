"""A process that has imported our command once, and the frameworks where it is asked to, and runs each block in a fork of itself.

It reads a JSON object a line with `cwd`, `out` and what is to be run, and answers with the exit code:

    codes, around               blocks of Python, in one namespace; a line of its own ends what each has printed
    heal                        arguments of our command
    script, arguments, ranks    a file, in so many processes, as torchrun starts them
    module, arguments           a module, as `python -m` starts it

What is printed goes to the file `out`.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import pkgutil
import runpy
import socket
import sys
import time
import traceback
from pathlib import Path

PATIENCE_S = 120.0
END = "--- end of a block ---"


def main() -> None:
    from self_healing.cli.main import build_app

    build_app()
    from self_healing.cli import catalogue

    for kind in (catalogue.rules, catalogue.causes, catalogue.patterns, catalogue.actions, catalogue.checks):
        kind()
    if "--frameworks" in sys.argv:
        _import_frameworks()
    sys.path.insert(0, str(Path(__file__).parent))
    gc.freeze()  # what is shared with the forks stays shared
    for line in sys.stdin:
        asked = json.loads(line)
        ranks = asked.get("ranks", 1)
        port = _free_port() if ranks > 1 else 0
        children = []
        for rank in range(ranks):
            children.append(os.fork())
            if children[-1] == 0:
                _run(asked, rank, ranks, port)
        codes = [_ended(child) for child in children]
        print(json.dumps({"code": next(filter(None, codes), 0)}), flush=True)


def _import_frameworks() -> None:
    import torch

    torch.set_num_threads(1)
    import transformers
    import trl

    for name in "SFTTrainer DPOTrainer GRPOTrainer RLOOTrainer KTOTrainer RewardTrainer".split():
        getattr(trl, name)  # TRL imports what it has when it is asked for
    import datasets  # noqa: F401
    import peft  # noqa: F401
    from transformers.models.llama import modeling_llama  # noqa: F401

    import self_healing

    for room in ("adapters", "snapshots", "tensors", "tracking", "report"):  # else each fork would import them anew
        folder = Path(self_healing.__file__).parent / room
        for found in pkgutil.walk_packages([str(folder)], f"self_healing.{room}."):
            importlib.import_module(found.name)
    transformers.logging.set_verbosity_error()
    _train_on_the_cpu(transformers.TrainingArguments)


def _free_port() -> int:
    with socket.socket() as each:
        each.bind(("127.0.0.1", 0))
        return each.getsockname()[1]


def _train_on_the_cpu(arguments: type) -> None:
    """Have pages show what is right on a GPU, such as TRL's half precision, and train it here in 32 bits."""
    stock = arguments.__post_init__

    def on_the_cpu(self):
        self.use_cpu, self.bf16, self.fp16, self.disable_tqdm = True, False, False, True
        stock(self)

    arguments.__post_init__ = on_the_cpu


def _ended(child: int) -> int:
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.01)
    os.kill(child, 9)
    os.waitpid(child, 0)
    return 124


def _run(asked: dict, rank: int, ranks: int, port: int) -> None:
    code = 1
    try:
        os.chdir(asked["cwd"])
        file = os.open(asked["out"] + (f".rank{rank}" if rank else ""), os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(file, 1)
        os.dup2(file, 2)
        sys.path.insert(0, asked["cwd"])
        if ranks > 1:
            told = {
                "RANK": rank,
                "LOCAL_RANK": rank,
                "WORLD_SIZE": ranks,
                "LOCAL_WORLD_SIZE": ranks,
                "MASTER_PORT": port,
            }
            os.environ.update({name: str(number) for name, number in told.items()}, MASTER_ADDR="127.0.0.1")
        _do(asked)
        code = 0
    except SystemExit as leaving:
        code = leaving.code if isinstance(leaving.code, int) else int(leaving.code is not None)
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        os._exit(code)


def _do(asked: dict) -> None:
    if "heal" in asked:
        from self_healing.cli.main import main as heal

        sys.exit(heal(asked["heal"]))
    if "script" in asked or "module" in asked:
        sys.argv = [asked.get("script") or asked["module"], *asked["arguments"]]
        if "script" in asked:
            runpy.run_path(asked["script"], run_name="__main__")
        else:
            runpy.run_module(asked["module"], run_name="__main__", alter_sys=True)
        return
    import readers_own

    names = {"__name__": "__main__"}
    if asked["around"]:
        names |= readers_own.names_around(asked["around"])
    for number, text in enumerate(asked["codes"]):
        place = Path(f"block_{number}.py")  # dataclasses and tracebacks read their source
        place.write_text(text)
        exec(compile(text, str(place.resolve()), "exec"), names)
        print(END, flush=True)


if __name__ == "__main__":
    main()
