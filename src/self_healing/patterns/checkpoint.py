"""A checkpoint cannot be read, or does not belong to this model."""

from __future__ import annotations

from ..actions.roll_back import RollBack
from ..actions.stop_run import StopRun
from ..core.action import rung
from ..core.cause import Pattern
from ..core.failure import FailureType

AN_OLDER_ONE = (
    rung(RollBack(depth=1), success=0.8),
    rung(RollBack(depth=2), success=0.6),
    rung(StopRun()),
)
GIVE_UP = (rung(StopRun()),)
BROKEN = ("The file was cut short, often by a full disk or a kill while saving: resume from the checkpoint before it.",)

PATTERNS: tuple[Pattern, ...] = (
    Pattern(
        name="safetensors-corrupt",
        says="A safetensors file is damaged or incomplete.",
        failure=FailureType.CHECKPOINT,
        fine="checkpoint_corrupt",
        text=r"Error while deserializing header|SafetensorError: (?:invalid|device|file)|MetadataIncompleteBuffer|HeaderTooLarge|HeaderTooSmall|InvalidHeader|InvalidOffset|TensorInvalidInfo",
        weight=0.95,
        remedy=AN_OLDER_ONE,
        fixes=BROKEN,
        matches=(
            "safetensors.SafetensorError: Error while deserializing header: incomplete metadata, file not fully covered",
            "safetensors_rust.SafetensorError: Error while deserializing header: MetadataIncompleteBuffer",
        ),
        but_not=("OSError: Error no file named model.safetensors found in directory /out",),
        source="safetensors, as raised for damaged files",
    ),
    Pattern(
        name="torch-file-corrupt",
        says="A file written by torch.save is damaged, empty or incomplete.",
        failure=FailureType.CHECKPOINT,
        fine="checkpoint_corrupt",
        text=(
            r"PytorchStreamReader failed|failed finding central directory|EOFError: Ran out of input|^Ran out of input"
            r"|unexpected EOF, expected \d+ more bytes|invalid header or archive is corrupted|invalid load key, |pickle data was truncated"
            r"|unpickling stack underflow|Invalid magic number; corrupt file|File is not a zip file|file in archive is not in a subdirectory"
            r"|Unable to load weights from (?:pytorch )?checkpoint|storage has wrong (?:byte )?size|not a ZIP archive|file not found: archive"
            r"|Consistency check failed: file should be of size|(?:checkpoint|model|weights?)\b[^\n]{0,80} (?:is|are|appears? to be) (?:corrupt|incomplete|truncated)"
            r"|DataLossError|truncated record at|Checksum does not match|file is too short to be an sstable|truncated file: eof"
            r"|JSONDecodeError[\s\S]{0,200}(?:load_from_json|trainer_state)|(?:load_from_json|trainer_state\.json)[\s\S]{0,250}JSONDecodeError"
            r"|file signature not found|_pickle\.UnpicklingError: (?:invalid|unpickling|could|A load)|BadZipFile"
        ),
        weight=0.95,
        remedy=AN_OLDER_ONE,
        fixes=BROKEN,
        matches=(
            "RuntimeError: PytorchStreamReader failed reading zip archive: failed finding central directory",
            "EOFError: Ran out of input",
            "_pickle.UnpicklingError: invalid load key, 'v'.",
            "zipfile.BadZipFile: File is not a zip file",
            "OSError: Unable to open file (truncated file: eof = 96, sblock->base_addr = 0, stored_eof = 2048)",
            "OSError: Consistency check failed: file should be of size 4976698672 but has size 1203 (model-00001-of-00004.safetensors).",
            "RuntimeError: unexpected EOF, expected 4096 more bytes. The file might be corrupted.",
        ),
        but_not=("RuntimeError: PytorchStreamWriter failed writing file data/176: file write failed",),
        source="PyTorch, caffe2/serialize/inline_container.cc",
    ),
    Pattern(
        name="checkpoint-of-another-model",
        says="The checkpoint does not belong to this model, optimizer or version.",
        failure=FailureType.CHECKPOINT,
        fine="resume_failure",
        text=(
            r"loaded state dict contains a parameter group|loaded state dict has a different number of parameter groups"
            r"|Error\(s\) in loading state_dict for|size mismatch for \S+: copying a param|Weights only load failed"
            r"|(?:Missing|Unexpected) key\(s\) in state_dict|Missing key in checkpoint state_dict|(?:Key|Tensor name) \S+ not found in checkpoint"
            r"|used a DP world size of \d+ but the current world size|RNG state must be a torch\.ByteTensor|WeightsUnpickler error"
            r"|param 'initial_lr' is not specified|ignore_mismatched_sizes|Assign requires shapes of both tensors to match"
            r"|CheckpointException|Failed to load checkpoint|Unsupported global: GLOBAL|KeyError: '(?:\w{0,20}(?:optimizer|state_dict|scheduler)\w{0,20}|param_groups|global_step|loops|(?:start_)?epoch)'"
            r"|world size[^\n]{0,80}(?:changed|different|mismatch)[^\n]{0,60}(?:checkpoint|resum)|cannot resume|(?:unable|failed) to resume"
            r"|incompatible (?:with the )?checkpoint|Checkpoint was saved with|value from checkpoint \([^)\n]{1,60}\) is not equal to|Trying to restore \w{1,20}(?: \w{1,20})? state but checkpoint contains only|wrong number of (?:parameter groups|saved tensors)"
        ),
        weight=0.93,
        remedy=GIVE_UP,
        fixes=(
            "Resume with the configuration and library versions the checkpoint was written with.",
            "After freezing or adding parameters, load the weights only and start the optimizer anew.",
        ),
        matches=(
            "ValueError: loaded state dict contains a parameter group that doesn't match the size of optimizer's group",
            (
                "RuntimeError: Error(s) in loading state_dict for LlamaForCausalLM:\n\tsize mismatch for lm_head.weight: copying "
                "a param with shape torch.Size([32000, 4096]) from checkpoint"
            ),
            "KeyError in step 0: Missing key in checkpoint state_dict: optimizer.param_groups.0.decoupled_weight_decay.",
            "TypeError: RNG state must be a torch.ByteTensor",
            "AssertionError: hidden_size value from checkpoint (4096) is not equal to the input argument value (5120).",
            "KeyError: 'Trying to restore optimizer state but checkpoint contains only the model.'",
            "_pickle.UnpicklingError: Weights only load failed. Re-running torch.load with weights_only set to False",
        ),
        but_not=("RuntimeError: mat1 and mat2 shapes cannot be multiplied (4x16 and 8x16)",),
        source="PyTorch, torch/optim/optimizer.py and torch/nn/modules/module.py",
    ),
    Pattern(
        name="checkpoint-missing",
        says="There is no checkpoint where one was asked for.",
        failure=FailureType.CHECKPOINT,
        fine="resume_failure",
        text=(
            r"No valid checkpoint found in output directory|Can't find a valid checkpoint at"
            r"|Error no file named (?:model\.safetensors|pytorch_model\.bin)|Client provided checkpoint load path: \S+ does not exist"
            r"|FileNotFoundError: [^\n]{0,200}(?:checkpoint-\d+|trainer_state\.json|optimizer\.pt|\.ckpt|global_step_?\d+|mp_rank_\d+|optim_states|\.distcp|\.metadata)"
            r"|[Cc]heckpoint (?:at )?\S{1,200} (?:not found|does not exist)|No checkpoints? found (?:at|in)|Unable to find (?:a )?(?:valid )?(?:latest|checkpoint)"
        ),
        weight=0.94,
        remedy=GIVE_UP,
        fixes=("Start without resume_from_checkpoint, or point it to a folder that holds one.",),
        matches=(
            "ValueError: No valid checkpoint found in output directory (./output)",
            "OSError: Error no file named model.safetensors found in directory ./output/checkpoint-500.",
            "ERROR FileNotFoundError: [Errno 2] No such file or directory: 'out/global_step500/zero_pp_rank_3_mp_rank_00_optim_states.pt'",
        ),
        but_not=("FileNotFoundError: [Errno 2] No such file or directory: 'train.jsonl'",),
        source="transformers, trainer.py and modeling_utils.py",
    ),
    Pattern(
        name="failed-while-resuming",
        says="The run failed while it took up the state of a checkpoint.",
        failure=FailureType.CHECKPOINT,
        fine="resume_failure",
        text=(
            r", in (?:load_state_dict|_load_optimizer_and_scheduler|_load_from_checkpoint|_load_rng_state|load_checkpoint"
            r"|resume_from_checkpoint|restore_training_state|restore_optimizers\w*|restore_model|_restore_checkpoint|_load_checkpoint)\b"
        ),
        weight=0.6,
        remedy=GIVE_UP,
        fixes=(
            "Resume with the configuration and library versions the checkpoint was written with.",
            "Load the weights only and start the optimizer anew.",
        ),
        matches=('  File "torch/optim/adam.py", line 120, in load_state_dict\nIndexError: list index out of range',),
        but_not=("INFO: load_state_dict took 2 s",),
        source="tracebacks of PyTorch, transformers, Lightning and DeepSpeed",
    ),
    Pattern(
        name="lfs-pointer",
        says="A file is only Git LFS's note of where the real one is.",
        failure=FailureType.CHECKPOINT,
        fine="lfs_pointer",
        text=r"version https://git-lfs\.github\.com/spec/v1",
        weight=0.96,
        remedy=GIVE_UP,
        fixes=("git lfs install && git lfs pull in the repository, or download the file from its page.",),
        matches=("version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 4976698672",),
        but_not=("Cloning https://github.com/git-lfs/git-lfs",),
        source="https://github.com/git-lfs/git-lfs/blob/main/docs/spec.md",
    ),
)
