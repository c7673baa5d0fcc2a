"""GPU, driver, CUDA libraries and the build of the framework do not fit together, or the GPU lacks a number format."""

from __future__ import annotations

from ..actions.stop_run import StopRun
from ..core.action import rung
from ..core.cause import Pattern
from ..core.failure import FailureType
from .cuda_memory import FIXES as LESS_MEMORY_FIXES
from .cuda_memory import LESS_MEMORY

GIVE_UP = (rung(StopRun()),)
COMPARE = (
    "Compare torch.version.cuda with what nvidia-smi says the driver supports, and install a matching build of torch."
)
RIVALS = (("cuda-library-does-not-start", "cuda-library-out-of-memory"),)
NOT_STARTED = (
    r"CUBLAS_STATUS_NOT_INITIALIZED|CUDNN_STATUS_(?:NOT_INITIALIZED|ALLOC_FAILED|INTERNAL_ERROR)"
    r"|CUSPARSE_STATUS_ALLOC_FAILED|CUSOLVER_STATUS_(?:ALLOC_FAILED|INTERNAL_ERROR)|Could not create cud?nn handle"
    r"|probably because cuDNN failed to initialize|DNN library initialization failed|Blas (?:GEMM|xGEMM) launch failed"
    r"|Unable to find a valid cuDNN algorithm|unable to find an engine to execute this computation"
)

