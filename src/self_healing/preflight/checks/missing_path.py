"""The check `missing-path`: files and folders that are named are there and hold what they should."""

from __future__ import annotations

import difflib
import glob
import json
from collections.abc import Iterator
from pathlib import Path

from ..check import Check, Example
from ..finding import Finding
from ..names.named import DATA_SUFFIXES, Home, Homes, data_files
from ..subject import Kind, Reference, Subject
from ..tools import Tools

_WEIGHTS = (".safetensors", ".bin", ".gguf", ".pt", ".pth", ".index", ".h5", ".msgpack")
_TOKENIZER = (
    "tokenizer.json", "tokenizer_config.json", "tokenizer.model", "vocab.json", "vocab.txt", "spiece.model",
    "preprocessor_config.json", "processor_config.json", "spm.model", "tekken.json",
)  # fmt: skip
_INDEX = "model.safetensors.index.json"
_MANY = 10_000


class MissingPath(Check):
    """Every file and folder that is named is there, and a folder that a model is loaded from holds one.

    Relative paths are seen from where the run is started, which is where most of them go wrong: `FileNotFoundError`, or from
    transformers `HFValidationError: Repo id must be in the form 'repo_name' or 'namespace/repo_name'`, since a path that
    is not there is taken for a name on the Hub. What the script writes itself is passed over.
    """

    passes = (
        Example("output_dir: out\nmodel_name_or_path: out/checkpoint-10\n", "config.yaml"),
        Example("deepspeed: config.yaml\n", "config.yaml"),
        Example('import json\njson.dump({}, open("ds.json", "w"))\nSFTConfig(deepspeed="ds.json")\n'),
    )
    fails = (
        Example('from transformers import AutoModel\nAutoModel.from_pretrained("./models/mine")\n'),
        Example("deepspeed: configs/zero3.json\n", "config.yaml"),
        Example('from datasets import load_dataset\nload_dataset("json", data_files={"train": "data/*.jsonl"})\n'),
    )

    def run(self, subject: Subject, tools: Tools) -> Iterator[Finding]:
        """Look for each."""
        if subject.starts_elsewhere:
            return
        names = Homes(subject, tools)
        seen: set[tuple[Kind, str]] = set()
        for reference in (*subject.references, *data_files(subject)):
            known = (reference.kind, reference.name)
            is_here = reference.kind not in (Kind.URL, Kind.MODULE, Kind.OUTPUT_REPO)
            if is_here and known not in seen and names.home_of(reference) is Home.LOCAL:
                seen.add(known)
                yield from self._looked_at(reference, names, tools)

    def _looked_at(self, reference: Reference, names: Homes, tools: Tools) -> Iterator[Finding]:
        if _is_pattern(reference):
            if not _matches(names.path(reference.name)):
                yield self.error(
                    reference.place, f"{reference.name}: no file fits this pattern, seen from {tools.cwd}",
                    f"Correct the pattern, start the run where it fits, or run `ls {reference.name}` to see",
                )  # fmt: skip
            return
        path = names.path(reference.name)
        if not names.exists(reference.name):
            yield self._missing(reference, names, tools)
        elif reference.kind is Kind.FILE and path.is_dir():
            return  # data files may be a folder
        elif reference.kind in (Kind.MODEL, Kind.TOKENIZER, Kind.ADAPTER) and path.is_dir():
            yield from self._folder(reference, path, names)
        elif reference.kind is Kind.DATASET and path.is_dir() and not any(path.iterdir()):
            yield self.error(
                reference.place, f"{reference.name}: this folder is empty, so there are no data in it",
                "Put the data there, or name the folder that holds them",
            )  # fmt: skip

    def _missing(self, reference: Reference, names: Homes, tools: Tools) -> Finding:
        name = reference.name
        script = names.beside_the_script(name) if not name.startswith(("/", "~")) else None
        if script is not None:
            return self.warning(
                reference.place, f"{name}: is not in {tools.cwd}, but beside {script.named}",
                f"Start the run in that folder: cd {Path(script.named).parent}",
            )  # fmt: skip
        near = _near(names.path(name))
        what = "file" if reference.kind is Kind.FILE or Path(name).suffix in DATA_SUFFIXES else "folder"
        message = f"{name}: there is no such {what}, seen from {tools.cwd}"
        if near is not None:
            meant = f"{name.rpartition('/')[0]}/{near}".lstrip("/") if "/" in name.rstrip("/") else near
            meant = f"/{meant}" if name.startswith("/") else meant
            return self.error(reference.place, f"{message}; did you mean {meant}?", f'Write "{meant}"')
        if name.startswith("deepspeed_configs/"):  # what Axolotl's own examples name
            return self.error(reference.place, message, "Run `axolotl fetch deepspeed_configs` here, which writes it")
        return self.error(
            reference.place, message,
            f"Correct the path, or make it: `ls {name.rstrip('/').rpartition('/')[0] or '.'}` shows what there is",
        )  # fmt: skip

    def _folder(self, reference: Reference, path: Path, names: Homes) -> Iterator[Finding]:
        """Look into a folder that something is loaded from."""
        call = names.call_at(reference, "from_pretrained")
        if call is not None and ("subfolder" in call.keywords or call.has_unknown_keywords):
            return
        try:
            files = {each.name for _, each in zip(range(_MANY), path.iterdir(), strict=False)}
        except OSError:
            return
        if reference.kind is Kind.TOKENIZER:
            if not files & set(_TOKENIZER):
                yield self.error(
                    reference.place, f"{reference.name}: this folder holds no tokenizer (none of {', '.join(_TOKENIZER[:3])})",
                    "Save it there with tokenizer.save_pretrained(...), or load it from the base model",
                )  # fmt: skip
            return
        if "adapter_config.json" in files:  # transformers loads these as well
            return
        if "config.json" not in files and not any(file.endswith(".gguf") for file in files):
            inner = sorted(file for file in files if file.startswith("checkpoint-"))
            fix = (
                f'Write "{reference.name.rstrip("/")}/{inner[-1]}"' if inner
                else "Name the folder that model.save_pretrained(...) or trainer.save_model(...) wrote"
            )  # fmt: skip
            wanted = "adapter_config.json" if reference.kind is Kind.ADAPTER else "config.json"
            yield self.error(reference.place, f"{reference.name}: this folder holds no {wanted}, so no model", fix)
        elif reference.kind is Kind.MODEL and "Config" not in (call.name if call is not None else ""):
            yield from self._weights(reference, path, files)

    def _weights(self, reference: Reference, path: Path, files: set[str]) -> Iterator[Finding]:
        if not any(file.endswith(_WEIGHTS) for file in files):
            yield self.error(
                reference.place, f"{reference.name}: this folder holds a config.json but no weights",
                "Copy the weights there (*.safetensors), or name the folder that has them",
            )  # fmt: skip
        elif _INDEX in files and (absent := _absent_shards(path / _INDEX, files)):
            yield self.error(
                reference.place, f"{reference.name}: {len(absent)} files of weights are missing there, first {absent[0]}",
                "Copy or download them again: the folder is not complete",
            )  # fmt: skip


