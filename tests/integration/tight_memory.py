"""Trainers of many kinds whose models run out of memory on request, and what their gradients are compared by."""

from __future__ import annotations

import gc
import itertools
import os
import random
import weakref

os.environ.setdefault("TRL_EXPERIMENTAL_SILENCE", "1")

import pytest

from self_healing.adapters.memory.micro_batch_retry import MicroBatchRetry
from self_healing.adapters.step.window import MicroBatch


@pytest.fixture(autouse=True, scope="module")
def quick_collections():
    """Leave the frameworks' own objects out of garbage collections, of which every retry does one."""
    import trl.trainer.dpo_trainer
    import trl.trainer.kto_trainer
    import trl.trainer.reward_trainer
    import trl.trainer.sft_trainer  # noqa: F401

    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


WORDS = [f"w{number}" for number in range(200)]


def tokenizer():
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    vocabulary = {word: place for place, word in enumerate(["<pad>", "<s>", "</s>", "<unk>", *WORDS])}
    words = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(
        tokenizer_object=words, bos_token="<s>", eos_token="</s>", unk_token="<unk>", pad_token="<pad>"
    )


def text(draw):
    return " ".join(draw.choice(WORDS) for _ in range(draw.randint(3, 12)))


def table(*columns):
    from datasets import Dataset

    draw = random.Random(0)
    return Dataset.from_list([{column: text(draw) for column in columns} for _ in range(16)])


def language_model(seed=0, dropout=0.0, **more):
    from transformers import LlamaConfig, LlamaForCausalLM, set_seed

    set_seed(seed)
    sizes = {"vocab_size": 208, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "attention_dropout": dropout}
    return LlamaForCausalLM(LlamaConfig(**sizes, **heads, max_position_embeddings=64, pad_token_id=0, **more))


def settings(folder, **more):
    return {
        "output_dir": str(folder), "per_device_train_batch_size": 4, "report_to": "none", "disable_tqdm": True,
        "use_cpu": True, "save_strategy": "no", "logging_steps": 1, "max_steps": 2, "seed": 1, **more,
    }  # fmt: skip


def trl_settings(folder, **more):
    return settings(folder, **{"bf16": False, "gradient_checkpointing": False, "max_length": 64, **more})


def make_trainer(folder, *, double=False, model=None, pad_to=1, **more):
    from transformers import DataCollatorForSeq2Seq, Trainer, TrainingArguments

    words = tokenizer()
    draw = random.Random(0)
    rows = [words(text(draw)) for _ in range(16)]
    rows = [{**row, "labels": list(row["input_ids"])} for row in rows]
    model = model or language_model()
    return Trainer(
        model=model.double() if double else model,
        args=TrainingArguments(**settings(folder, **more)),
        train_dataset=rows,
        data_collator=DataCollatorForSeq2Seq(words, padding=True, pad_to_multiple_of=pad_to),
    )


def make_sft(folder, *, double=False, **more):
    from trl import SFTConfig, SFTTrainer

    model = language_model()
    return SFTTrainer(
        model=model.double() if double else model,
        args=SFTConfig(**trl_settings(folder, **more)),
        train_dataset=table("text"),
        processing_class=tokenizer(),
    )


def make_dpo(folder, *, double=False, **more):
    from trl import DPOConfig, DPOTrainer

    model, reference = language_model(), language_model(seed=5)
    return DPOTrainer(
        model=model.double() if double else model,
        ref_model=reference.double() if double else reference,
        args=DPOConfig(**trl_settings(folder, **more)),
        train_dataset=table("prompt", "chosen", "rejected"),
        processing_class=tokenizer(),
    )


def make_reward(folder, *, double=False, **more):
    from transformers import Qwen2Config, Qwen2ForSequenceClassification, set_seed
    from trl import RewardConfig, RewardTrainer

    set_seed(0)
    sizes = {"vocab_size": 208, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2}
    model = Qwen2ForSequenceClassification(Qwen2Config(**sizes, **heads, pad_token_id=0, num_labels=1))
    return RewardTrainer(
        model=model.double() if double else model,
        args=RewardConfig(**trl_settings(folder, center_rewards_coefficient=0.1, **more)),
        train_dataset=table("prompt", "chosen", "rejected"),
        processing_class=tokenizer(),
    )


def make_kto(folder, **more):
    from trl import KTOConfig, KTOTrainer

    data = table("prompt", "completion")
    return KTOTrainer(
        model=language_model(),
        ref_model=language_model(seed=5),
        args=KTOConfig(**trl_settings(folder, **more)),
        train_dataset=data.add_column("label", [place % 3 > 0 for place in range(len(data))]),
        processing_class=tokenizer(),
    )


def make_orpo(folder, **more):
    from trl.experimental.orpo import ORPOConfig, ORPOTrainer

    data = table("prompt", "chosen", "rejected")
    args = ORPOConfig(**trl_settings(folder, **more))
    return ORPOTrainer(model=language_model(), args=args, train_dataset=data, processing_class=tokenizer())


def make_cpo(folder, **more):
    from trl.experimental.cpo import CPOConfig, CPOTrainer

    data = table("prompt", "chosen", "rejected")
    args = CPOConfig(**trl_settings(folder, **more))
    return CPOTrainer(model=language_model(), args=args, train_dataset=data, processing_class=tokenizer())


