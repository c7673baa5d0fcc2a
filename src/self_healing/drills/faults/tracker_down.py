"""The fault `tracker-down`."""

from __future__ import annotations

import socket
from dataclasses import dataclass
from typing import Any

from ..fault import Expected, Fault


@dataclass(kw_only=True)
class TrackerDown(Fault):
    """The server of an experiment tracker refuses every connection from one step on."""

    is_transient = True
    stage = "trainer"
    requires = ("transformers", "accelerate")
    expected = Expected(cause=("tracker-down",), actions=("go_on_without_it",), excess=0.0)

    def plant(self, trainer: Any) -> None:
        """Add a tracker's callback that connects to a local port on which nobody listens."""
        from transformers import TrainerCallback

        down_from = self.at_step
        port = socket.socket()
        port.bind(("127.0.0.1", 0))  # taken and never listened on, so that nobody else can answer there

        class TrackerCallback(TrainerCallback):
            def on_log(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
                if state.global_step >= down_from:
                    socket.create_connection(port.getsockname(), timeout=5.0).close()

        trainer.add_callback(TrackerCallback())
