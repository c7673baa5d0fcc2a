"""DDP, FSDP and DeepSpeed: the model, or its configuration, does not fit the way it is spread over processes."""

from __future__ import annotations

from ..actions.stop_run import StopRun
from ..core.action import rung
from ..core.cause import Pattern
from ..core.failure import FailureType

GIVE_UP = (rung(StopRun()),)

PATTERNS: tuple[Pattern, ...] = (
    Pattern(
        name="parameters-sharded",
        says="Code outside the wrapped forward pass uses a weight of which this process holds only a flat piece, or none.",
        failure=FailureType.CONFIG_ERROR,
        fine="fsdp_param_shape",
        text=(
            r"Must flatten tensors (?:with uniform|on the same)|has a non-zero number of elements, but its data is not allocated"
            r"|setStorage: sizes[^\n]{0,200}out of bounds for storage of size 0|got mixed torch\.Tensor and DTensor"
            r"|ZeroParamStatus\.|object has no attribute 'ds_\w+'|is invalid for input of size 0\b"
            r"|expected shape compatible with \[0\]|must be a matrix, got 1-D tensor|FlatParameter[^\n]{0,80}(?:size|shape|mismatch|requires uniform)|mat \(\d+x\d+\), vec \(0\)"
            r"|The size of tensor a \(0\) must match|weight should have at least three dimensions"
            r"|(?:inflight|in-flight) params|Expects? (?:the )?(?:flat|sharded) param"
        ),
        weight=0.93,
        remedy=GIVE_UP,
        fixes=(
            "Call the wrapped model, not a part of it; to read a weight use FSDP.summon_full_params or deepspeed.zero.GatheredParameters.",
            "Set fsdp_version: 2 or fsdp_use_orig_params: true; LoRA on frozen layers needs one of them.",
            "Start with the launcher (accelerate launch, torchrun, deepspeed), also on one GPU.",
        ),
        matches=(
            "ValueError: Must flatten tensors with uniform dtype but got torch.bfloat16 and torch.float32",
            "RuntimeError: The tensor has a non-zero number of elements, but its data is not allocated yet.",
            "RuntimeError: aten.mm.default: got mixed torch.Tensor and DTensor, need to convert all torch.Tensor to DTensor",
            "RuntimeError: setStorage: sizes [4096, 4096], strides [1, 4096] are out of bounds for storage of size 0",
        ),
        but_not=("RuntimeError: shape '[2, 8]' is invalid for input of size 12",),
        source="PyTorch, torch/distributed/fsdp/_flat_param.py; DeepSpeed, runtime/zero",
    ),
    Pattern(
        name="recomputation-state-lost",
        says="Gradient checkpointing and the way the model is wrapped get in each other's way.",
        failure=FailureType.CONFIG_ERROR,
        fine="checkpoint_recompute",
        text=(
            r"Recomputed values for the following tensors have different metadata|triggered for a tensor that was already unpacked once"
            r"|Checkpointing is not compatible with \.grad\(\)|torch\.utils\.checkpoint: (?:trying|Unpack|Recomputed|A different)"
        ),
        weight=0.94,
        remedy=GIVE_UP,
        fixes=(
            "Set use_reentrant in gradient_checkpointing_kwargs to the other value.",
            "Make the forward pass the same the second time: no state that it changes, the same autocast, the same kernels.",
        ),
        matches=(
            "RuntimeError: torch.utils.checkpoint: Recomputed values for the following tensors have different metadata than during",
            "RuntimeError: torch.utils.checkpoint: Unpack is being triggered for a tensor that was already unpacked once.",
        ),
        but_not=("ValueError: Attempting to checkpoint an optimizer",),
        source="PyTorch, torch/utils/checkpoint.py",
    ),
    Pattern(
        name="ddp-parameters-unused",
        says="DDP waits for gradients of weights that this step did not use, or got one twice.",
        failure=FailureType.CONFIG_ERROR,
        fine="config_error",
        text=(
            r"Expected to have finished reduction in the prior iteration|Expected to mark a variable ready only once"
            r"|DDP expects same model across all ranks|parameters that were not used in producing the loss"
        ),
        weight=0.91,
        remedy=GIVE_UP,
        fixes=(
            "Set ddp_find_unused_parameters: true, or freeze what the loss does not use.",
            "`ready only once` with gradient checkpointing: use_reentrant: false, and ddp_find_unused_parameters: false.",
        ),
        matches=(
            "RuntimeError: Expected to have finished reduction in the prior iteration before starting a new one.",
            "RuntimeError: Expected to mark a variable ready only once. This error is caused by one of the following reasons:",
        ),
        but_not=("INFO: Reducer buckets have been rebuilt in this iteration.",),
        source="PyTorch, torch/csrc/distributed/c10d/reducer.cpp",
    ),
    Pattern(
        name="deepspeed-configuration",
        says="The DeepSpeed configuration contradicts itself or the trainer's arguments.",
        failure=FailureType.CONFIG_ERROR,
        fine="config_error",
        text=(
            r"correct the following DeepSpeed config values that mismatch|Check batch related parameters\. train_batch_size"
            r"|DeepSpeed Zero-?3 is not compatible with|DeepSpeedConfigError|zero stage \d requires|ZeRO-?3? is incompatible with"
            r"|Expected a string path to an existing deepspeed config|DeepSpeed is not compatible with|is not a deepspeed config"
        ),
        weight=0.92,
        remedy=GIVE_UP,
        fixes=(
            'Write "auto" for batch sizes, accumulation, rate and precision in the DeepSpeed file: the trainer fills them in.',
            "With ZeRO-3 leave out device_map and low_cpu_mem_usage.",
        ),
        matches=(
            "ValueError: Please correct the following DeepSpeed config values that mismatch TrainingArguments values:",
            (
                "AssertionError: Check batch related parameters. train_batch_size is not equal to micro_batch_per_gpu * "
                "gradient_acc_step * world_size 32 != 4 * 1 * 2"
            ),
        ),
        but_not=("[INFO] [config.py:997:print] DeepSpeedEngine configuration:",),
        source="DeepSpeed, runtime/config.py; transformers, integrations/deepspeed.py",
    ),
    Pattern(
        name="process-group-not-set-up",
        says="The processes were not started or set up as a group.",
        failure=FailureType.CONFIG_ERROR,
        fine="config_error",
        text=(
            r"Default process group has not been initialized|environment variable (?:RANK|WORLD_SIZE|MASTER_ADDR|MASTER_PORT) expected"
            r"|trying to initialize the default process group twice|invalid device ordinal"
            r"|Cannot re-initialize CUDA in forked subprocess|CUDA_ERROR_INVALID_DEVICE|Invalid device id"
        ),
        weight=0.93,
        remedy=GIVE_UP,
        fixes=(
            "Start with torchrun or accelerate launch, with no more processes per node than nvidia-smi lists GPUs.",
            "Call torch.cuda.set_device(int(os.environ['LOCAL_RANK'])) before the first use of CUDA.",
            "Workers that touch CUDA need multiprocessing_context='spawn'; better keep tensors of a dataset on the CPU.",
        ),
        matches=(
            "ValueError: Default process group has not been initialized, please make sure to call init_process_group.",
            "RuntimeError: CUDA error: invalid device ordinal",
            "RuntimeError: Cannot re-initialize CUDA in forked subprocess. To use CUDA with multiprocessing, you must use 'spawn'",
        ),
        but_not=("INFO: process group initialized",),
        source="PyTorch, torch/distributed/distributed_c10d.py and torch/cuda/__init__.py",
    ),
    Pattern(
        name="quantized-or-mapped-model-not-trainable",
        says="A model loaded in 4 or 8 bits, or spread by device_map, cannot be trained as it is.",
        failure=FailureType.CONFIG_ERROR,
        fine="config_error",
        text=(
            r"You cannot perform fine-tuning on purely quantized models|can't train a model that has been loaded"
            r"|Target modules? \S[^\n]{0,300}not found in the base model|is not supported for `?(?:8|4)-?bit|`?\.to`? is not supported for"
            r"|Please specify `?target_modules"
        ),
        weight=0.92,
        remedy=GIVE_UP,
        fixes=(
            "Attach adapters (peft_config) to a quantized model; name target_modules that exist, or all-linear.",
            "Load with device_map={'': local_rank}, one GPU per process.",
        ),
        matches=(
            "ValueError: You cannot perform fine-tuning on purely quantized models. Please attach trainable adapters on top",
            "ValueError: Target modules {'c_attn'} not found in the base model. Please check the target modules and try again.",
            "ValueError: You can't train a model that has been loaded in 8-bit or 4-bit precision on a different device than",
        ),
        but_not=("INFO: loaded the base model in 4-bit",),
        source="transformers trainer_utils, accelerate/accelerator.py, peft/tuners/tuners_utils.py",
    ),
)
