"""Something the program needs is not installed, or installed in a version that does not fit the others."""

from __future__ import annotations

from ..actions.stop_run import StopRun
from ..core.action import rung
from ..core.cause import Pattern
from ..core.failure import FailureType

GIVE_UP = (rung(StopRun()),)
INSTALL = (
    "Install what the message names into the environment of the run: python -m pip install NAME, with the same python.",
    "python -m pip list | grep -i NAME tells whether it is there, and whether two environments are mixed up.",
)
ALIGN = (
    "python -m pip install -U transformers trl peft accelerate datasets, or pin the versions the script was written for.",
    "Read the change log of the library named: arguments and classes are renamed and removed between releases.",
)
REBUILD = (
    "Install torch first, then build or reinstall the extension against it: pip install --no-build-isolation --force-reinstall.",
)
LIBRARIES = (
    "transformers|torch|torchvision|torchaudio|trl|peft|accelerate|datasets|tokenizers|huggingface_hub|diffusers|deepspeed"
    "|flash_attn|xformers|bitsandbytes|triton|vllm|numpy|scipy|pandas|pyarrow|keras|tensorflow|jax|flax|lightning"
    "|pytorch_lightning|torchmetrics|timm|mmcv|mmengine|apex|wandb|ray|unsloth|liger_kernel|sklearn|optimum|megatron"
)

