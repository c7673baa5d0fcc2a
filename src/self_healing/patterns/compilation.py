"""Code that is compiled while the run goes on (torch.compile, Triton, C++ and CUDA extensions) did not compile."""

from __future__ import annotations

from ..actions.stop_run import StopRun
from ..core.action import rung
from ..core.cause import Pattern
from ..core.failure import FailureType

GIVE_UP = (rung(StopRun()),)
WITHOUT = "Switch compilation off to go on: torch_compile: false, or TORCHDYNAMO_DISABLE=1 in the environment."

PATTERNS: tuple[Pattern, ...] = (
    Pattern(
        name="torch-compile-failed",
        says="torch.compile could not compile the model.",
        failure=FailureType.CONFIG_ERROR,
        fine="compile_failure",
        text=(
            r"BackendCompilerFailed|torch\._dynamo\.exc\.|torch\._inductor\.exc\.|InductorError: |LoweringException: "
            r"|CppCompileError|CUDACompileError|Cannot find a working triton installation"
            r"|(?:Dynamo|torch\.compile|torch\.compile with \w+) (?:is )?not (?:yet )?supported (?:on|for)"
            r"|not yet supported for torch\.compile|Failed to find C compiler|(?:C\+\+|CUDA) compile error"
        ),
        weight=0.92,
        remedy=GIVE_UP,
        fixes=(
            WITHOUT,
            "Install the triton release that belongs to your torch (pip show torch lists it), and a C compiler.",
            "TORCH_LOGS=+dynamo,graph_breaks and TORCHDYNAMO_VERBOSE=1 show where it stops.",
        ),
        matches=(
            "[rank0]: torch._dynamo.exc.BackendCompilerFailed: backend='inductor' raised:\nAssertionError: ",
            "torch._inductor.exc.InductorError: LoweringException: AttributeError: 'View' object has no attribute 'data'",
            "RuntimeError: Dynamo is not supported on Python 3.12+",
            "RuntimeError: Failed to find C compiler. Please specify via CC environment variable.",
        ),
        but_not=("[WARNING] torch._dynamo hit config.recompile_limit (8)",),
        source="PyTorch, torch/_dynamo/exc.py and torch/_inductor/exc.py",
    ),
    Pattern(
        name="triton-failed",
        says="A Triton kernel could not be compiled, or Triton does not fit torch.",
        failure=FailureType.CONFIG_ERROR,
        fine="compile_failure",
        text=(
            r"triton\.compiler\.errors\.|triton\.runtime\.errors\.|cannot import name '\w+' from '(?:partially initialized module ')?triton"
            r"|No module named 'triton\.\w|out of resource: |OutOfResources|PTXASError|ptxas (?:fatal|exited|error)"
            r"|Internal Triton PTX codegen error|libcuda\.so cannot found|module 'triton\S*' has no attribute"
            r"|PassManager::run failed|\bLLVM ERROR: "
        ),
        weight=0.93,
        remedy=GIVE_UP,
        fixes=(
            "Install the triton release that belongs to your torch: pip show torch lists it under Requires.",
            "For `out of resource: shared memory`, choose smaller blocks or fewer stages (num_stages); the limit is the GPU's.",
            WITHOUT,
        ),
        matches=(
            "[rank1]: triton.compiler.errors.CompilationError: at 12:24: unsupported type",
            (
                "triton.runtime.errors.OutOfResources: out of resource: shared memory, Required: 135168, Hardware limit: 101376. "
                "Reducing block sizes or `num_stages` may help."
            ),
            "ImportError: cannot import name 'get_cuda_stream' from 'triton.runtime.jit'",
            "RuntimeError: Internal Triton PTX codegen error: ptxas fatal   : Value 'sm_120' is not defined",
        ),
        but_not=("ModuleNotFoundError: No module named 'tritonclient'",),
        source="Triton, python/triton/compiler/errors.py and runtime/errors.py",
    ),
    Pattern(
        name="triton-cache-stale",
        says="Triton's cache of compiled kernels holds something broken, or was removed under it.",
        failure=FailureType.CONFIG_ERROR,
        fine="compile_failure",
        text=(
            r"(?:No such file or directory|Stale file handle|Text file busy|Directory not empty|File exists)[^\n]{0,200}"
            r"(?:\.triton/|triton_cache|torchinductor_|torch_extensions)|KeyError: 'cubin'"
        ),
        weight=0.94,
        remedy=GIVE_UP,
        fixes=(
            "Delete ~/.triton/cache and /tmp/torchinductor_$USER, then start again.",
            "Several ranks or jobs that share the folder over a network: set TRITON_CACHE_DIR to a local one of each rank.",
        ),
        matches=(
            "FileNotFoundError: [Errno 2] No such file or directory: '/home/u/.triton/cache/0f3a/layer_norm.json'",
            "OSError: [Errno 116] Stale file handle: '/scratch/triton_cache/9ab/kernel.cubin'",
        ),
        but_not=("FileNotFoundError: [Errno 2] No such file or directory: 'data/triton.json'",),
        source="Triton, python/triton/runtime/cache.py",
    ),
    Pattern(
        name="extension-not-built",
        says="A C++ or CUDA extension could not be built.",
        failure=FailureType.CONFIG_ERROR,
        fine="compile_failure",
        text=(
            r"Error building extension '|Ninja is required to load C\+\+ extensions|ninja: build stopped"
            r"|CUDA_HOME (?:environment variable is not set|does not exist)|MissingCUDAException|Unable to JIT load the \w+ op"
            r"|Failed (?:building wheel for|to build )|nvcc fatal\s{1,4}:|fatal error: [\w./]+\.h(?:pp)?: No such file"
            r"|command '\S*(?:gcc|g\+\+|nvcc|cl\.exe)'? failed|RuntimeError: Error compiling objects for extension"
            r"|nvcc not found|Microsoft Visual C\+\+ 14\.0 or greater is required|CalledProcessError: Command '\['\S{0,120}(?:ninja|gcc|g\+\+|nvcc|clang|ptxas|cl\.exe)'"
            r"|subprocess-exited-with-error|metadata-generation-failed"
        ),
        weight=0.9,
        remedy=GIVE_UP,
        fixes=(
            "Install ninja, a C++ compiler and the CUDA toolkit of torch.version.cuda, and set CUDA_HOME to it.",
            "Read the first line with `error:` above: the last ones only say that the build has stopped.",
            "Install a wheel that is built already, where the project offers one for your torch and Python.",
        ),
        matches=(
            "RuntimeError: Error building extension 'cpu_adam'",
            "OSError: CUDA_HOME environment variable is not set. Please set it to your CUDA install root.",
            "ERROR: Failed building wheel for flash-attn",
            "nvcc fatal   : Unsupported gpu architecture 'compute_120'",
            "/usr/include/python3.10/pyconfig.h:3:12: fatal error: Python.h: No such file or directory",
            "RuntimeError: Unable to JIT load the fp_quantizer op due to it not being compatible due to hardware/software issue.",
        ),
        but_not=("INFO: building extension cache",),
        source="PyTorch, torch/utils/cpp_extension.py; DeepSpeed op_builder/builder.py; pip",
    ),
)
