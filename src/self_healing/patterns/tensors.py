"""Tensors that meet are on different devices, of different types, or not part of a graph that can be differentiated."""

from __future__ import annotations

from ..actions.stop_run import StopRun
from ..core.action import rung
from ..core.cause import Pattern
from ..core.failure import FailureType

GIVE_UP = (rung(StopRun()),)

PATTERNS: tuple[Pattern, ...] = (
    Pattern(
        name="devices-differ",
        says="Tensors that meet in one operation are on different devices.",
        failure=FailureType.CONFIG_ERROR,
        fine="device_mismatch",
        text=(
            r"Expected all tensors to be on the same device|found at least two devices|but found one of them on device"
            r"|must have its parameters and buffers on device|[Ee]xpected (?:object of )?(?:device|backend)(?: type)? \w+(?::\d+)? but got"
            r"|Input type \(torch\.(?:cuda\.\w+\) and weight type \(torch\.\w+\)|\w+\) and weight type \(torch\.cuda\.)"
            r"|is on (?:CPU|GPU|cuda:\d|cpu), but expected|should be either on cpu or on the same device"
            r"|Placeholder storage has not been allocated on MPS device|arguments are located on different GPUs"
            r"|can't convert cuda(?::\d+)? device type tensor to numpy|All tensors must be on devices\[0\]"
            r"|[Tt]ensors? (?:is|are) on different devices|indices should be on the same device|Cannot copy out of meta tensor"
            r"|Pointer argument \(at \d+\) cannot be accessed from Triton|Expected a '\w+' (?:device type|generator device)"
        ),
        weight=0.92,
        remedy=GIVE_UP,
        fixes=(
            "Move inputs and buffers to model.device before the call; register constants with register_buffer.",
            "With device_map='auto' the layers lie on several GPUs: for training use one GPU per process, device_map={'': local_rank}.",
        ),
        matches=(
            "RuntimeError: Expected all tensors to be on the same device, but found at least two devices, cuda:1 and cpu!",
            "RuntimeError: Input type (torch.cuda.FloatTensor) and weight type (torch.FloatTensor) should be the same",
            (
                "RuntimeError: module must have its parameters and buffers on device cuda:0 (device_ids[0]) but found one of them "
                "on device: cuda:1"
            ),
            "RuntimeError: Placeholder storage has not been allocated on MPS device!",
        ),
        but_not=(
            "RuntimeError: Input type (torch.cuda.HalfTensor) and weight type (torch.cuda.FloatTensor) should be the same",
        ),
        source="PyTorch, aten/src/ATen/TensorUtils.cpp and torch/nn/parallel/data_parallel.py",
    ),
    Pattern(
        name="types-differ",
        says="Tensors that meet in one operation have different number formats.",
        failure=FailureType.CONFIG_ERROR,
        fine="config_error",
        text=(
            r"expected scalar type \w+ but found \w+|expected m1 and m2 to have the same dtype|must have the same dtype"
            r"|Found dtype \w+ but expected \w+|expected \w+ (?:tensor|dtype)[^\n]{0,40}but got \w+ (?:tensor|dtype)"
            r"|Input type \((?:torch\.cuda\.\w+|\w+)\) and (?:weight|bias) type|source and destination dtypes match"
            r"|can't be cast to the desired output type|Expected tensor for argument #\d+ '\w+' to have one of the following scalar types"
            r"|Attempting to unscale FP16 gradients|query, key, and value to have the same dtype|only support fp16 and bf16 data type"
            r"|expected (?:mat1 and mat2|self and mat2) to have the same dtype|not implemented for 'Half'"
        ),
        weight=0.9,
        remedy=GIVE_UP,
        fixes=(
            "Load the model in the format the run trains in (dtype=torch.bfloat16 with bf16: true), or run the step in autocast.",
            "`Attempting to unscale FP16 gradients`: with fp16: true the trained weights must be fp32; load them so.",
            "`not implemented for 'Half'` on a CPU: use fp32 or bf16 there.",
        ),
        matches=(
            "RuntimeError: expected scalar type Half but found Float",
            "RuntimeError: mat1 and mat2 must have the same dtype, but got Float and BFloat16",
            "ValueError: Attempting to unscale FP16 gradients.",
            "RuntimeError: FlashAttention only support fp16 and bf16 data type",
            "RuntimeError: Index put requires the source and destination dtypes match, got BFloat16 for the destination",
        ),
        but_not=("ValueError: dtype must be one of float32, bfloat16",),
        source="PyTorch, aten/src/ATen and torch/amp/grad_scaler.py",
    ),
    Pattern(
        name="nothing-to-differentiate",
        says="The loss does not depend on any weight that may be trained.",
        failure=FailureType.CONFIG_ERROR,
        fine="config_error",
        text=(
            r"does not require grad and does not have a grad_fn|One of the differentiated Tensors (?:does not require grad|appears to not)"
            r"|optimizer got an empty parameter list|No inf checks were recorded for this optimizer|None of the parameters? requires? grad"
        ),
        weight=0.92,
        remedy=GIVE_UP,
        fixes=(
            "With LoRA and gradient checkpointing call model.enable_input_require_grads(), or set use_reentrant: false.",
            "print_trainable_parameters() must show more than 0: check target_modules and what is frozen.",
        ),
        matches=(
            "RuntimeError: element 0 of tensors does not require grad and does not have a grad_fn",
            "ValueError: optimizer got an empty parameter list",
            "AssertionError: No inf checks were recorded for this optimizer.",
        ),
        but_not=("UserWarning: None of the inputs have requires_grad=True. Gradients will be None",),
        source="PyTorch, torch/csrc/autograd and torch/optim/optimizer.py",
    ),
    Pattern(
        name="graph-used-wrongly",
        says="The code uses the graph of derivatives in a way that cannot work.",
        failure=FailureType.CRASH,
        fine="script_error",
        text=(
            r"Trying to backward through the graph a second time|has been modified by an inplace operation"
            r"|leaf [Vv]ariable that requires grad[^\n]{0,60}in-place operation|grad can be implicitly created only for scalar outputs"
        ),
        weight=0.9,
        remedy=GIVE_UP,
        fixes=(
            "Compute the loss anew for each backward, or detach what is carried over from the step before.",
            "torch.autograd.set_detect_anomaly(True) shows the operation that changes a tensor in place.",
        ),
        matches=(
            "RuntimeError: Trying to backward through the graph a second time (or directly access saved tensors after they",
            "RuntimeError: one of the variables needed for gradient computation has been modified by an inplace operation",
        ),
        but_not=("UserWarning: inplace operation is deprecated",),
        source="PyTorch, torch/csrc/autograd/saved_variable.cpp",
    ),
)
