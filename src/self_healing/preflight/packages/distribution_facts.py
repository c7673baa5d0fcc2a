"""What is known of distributions without installing them: the modules they hold, and what they bring along.

As of November 2026, from the metadata of their releases on PyPI. What an older release brought and a newer one does not
is kept here: an import that may be there is no finding.
"""

from __future__ import annotations

MODULES: dict[str, tuple[str, ...]] = {
    "PIL": ("pillow",), "sklearn": ("scikit-learn",), "yaml": ("pyyaml",), "bs4": ("beautifulsoup4",),
    "cv2": ("opencv-python-headless", "opencv-python", "opencv-contrib-python", "opencv-contrib-python-headless"),
    "skimage": ("scikit-image",), "dotenv": ("python-dotenv",), "google.protobuf": ("protobuf",),
    "google.generativeai": ("google-generativeai",), "google.genai": ("google-genai",), "dateutil": ("python-dateutil",),
    "git": ("gitpython",), "jwt": ("pyjwt",), "Crypto": ("pycryptodome", "pycrypto"), "attr": ("attrs",),
    "fitz": ("pymupdf",), "docx": ("python-docx",), "pptx": ("python-pptx",), "magic": ("python-magic",),
    "faiss": ("faiss-cpu", "faiss-gpu", "faiss-gpu-cu12"), "hydra": ("hydra-core",), "llama_cpp": ("llama-cpp-python",),
    "awq": ("autoawq",), "pynvml": ("nvidia-ml-py", "pynvml"), "GPUtil": ("gputil",), "IPython": ("ipython",),
    "Levenshtein": ("levenshtein", "python-levenshtein"), "pkg_resources": ("setuptools",), "ruamel": ("ruamel-yaml",),
    "mpl_toolkits": ("matplotlib",), "pylab": ("matplotlib",), "galore_torch": ("galore-torch",),
    "apollo_torch": ("apollo-torch",), "optimi": ("torch-optimi",), "tensorboardX": ("tensorboardx",),
    "onnxruntime": ("onnxruntime", "onnxruntime-gpu"), "tensorflow": ("tensorflow", "tensorflow-cpu"),
    "serial": ("pyserial",), "zmq": ("pyzmq",), "OpenSSL": ("pyopenssl",), "usb": ("pyusb",), "wx": ("wxpython",),
    "Bio": ("biopython",), "umap": ("umap-learn",), "psycopg2": ("psycopg2-binary", "psycopg2"), "MySQLdb": ("mysqlclient",),
    "grpc": ("grpcio",), "pl_bolts": ("lightning-bolts",), "flash_attn": ("flash-attn",), "self_healing": ("self-healing-training",),
    "torch": ("torch", "pytorch-triton", "torch-nightly"), "mamba_ssm": ("mamba-ssm",), "decord": ("decord", "eva-decord"),
    "verifiers": ("verifiers",), "math_verify": ("math-verify",), "latex2sympy2_extended": ("latex2sympy2-extended",),
    "langchain_core": ("langchain-core", "langchain"), "past": ("future",), "bz2file": ("bz2file",), "jiwer": ("jiwer",),
}  # fmt: skip
"""Modules whose distribution has another name, the one to propose first; every other module is sought by its own name."""

NAMESPACES = frozenset({"google", "azure", "nvidia", "zope", "sphinxcontrib", "jaraco", "backports", "opentelemetry"})
"""Shared by many distributions: only the longer names in `MODULES` say which."""