def _is_pattern(reference: Reference) -> bool:
    return reference.kind in (Kind.FILE, Kind.DATASET) and any(mark in reference.name for mark in "*?[")


def _matches(path: Path) -> bool:
    try:
        return next(glob.iglob(str(path), recursive=True), None) is not None  # noqa: PTH207  # Path.glob takes no absolute one
    except (OSError, ValueError):
        return True


def _near(path: Path) -> str | None:
    """Return the name beside it that was probably meant."""
    try:
        there = [each.name for _, each in zip(range(_MANY), path.parent.iterdir(), strict=False)]
    except (OSError, ValueError):
        return None
    stems = {
        Path(each).stem: each for each in there if Path(each).suffix == path.suffix
    }  # the ending likens all of a kind
    found = difflib.get_close_matches(path.stem, stems, 1, 0.75)
    if found:
        return stems[found[0]]
    endings = {Path(each).suffix: each for each in there if Path(each).stem == path.stem and path.suffix}
    found = difflib.get_close_matches(path.suffix, endings, 1, 0.75)  # .json1 for .jsonl, .yml for .yaml
    return endings[found[0]] if found else None


def _absent_shards(index: Path, files: set[str]) -> list[str]:
    try:
        with index.open("rb") as file:
            content = json.loads(file.read(64 << 20))
    except (OSError, ValueError, RecursionError):
        return []
    shards = content.get("weight_map") if isinstance(content, dict) else None
    named = {each for each in shards.values() if isinstance(each, str)} if isinstance(shards, dict) else set()
    return sorted(named - files)