PATTERNS: tuple[Pattern, ...] = (
    Pattern(
        name="driver-too-old",
        says="The NVIDIA driver is older than the CUDA version that torch was built for.",
        failure=FailureType.CONFIG_ERROR,
        fine="cuda_version_mismatch",
        text=(
            r"driver on your system is too old|driver version is insufficient for CUDA runtime|cudaErrorInsufficientDriver"
            r"|forward compatibility was attempted on non supported HW|compiled with an unsupported toolchain"
            r"|CUDA_ERROR_UNSUPPORTED_PTX_VERSION|CUDA_ERROR_COMPAT_NOT_SUPPORTED|Driver/library version mismatch"
            r"|CUDA_ERROR_SYSTEM_DRIVER_MISMATCH|system has unsupported display driver"
        ),
        weight=0.84,
        remedy=GIVE_UP,
        fixes=(
            COMPARE,
            "After an update of the driver, restart the machine: `Driver/library version mismatch` goes away.",
        ),
        matches=(
            "RuntimeError: The NVIDIA driver on your system is too old (found version 11040). Please update your GPU driver",
            "RuntimeError: CUDA error: CUDA driver version is insufficient for CUDA runtime version",
            "RuntimeError: CUDA error: the provided PTX was compiled with an unsupported toolchain.",
            "Failed to initialize NVML: Driver/library version mismatch",
        ),
        but_not=("INFO: driver version 535.129.03, CUDA runtime 12.2",),
        source="PyTorch, torch/csrc/cuda; CUDA runtime API, error 35",
    ),
    Pattern(
        name="gpu-not-in-build",
        says="The installed build holds no code for this GPU.",
        failure=FailureType.CONFIG_ERROR,
        fine="cuda_version_mismatch",
        text=(
            r"no kernel image is available for execution|is not compatible with the current PyTorch installation"
            r"|error: invalid device function|cudaErrorNoKernelImageForDevice|CUDA_ERROR_NO_BINARY_FOR_GPU"
            r"|TensileLibrary\S* for GPU arch|device kernel image is invalid|cudaErrorInvalidKernelImage"
        ),
        weight=0.92,
        remedy=GIVE_UP,
        fixes=(
            "Install a build of torch, and of every CUDA extension, for this GPU: torch.cuda.get_arch_list() shows what is in it.",
            "Build extensions with TORCH_CUDA_ARCH_LIST set to the capability of the GPU.",
        ),
        matches=(
            "RuntimeError: CUDA error: no kernel image is available for execution on the device",
            "NVIDIA H100 with CUDA capability sm_90 is not compatible with the current PyTorch installation.",
            "RuntimeError: HIP error: invalid device function",
        ),
        but_not=("RuntimeError: CUDA error: invalid configuration argument",),
        source="PyTorch, torch/cuda/__init__.py; CUDA runtime API, error 209",
    ),
    Pattern(
        name="cuda-libraries-differ",
        says="CUDA, cuDNN or another library of it is installed in a version other than the program was built with.",
        failure=FailureType.CONFIG_ERROR,
        fine="cuda_version_mismatch",
        text=(
            r"detected CUDA version \([\d.]+\) mismatches|CUDAMismatchException|Loaded runtime CuDNN library: \S+ but source was compiled"
            r"|cuDNN version incompatibility|CUDNN_STATUS_(?:SUBLIBRARY_)?(?:VERSION_MISMATCH|ARCH_MISMATCH|LOADING_FAILED)"
            r"|lib(?:cud\w+|cublas\w*|cusparse\w*|cufft\w*|curand\w*|cusolver\w*|nvrtc\w*|nvJitLink\w*|nccl\w*|nvToolsExt\w*|cupti\w*)"
            r"[.\w-]*: cannot open shared object|undefined symbol: \w*(?:nvJitLink|cublasLt?|cudnn|nccl|cusparse)\w+"
            r"|Could not load library lib(?:cudnn|cublas|cuda)|does not match the version torch was compiled with"
            r"|CUDA Setup failed despite (?:GPU|CUDA) being available|compiled without GPU support"
            r"|'NoneType' object has no attribute 'c(?:adam|lion|rmsprop|momentum|ademamix|quantize|dequantize|get_|extract|igemm)\w+'"
            r"|same (?:major )?CUDA version|compiled with different CUDA"
        ),
        weight=0.91,
        remedy=GIVE_UP,
        fixes=(
            COMPARE,
            "Clear LD_LIBRARY_PATH of other CUDA folders: python -m torch.utils.collect_env shows which libraries are found.",
        ),
        matches=(
            "RuntimeError: The detected CUDA version (12.4) mismatches the version that was used to compile PyTorch (11.8).",
            "OSError: libcudart.so.12: cannot open shared object file: No such file or directory",
            "ImportError: libcusparse.so.12: undefined symbol: __nvJitLinkAddData_12_1, version libnvJitLink.so.12",
            "RuntimeError: cuDNN version incompatibility: PyTorch was compiled against (9, 1, 0) but found runtime version (8, 9, 2)",
            "AttributeError: 'NoneType' object has no attribute 'cquantize_blockwise_fp16_nf4'",
            "[rank0]: deepspeed.ops.op_builder.builder.CUDAMismatchException: >- DeepSpeed Op Builder: Installed CUDA version 12.4",
        ),
        but_not=("ImportError: libGL.so.1: cannot open shared object file: No such file or directory",),
        source="PyTorch, torch/utils/cpp_extension.py and torch/backends/cudnn; DeepSpeed op_builder; bitsandbytes",
    ),
    Pattern(
        name="no-usable-gpu",
        says="The program wants a GPU, and finds none that it can use.",
        failure=FailureType.CONFIG_ERROR,
        fine="cuda_version_mismatch",
        text=(
            r"Torch not compiled with CUDA enabled|torch\.cuda\.is_available\(\) is False|No CUDA GPUs are available"
            r"|Found no NVIDIA driver on your system|no CUDA-capable device is detected|CUDA unknown error - this may be due"
            r"|CUDA_ERROR_NO_DEVICE|have NCCL built in|CUDA-capable device\(s\) is/are busy or unavailable"
            r"|No HIP GPUs are available|CUDA call failed lazily at initialization|cudaErrorNoDevice|Cannot access accelerator device when none is available"
            r"|Unexpected error from (?:cuda|hip)GetDeviceCount|system not yet initialized|cudaErrorSystemNotReady|No supported gpu backend found"
        ),
        weight=0.86,
        remedy=GIVE_UP,
        fixes=(
            "Install a build of torch with CUDA: the plain wheel for Windows and some indexes have none.",
            "Check CUDA_VISIBLE_DEVICES, --gpus of the container and --gres of the scheduler; nvidia-smi must list a GPU.",
            "Error 802 (system not yet initialized): start nvidia-fabricmanager, in the version of the driver.",
        ),
        matches=(
            "AssertionError: Torch not compiled with CUDA enabled",
            "RuntimeError: No CUDA GPUs are available",
            "RuntimeError: Unexpected error from cudaGetDeviceCount(). Did you run some cuda functions before? Error 802",
            "MisconfigurationException: No supported gpu backend found!",
            (
                "RuntimeError: Attempting to deserialize object on a CUDA device but torch.cuda.is_available() is False. If you "
                "are running on a CPU-only machine, please use torch.load with map_location"
            ),
        ),
        but_not=("RuntimeError: CUDA error: invalid device ordinal",),
        source="PyTorch, torch/cuda/__init__.py and torch/serialization.py",
    ),
    Pattern(
        name="cuda-library-out-of-memory",
        says="cuBLAS or cuDNN could not start, most likely because GPU memory was full.",
        failure=FailureType.OOM,
        fine="oom_gpu",
        text=NOT_STARTED,
        weight=0.58,
        remedy=LESS_MEMORY,
        fixes=(
            *LESS_MEMORY_FIXES,
            "If nvidia-smi shows plenty of free memory when it fails, suspect the CUDA installation, or a label out of range.",
        ),
        matches=(
            "RuntimeError: cuDNN error: CUDNN_STATUS_NOT_INITIALIZED",
            "RuntimeError: CUDA error: CUBLAS_STATUS_NOT_INITIALIZED when calling `cublasCreate(handle)`",
            "RuntimeError: Unable to find a valid cuDNN algorithm to run convolution",
        ),
        but_not=("RuntimeError: cuDNN error: CUDNN_STATUS_BAD_PARAM",),
        source="https://github.com/pytorch/pytorch/issues/53336",
    ),
    Pattern(
        name="cuda-library-does-not-start",
        says="cuBLAS or cuDNN could not start or run, which also happens where torch and the CUDA installation do not fit.",
        failure=FailureType.CONFIG_ERROR,
        fine="cuda_version_mismatch",
        text=(
            NOT_STARTED
            + r"|CUBLAS_STATUS_(?:EXECUTION_FAILED|NOT_SUPPORTED|ARCH_MISMATCH|INTERNAL_ERROR|INVALID_VALUE)"
            r"|CUDNN_STATUS_(?:EXECUTION_FAILED|MAPPING_ERROR|NOT_SUPPORTED|BAD_PARAM)"
        ),
        weight=0.52,
        remedy=GIVE_UP,
        fixes=(COMPARE, "Run the step on the CPU once: an index out of range also shows as a failure of cuBLAS."),
        matches=("RuntimeError: CUDA error: CUBLAS_STATUS_NOT_INITIALIZED when calling `cublasCreate(handle)`",),
        but_not=("RuntimeError: CUDA out of memory. Tried to allocate 20.00 MiB",),
        source="https://discuss.pytorch.org/t/cublas-status-not-initialized",
    ),
    Pattern(
        name="bf16-not-supported",
        says="The device has no bfloat16, TF32 or FP8, and the configuration asks for it.",
        failure=FailureType.CONFIG_ERROR,
        fine="bf16_unsupported",
        text=(
            r"doesn't support bf16|does not support (?:bf16|bfloat16)|bf16 mixed precision requires|(?:bf16|bfloat16) is (?:only|not) supported"
            r"|CUBLAS_STATUS_NOT_SUPPORTED[^\n]{0,200}CUDA_R_16BF|--tf32 requires Ampere|only supports? Ampere GPUs or newer|not implemented for 'BFloat16'|BFloat16 is not supported"
            r"|requires a GPU (?:that|with) (?:supports|capable)[^\n]{0,40}bf(?:loat)?16|bf16 (?:requires|needs|is not available)"
            r"|Type bf16 is not supported|unsupported (?:data ?)?type:? bfloat16|only supported on CUDA devices with compute capability >="
            r"|(?:FP8|float8\w*)[^\n]{0,60}(?:requires|only supported)[^\n]{0,60}(?:compute capability|Hopper|Ada)"
            r"|requires (?:an )?Ampere|Feature '[^'\n]*bf16[^'\n]*' requires \.target sm_80"
        ),
        weight=0.94,
        remedy=GIVE_UP,
        fixes=(
            "Set bf16: false and fp16: true (tf32: false): bfloat16 needs an NVIDIA GPU of 2020 or later (sm_80).",
            "FP8 needs sm_89 or later; flash attention 2 needs sm_80: choose attn_implementation: sdpa.",
        ),
        matches=(
            (
                "ValueError: Your setup doesn't support bf16/gpu. You need to assign use_cpu if you want to train the model on CPU."
            ),
            "RuntimeError: FlashAttention only supports Ampere GPUs or newer.",
            "ValueError: bf16 mixed precision requires PyTorch >= 1.10 and a supported device.",
            "ValueError: Bfloat16 is only supported on GPUs with compute capability of at least 8.0. Your Tesla T4 GPU has 7.5.",
            "RuntimeError: \"triu_tril_cuda_template\" not implemented for 'BFloat16'",
            "RuntimeError: torch._scaled_mm is only supported on CUDA devices with compute capability >= 9.0 or 8.9, or ROCm MI300+",
        ),
        but_not=("TypeError: Got unsupported ScalarType BFloat16", "bf16: true"),
        source="transformers training_args.py, accelerate state.py, flash-attention",
    ),
)