def compute_heads_in_double(monkeypatch):
    """Lift TRL's language-model head, which computes in float32 whatever the model's precision, to float64."""
    import torch
    from trl.kernels import chunked_logprob

    class Torch:
        float32 = torch.float64

        def __getattr__(self, name):
            return getattr(torch, name)

    monkeypatch.setattr(chunked_logprob, "torch", Torch())
    monkeypatch.setattr(torch.Tensor, "float", torch.Tensor.double)


class Shortage:
    """Makes a model run out of memory: in which micro-batch, in which phase, and under which circumstances."""

    def __init__(self, trainer):
        import torch

        self.trainer = trainer
        self.clear()
        self.micro_batch = -1
        self.rows = 0
        self.forwards = 0
        self.alive = 0
        """Outputs of earlier passes that still held their memory when the last pass was done."""
        trainer.model.register_forward_hook(self._forward, with_kwargs=True)
        parameters = [p for p in trainer.model.parameters() if p.requires_grad]
        parameters[len(parameters) // 2].register_hook(self._backward)
        self.error = torch.OutOfMemoryError

    def clear(self):
        self.at, self.phase, self.times, self.most_rows, self.unless_checkpointing = None, "forward", 0, None, False
        self.spared_pieces = 0
        self.held = []

    def _strikes(self, phase):
        wanted = self.phase
        if wanted == "both":  # whole batches in forward, so that no gradient is complete yet when a piece fails
            wanted = "backward" if self.rows < 4 else "forward"
        if self.at not in (self.micro_batch, "every") or phase != wanted:
            return
        is_checkpointing = any(getattr(m, "gradient_checkpointing", False) for m in self.trainer.model.modules())
        if (self.unless_checkpointing and is_checkpointing) or (self.most_rows and self.rows <= self.most_rows):
            return
        if self.spared_pieces and self.rows < 4:
            self.spared_pieces -= 1
        elif self.times:
            self.times -= 1
            raise self.error("CUDA out of memory. Tried to allocate 2.00 GiB.")

    def _forward(self, module, args, kwargs, output):
        if module.training:
            self.rows = (kwargs["input_ids"] if "input_ids" in kwargs else args[0]).shape[0]
            self.forwards += 1
            self.alive = sum(reference() is not None for reference in self.held)
            if output.get("logits") is not None:
                self.held.append(weakref.ref(output["logits"]))
            self._strikes("forward")

    def _backward(self, gradient):
        self._strikes("backward")


class Driver:
    """Runs the micro-batches of one optimizer step as the trainer's loop does, with the retry around each."""

    def __init__(self, trainer, steps):
        self.trainer = trainer
        self.shortage = Shortage(trainer)
        self.start = {name: value.clone() for name, value in trainer.model.state_dict().items()}
        self.batches = list(itertools.islice(trainer.get_train_dataloader(), steps))
        device = trainer.args.device
        raw = self.batches if "labels" in self.batches[0] else []
        self.num_items = trainer._get_num_items_in_batch(raw, device) if raw else None
        self.step, self.prepare = trainer.training_step, trainer._prepare_inputs
        self.events = []

    def gradients(self, retry=None, **shortage):
        """Return the gradients and the loss of one step, with a shortage and a retry or without either."""
        import torch

        from self_healing.tensors.random_state import RandomState

        trainer, model = self.trainer, self.trainer.model
        torch.manual_seed(3)
        model.zero_grad()
        if hasattr(trainer, "_metrics"):
            trainer._metrics["train"].clear()
            trainer._total_train_tokens = 0
        trainer.current_gradient_accumulation_steps = len(self.batches)
        self.shortage.clear()
        vars(self.shortage).update(shortage)
        losses = []
        self.prepared = 0
        for place, inputs in enumerate(self.batches):
            self.shortage.micro_batch = place
            if retry is None:
                losses.append(self.step(model, dict(inputs), self.num_items))
                continue
            micro_batch = MicroBatch(dict(inputs), RandomState.capture())

            def prepare(given, kept=micro_batch):
                self.prepared += 1
                kept.keep(self.prepare(given), RandomState.capture())
                return dict(kept.prepared)

            trainer._prepare_inputs = prepare
            try:
                losses.append(retry.run(self.step, model, micro_batch, self.num_items, place=place))
            finally:
                del trainer._prepare_inputs
        self.random = torch.get_rng_state()
        return [None if p.grad is None else p.grad.clone() for p in model.parameters()], torch.stack(losses)

    def retry(self, **options):
        self.events = []
        return MicroBatchRetry(self.trainer, on_event=self.events.append, **options)

    def metrics(self):
        return {key: list(values) for key, values in self.trainer._metrics["train"].items()}


def equal(a, b):
    import torch

    return all((x is None and y is None) or torch.equal(x, y) for x, y in zip(a, b, strict=True))


def relative_error(a, b):
    import torch

    flat = [torch.cat([g.flatten().double() for g in side if g is not None]) for side in (a, b)]
    return float((flat[0] - flat[1]).norm() / flat[1].norm())
