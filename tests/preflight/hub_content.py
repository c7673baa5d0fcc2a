"""What the Hub on this machine knows. The examples of checks with `asks_the_hub` may name any of it.

Models: acme/tiny-0.5B and acme/tiny-1.5B (open; branches main and fp16, tag v1.0), acme/gated, acme/private, acme/disabled,
acme/old-name (now acme/new-name), gpt2 (now openai-community/gpt2), acme/tiny-lora (an adapter of acme/tiny-0.5B), acme/old-lora (of acme/old-name),
acme/tiny-gguf (holds tiny-q4.gguf and no config.json).
Data sets: acme/chats (split train and test; columns messages and source), acme/pairs (configs easy and hard, no default one;
columns prompt, chosen, rejected), acme/bare (nothing is said about its content), trl-lib/ultrafeedback_binarized and others.
Tokens: hf_owner (account acme: sees everything), hf_writer (account ann, which is in acme and, to read only, in library),
hf_reader (account ann, to read only), hf_fine (account ann, may write to ann's own only); any other is refused.
Names that end in what goes wrong: acme/answers-429, -503, -html, -broken, -list, -huge, -endless, -circle, -elsewhere, -slow,
-drips, -forbidden.
"""

from __future__ import annotations

from .hub_server import Content, Repo


def _features(*names):
    return [{"name": name, "dtype": "string"} for name in names]


MODELS = {
    "acme/tiny-0.5B": Repo(extra={"safetensors": {"parameters": {"BF16": 494032768}, "total": 494032768}}),
    "acme/tiny-1.5B": Repo(),
    "acme/gated": Repo(gated="manual"),
    "acme/private": Repo(private=True),
    "acme/disabled": Repo(disabled=True),
    "acme/new-name": Repo(),
    "openai-community/gpt2": Repo(),
    "acme/old-lora": Repo(
        files=("adapter_config.json", "adapter_model.safetensors"),
        contents={"adapter_config.json": '{"base_model_name_or_path": "acme/old-name"}'},
    ),
    "acme/tiny-gguf": Repo(files=("README.md", "tiny-q4.gguf")),
    "acme/tiny-lora": Repo(
        files=("README.md", "adapter_config.json", "adapter_model.safetensors"),
        contents={"adapter_config.json": '{"peft_type": "LORA", "base_model_name_or_path": "acme/tiny-0.5B"}'},
    ),
}
DATASETS = {
    "acme/chats": Repo(
        files=("README.md", "data/train-00000-of-00001.parquet", "data/test-00000-of-00001.parquet"),
        card={
            "dataset_info": {
                "features": _features("messages", "source"),
                "splits": [{"name": "train", "num_examples": 10}, {"name": "test", "num_examples": 2}],
            },
            "configs": [{"config_name": "default", "data_files": [{"split": "train", "path": "data/train-*"}]}],
        },
    ),
    "acme/pairs": Repo(
        files=("README.md", "easy/train.parquet", "hard/train.parquet"),
        card={
            "dataset_info": [
                {
                    "config_name": name,
                    "features": _features("prompt", "chosen", "rejected"),
                    "splits": [{"name": "train", "num_examples": 10}],
                }
                for name in ("easy", "hard")
            ],
            "configs": [
                {"config_name": name, "data_files": [{"split": "train", "path": f"{name}/*"}]}
                for name in ("easy", "hard")
            ],
        },
    ),
    "acme/bare": Repo(files=("data.jsonl",)),
    "trl-lib/ultrafeedback_binarized": Repo(),
    "trl-lib/tldr": Repo(),
    "trl-lib/Capybara": Repo(),
    "trl-lib/DeepMath-103K": Repo(),
    "trl-lib/kto-mix-14k": Repo(),
    "trl-lib/lm-human-preferences": Repo(),
    "acme/unlisted": Repo(),
}
RENAMED = {"acme/old-name": "acme/new-name", "gpt2": "openai-community/gpt2"}


def _user(name, role, orgs=(), **token):
    return {
        "type": "user",
        "name": name,
        "orgs": [{"name": org, "roleInOrg": its_role} for org, its_role in orgs],
        "auth": {"type": "access_token", "accessToken": {"displayName": "test", "role": role, **token}},
    }


_OF_ANN = (("acme", "contributor"), ("library", "read"))
USERS = {
    "hf_owner": _user("acme", "write"),
    "hf_writer": _user("ann", "write", _OF_ANN),
    "hf_reader": _user("ann", "read", _OF_ANN),
    "hf_fine": _user(
        "ann",
        "fineGrained",
        _OF_ANN,
        fineGrained={
            "scoped": [{"entity": {"type": "user", "name": "ann"}, "permissions": ["repo.content.read", "repo.write"]}]
        },
    ),
}
CONTENT = Content(models=MODELS, datasets=DATASETS, renamed=RENAMED, users=USERS)
