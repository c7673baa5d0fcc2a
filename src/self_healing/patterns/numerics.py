"""Text that says the loss is no longer a number, for runs of which only the output is seen."""

from __future__ import annotations

from ..actions.rewarm_learning_rate import RewarmLearningRate
from ..actions.roll_back import RollBack
from ..actions.scale_learning_rate import ScaleLearningRate
from ..actions.stop_run import StopRun
from ..actions.tighten_clipping import TightenClipping
from ..core.action import rung
from ..core.cause import Pattern
from ..core.failure import FailureType

BACK_AND_SLOWER = (
    rung(RollBack(), RewarmLearningRate(), success=0.6),
    rung(RollBack(depth=1), ScaleLearningRate(), success=0.6),
    rung(RollBack(depth=2), ScaleLearningRate(), TightenClipping(), success=0.4),
    rung(StopRun()),
)
BACK_THEN_SLOWER = (rung(RollBack(), success=0.6), *BACK_AND_SLOWER[1:])
"""An exception may be a glitch: the first return changes nothing."""
RIVALS = (("loss-printed-as-nan", "train-loss-printed-as-nan"),)
FIXES = (
    "Lower the learning rate: heal run divides it by 1.5, the healer inside a run halves it and ramps back.",
    "Find the first NaN with torch.autograd.set_detect_anomaly(True).",
)