_HUB = ("huggingface-hub", "numpy", "packaging", "pyyaml", "tqdm", "requests", "filelock", "fsspec")
BRINGS: dict[str, tuple[str, ...]] = {
    "trl": ("accelerate", "datasets", "transformers", "jinja2", "rich"),
    "transformers": (*_HUB, "regex", "tokenizers", "safetensors", "typer"),
    "accelerate": (*_HUB, "torch", "psutil", "safetensors"),
    "peft": (*_HUB, "torch", "transformers", "accelerate", "psutil", "safetensors"),
    "datasets": (*_HUB, "pyarrow", "dill", "pandas", "xxhash", "multiprocess", "aiohttp", "httpx"),
    "huggingface-hub": ("packaging", "pyyaml", "tqdm", "requests", "filelock", "fsspec", "typing-extensions", "httpx", "hf-xet", "typer"),
    "torch": ("filelock", "typing-extensions", "sympy", "networkx", "jinja2", "fsspec", "setuptools", "triton"),
    "torchvision": ("torch", "numpy", "pillow"), "torchaudio": ("torch",), "torchao": (), "torchdata": ("torch", "requests", "urllib3"),
    "torchmetrics": ("torch", "numpy", "packaging", "lightning-utilities"), "torchtune": ("datasets", "huggingface-hub", "safetensors",
    "sentencepiece", "tiktoken", "numpy", "tqdm", "omegaconf", "psutil", "pillow", "tokenizers", "kagglehub", "blobfile"),
    "unsloth": ("torch", "transformers", "trl", "peft", "datasets", "accelerate", "bitsandbytes", "sentencepiece", "protobuf",
                "huggingface-hub", "xformers", "triton", "numpy", "psutil", "tyro", "wheel", "tqdm", "packaging", "unsloth-zoo",
                "hf-transfer", "diffusers", "pillow", "regex", "torchvision", "torchao"),
    "axolotl": ("torch", "transformers", "trl", "peft", "datasets", "accelerate", "bitsandbytes", "sentencepiece", "protobuf",
                "huggingface-hub", "xformers", "triton", "numpy", "psutil", "wandb", "tensorboard", "hf-transfer", "einops",
                "liger-kernel", "tqdm", "fire", "evaluate", "scipy", "scikit-learn", "torchao", "optimum", "gradio", "pyyaml",
                "addict", "colorama", "numba", "trackio", "mistral-common", "lm-eval", "packaging", "requests", "openenv-core"),
    "llamafactory": ("torch", "transformers", "trl", "peft", "datasets", "accelerate", "gradio", "numpy", "pandas", "scipy", "einops",
                     "sentencepiece", "tiktoken", "protobuf", "uvicorn", "fastapi", "fire", "omegaconf", "matplotlib", "av", "pyyaml",
                     "pydantic", "packaging", "tyro", "librosa", "huggingface-hub"),
    "vllm": ("torch", "transformers", "numpy", "tokenizers", "sentencepiece", "protobuf", "pillow", "fastapi", "pydantic", "psutil",
             "requests", "tqdm", "openai", "tiktoken", "ray", "huggingface-hub", "pyyaml", "einops", "aiohttp", "torchvision",
             "torchaudio", "scipy", "outlines-core", "xgrammar", "triton", "cloudpickle", "prometheus-client", "setuptools", "six",
             "ninja", "gguf", "mistral-common", "msgspec", "pyzmq", "filelock", "typing-extensions", "opencv-python-headless", "regex",
             "blake3", "py-cpuinfo", "compressed-tensors", "depyf", "watchfiles", "python-json-logger", "cachetools", "diskcache"),
    "sentence-transformers": (*_HUB, "torch", "transformers", "scikit-learn", "scipy", "pillow", "typing-extensions"),
    "setfit": ("sentence-transformers", "datasets", "evaluate", "scikit-learn"),
    "evaluate": (*_HUB, "datasets", "dill", "pandas", "xxhash", "multiprocess"),
    "diffusers": ("huggingface-hub", "numpy", "pillow", "regex", "requests", "safetensors", "filelock", "importlib-metadata"),
    "optimum": (*_HUB, "torch", "transformers"), "auto-gptq": ("torch", "transformers", "accelerate", "datasets", "peft", "sentencepiece"),
    "autoawq": ("torch", "transformers", "accelerate", "datasets", "tokenizers", "triton", "zstandard"),
    "gptqmodel": ("torch", "transformers", "accelerate", "datasets", "numpy", "safetensors", "tokenizers", "huggingface-hub"),
    "lightning": ("torch", "torchmetrics", "pytorch-lightning", "lightning-utilities", "numpy", "packaging", "pyyaml", "tqdm", "fsspec"),
    "pytorch-lightning": ("torch", "torchmetrics", "lightning-utilities", "numpy", "packaging", "pyyaml", "tqdm", "fsspec"),
    "bitsandbytes": ("torch", "numpy", "packaging"), "flash-attn": ("torch", "einops"), "xformers": ("torch", "numpy"),
    "liger-kernel": ("torch", "triton"), "deepspeed": ("torch", "numpy", "tqdm", "pydantic", "psutil", "einops", "packaging", "ninja",
    "py-cpuinfo", "msgpack", "hjson", "nvidia-ml-py"), "mamba-ssm": ("torch", "triton", "ninja", "einops", "transformers", "packaging"),
    "pandas": ("numpy", "python-dateutil", "pytz", "tzdata"), "scikit-learn": ("numpy", "scipy", "joblib", "threadpoolctl"),
    "scipy": ("numpy",), "matplotlib": ("numpy", "pillow", "packaging", "python-dateutil", "pyparsing"), "gguf": ("numpy", "pyyaml", "tqdm"),
    "seaborn": ("numpy", "pandas", "matplotlib"), "nltk": ("click", "joblib", "regex", "tqdm"), "tokenizers": ("huggingface-hub",),
    "wandb": ("requests", "pydantic", "pyyaml", "gitpython", "click", "protobuf", "platformdirs", "packaging", "typing-extensions", "sentry-sdk"),
    "trackio": ("pandas", "huggingface-hub", "numpy", "pillow", "gradio", "gradio-client", "orjson", "uvicorn", "starlette"),
    "tensorboard": ("numpy", "protobuf", "grpcio", "markdown", "werkzeug", "absl-py", "packaging", "pillow", "setuptools", "six"),
    "tensorboardx": ("numpy", "protobuf", "packaging"), "mlflow": ("numpy", "pandas", "scikit-learn", "scipy", "matplotlib", "pyyaml",
    "requests", "packaging", "pyarrow", "sqlalchemy", "flask", "gitpython", "protobuf", "cloudpickle", "click", "pydantic", "fastapi"),
    "hydra-core": ("omegaconf", "packaging"), "omegaconf": ("pyyaml",), "opencv-python": ("numpy",), "opencv-python-headless": ("numpy",),
    "self-healing-training": ("pydantic", "typer", "rich", "psutil", "ruamel-yaml", "tomlkit", "jinja2", "xxhash", "packaging"),
    "gradio": ("fastapi", "uvicorn", "pydantic", "numpy", "pandas", "pillow", "pyyaml", "huggingface-hub", "httpx", "typer", "requests"),
    "openai": ("httpx", "pydantic", "tqdm", "typing-extensions", "anyio"), "anthropic": ("httpx", "pydantic", "typing-extensions", "anyio"),
    "lm-eval": ("torch", "transformers", "datasets", "evaluate", "accelerate", "peft", "numpy", "scikit-learn", "sacrebleu", "rouge-score",
    "jsonlines", "numexpr", "pytablewriter", "tqdm-multiprocess", "more-itertools", "zstandard", "dill", "word2number", "sqlitedict"),
    "verifiers": ("openai", "datasets", "pydantic", "requests", "rich", "textual", "jinja2", "math-verify", "wget"),
    "math-verify": ("latex2sympy2-extended", "sympy"), "sacrebleu": ("numpy", "regex", "lxml", "tabulate", "colorama", "portalocker"),
    "rouge-score": ("absl-py", "nltk", "numpy", "six"), "bert-score": ("torch", "pandas", "transformers", "numpy", "requests", "tqdm", "matplotlib"),
    "librosa": ("numpy", "scipy", "scikit-learn", "joblib", "soundfile", "audioread", "numba", "decorator"), "soundfile": ("cffi", "numpy"),
    "requests": ("urllib3", "certifi", "idna", "charset-normalizer"), "httpx": ("anyio", "certifi", "httpcore", "idna"),
    "fastapi": ("pydantic", "starlette", "typing-extensions"), "pydantic": ("typing-extensions", "annotated-types"),
    "typer": ("click", "rich", "shellingham", "typing-extensions"), "rich": ("pygments", "markdown-it-py"), "timm": ("torch", "torchvision",
    "pyyaml", "huggingface-hub", "safetensors"), "triton": ("filelock",), "kernels": ("huggingface-hub", "packaging", "pyyaml"),
    "ray": ("click", "filelock", "jsonschema", "msgpack", "packaging", "protobuf", "pyyaml", "requests"), "tyro": ("docstring-parser",
    "rich", "shtab", "typing-extensions", "typeguard"), "tiktoken": ("regex", "requests"), "langchain": ("langchain-core", "pydantic", "pyyaml",
    "requests", "sqlalchemy"), "mergekit": ("torch", "transformers", "accelerate", "peft", "safetensors", "huggingface-hub", "pydantic", "click"),
    "distilabel": ("datasets", "httpx", "jinja2", "pydantic", "rich", "typer", "tblib", "orjson"), "qwen-vl-utils": ("pillow", "requests", "av"),
    "unsloth-zoo": ("torch", "transformers", "trl", "peft", "datasets", "accelerate"), "jax": ("numpy", "scipy", "jaxlib", "ml-dtypes"),
    "flax": ("jax", "numpy", "optax", "msgpack", "rich"), "nvidia-ml-py": (), "spacy": ("numpy", "pydantic", "requests", "tqdm", "typer", "jinja2"),
    "mistral-common": ("pydantic", "numpy", "tiktoken", "pillow", "requests"), "ms-swift": ("torch", "transformers", "trl", "peft", "datasets",
    "accelerate", "modelscope"), "schedulefree": (), "lomo-optim": (), "galore-torch": ("torch", "transformers", "bitsandbytes"),
}  # fmt: skip
"""What is installed along with a distribution, as far as scripts import it."""

