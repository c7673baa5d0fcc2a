"""The CUDA context is broken, by the program or by the GPU itself. Nothing inside the process can repair it."""

from __future__ import annotations

from ..actions.exclude_node import ExcludeNode
from ..actions.restart_process import RestartProcess
from ..actions.stop_run import StopRun
from ..core.action import rung
from ..core.cause import Pattern
from ..core.failure import FailureType

START_AGAIN = (rung(RestartProcess(), success=0.5), rung(StopRun()))
ELSEWHERE = (rung(RestartProcess(), success=0.4), rung(ExcludeNode(), success=0.8), rung(StopRun()))
RIVALS = (("xid-of-the-program", "gpu-failed"),)

PATTERNS: tuple[Pattern, ...] = (
    Pattern(
        name="device-side-assert",
        says="A check inside a GPU kernel failed, nearly always a label or token id out of range.",
        failure=FailureType.CRASH,
        fine="device_assert",
        text=(
            r"device-side assert triggered|\.cuh?:\d+: [^\n]{0,300}Assertion [^\n]{1,300} failed|cuda runtime error \(59\)"
            r"|block: \[\d+,\d+,\d+\], thread: \[|cudaErrorAssert|CUDA_ERROR_ASSERT|error=59 |\[CUDA\]: device-side assert"
        ),
        weight=0.95,
        remedy=START_AGAIN,
        fixes=(
            "Run the batch on the CPU, or with CUDA_LAUNCH_BLOCKING=1, to see the true line.",
            "Check labels against the number of classes, and token ids against the vocabulary.",
        ),
        matches=(
            (
                "torch.AcceleratorError: CUDA error: device-side assert triggered\nCUDA kernel errors might be asynchronously "
                "reported at some other API call"
            ),
            (
                "../aten/src/ATen/native/cuda/Indexing.cu:1289: indexSelectLargeIndex: block: [12,0,0], thread: [7,0,0] Assertion "
                "`srcIndex < srcSelectDimSize` failed."
            ),
        ),
        but_not=(
            "INFO: Assertion of 3 rows passed",
            "AssertionError: triggered on the host side",
        ),
        source="PyTorch, as raised on CUDA",
    ),
    Pattern(
        name="illegal-memory-access",
        says="A GPU kernel touched memory that is not its own.",
        failure=FailureType.CRASH,
        fine="illegal_memory_access",
        text=(
            r"an illegal memory access was encountered|CUDA_ERROR_ILLEGAL_ADDRESS|CUDA_ERROR_LAUNCH_FAILED|cudaErrorIllegalAddress"
            r"|cudaErrorLaunchFailure|hipErrorIllegalAddress|hipErrorLaunchFailure|Memory access fault by GPU node|Warp Illegal Address"
            r"|CUDA_ERROR_MISALIGNED_ADDRESS|cuda runtime error \((?:4|77|700|719)\)|\[CUDA\]: misaligned address"
            r"|HSA_STATUS_ERROR_(?:MEMORY_FAULT|EXCEPTION|MEMORY_APERTURE_VIOLATION)"
            r"|(?:CUDA|HIP) error: (?:misaligned address|unspecified launch failure|invalid program counter"
            r"|hardware stack error|an illegal instruction was encountered|the launch timed out and was terminated)"
        ),
        weight=0.93,
        remedy=START_AGAIN,
        fixes=(
            "Suspect custom kernels first: run without them, or under compute-sanitizer.",
            "If it moves from place to place and from batch to batch, suspect the GPU and read dmesg for Xid.",
        ),
        matches=(
            "RuntimeError: CUDA error: an illegal memory access was encountered",
            "torch.AcceleratorError: CUDA error: unspecified launch failure",
            "torch.AcceleratorError: CUDA error: the launch timed out and was terminated",
            "Memory access fault by GPU node-1 (Agent handle: 0x55d) on address 0x7f. Reason: Page not present",
        ),
        but_not=(
            "RuntimeError: CUDA error: invalid configuration argument",
            "RuntimeError: an unspecified launch failure",
        ),
        source="CUDA runtime API, error 700",
    ),
    Pattern(
        name="gpu-failed",
        says="The GPU reported a hardware error.",
        failure=FailureType.HARDWARE,
        fine="gpu_hardware",
        text=(
            r"uncorrectable ECC error|CUDA_ERROR_ECC_UNCORRECTABLE|fallen off the bus|NVRM: Xid|\bGPU is lost\b"
            r"|uncorrectable NVLink error|Unable to determine the device handle for GPU|CUDA_ERROR_NVLINK_UNCORRECTABLE|cudaErrorECCUncorrectable"
            r"|hipErrorECCNotCorrectable|\bSXid\b|double[- ]bit (?:ECC )?error|[Rr]ow remap\w* (?:failure|failed|pending)|RmInitAdapter failed"
            r"|GPU requires reset|uncontained (?:ECC|memory) error|\bXid \(PCI:|\[Hardware Error\]: [^\n]{0,60}uncorrect|HW Exception by GPU|GPU memory (?:page )?retire"
            r"|nvidia-smi has failed because it couldn't communicate|GPU (?:recovery|reset) (?:required|failed)"
        ),
        weight=0.97,
        remedy=ELSEWHERE,
        fixes=("Drain the machine and have it tested (dcgmi diag -r 3); read dmesg for the Xid number.",),
        matches=(
            "RuntimeError: CUDA error: uncorrectable ECC error encountered",
            "nvidia-nvswitch3: SXid (PCI:0000:c1:00.0): 20034, Fatal, Link 30 LTSSM Fault Up",
            "Unable to determine the device handle for GPU0000:1A:00.0: Unknown Error",
            "[ 1843.3] NVRM: Xid (PCI:0000:44:00): 79, GPU has fallen off the bus.",
        ),
        but_not=("nvidia-smi: ECC errors: 0", "Corrected error received: 0000:00:03.0"),
        source="NVIDIA Xid catalogue",
    ),
    Pattern(
        name="accelerator-halted",
        says="The accelerator stopped in the middle of a program.",
        failure=FailureType.HARDWARE,
        fine="gpu_hardware",
        text=r"Core halted unexpectedly|Accelerator device halted prematurely|TPU (?:worker|device|chip)[^\n]{0,40} (?:has )?(?:crashed|halted|failed)",
        weight=0.8,
        confirm="On other machines, or after a restart of the runtime, the same step passes; if it never does, it is the program.",
        remedy=ELSEWHERE,
        fixes=(
            "Restart the runtime or take another machine; if it stops at the same step again, suspect the program or the compiler.",
        ),
        matches=(
            "INTERNAL: Core halted unexpectedly: INTERNAL: Accelerator device halted prematurely, perhaps due to",
        ),
        but_not=("INFO: training halted at step 100",),
        source="OpenXLA and libtpu, as printed by JAX and PyTorch/XLA",
    ),
    Pattern(
        name="xid-of-the-program",
        says="The GPU reports a fault that the program running on it causes more often than the GPU itself.",
        failure=FailureType.CRASH,
        fine="illegal_memory_access",
        text=r"Xid \(PCI:[^)\n]{1,40}\): (?:13|31|43|45),",
        weight=0.9,
        confirm="It follows the program to another GPU; a broken GPU shows other numbers (48, 63, 64, 74, 79, 94, 95) as well.",
        remedy=START_AGAIN,
        fixes=(
            "Run on another GPU once, and without custom kernels: Xid 13, 31, 43 and 45 mostly come from the program.",
        ),
        matches=(
            "NVRM: Xid (PCI:0000:3b:00): 31, pid=1811, name=python, Ch 00000008, MMU Fault: ENGINE GRAPHICS GPCCLIENT",
        ),
        but_not=("NVRM: Xid (PCI:0000:3b:00): 79, GPU has fallen off the bus.",),
        source="NVIDIA Xid catalogue",
    ),
    Pattern(
        name="segmentation-fault",
        says="Native code crashed.",
        failure=FailureType.CRASH,
        fine="segfault",
        text=r"Segmentation fault|signal 11: SIGSEGV|signal 11 \(SIGSEGV\)|exit ?code\s*: -11\b|exit code 139\b|return code = -11\b",
        weight=0.88,
        remedy=START_AGAIN,
        fixes=(
            "Run with PYTHONFAULTHANDLER=1 to see where; two libraries built against different versions are usual.",
        ),
        matches=(
            "Process finished with exit code 139 (interrupted by signal 11: SIGSEGV)",
            "  exitcode  : -11 (pid: 12)\n  traceback : Signal 11 (SIGSEGV) received by PID 12",
        ),
        but_not=("segmentation loss 0.31", "step 139 exit code 0"),
        source="POSIX: 128 + 11",
    ),
)
