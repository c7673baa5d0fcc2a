"""The check `odd-sampling`: settings of GRPO and RLOO that leave nothing to learn from."""

from __future__ import annotations

from collections.abc import Iterator

from ..check import Check, Example
from ..finding import Finding
from ..subject import Call, Subject
from ..tools import Tools
from ..training import Training, trainings
from ..training.signatures import completion_length

_RL = ("grpo", "rloo")
HOTTEST = 2.0


class OddSampling(Check):
    """Completions differ, and each reward has its weight.

    At temperature 0 all completions of a prompt are the same, so that every advantage is 0 and nothing is learned. `Number of
    reward weights must match number of reward functions`, says TRL when the models are loaded. `sync_ref_model` needs a
    reference, which there is none of at beta 0, GRPO's default.
    """

    passes = (
        Example("from trl import *\nGRPOTrainer('m', reward_funcs=[a, b], args=GRPOConfig('o', reward_weights=[1.0, 0.5], max_completion_length=256))\n"),
        Example("base_model: m\nrl: grpo\ntrl:\n  beta: 0.001\n  max_completion_length: 256\n", "config.yaml"),
        Example("trl grpo --temperature 0.9 --max_completion_length 1024", "command"),
    )  # fmt: skip
    fails = (
        Example("from trl import GRPOConfig\nGRPOConfig('o', temperature=0, max_completion_length=256)\n"),
        Example("from trl import *\nGRPOTrainer('m', reward_funcs=[a, b], args=GRPOConfig('o', reward_weights=[1.0], max_completion_length=9))\n"),
        Example("from trl import GRPOConfig\nGRPOConfig('o', beta=5.0, max_completion_length=256)\n"),
        Example("from trl import GRPOConfig\nGRPOConfig('o', sync_ref_model=True, max_completion_length=256)\n"),
        Example("from trl import GRPOConfig\nGRPOConfig('o')\n"),
        Example("base_model: m\nrl: grpo\ntrl:\n  reward_funcs: [a.b, c.d]\n  reward_weights: [1.0]\n", "config.yaml"),
        Example("trl grpo --temperature 0.0 --max_completion_length 99", "command"),
    )  # fmt: skip

    def run(self, subject: Subject, tools: Tools) -> Iterator[Finding]:
        """Look at how completions are sampled and rewarded."""
        for training in trainings(subject):
            if training.method in _RL:
                yield from self._of(training)
                yield from self._weights(training)

    def _of(self, training: Training) -> Iterator[Finding]:
        heat, beta = training.number("temperature"), training.number("beta")
        if heat is not None and heat <= 0:
            yield self.error(
                training.where("temperature"), f"temperature is {heat:g}: all completions of a prompt are the same, and nothing is learned",
                "Write temperature=1.0",
            )  # fmt: skip
        elif heat is not None and heat > HOTTEST:
            yield self.warning(
                training.where("temperature"), f"at temperature {heat:g} completions are noise", "Write temperature=1.0"
            )
        if beta is not None and beta < 0:
            yield self.error(training.where("beta"), f"beta is {beta:g}, and must not be negative", "Write beta=0.0")
        elif beta is not None and beta > 1:
            yield self.warning(
                training.where("beta"), f"at beta {beta:g} the reward hardly counts against the distance from the reference", "Write beta=0.0 .. 0.1"
            )  # fmt: skip
        if training.is_on("sync_ref_model") and training.method == "grpo" and training.number("beta", 0.0) == 0:
            yield self.error(
                training.where("sync_ref_model"), "sync_ref_model needs a reference model, and at beta=0.0 there is none",
                "Write beta=0.001, or sync_ref_model=False",
            )  # fmt: skip
        share = training.number("vllm_gpu_memory_utilization")
        if share is not None and not 0 < share <= 1:
            yield self.error(
                training.where("vllm_gpu_memory_utilization"), f"vllm_gpu_memory_utilization is {share:g}, and must be above 0 and at most 1",
                "Write vllm_gpu_memory_utilization=0.3",
            )  # fmt: skip
        if training.is_trl and training.is_whole and not training.has("max_completion_length", "max_new_tokens"):
            yield self.info(
                training.place, f"max_completion_length is not given: completions are cut at {completion_length(training.method)} tokens, which is short for reasoning",
                "Write max_completion_length=... as long as an answer of the task is",
            )  # fmt: skip

    def _weights(self, training: Training) -> Iterator[Finding]:
        weights = training.value("reward_weights")
        functions = training.value("reward_funcs")
        if training.script is not None:
            calls = [call for call in training.script.calls if call.last in ("GRPOTrainer", "RLOOTrainer")]
            functions = _functions(calls[0]) if len(calls) == 1 else None
        if isinstance(weights, list | tuple) and isinstance(functions, list | tuple) and len(weights) != len(functions):
            yield self.error(
                training.where("reward_weights"), f"{len(weights)} reward weights for {len(functions)} reward functions",
                f"Write {len(functions)} values in reward_weights, one for each function",
            )  # fmt: skip


def _functions(call: Call) -> object:
    given = call.given(1, "reward_funcs")
    return given.value if given is not None else None
