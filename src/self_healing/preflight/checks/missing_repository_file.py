"""The check `missing-repository-file`: files that are named inside a repository of the Hub are there."""

from __future__ import annotations

import difflib
from collections.abc import Iterator

from ..check import Check, Example
from ..finding import Finding
from ..hub.hub import RepositoryKind
from ..names.existence import Unanswered, looked_up
from ..names.named import Home, Homes, texts_in
from ..subject import Call, Kind, Place, Reference, Script, Subject
from ..subject.references import BUILDERS
from ..tools import Tools

_LOAD = "from transformers import AutoModel\nAutoModel.from_pretrained({})\n"
_FETCH = "from huggingface_hub import hf_hub_download\nhf_hub_download({})\n"


class MissingRepositoryFile(Check):
    """Files that are named together with their repository are in it, and a model is loaded in the format it has.

    `EntryNotFoundError: 404 Client Error` for a file that was moved or renamed, `FileNotFoundError: Unable to find ...` of
    `data_files`; and where a repository holds GGUF files only, `OSError: ... does not appear to have a file named config.json`.
    """

    asks_the_hub = True
    passes = (
        Example(_FETCH.format('"acme/tiny-0.5B", "config.json"')),
        Example(_LOAD.format('"acme/tiny-gguf", gguf_file="tiny-q4.gguf"')),
        Example('from datasets import load_dataset\nload_dataset("acme/bare", data_files="*.jsonl")\n'),
    )
    fails = (
        Example(_FETCH.format('repo_id="acme/tiny-0.5B", filename="confg.json"')),
        Example(_LOAD.format('"acme/tiny-gguf"')),
        Example('from datasets import load_dataset\nload_dataset("acme/bare", data_files="dat.jsonl")\n'),
    )

    def run(self, subject: Subject, tools: Tools) -> Iterator[Finding]:
        """Compare with the list of files that the Hub gives."""
        silent = Unanswered()
        names = Homes(subject, tools)
        for kind in _KINDS:
            wanted = [each for each in _wanted(subject) if each[1] == kind and names.home_of(each[0]) is Home.HUB]
            files = {
                (reference.name, reference.revision): answer.repository.files
                for reference, answer in looked_up([each[0] for each in wanted], kind, tools, silent)
                if answer.repository is not None
            }
            for reference, _, file in wanted:
                there = files.get((reference.name, reference.revision), ())
                if there and file and file not in there:
                    yield self._absent(reference, file, there)
                elif there and not file and "config.json" not in there and all(_is_gguf(each) for each in there):
                    gguf = next(each for each in there if each.endswith(".gguf"))
                    yield self.error(
                        reference.place, f"{reference.name}: holds GGUF files only, which are not loaded by themselves",
                        f'Write from_pretrained("{reference.name}", gguf_file="{gguf}"), or name the model it was made of',
                    )  # fmt: skip
        silent.tell()

    def _absent(self, reference: Reference, file: str, there: tuple[str, ...]) -> Finding:
        near = difflib.get_close_matches(file, there, 1, 0.7) or [each for each in there if each.endswith(f"/{file}")]
        meant = f"; did you mean {near[0]}?" if near else ""
        fix = f'Write "{near[0]}"' if near else f"Take one that is there: {', '.join(there[:8])}"
        return self.error(reference.place, f"{reference.name}: holds no file {file}{meant}", fix)


_KINDS: tuple[RepositoryKind, ...] = ("model", "dataset")


def _is_gguf(file: str) -> bool:
    return file.endswith((".gguf", ".md", ".gitattributes", ".txt", ".png", ".imatrix"))


def _wanted(subject: Subject) -> Iterator[tuple[Reference, RepositoryKind, str]]:
    """Yield repositories with the file of each that is asked for; an empty name where a model is loaded from it."""
    for script, call in subject.calls():
        if call.last == "hf_hub_download":
            repo_type = call.keywords.get("repo_type")
            if repo_type is not None and repo_type.value not in ("model", "dataset"):
                continue
            kind: RepositoryKind = "dataset" if repo_type is not None and repo_type.value == "dataset" else "model"
            file = call.given(1, "filename")
            known = file is not None and isinstance(file.value, str) and "subfolder" not in call.keywords
            yield from _of(script, call, "repo_id", kind, [str(file.value)] if file is not None and known else [])
        elif call.last == "load_dataset" and "data_dir" not in call.keywords:
            given = call.keywords.get("data_files")
            files = [each for each in texts_in(given.value) if _is_plain(each)] if given is not None else []
            yield from _of(script, call, "path", "dataset", files)
        elif call.last == "from_pretrained" and call.name.rpartition(".")[0].rpartition(".")[2].startswith("AutoModel"):
            gguf = call.keywords.get("gguf_file")
            if not call.has_unknown_keywords and "subfolder" not in call.keywords:
                known_file = [gguf.value] if gguf is not None and isinstance(gguf.value, str) else []
                files = [""] if gguf is None else known_file
                yield from _of(script, call, "pretrained_model_name_or_path", "model", files)


def _of(
    script: Script, call: Call, argument: str, kind: RepositoryKind, files: list[str]
) -> Iterator[tuple[Reference, RepositoryKind, str]]:
    name, revision = call.given(0, argument), call.keywords.get("revision")
    if name is None or not isinstance(name.value, str) or name.value in BUILDERS:
        return
    if revision is not None and not isinstance(revision.value, str):
        return
    of = Kind.DATASET if kind == "dataset" else Kind.MODEL
    reference = Reference(
        kind=of, name=name.value, place=Place(script.named, name.line),
        revision=revision.value if revision is not None and isinstance(revision.value, str) else None,
    )  # fmt: skip
    yield from ((reference, kind, file) for file in files)


def _is_plain(name: str) -> bool:
    return "://" not in name and not any(mark in name for mark in "*?[{")
