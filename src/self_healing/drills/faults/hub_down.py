"""The fault `hub-down`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, ClassVar

from ..fault import Expected, Fault
from ..loopback_hub import LoopbackHub


@dataclass(kw_only=True)
class HubDown(Fault):
    """The Hub is down when a checkpoint is pushed, and comes back after a while."""

    failures: int = 1
    """Requests it refuses before it is back."""

    is_transient = True
    needs: ClassVar[Mapping[str, Any]] = MappingProxyType({"save_strategy": "steps", "save_steps": 20})
    stage = "trainer"
    requires = ("transformers", "accelerate")
    expected = Expected(cause=("network-error",), actions=("backoff",), within=99, excess=0.0)

    def plant(self, trainer: Any) -> None:
        """Let the trainer push to a server on this machine that is down at first."""
        import huggingface_hub.constants
        from transformers import TrainerCallback

        api, constants = _client(), huggingface_hub.constants
        hub = LoopbackHub(self.failures)
        usual = api.endpoint, api.token, constants.HF_HUB_OFFLINE
        # What push_to_hub=True does when a trainer is built, without asking the real Hub for a repository.
        trainer.args.push_to_hub = True
        trainer.hub_model_id = "drill/model"
        trainer.push_in_progress = None
        api.endpoint, api.token, constants.HF_HUB_OFFLINE = hub.address, "hf_drill", False

        class Leaving(TrainerCallback):
            def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
                if trainer.push_in_progress is not None:  # a busy machine could have ended training before it
                    trainer.push_in_progress.wait_until_done()

            def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
                trainer._finish_current_push()  # noqa: SLF001  # what the loop does next, while the server is there
                api.endpoint, api.token, constants.HF_HUB_OFFLINE = usual
                trainer.args.push_to_hub = False
                hub.shutdown()
                hub.server_close()

        trainer.add_callback(Leaving())
        self.hub = hub


def _client() -> Any:
    """Return the client that transformers pushes with."""
    try:
        from transformers.utils.hub import hf_api
    except ImportError:  # transformers 4 uses the one that huggingface_hub makes for everybody
        from huggingface_hub.hf_api import api

        return api
    return hf_api()
