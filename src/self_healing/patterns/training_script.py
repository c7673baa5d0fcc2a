"""Arguments and code that cannot work. The rows about code know only printed tracebacks: raised exceptions get a retry first."""

from __future__ import annotations

from ..actions.restart_process import RestartProcess
from ..actions.stop_run import StopRun
from ..core.action import rung
from ..core.cause import Pattern
from ..core.failure import FailureType

GIVE_UP = (rung(StopRun()),)
START_AGAIN = (rung(RestartProcess(), success=0.3), rung(StopRun()))
RIVALS = (("cublas-does-not-fit", "code-raised"),)

PATTERNS: tuple[Pattern, ...] = (
    Pattern(
        name="arguments-refused",
        says="The command line or the configuration file holds something the program does not take.",
        failure=FailureType.CONFIG_ERROR,
        fine="config_error",
        text=(
            r"error: unrecognized arguments: |error: the following arguments are required: |error: argument \S+: "
            r"|arguments are not used by the HfArgumentParser|omegaconf\.errors\.\w+|hydra\.errors\.\w+|yaml\.(?:scanner|parser|constructor)\.\w+Error"
            r"|\d+ validation errors? for \w+|pydantic\w*\.\w*ValidationError|ConfigAttributeError|InterpolationKeyError"
            r"|is not a valid \w+, please select one of|no such option: |Missing mandatory value|Could not override '"
        ),
        weight=0.9,
        remedy=GIVE_UP,
        fixes=(
            "Correct the argument or key that the message names; --help, or the documentation of this version, lists them.",
        ),
        matches=(
            "train.py: error: unrecognized arguments: --local-rank=0",
            "ERROR omegaconf.errors.ConfigAttributeError: Key 'optimzer' is not in struct",
            "ValueError: Some specified arguments are not used by the HfArgumentParser: ['--evaluation_strategy', 'steps']",
            "ValueError: 'cosin' is not a valid SchedulerType, please select one of ['linear', 'cosine']",
        ),
        but_not=("DeprecationWarning: argument `tokenizer` is deprecated",),
        source="argparse, transformers hf_argparser.py, OmegaConf, Hydra, PyYAML, pydantic",
    ),
    Pattern(
        name="settings-contradict",
        says="Settings contradict each other.",
        failure=FailureType.CONFIG_ERROR,
        fine="config_error",
        text=(
            r"--load_best_model_at_end requires|mutually exclusive|must be divisible by (?:the )?(?:tensor|pipeline|model|num_heads|number of heads|attention|world)"
            r"|(?:fp16|half precision|FP16) (?:mixed precision )?(?:training )?requires|(?:fp16|half precision)[^\n]{0,120} can only be used|--fp16 and --bf16|At most one of fp16 and bf16"
            r"|does not implement `?__len__|max_steps must be given|requires? max_steps|cannot be used together"
            r"|requires an? (?:eval|evaluation) dataset|Trainer: (?:evaluation|training) requires|set `?remove_unused_columns|but got num_samples=0"
            r"|embed_dim must be divisible by num_heads|hidden size \(\d+\) is not a multiple of|Invalid (?:value|configuration)[^\n]{0,60}(?:batch|accumulation)"
            r"|(?:train|micro|mini|global|total|eval)[_ ]batch[_ ]size[^\n]{0,60}(?:divisible by|multiple of)|call `tokenizer\.padding_side"
        ),
        weight=0.8,
        remedy=GIVE_UP,
        fixes=("Change one of the two settings that the message names.",),
        matches=(
            "ValueError: --load_best_model_at_end requires the save and eval strategy to match, but found",
            "ValueError: At most one of fp16 and bf16 can be True, but not both",
            "ValueError: FP16 Mixed precision training (`--fp16`) and half precision evaluation can only be used on CUDA devices.",
            "ValueError: num_samples should be a positive integer value, but got num_samples=0",
            "AssertionError: embed_dim must be divisible by num_heads",
            "AssertionError: real_train_batch_size (60) must be divisible by minimal possible batch size (8)",
        ),
        but_not=("ValueError: generation_batch_size (6) must be divisible by num_generations (4).",),
        source="transformers training_args.py and trainer.py, PyTorch sampler.py, verl ray_trainer.py",
    ),
    Pattern(
        name="lightning-refuses-the-settings",
        says="Lightning refuses how the trainer or the module is set up.",
        failure=FailureType.CONFIG_ERROR,
        fine="config_error",
        text=r"MisconfigurationException\b",
        weight=0.7,
        remedy=GIVE_UP,
        fixes=("Change the Trainer argument, or add the method of the module, that the message names.",),
        matches=(
            "[rank0]: lightning.pytorch.utilities.exceptions.MisconfigurationException: No `configure_optimizers()` method defined.",
        ),
        but_not=("ValueError: misconfiguration of the exception hook",),
        source="Lightning, fabric/utilities/exceptions.py",
    ),
    Pattern(
        name="model-and-data-do-not-fit",
        says="The columns of the data are not what the model or the trainer takes.",
        failure=FailureType.CONFIG_ERROR,
        fine="config_error",
        text=(
            r"The model did not return a loss from the inputs|No columns in the dataset match the model's forward"
            r"|Column(?: name)? \S{1,80} not in the dataset|Columns? \[?['\w, ]{1,200}\]? (?:not|aren't) in|Column to remove"
            r"|You have to specify either (?:input_ids|decoder_input_ids)|Invalid keys? in the dataset"
            r"|dataset (?:should|must) (?:have|contain) (?:a|the|columns?)|Unknown split \""
        ),
        weight=0.87,
        remedy=GIVE_UP,
        fixes=(
            "Rename or map the columns: labels for a loss, prompt/chosen/rejected for DPO, prompt for GRPO.",
            "Set remove_unused_columns: false where the collator needs columns that forward does not take.",
        ),
        matches=(
            "ValueError: The model did not return a loss from the inputs, only the following keys: logits. For reference, the inputs",
            "ValueError: Column name ['labels'] not in the dataset. Current columns in the dataset: ['text']",
        ),
        but_not=("KeyError: 'labels'",),
        source="transformers trainer.py, datasets arrow_dataset.py",
    ),
    Pattern(
        name="too-many-open-files",
        says="The process may not open more files, which data workers use to pass tensors.",
        failure=FailureType.CONFIG_ERROR,
        fine="config_error",
        text=r"Too many open files|received 0 items of ancdata|\[Errno 24\]",
        weight=0.9,
        remedy=GIVE_UP,
        fixes=(
            "ulimit -n 65536, or torch.multiprocessing.set_sharing_strategy('file_system'); fewer workers help too.",
        ),
        matches=("OSError: [Errno 24] Too many open files", "RuntimeError: received 0 items of ancdata"),
        but_not=("INFO: opened many files",),
        source="errno(3); PyTorch notes on multiprocessing",
    ),
    Pattern(
        name="script-missing",
        says="Python was told to run a script that is not there.",
        failure=FailureType.CONFIG_ERROR,
        fine="config_error",
        text=r"python[\d.]{0,8}: can't open file '[^'\n]{1,400}': \[Errno \d",
        weight=0.9,
        remedy=GIVE_UP,
        fixes=("Correct the path of the script; relative ones start at the folder the run is started in.",),
        matches=("/usr/bin/python3.11: can't open file '/home/me/trian.py': [Errno 2] No such file or directory",),
        but_not=("WARNING: can't open file 'cache.bin', it is written anew",),
        source="CPython pythonrun.c",
    ),
    Pattern(
        name="file-missing",
        says="A file or folder that the run needs is not there.",
        failure=FailureType.CONFIG_ERROR,
        fine="config_error",
        text=r"FileNotFoundError: |can't open file '|NotADirectoryError: |IsADirectoryError: |DataFilesNotFoundError: ",
        weight=0.56,
        remedy=GIVE_UP,
        fixes=("Correct the path; relative ones start at the folder the run is started in.",),
        matches=("Traceback\nFileNotFoundError: [Errno 2] No such file or directory: 'train.jsonl'",),
        but_not=("INFO: file not found in the cache, downloading",),
        source="CPython, errno(3)",
    ),
    Pattern(
        name="model-name-unknown",
        says="The name is neither a folder here nor a repository that can be seen on the Hub.",
        failure=FailureType.CONFIG_ERROR,
        fine="config_error",
        text=(
            r"is not a local folder and is not a valid model identifier|Repo id must (?:be in the form|use alphanumeric)"
            r"|HFValidationError: |Can't load (?:tokenizer|config|feature extractor|image processor|the model|the configuration)[^\n]{0,20} (?:for|of) '"
            r"|does not appear to have a file named|Unrecognized (?:model in|configuration class)|DatasetNotFoundError: "
        ),
        weight=0.75,
        remedy=GIVE_UP,
        fixes=(
            "Correct the name or path; a private or gated repository looks the same until you log in with hf auth login.",
            "A folder of that name in the working folder hides the repository.",
        ),
        matches=(
            "OSError: meta-llama/Lama-2 is not a local folder and is not a valid model identifier listed on 'https://huggingface.co/models'",
            "huggingface_hub.errors.HFValidationError: Repo id must be in the form 'repo_name' or 'namespace/repo_name': '/data/m'",
        ),
        but_not=("OSError: We couldn't connect to 'https://huggingface.co' to load the files",),
        source="transformers utils/hub.py, huggingface_hub utils/_validators.py",
    ),
    Pattern(
        name="spawned-without-main-guard",
        says="The script starts processes while it is imported by one of them.",
        failure=FailureType.CRASH,
        fine="script_error",
        text=r"before the current process has finished its bootstrapping phase|Can't pickle (?:local object|<function|<class)",
        weight=0.9,
        remedy=GIVE_UP,
        fixes=(
            'Put what starts the run under if __name__ == "__main__":, and functions for workers at the top of a module.',
        ),
        matches=(
            "RuntimeError: An attempt has been made to start a new process before the current process has finished its bootstrapping phase.",
            "AttributeError: Can't pickle local object 'main.<locals>.collate'",
        ),
        but_not=("_pickle.UnpicklingError: pickle data was truncated",),
        source="CPython, multiprocessing/spawn.py",
    ),
    Pattern(
        name="code-raised",
        says="The code of the program raised an error of its own.",
        failure=FailureType.CRASH,
        fine="script_error",
        text=(
            r"(?m:^[^\n]{0,60}\b(?:NameError|UnboundLocalError|SyntaxError|IndentationError|TabError|ZeroDivisionError|AssertionError"
            r"|KeyError|IndexError|NotImplementedError|RecursionError|StopIteration|UnicodeDecodeError|JSONDecodeError"
            r"|TypeError|AttributeError|ValueError|RuntimeError|OverflowError|ImportError)(?::|\s{0,4}$))"
            r"|attempted relative import with no known parent package|CUDA error: invalid (?:configuration argument|argument)"
        ),
        weight=0.51,
        remedy=START_AGAIN,
        fixes=("Read the last lines of the traceback above the error, and correct the code or the value it names.",),
        matches=(
            "Traceback (most recent call last):\n  File \"train.py\", line 3, in <module>\nNameError: name 'modle' is not defined",
            "[rank2]: KeyError: 'pixel_values'",
        ),
        but_not=("INFO: 3 KeyErrors were ignored", "Traceback (most recent call last):"),
        source="CPython, built-in exceptions",
    ),
)
