"""The accelerator has no memory left.

One message may have two causes: `CUBLAS_STATUS_ALLOC_FAILED` is usually memory and sometimes a CUDA installation
that does not fit, so it has two rows of different weight.
"""

from __future__ import annotations

from ..actions.clear_cache import ClearCache
from ..actions.enable_gradient_checkpointing import EnableGradientCheckpointing
from ..actions.halve_batch_size import HalveBatchSize
from ..actions.split_micro_batch import SplitMicroBatch
from ..actions.stop_run import StopRun
from ..core.action import rung
from ..core.cause import Pattern
from ..core.failure import FailureType

LESS_MEMORY = (
    rung(ClearCache(), success=0.3),
    rung(EnableGradientCheckpointing(), success=0.6),
    rung(SplitMicroBatch(), success=0.9),
    rung(HalveBatchSize(), success=0.8, repeats=3),  # down to an eighth
    rung(StopRun()),
)
FIXES = (
    "Lower micro_batch_size, down to 1 if need be, and raise gradient_accumulation_steps so that the product stays.",
    "Switch gradient checkpointing on.",
    "Load the base model in 4 or 8 bits, or in FP8.",
    "Shorten sequence_len; for GRPO max_completion_length too, and a micro-batch of 2 to 4.",
    "Use flash attention, whose memory grows linearly with the length.",
    "Offload optimizer state or parameters with DeepSpeed ZeRO-3.",
)
SEED = "https://docs.axolotl.ai/docs/training_stability.html"
RIVALS = (("cublas-does-not-fit", "cublas-out-of-memory"),)
"""Rows that share a sample: the first is the less likely reading of what the second explains."""

