"""The check `port-taken`: the port at which the processes of a run meet is free."""

from __future__ import annotations

from collections.abc import Iterator

from ..check import Check, Example
from ..finding import Finding, Place
from ..subject import Command, Subject
from ..surroundings.here import launch_flags, runs_here
from ..tools import Tools

USUAL = 29500
"""Where torchrun and accelerate meet unless they are told otherwise."""
_FLAGS = ("master_port", "main_process_port")


class PortTaken(Check):
    """The port at which the processes of a run meet is free.

    Another run on the same machine, or one that was not ended, has it: `The server socket has failed to listen on any local network
    address. port: 29500 ... EADDRINUSE (errno: 98 - Address already in use)`.
    """

    passes = (
        Example("torchrun --standalone --nproc_per_node 2 -m sft", "command", machine={"taken_ports": [29500]}),
        Example("python -m sft", "command", machine={"taken_ports": [29500]}),
        Example("torchrun --nproc_per_node 2 -m sft", "command", machine={"taken_ports": []}),
    )
    fails = (
        Example("torchrun --nproc_per_node 2 -m sft", "command", machine={"taken_ports": [29500]}),
        Example("accelerate launch --num_processes 2 --main_process_port 29511 -m sft", "command", machine={"taken_ports": [29511]}),
    )  # fmt: skip

    def run(self, subject: Subject, tools: Tools) -> Iterator[Finding]:
        """Ask for the port that the command will take."""
        command = subject.command
        if command is None or not runs_here(subject, tools):
            return
        wanted = _port(command, tools)
        if wanted is None or not tools.machine.is_port_taken(wanted[0]):
            return
        port, where, flag = wanted
        other = next(each for each in range(port + 1, port + 1000) if not tools.machine.is_port_taken(each))
        yield self.error(
            where, f"port {port}, at which the processes of this run meet, is taken",
            f"Add {flag} {other} behind {command.argv[0]}; `ss -ltnp 'sport = :{port}'` shows who has it",
        )  # fmt: skip


def _port(command: Command, tools: Tools) -> tuple[int, Place, str] | None:
    """Return the port, where that is said, and the flag that sets another."""
    if command.launcher is None:
        return None
    flags = {flag.name: flag for flag in launch_flags(command)}
    if flags.keys() & {"standalone", "rdzv_endpoint", "rdzv_backend"}:
        return None
    flag = "--main_process_port" if "accelerate" in " ".join(command.argv[:3]) else "--master-port"
    for name in _FLAGS:
        if name in flags:
            value = flags[name].value
            is_port = isinstance(value, int) and 0 < value < 65_536
            return (int(str(value)), Place("command", 0, flags[name].key), flags[name].key) if is_port else None
    given = tools.environ.get("MASTER_PORT", "")
    if given.isdigit() and 0 < int(given) < 65_536:
        return int(given), Place("environment", 0, "MASTER_PORT"), flag
    return USUAL, Place("command", 0, command.argv[0]), flag
