"""The reference pages of the site, made from the code when the site is built; mkdocs calls the functions named `on_...`.

`python docs/_generate.py FOLDER` writes the pages into a folder, to be read without the site.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

ROOT = Path(__file__).parents[1]
BESIDE = {"CHANGELOG.md": "changelog.md", "CONTRIBUTING.md": "contributing.md"}
"""Files of the repository that are pages of the site, too."""

INTRODUCTIONS = {
    "rules": "What is looked for in the numbers of a run, while it trains and afterwards. `heal explain NAME` shows the same.",
    "causes": "What may be behind an incident, judged by the numbers around it. A diagnosis ranks them.",
    "patterns": "What may be behind an incident, judged by exceptions and printed text. `heal diagnose` reads logs with them.",
    "actions": "What can be done. The effect says what it does to the result: `nothing` < `time` < `recipe`.",
    "checks": "What `heal check` looks at before a run is started. *Asks the Hub*: *not run* without a network.",
    "faults": "Troubles that can be caused on purpose, for drills and for our own tests.",
}


def pages() -> dict[str, str]:
    """Return every generated page by its path inside the site."""
    found = {f"reference/{kind}.md": _kind(kind, items) for kind, items in catalogue().items()}
    return {**found, "reference/configuration.md": _configuration(), "reference/commands.md": _commands()}


def catalogue() -> dict[str, list[str]]:
    """Return the names of everything that is discovered, by kind."""
    from self_healing.cli import catalogue as known

    kinds: dict[str, Callable[[], Mapping[str, Any]]] = {
        "rules": known.rules,
        "causes": known.causes,
        "patterns": known.patterns,
        "actions": known.actions,
        "checks": known.checks,
        "faults": faults,
    }
    return {kind: sorted(all_of()) for kind, all_of in kinds.items()}


def faults() -> Mapping[str, Any]:
    """Return every fault by name."""
    from self_healing.core.discover import discover_classes
    from self_healing.drills.fault import Fault

    return discover_classes("self_healing.drills.faults", Fault)


def _kind(kind: str, names: list[str]) -> str:
    """Return the page of one kind: a table of all, then each with all that its file says."""
    entries = {name: list(_fault(name) if kind == "faults" else _explained(kind, name)) for name in names}
    lines = [f"# {kind.capitalize()}", "", INTRODUCTIONS[kind], "", "| name | |", "|---|---|"]
    lines += [f"| [`{name}`](#{name}) | {_cell(_first_sentence(entry))} |" for name, entry in entries.items()]
    for name, entry in entries.items():
        lines += ["", f"## `{name}` {{ #{name} }}", "", *entry]
    return "\n".join(lines) + "\n"


def _explained(kind: str, name: str) -> Iterator[str]:
    from self_healing.cli.commands.explain import as_markdown, pages_about

    page = next(page for page in pages_about(name) if f"{page['kind']}s" == kind)
    for line in list(as_markdown(page))[1:]:  # without its heading, which the page has
        for each in line.split("\n"):
            yield f"\n**{each.lstrip('# ')}**\n" if re.match(r"#{2,} ", each) else each


def _fault(name: str) -> Iterator[str]:
    from self_healing.cli.catalogue import doc_of, field_docs, options_of

    fault = faults()[name]
    yield doc_of(fault)
    yield ""
    kind = (
        "the same work done again is sound"
        if getattr(fault, "is_transient", False)
        else "doing the same again does not help"
    )
    yield f"*{kind}{'; weights or moments are harmed' if fault.needs_rollback else ''}*"
    yield ""
    if (expected := getattr(fault, "expected", None)) is not None:
        yield f"Found as {_or(expected.cause)}; answered by {_or(expected.actions)}.\n"
    docs = field_docs(fault)
    for option, default in options_of(fault).items():
        yield f"- `{option} = {default!r}`: {docs.get(option, '')}"


def _or(names: Iterable[str]) -> str:
    return " or ".join(f"`{name}`" for name in names) or "nothing"


def _first_sentence(entry: Iterable[str]) -> str:
    text = next(line for line in entry if line.strip())
    return " ".join(text.split("\n\n")[0].split())


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def _configuration() -> str:
    from self_healing import HealingConfig
    from self_healing.cli.catalogue import field_docs
    from self_healing.config.keys import PRESETS

    docs = field_docs(HealingConfig)
    lines = [
        "# Configuration",
        "",
        "Every key of `HealingConfig(...)` and of `healing.toml`. Options of rules are with [the rules](rules.md).",
        "`heal rules --show-config` shows the values that hold, and where each came from.",
    ]
    for name, field in HealingConfig.model_fields.items():
        default = "not set" if field.default is None else f"`{field.get_default(call_default_factory=True)!r}`"
        allowed = _allowed(field.annotation, field.metadata)
        lines += ["", f"## `{name}` {{ #{name} }}", "", docs.get(name, ""), ""]
        lines += [f"Default: {default}.{f' Allowed: {allowed}.' if allowed else ''}"]
    lines += ["", "## Presets", "", "| key | " + " | ".join(f"`{name}`" for name in PRESETS) + " |"]
    lines += ["|---" * (len(PRESETS) + 1) + "|"]
    for key in dict.fromkeys(key for preset in PRESETS.values() for key in preset):
        lines.append(f"| `{key}` | " + " | ".join(str(preset.get(key, "")) for preset in PRESETS.values()) + " |")
    return "\n".join(lines) + "\n"


def _allowed(annotation: Any, metadata: Iterable[Any]) -> str:
    """Return what a key may be, in words: its choices, or its bounds."""
    words = [f"`{choice}`" for choice in _choices(annotation)]
    if words:
        return ", ".join(words)
    bounds = []
    for each in _metadata(annotation, metadata):
        for name, sign in (("gt", ">"), ("ge", ">="), ("lt", "<"), ("le", "<=")):
            if (bound := getattr(each, name, None)) is not None:
                bounds.append(f"{sign} {bound:g}")
    return ", ".join(bounds)


def _choices(annotation: Any) -> Iterator[Any]:
    if get_origin(annotation) is Literal:
        yield from get_args(annotation)
        return
    for each in get_args(annotation):
        yield from _choices(each)


def _metadata(annotation: Any, metadata: Iterable[Any]) -> Iterator[Any]:
    for each in (
        *metadata,
        *(deeper for inner in get_args(annotation) for deeper in getattr(inner, "__metadata__", ())),
    ):
        yield from getattr(each, "metadata", None) or (each,)


def _commands() -> str:
    import typer

    from self_healing.cli.main import build_app

    root: Any = typer.main.get_command(build_app())
    lines = ["# Commands", "", "What `heal COMMAND --help` prints.", "", *_help("heal", root)]
    for name in sorted(root.commands):
        lines += ["", f"## `heal {name}` {{ #{name} }}", "", *_help(f"heal {name}", root.commands[name])]
    return "\n".join(lines) + "\n"


def _help(name: str, command: Any) -> list[str]:
    context = command.make_context(name, [], resilient_parsing=True, max_content_width=100, terminal_width=100)
    return ["```text", command.get_help(context), "```"]


# --- the site ---------------------------------------------------------------------------------------------------


def on_files(files: Any, config: Any) -> Any:
    """Add what is generated, and the files of the repository that are pages, too."""
    from mkdocs.structure.files import File

    for path, text in pages().items():
        files.append(File.generated(config, path, content=text))
    for name, path in BESIDE.items():
        text = re.sub(r"\]\(docs/decisions\)", "](decisions/index.md)", (ROOT / name).read_text())
        files.append(File.generated(config, path, content=re.sub(r"\]\(docs/", "](", text)))
    decisions = sorted((ROOT / "docs" / "decisions").glob("0*.md"))
    listed = [f"- [{path.read_text().splitlines()[0].lstrip('# ')}]({path.name})" for path in decisions]
    text = "\n".join(
        ["# Decisions", "", "Each with its context, what was rejected, and when to look again.", "", *listed]
    )
    files.append(File.generated(config, "decisions/index.md", content=text + "\n"))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Lead links that leave the folder of documents somewhere: to a page, or nowhere where it is source code."""
    up = "../" * page.file.src_uri.count("/")
    return re.sub(r"\[((?:[^\[\]]|\[[^\]]*\])*)\]\(([^)\s]+)\)", lambda found: _lead(found, up), markdown)


def _lead(found: re.Match[str], up: str) -> str:
    label, target = found[1], found[2]
    if "://" in target or target.startswith("#"):
        return found[0]
    name = target.split("#")[0].removeprefix("../").removeprefix("../")
    if name == "README.md":
        return f"[{label}]({up}index.md)"
    if name in BESIDE and target.startswith("../"):
        return f"[{label}]({up}{BESIDE[name]})"
    if name.split("/")[0] in ("src", "examples", "bench", "tests"):
        return label if label.startswith("`") else f"{label} (`{name}`)"
    return found[0]


if __name__ == "__main__":
    for where, content in pages().items():
        file = Path(sys.argv[1]) / where
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(content)