PATTERNS: tuple[Pattern, ...] = (
    Pattern(
        name="loss-printed-as-nan",
        says="The output shows a loss or gradient norm that is NaN.",
        failure=FailureType.NAN_LOSS,
        fine="nan_loss",
        text=(
            r"loss\w{0,24}['\"]?\]?\s{0,6}[=:|]?\s{0,6}['\"]?(?:tensor\(|array\(|np\.float\d\d\()?[\[(]?-?nan\b"
            r"|\bloss(?:es)? (?:is|are|was|became|went|turned|value is|=) (?:now )?(?:infinite or )?(?:not finite|non-?finite|nan)\b|\bloss returned (?:in|by|from) \S{1,60} is (?:nan|inf)"
            r"|grad_?norm['\"]?\s?[=:]\s?['\"]?(?:tensor\()?nan\b|['\"](?:train[_/])?loss['\"]: ['\"]?-?inf(?:inity)?\b"
            r"|non-?finite loss|NanLossDuringTraining|NaN loss during training|NaN or Inf found in input tensor|Invalid loss, terminating training|\bnan\s{1,12}nan\s{1,12}nan\b"
        ),
        weight=0.85,
        remedy=BACK_AND_SLOWER,
        fixes=FIXES,
        matches=(
            "Loss is NaN at epoch 123",
            "Training GNN:  45%|####     | 9000/20000 [15:23<18:42, 9.80it/s, Loss=nan, Accuracy=0.8456]",
            "training/loss: nan",
            "hard_loss: nan",
            "{'loss': 0.0, 'grad_norm': nan, 'learning_rate': 1e-05, 'epoch': 0.01}",
            "epoch 3 | loss nan | ppl nan | 512 tokens/s",
            "step: 120, loss: tensor(nan, device='cuda:0', grad_fn=<NllLossBackward0>)",
            "Loss is infinite or NaN, stopping training",
            "RuntimeError: Model diverged with loss = NaN.",
            "FloatingPointError: Loss became infinite or NaN at iteration=120!",
            "ValueError: The loss returned in `training_step` is nan.",
        ),
        but_not=(
            "{'loss': 2.31, 'grad_norm': 1.2}",
            "nan_to_num applied to the loss",
            "loss: nanoseconds",
            "loss info",
        ),
        source="seed safe_train.py",
    ),
    Pattern(
        name="train-loss-printed-as-nan",
        says="The output shows a training loss that is NaN.",
        failure=FailureType.NAN_LOSS,
        fine="nan_loss",
        text=(
            r"(?m:^|[-|,{(\[]\s{0,3}|\btrain(?:ing)?[_/ ]|\d\s{1,4}|\]\s{0,3})['\"]?loss['\"]?\s{0,4}[=:]\s{0,4}['\"]?nan\b"
            r"|\btrain(?:ing)?[_/ ]loss['\"]?\s{0,4}[=:]\s{0,4}['\"]?-?inf(?:inity)?\b"
        ),
        weight=0.89,
        remedy=BACK_AND_SLOWER,
        fixes=FIXES,
        matches=(
            "100/100 - 12s - loss: nan - accuracy: 0.0980 - val_loss: nan",
            "{'train_loss': nan, 'eval_loss': nan}",
            "epoch 3: train_loss: inf, val_loss: nan",
        ),
        but_not=("val_loss: nan", "{'eval_loss': nan, 'epoch': 1.0}", "validation loss: nan"),
        source="Keras and transformers, progress lines",
    ),
    Pattern(
        name="eval-loss-printed-as-nan",
        says="The output shows an evaluation loss that is NaN.",
        failure=FailureType.NAN_LOSS,
        fine="nan_eval",
        text=r"\b(?:eval|val|valid|validation|test)[_/ -]{0,2}(?:\w{1,16}[_/ ])?loss['\"]?\s{0,4}[=:|]?\s{0,4}['\"]?nan\b",
        weight=0.88,
        remedy=BACK_AND_SLOWER,
        fixes=FIXES,
        matches=("{'eval_loss': nan, 'eval_runtime': 12.3, 'epoch': 1.0}", "val_loss=nan"),
        but_not=("{'eval_loss': 1.2}",),
        source="transformers, trainer logs",
    ),
    Pattern(
        name="evaluation-results-nan",
        says="The results of an evaluation hold a loss that is NaN.",
        failure=FailureType.NAN_LOSS,
        fine="nan_eval",
        text=r"\b(?:eval|evaluation|validation|valid|test)\b[^\n{]{0,40}\{['\"]loss['\"]: ['\"]?nan\b",
        weight=0.9,
        remedy=BACK_AND_SLOWER,
        fixes=(
            *FIXES,
            "If the training loss is fine, look for empty batches and for labels that are all masked in the evaluation set.",
        ),
        matches=("INFO - validation metrics: {'loss': nan, 'accuracy': 0.25}",),
        but_not=("{'loss': nan, 'accuracy': 0.25}", "evaluation: {'loss': 0.3}"),
        source="dictionaries of metrics as many training scripts print them",
    ),
    Pattern(
        name="nan-found-by-anomaly-mode",
        says="PyTorch's anomaly mode found the operation whose gradient is NaN.",
        failure=FailureType.NAN_LOSS,
        fine="nan_loss",
        text=r"Function '\w+' returned nan values in its \d+\w\w output",
        weight=0.95,
        remedy=BACK_AND_SLOWER,
        fixes=("Look at the operation named: a log or root of zero, a division by zero, or exp of a large number.",),
        matches=("RuntimeError: Function 'MulBackward0' returned nan values in its 0th output.",),
        but_not=("UserWarning: Anomaly Detection has been enabled. This mode will increase the runtime",),
        source="PyTorch, torch/csrc/autograd/engine.cpp",
    ),
    Pattern(
        name="nan-reached-an-operation",
        says="A number that is not finite reached an operation that refuses it.",
        failure=FailureType.NAN_LOSS,
        fine="nan_loss",
        text=(
            r"probability tensor contains either `inf`, `nan`|found invalid values:[\s\S]{0,120}\bnan\b"
            r"|contain(?:s|ed)? (?:Inf/NaN|NaN/Inf|NaNs? or Infs?|infs? or NaNs?|NaN\b)|Tensor had (?:NaN|Inf|-?Inf and NaN|NaN and Inf) values"
            r"|The total norm of order \S+ for gradients from `?parameters`? is non-finite|Detected (?:NaN|inf|non-?finite)\b"
            r"|NaNs? (?:was |were )?(?:detected|encountered|found) in|(?:Encountered|Found|Got) (?:a )?(?:NaNs?|non-?finite)\b|(?:gradients?|weights?|logits|outputs?) (?:is|are|became) nan\b"
            r"|FloatingPointError: |array must not contain infs or NaNs|cost is nan|Input contains NaN"
        ),
        weight=0.84,
        remedy=BACK_THEN_SLOWER,
        fixes=(
            *FIXES,
            "When sampling (`probability tensor contains`), check the weights: fp16 on a model made for bf16 overflows.",
        ),
        matches=(
            "RuntimeError: probability tensor contains either `inf`, `nan` or element < 0",
            (
                "RuntimeError: The total norm of order 2.0 for gradients from `parameters` is non-finite, so it cannot be clipped."
            ),
            "Iteration 80: FloatingPointError: Predicted boxes or scores contain Inf/NaN. Training has diverged.",
            "InvalidArgumentError: Gradient for dense/kernel:0 is NaN : Tensor had NaN values",
        ),
        but_not=("INFO: dropped 3 rows of the table", "skipping nan check"),
        source="PyTorch aten/src/ATen/native, torch/nn/utils/clip_grad.py; TensorFlow check_numerics; detectron2",
    ),
    Pattern(
        name="loss-scale-exhausted",
        says="The fp16 loss scaler keeps overflowing.",
        failure=FailureType.NAN_LOSS,
        fine="fp16_overflow",
        text=(
            r"Current loss scale already at minimum|OVERFLOW! Rank \d+ Skipping step. Attempted loss scale: \d{1,3},"
            r"|Minimum loss scale reached|cannot be converted to type (?:at::)?\S*Half without overflow|reducing loss scale to (?:0?\.\d+|[01](?:\.0)?|\d\.?\d*e-\d+)\b"
            r"|overflow in fp16|loss scale (?:is|has become|reached) (?:too small|zero|0\b)|Loss scaler reducing loss scale to 0"
        ),
        weight=0.9,
        remedy=BACK_AND_SLOWER,
        fixes=("Use bf16 instead of fp16 where the GPU has it.", "Lower the learning rate 2 to 5 times."),
        matches=(
            "Gradient overflow.  Skipping step, loss scaler 0 reducing loss scale to 1.0",
            "RuntimeError: value cannot be converted to type at::Half without overflow",
            "Exception: Current loss scale already at minimum - cannot decrease scale anymore. Exiting run.",
            (
                "[INFO] [loss_scaler.py:181:update_scale] [deepspeed] OVERFLOW! Rank 0 Skipping step. Attempted loss scale: 64, "
                "reducing to 32"
            ),
        ),
        but_not=(
            "[deepspeed] OVERFLOW! Rank 0 Skipping step. Attempted loss scale: 65536, reducing to 32768",
            "loss scale 1024",
            "Gradient overflow.  Skipping step, loss scaler 0 reducing loss scale to 32768.0",
        ),
        source="DeepSpeed, runtime/fp16/loss_scaler.py",
    ),
)