PATTERNS: tuple[Pattern, ...] = (
    Pattern(
        name="module-missing",
        says="A Python package that is needed is not installed.",
        failure=FailureType.CONFIG_ERROR,
        fine="missing_dependency",
        text=r"No module named ['\"]?\w+|DistributionNotFound: |PackageNotFoundError: |No package metadata was found for",
        weight=0.86,
        remedy=GIVE_UP,
        fixes=INSTALL,
        matches=(
            "ModuleNotFoundError: No module named 'einops'",
            "/usr/bin/python3: No module named torch.distributed.run",
            "importlib.metadata.PackageNotFoundError: No package metadata was found for bitsandbytes",
        ),
        but_not=("RuntimeError: the module has no parameters",),
        source="CPython, importlib",
    ),
    Pattern(
        name="submodule-missing",
        says="A library is installed in a version that lacks, or no longer has, a part the program imports.",
        failure=FailureType.CONFIG_ERROR,
        fine="version_mismatch",
        text=rf"No module named '(?:{LIBRARIES})\.[\w.]+'",
        weight=0.9,
        remedy=GIVE_UP,
        fixes=ALIGN,
        matches=(
            "ModuleNotFoundError: No module named 'transformers.deepspeed'",
            "ModuleNotFoundError: No module named 'torch._six'",
        ),
        but_not=("ModuleNotFoundError: No module named 'mypackage.data'",),
        source="CPython, importlib; modules that moved between releases",
    ),
    Pattern(
        name="optional-package-missing",
        says="A feature was asked for whose package is not installed.",
        failure=FailureType.CONFIG_ERROR,
        fine="missing_dependency",
        text=(
            r"requires the \S+(?: \S+)? library,? but it was not found|seems to be not installed"
            r"|requires the following packages that were not found|requires? (?:the latest version of )?`?accelerate"
            r"|You need to have sentencepiece|need to install the following dependencies|Unable to import required dependencies"
            r"|\bis not installed[.,]? (?:Please|You can|Try|Run|Use)|(?:Please|You need to|need to|must) (?:pip )?install `?[\w-]+`?"
            r" (?:to use|with|via|first|using|package|library|in order)|Missing optional dependency"
            r"|is (?:required|needed)[^.\n]{0,80} but (?:is |was )?not (?:installed|found)|cannot import name '\w+Tokenizer(?:Fast)?'"
            r"|Could not import \w+ python package|(?:Please|need to|Try) run:?\s{0,4}`?pip3? install"
            r"|NameError: name '(?:flash_attn|xformers|bnb|bitsandbytes|deepspeed|apex|amp_C|mamba)\w*' is|requires \S{1,60} to be installed|install it using `?pip|(?m:^[^\n]{0,80}Error: [^\n]{0,250}pip3? install)"
        ),
        weight=0.89,
        remedy=GIVE_UP,
        fixes=INSTALL,
        matches=(
            "ImportError: \nT5Tokenizer requires the SentencePiece library but it was not found in your environment.",
            (
                "ImportError: FlashAttention2 has been toggled on, but it cannot be used due to the following error: the "
                "package flash_attn seems to be not installed."
            ),
            "ImportError: Using the `Trainer` with `PyTorch` requires `accelerate>=1.1.0`: Please run `pip install transformers[torch]`",
            "ValueError: Couldn't instantiate the backend tokenizer. You need to have sentencepiece or tiktoken installed",
            "ImportError: cannot import name 'XLMRobertaTokenizer' from 'transformers.models.xlm_roberta'",
            "ImportError: Please install tensorboardX to use this logger",
        ),
        but_not=(
            "INFO: apex is not installed",
            "ImportError: cannot import name 'top_k_top_p_filtering' from 'transformers'",
        ),
        source="transformers, utils/import_utils.py",
    ),
    Pattern(
        name="system-library-missing",
        says="A library or program of the operating system is missing.",
        failure=FailureType.CONFIG_ERROR,
        fine="missing_dependency",
        text=(
            r"(?m:^|Error: )(?:\S{0,200}/)?lib[\w+.-]+: cannot open shared object file|: command not found\b"
            r"|or one of its dependencies|WinError 126|DLL load failed"
        ),
        weight=0.84,
        remedy=GIVE_UP,
        fixes=("Install the system package that holds the file named, for example with apt-get install.",),
        matches=(
            "ImportError: libGL.so.1: cannot open shared object file: No such file or directory",
            "launch.sh: line 3: deepspeed: command not found",
            "ImportError: DLL load failed while importing _imaging: The specified module could not be found.",
        ),
        but_not=("OSError: cannot open shared object 7",),
        source="dlopen(3), POSIX shells, Windows error 126",
    ),
    Pattern(
        name="name-gone-from-library",
        says="A name the program imports does not exist in the installed version of a library.",
        failure=FailureType.CONFIG_ERROR,
        fine="version_mismatch",
        text=r"cannot import name ['\"]?\w+['\"]?|ImportError: cannot import",
        weight=0.85,
        remedy=GIVE_UP,
        fixes=ALIGN,
        matches=(
            "ImportError: cannot import name 'top_k_top_p_filtering' from 'transformers' (/env/transformers/__init__.py)",
        ),
        but_not=("ImportError: attempted relative import with no known parent package",),
        source="CPython, ceval.c",
    ),
    Pattern(
        name="attribute-of-a-library-gone",
        says="A function or attribute the program uses does not exist in the installed version of a library.",
        failure=FailureType.CONFIG_ERROR,
        fine="version_mismatch",
        text=(
            r"module '[\w.]+' has no attribute '\w+'|was a deprecated alias for the builtin|was removed in the NumPy 2\.0 release"
            r"|'\w{0,40}(?:Config|Trainer|Arguments|Accelerator|Tokenizer|TokenizerFast|Processor|ForCausalLM|LMHeadModel"
            r"|ForConditionalGeneration|Model|Cache|Scheduler|Strategy|Optimizer|AdamW?)' object has no attribute '\w+'"
        ),
        weight=0.72,
        remedy=GIVE_UP,
        fixes=ALIGN,
        matches=(
            "AttributeError: module 'numpy' has no attribute 'float'.",
            "AttributeError: 'DynamicCache' object has no attribute 'seen_tokens'",
        ),
        but_not=("AttributeError: 'NoneType' object has no attribute 'shape'",),
        source="CPython; NumPy 1.24 and 2.0 release notes",
    ),
    Pattern(
        name="argument-unknown",
        says="A function of a library does not know an argument it is given: the versions do not fit together.",
        failure=FailureType.CONFIG_ERROR,
        fine="version_mismatch",
        text=(
            r"got an unexpected keyword argument|takes (?:from )?\d+ (?:to \d+ )?positional arguments? but \d+ (?:was|were) given"
            r"|(?:Attention|Embedding|Layer|Model|Trainer|ForCausalLM|Tokenizer|Config|Accelerator|Optimizer|Scheduler|Callback|Arguments)\w{0,20}\.\w{1,30}\(\) missing \d+ required"
        ),
        weight=0.78,
        remedy=GIVE_UP,
        fixes=ALIGN,
        matches=(
            "TypeError: TrainingArguments.__init__() got an unexpected keyword argument 'evaluation_strategy'",
            "TypeError: training_step() takes 3 positional arguments but 4 were given",
        ),
        but_not=("error: unrecognized arguments: --local-rank=0",),
        source="CPython, ceval.c",
    ),
    Pattern(
        name="versions-do-not-fit",
        says="A library says that another one is too old or too new for it.",
        failure=FailureType.CONFIG_ERROR,
        fine="version_mismatch",
        text=(
            r"is required for a normal functioning of this module|does not recognize this architecture|VersionConflict: "
            r"|Tokenizer class \w+ does not exist or is not currently imported|data did not match any variant of untagged enum"
            r"|Descriptors cannot (?:not )?be created directly|require users to upgrade torch to at least"
            r"|requires (?:a )?(?:newer|different|higher) (?:version|Python)|requires (?:PyTorch|torch|transformers) ?(?:>=|==|<)"
            r"|(?:please|try) (?:upgrade|update|downgrade) (?:your )?`?(?:torch|pytorch|transformers|trl|peft|accelerate|bitsandbytes)"
            r"|requires version [\d.]+|configuration_auto\.py[\s\S]{0,250}KeyError: '"
            r"|KeyError: '(?:m?llama|qwen[\w.]*|mistral\w*|mixtral|gemma\w*|phi\w*|deepseek\w*|glm\w*|internlm\w*|cohere\w*|falcon\w*|gpt_\w+"
            r"|olmo\w*|granite\w*|starcoder\w*|smollm\w*|bloom|opt|mpt|stablelm\w*|nemotron\w*|jamba|mamba\w*|minimax\w*|kimi\w*)'"
        ),
        weight=0.9,
        remedy=GIVE_UP,
        fixes=ALIGN,
        matches=(
            "ImportError: tokenizers>=0.22.0,<=0.23.0 is required for a normal functioning of this module, but found tokenizers==0.13",
            (
                "ValueError: The checkpoint you are trying to load has model type `newmodel` but Transformers does not recognize "
                "this architecture."
            ),
            "TypeError: Descriptors cannot be created directly.",
            "Exception: data did not match any variant of untagged enum ModelWrapper at line 757371 column 3",
        ),
        but_not=("ValueError: Unrecognized configuration class",),
        source="transformers, utils/versions.py and configuration_auto.py; protobuf 4 release notes",
    ),
    Pattern(
        name="binary-does-not-fit",
        says="A compiled extension was built against another version of the library it belongs to.",
        failure=FailureType.CONFIG_ERROR,
        fine="version_mismatch",
        text=(
            r"undefined symbol: |may indicate binary incompatibility|compiled using NumPy 1\.x cannot be run in"
            r"|operator torchvision::\w+ does not exist|torchvision versions are incompatible"
            r"|GLIBC(?:XX)?_[\d.]+'? not found|module compiled against (?:ABI|API) version|Illegal instruction"
            r"|signal 4 \(SIGILL\)|exit code 132\b|Symbol not found: |lib(?:torch|c10)[\w.]{0,40}: cannot open shared object"
        ),
        weight=0.87,
        remedy=GIVE_UP,
        fixes=REBUILD,
        matches=(
            "ImportError: flash_attn_2_cuda.cpython-311-x86_64-linux-gnu.so: undefined symbol: _ZN3c105ErrorC2ENS",
            "RuntimeError: operator torchvision::nms does not exist",
            "ValueError: numpy.dtype size changed, may indicate binary incompatibility. Expected 96 from C header, got 88",
            "ImportError: /lib/x86_64-linux-gnu/libm.so.6: version `GLIBC_2.35' not found",
            "train.sh: line 4: 3122 Illegal instruction     (core dumped) python train.py",
        ),
        but_not=("SyntaxError: undefined symbol",),
        source="ld.so(8), NumPy troubleshooting guide, torchvision",
    ),
    Pattern(
        name="bf16-through-numpy",
        says="bf16 weights were passed through NumPy, which has no such type.",
        failure=FailureType.CONFIG_ERROR,
        fine="version_mismatch",
        text=r"Got unsupported ScalarType BFloat16",
        weight=0.93,
        remedy=GIVE_UP,
        fixes=("Convert to fp16 or fp32 before .numpy(); newer releases do so when weights are synchronized.",),
        matches=("TypeError: Got unsupported ScalarType BFloat16",),
        but_not=("bf16: true",),
        source="https://docs.axolotl.ai/docs/training_stability.html",
    ),
    Pattern(
        name="object-lacks-attribute",
        says="The code asks an object for something it does not have.",
        failure=FailureType.CRASH,
        fine="script_error",
        text=r"AttributeError: '\w+' object has no attribute",
        weight=0.53,
        remedy=GIVE_UP,
        fixes=(
            "Look at the line above the error: a value is not what the code expects, often None.",
            "If the object belongs to a library, its version may be the cause: compare with what the code was written for.",
        ),
        matches=("Traceback (most recent call last):\nAttributeError: 'NoneType' object has no attribute 'shape'",),
        but_not=("AttributeError: module 'numpy' has no attribute 'float'.",),
        source="CPython, object.c",
    ),
    Pattern(
        name="argument-missing",
        says="A function is called without an argument it needs.",
        failure=FailureType.CRASH,
        fine="script_error",
        text=r"TypeError: \S+ missing \d+ required (?:positional|keyword-only) arguments?: ",
        weight=0.55,
        remedy=GIVE_UP,
        fixes=("Compare the call with the signature in the installed version of the library.",),
        matches=("Traceback\nTypeError: forward() missing 1 required positional argument: 'mask'",),
        but_not=("error: the following arguments are required: --data",),
        source="CPython, ceval.c",
    ),
)