PATTERNS: tuple[Pattern, ...] = (
    Pattern(
        name="gpu-out-of-memory",
        says="The GPU had no room for an allocation.",
        failure=FailureType.OOM,
        fine="oom_gpu",
        text=(
            r"(?:CUDA|HIP|XPU|NPU) out of memory|(?:CUDA|HIP) error: out of memory|CUDA_ERROR_OUT_OF_MEMORY"
            r"|cudaErrorMemoryAllocation|would exceed allowed memory|CUDA runtime error \(2\)|CUDA driver error: out of memory|CUDA failed with error out of memory"
            r"|hipErrorOutOfMemory|cudaMalloc(?:Async)? (?:retry )?failed: out of memory|CUDA (?:failure|error) 2: out of memory"
            r"|Out of memory error on GPU \d|torch(?:\.cuda)?\.OutOfMemoryError|Failed to allocate \S+ (?:bytes )?on (?:GPU|device)"
            r"|ErrorOutOfMemory:|(?:GPU|device) memory is (?:full|exhausted)|cudaSuccess \(2 vs\. 0\)|that can be stored in KV cache|No available memory for the cache blocks"
            r"|is less than desired GPU memory utilization|Insufficient Memory \([\d:]{0,20}kIOGPU"
        ),
        weight=0.95,
        remedy=LESS_MEMORY,
        fixes=FIXES,
        matches=(
            (
                "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of "
                "79.10 GiB of which 1.02 GiB is free."
            ),
            "RuntimeError: CUDA error: out of memory",
            "torch.cuda.OutOfMemoryError: HIP out of memory. Tried to allocate 256.00 MiB",
            "[rank3]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 594.00 MiB.",
            "RuntimeError: CUDA driver error: out of memory",
            "RuntimeError: CUDA failed with error out of memory",
            "ggml_backend_cuda_buffer_type_alloc_buffer: cudaMalloc failed: out of memory",
            "ValueError: No available memory for the cache blocks. Try increasing `gpu_memory_utilization`",
        ),
        but_not=(
            "RuntimeError: CUDA error: device-side assert triggered",
            "Out of memory: Killed process 4242 (python)",
        ),
        source=SEED,
    ),
    Pattern(
        name="quantized-model-does-not-fit",
        says="The quantized model does not fit into the GPU memory that is free, so that parts of it would lie elsewhere.",
        failure=FailureType.OOM,
        fine="oom_gpu",
        text=r"Some modules are dispatched on the CPU or the disk",
        weight=0.93,
        remedy=(rung(StopRun()),),
        fixes=(
            "Free the GPU (nvidia-smi shows who holds it), or use a larger one: 4 bits need 0.6 to 0.7 GB per billion parameters.",
            "Load with device_map={'': local_rank} and load_in_4bit; device_map='auto' reckons with other processes' memory.",
        ),
        matches=(
            "ValueError: Some modules are dispatched on the CPU or the disk. Make sure you have enough GPU RAM to fit the model",
        ),
        but_not=("INFO: modules dispatched on 4 GPUs",),
        source="transformers, quantizers/quantizer_bnb_4bit.py",
    ),
    Pattern(
        name="gpu-out-of-memory-raised",
        says="The GPU had no room for an allocation, in words we do not know.",
        failure=FailureType.OOM,
        fine="oom_gpu",
        exception=("OutOfMemoryError", "ResourceExhaustedError"),
        weight=0.85,
        remedy=LESS_MEMORY,
        fixes=FIXES,
        matches=("torch.OutOfMemoryError: Allocation on device 0 failed",),
        but_not=("RuntimeError: Allocation on device 0 failed", "MemoryError: out of memory"),
        source="the class PyTorch raises since 1.13; its texts differ by backend",
    ),
    Pattern(
        name="mps-out-of-memory",
        says="The Apple GPU reached its memory limit.",
        failure=FailureType.OOM,
        fine="oom_gpu",
        text=r"MPS backend out of memory",
        weight=0.95,
        remedy=LESS_MEMORY,
        fixes=(*FIXES, "PYTORCH_MPS_HIGH_WATERMARK_RATIO lifts the limit, at the risk of freezing the machine."),
        matches=(
            (
                "RuntimeError: MPS backend out of memory (MPS allocated: 17.10 GB, other allocations: 1.02 GB, max allowed: "
                "18.13 GB). Tried to allocate 256.00 MB on private pool."
            ),
        ),
        but_not=("RuntimeError: MPS backend does not support this operation",),
        source="PyTorch, aten/src/ATen/mps/MPSAllocator.mm",
    ),
    Pattern(
        name="xla-out-of-memory",
        says="The accelerator had no room for an allocation, says XLA or TensorFlow.",
        failure=FailureType.OOM,
        fine="oom_gpu",
        text=(
            r"RESOURCE_EXHAUSTED: (?:Out of memory|Attempting to|Failed to allocate|XLA:TPU|Allocation)"
            r"|\bResource exhausted\b|ResourceExhaustedError|XLA memory error|Device memory exhausted"
            r"|OOM when allocating tensor|Dst tensor is not initialized|Ran out of memory in memory space|ran out of memory trying to allocate \S+ \(rounded to"
            r"|failed to allocate \S+ \(\d+ bytes\) from device|RESOURCE_EXHAUSTED: [^\n]{0,60}(?:out of memory|OOM|allocat)"
        ),
        weight=0.93,
        remedy=LESS_MEMORY,
        fixes=FIXES,
        matches=(
            "jaxlib.xla_extension.XlaRuntimeError: RESOURCE_EXHAUSTED: Out of memory allocating 8589934592 bytes.",
            "W tensorflow/core/framework/op_kernel.cc:1158] Resource exhausted: OOM when allocating tensor with shape[64,1024]",
            "XLA memory error",
            "InternalError: Failed copying input tensor from device:CPU:0 to device:GPU:0: Dst tensor is not initialized.",
            "Device memory exhausted",
            "E stream_executor/cuda/cuda_driver.cc:893] failed to allocate 2.00G (2147483648 bytes) from device",
        ),
        but_not=(
            "grpc.RpcError: StatusCode.RESOURCE_EXHAUSTED: Received message larger than max (5242880 vs. 4194304)",
            "OSError: [Errno 11] Resource temporarily unavailable",
            (
                "W bfc_allocator.cc:290] Allocator (GPU_0_bfc) ran out of memory trying to allocate 2.2GiB with freed_by_count=0. "
                "The caller indicates that this is not a failure"
            ),
        ),
        source="seed safe_train.py, and OpenXLA",
    ),
    Pattern(
        name="cublas-out-of-memory",
        says="cuBLAS could not allocate its workspace, most likely because GPU memory was full.",
        failure=FailureType.OOM,
        fine="oom_gpu",
        text=r"CUBLAS_STATUS_ALLOC_FAILED",
        weight=0.6,
        confirm="nvidia-smi shows the GPU full just before, and a batch of 1 runs.",
        remedy=LESS_MEMORY,
        fixes=(
            *FIXES,
            "If nvidia-smi shows plenty of free memory when it fails, suspect the CUDA installation instead.",
        ),
        matches=("RuntimeError: CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`",),
        but_not=("RuntimeError: CUDA error: CUBLAS_STATUS_EXECUTION_FAILED when calling `cublasSgemm(handle)`",),
        source="https://github.com/QwenLM/Qwen3/issues/873",
    ),
    Pattern(
        name="cublas-does-not-fit",
        says="cuBLAS could not start, which also happens where PyTorch and the CUDA driver do not fit together.",
        failure=FailureType.CONFIG_ERROR,
        fine="cuda_version_mismatch",
        text=r"CUBLAS_STATUS_ALLOC_FAILED",
        weight=0.4,
        confirm="A batch of 1 fails as well, and nvidia-smi shows free memory: compare torch.version.cuda with the driver.",
        remedy=(rung(StopRun()),),
        fixes=(
            "Compare torch.version.cuda with what nvidia-smi says the driver supports, and install a matching build.",
        ),
        matches=("RuntimeError: CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`",),
        but_not=("RuntimeError: CUDA out of memory. Tried to allocate 20.00 MiB",),
        source="https://github.com/thu-coai/CDial-GPT/issues/70",
    ),
)