LEAVES = frozenset(
    """
    numpy pillow pyyaml tqdm requests-oauthlib packaging filelock fsspec regex safetensors psutil sentencepiece protobuf einops ninja
    wheel setuptools pip cmake hf-transfer hf-xet python-dotenv pyarrow dill multiprocess xxhash jinja2 click colorama joblib tabulate
    beautifulsoup4 lxml pytz six orjson ujson jsonlines zstandard sympy networkx termcolor loguru fire absl-py typing-extensions aiohttp
    polars pytest attrs swanlab comet-ml clearml neptune dvclive codecarbon hqq liger psycopg2-binary gputil python-dateutil jiwer
    seqeval levenshtein nvidia-nccl-cu12 apollo-torch grokadamw torch-optimi av decord num2words inflect ftfy emoji unidecode pylatexenc
    word2number antlr4-python3-runtime addict more-itertools tensordict blobfile textstat langdetect pandarallel h5py openpyxl xlsxwriter
    rapidfuzz immutabledict causal-conv1d modelscope ftfy clean-text boto3 s3fs gcsfs stanza syllapy nvitop py-spy memory-profiler pynvml
    """.split()
)
"""Distributions that bring nothing a training script imports."""

EXTRAS: dict[tuple[str, str], tuple[str, ...]] = {
    ("transformers", "torch"): ("torch", "accelerate"), ("transformers", "sentencepiece"): ("sentencepiece", "protobuf"),
    ("transformers", "accelerate"): ("accelerate",), ("transformers", "deepspeed"): ("deepspeed", "accelerate"),
    ("transformers", "vision"): ("pillow",), ("transformers", "tiktoken"): ("tiktoken", "blobfile"), ("transformers", "sklearn"): ("scikit-learn",),
    ("trl", "peft"): ("peft",), ("trl", "vllm"): ("vllm", "fastapi", "pydantic", "requests", "uvicorn"), ("trl", "quantization"): ("bitsandbytes",),
    ("trl", "deepspeed"): ("deepspeed",), ("trl", "liger"): ("liger-kernel",), ("trl", "vlm"): ("pillow", "torchvision", "num2words"),
    ("trl", "math-verify"): ("math-verify",), ("trl", "diffusers"): ("diffusers",), ("trl", "kernels"): ("kernels",), ("trl", "bco"): ("scikit-learn", "joblib"),
    ("datasets", "vision"): ("pillow",), ("datasets", "audio"): ("soundfile", "librosa", "torchcodec"), ("datasets", "torch"): ("torch",),
    ("huggingface-hub", "hf-transfer"): ("hf-transfer",), ("huggingface-hub", "hf-xet"): ("hf-xet",), ("huggingface-hub", "cli"): (),
    ("accelerate", "deepspeed"): ("deepspeed",), ("uvicorn", "standard"): (), ("lightning", "extra"): ("matplotlib", "omegaconf", "hydra-core", "rich"),
    ("gptqmodel", "vllm"): ("vllm",), ("ray", "default"): (), ("ray", "tune"): ("pandas", "pyarrow", "requests"), ("tqdm", "notebook"): (),
}  # fmt: skip
"""What an extra adds."""

WITHOUT_IMPORT = frozenset(
    """
    accelerate torch torchvision torchaudio transformers numpy sentencepiece protobuf tiktoken einops hf-transfer hf-xet huggingface-hub flash-attn
    bitsandbytes kernels ninja packaging wheel setuptools pip cmake triton xformers tensorboard tensorboardx wandb trackio mlflow comet-ml
    clearml swanlab vllm deepspeed liger-kernel pillow safetensors tokenizers gguf optimum auto-gptq autoawq gptqmodel hqq torchao torchcodec
    soundfile librosa av decord num2words scikit-learn rouge-score nltk sacrebleu seqeval absl-py bert-score jinja2 pyarrow fsspec s3fs gcsfs
    causal-conv1d mamba-ssm galore-torch schedulefree lomo-optim apollo-torch grokadamw torch-optimi openpyxl tabulate lxml blobfile psutil
    mistral-common latex2sympy2-extended python-dotenv rich peft
    """.split()
)
"""Used by other libraries when they are there, so a script that lists them without an import may well need them."""
