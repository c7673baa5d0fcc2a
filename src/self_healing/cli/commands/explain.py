"""`heal explain NAME`: the docs of a rule, cause, pattern, action or check."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from ...core.action import Action, Ladder
    from ...core.cause import Cause, Pattern
    from ...core.detector import Detector
    from ...preflight.check import Check, Example

Page = dict[str, object]


def command(
    name: Annotated[str, typer.Argument(help="A rule, cause, pattern, action or check, such as loss-spike.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Explain a rule, cause, pattern, action or check: what it means, its options, its remedies, its examples."""
    from ...core.errors import InputError
    from .. import catalogue
    from ..output import show_json, show_markdown

    wanted = name.strip().lower().replace("_", "-")
    pages = pages_about(wanted)
    if not pages:
        kinds = (catalogue.rules, catalogue.causes, catalogue.patterns, catalogue.actions, catalogue.checks)
        known = [each for kind in kinds for each in kind()]
        raise InputError(f"nothing is called {name!r}{_nearest(wanted, known)}; 'heal rules' lists all names")
    if as_json:
        show_json({"v": 1, "name": wanted, "entries": pages})
        return
    for page in pages:
        show_markdown("\n".join(as_markdown(page)))


def pages_about(wanted: str) -> list[Page]:
    """Return what is known of whatever has this name: a rule, a cause, a pattern, an action, a check, or several."""
    from .. import catalogue

    pages: list[Page] = []
    if wanted in (rules := catalogue.rules()):
        pages.append(_rule(rules[wanted]))
    if wanted in (causes := catalogue.causes()):
        pages.append(_cause(causes[wanted]))
    if wanted in (patterns := catalogue.patterns()):
        pages.append(_pattern(patterns[wanted]))
    if wanted in (actions := catalogue.actions()):
        pages.append(_action(actions[wanted]))
    if wanted in (checks := catalogue.checks()):
        pages.append(_check(checks[wanted]))
    return pages


def _nearest(wanted: str, known: Iterable[str]) -> str:
    near = difflib.get_close_matches(wanted, list(known), n=3, cutoff=0.5)
    return f": the nearest names are {', '.join(near)}" if near else ""


def _rule(rule: type[Detector]) -> Page:
    from .. import catalogue

    return {
        "kind": "rule",
        **catalogue.rule_entry(rule),
        "doc": catalogue.doc_of(rule),
        "options": _options(rule),
        "watch": rule.watch,
        "likely_causes": _likely(rule),
        "remedy": _ladder(rule.remedy),
        "examples": [
            {"title": example.title, "fires_at_step": example.at_step, "options": dict(example.options)}
            for example in rule.examples
        ],
    }


def _likely(rule: type[Detector]) -> list[Page]:
    """Return what may be behind a rule's incident, the likeliest before anything is known of the run first."""
    from ...core.history import History
    from ...core.incident import Incident
    from .. import catalogue

    incident = Incident(
        name=rule.name(), failure=rule.failure, fine=rule.fine, severity=rule.severity, step=0, because=""
    )
    ranked = []
    for name, cause in catalogue.causes().items():
        if rule.name() in cause.explains:
            evidence = cause().evidence(incident, History())
            ranked.append((-evidence.weight if evidence is not None else 0.0, name, cause.summary()))
    return [{"name": name, "summary": summary} for _, name, summary in sorted(ranked)]


def _cause(cause: type[Cause]) -> Page:
    from .. import catalogue

    return {
        "kind": "cause",
        **catalogue.cause_entry(cause),
        "doc": catalogue.doc_of(cause),
        "confirm": cause.confirm,
        "fixes": list(cause.fixes),
        "remedy": _ladder(cause.remedy),
        "references": list(cause.references),
    }


def _pattern(pattern: Pattern) -> Page:
    from .. import catalogue

    return {
        "kind": "pattern",
        **catalogue.pattern_entry(pattern),
        "doc": pattern.says,
        "exception": list(pattern.exception),
        "text": pattern.text,
        "fixes": list(pattern.fixes),
        "remedy": _ladder(pattern.remedy),
        "matches": list(pattern.matches),
        "but_not": list(pattern.but_not),
        "references": [pattern.source] if pattern.source else [],
    }


def _action(action: type[Action]) -> Page:
    from .. import catalogue

    return {
        "kind": "action",
        **catalogue.action_entry(action),
        "doc": catalogue.doc_of(action),
        "options": _options(action),
    }


def _check(check: type[Check]) -> Page:
    from .. import catalogue

    return {
        "kind": "check",
        **catalogue.check_entry(check),
        "doc": catalogue.doc_of(check),
        "fails": [_checked(example) for example in check.fails],
        "passes": [_checked(example) for example in check.passes],
    }


def _checked(example: Example) -> Page:
    return {
        "file": example.name,
        "text": example.text,
        "options": dict(example.options),
        "variables": dict(example.environ),
        "files": dict(example.files),
        "machine": dict(example.machine),
    }


def _options(thing: type[Detector | Action]) -> list[Page]:
    from .. import catalogue

    docs = catalogue.field_docs(thing)
    return [
        {"name": name, "default": default, "doc": docs.get(name, "")}
        for name, default in catalogue.options_of(thing).items()
    ]


def _ladder(ladder: Ladder) -> list[Page]:
    return [
        {"rung": rung.name, "effect": str(rung.effect), "success": rung.success, "repeats": rung.repeats}
        for rung in ladder
    ]


# --- for people -------------------------------------------------------------------------------------------------


def as_markdown(page: Page) -> Iterator[str]:
    """Yield a page as Markdown, line by line."""
    yield f"# {page['name']} ({page['kind']})\n"
    facts = {key: page[key] for key in ("failure", "class", "severity", "effect", "needs", "explains") if page.get(key)}
    told = [f"{key}: {', '.join(v) if isinstance(v, list) else v}" for key, v in facts.items()]
    if page["kind"] == "action" and page["needs"] and not page["offered"]:
        from ..catalogue import NOT_OFFERED

        told.append(NOT_OFFERED)
    yield f"{page['doc']}\n"
    if told:
        yield f"*{'; '.join(told)}*\n"
    yield from _listed("Confirm", [page["confirm"]] if page.get("confirm") else [])
    yield from _listed("What a person can do", _items(page, "fixes"))
    yield from _cause_lines(page)
    yield from _option_lines(page)
    yield from _remedy_lines(page)
    yield from _example_lines(page)
    yield from _pattern_lines(page)
    yield from _check_lines(page)
    yield from _listed("Further reading", _items(page, "references"))


def _items(page: Page, key: str) -> list[object]:
    found = page.get(key)
    return list(found) if isinstance(found, list) else []


def _listed(title: str, items: Iterable[object]) -> Iterator[str]:
    items = list(items)
    if items:
        yield f"## {title}\n"
        yield from (f"- {item}" for item in items)
        yield ""


def _cause_lines(page: Page) -> Iterator[str]:
    lines = [
        f"`{cause['name']}`: {cause['summary']}" for cause in _items(page, "likely_causes") if isinstance(cause, dict)
    ]
    yield from _listed("Likely causes, ranked anew by the numbers of each incident", lines)


def _option_lines(page: Page) -> Iterator[str]:
    lines = []
    for option in _items(page, "options"):
        assert isinstance(option, dict)
        doc = str(option["doc"]).replace("\n", " ")
        lines.append(f"`{option['name']} = {_shown(option['default'])}`: {doc}")
    where = f" (`[rules.{page['name']}]` in healing.toml)" if page["kind"] == "rule" and lines else ""
    yield from _listed(f"Options{where}", lines)


def _shown(default: object) -> str:
    from ..output import plain

    value = plain(default)
    return '""' if value == "" else str(value)


def _remedy_lines(page: Page) -> Iterator[str]:
    rungs = _items(page, "remedy")
    if not rungs:
        return
    yield "## Remedy, cheapest expected cure first\n"
    for number, rung in enumerate(rungs, 1):
        assert isinstance(rung, dict)
        more = f", up to {rung['repeats']} times" if rung["repeats"] != 1 else ""
        yield f"{number}. `{rung['rung']}` (effect {rung['effect']}, expected success {rung['success']:.0%}{more})"
    yield ""


def _example_lines(page: Page) -> Iterator[str]:
    lines = []
    for example in _items(page, "examples"):
        assert isinstance(example, dict)
        step = example["fires_at_step"]
        given = ", ".join(f"{key}={value}" for key, value in example["options"].items())
        happens = "stays quiet" if step is None else f"fires at step {step}"
        lines.append(f"{example['title']}{f' (with {given})' if given else ''}: {happens}")
    yield from _listed("Examples", lines)


def _pattern_lines(page: Page) -> Iterator[str]:
    if page["kind"] != "pattern":
        return
    looks = [f"exception `{name}`" for name in _items(page, "exception")]
    if page["text"]:
        looks.append(f"text `{page['text']}`")
    yield from _listed("What it looks for", looks)
    yield from _listed("Matches", [f"`{_line(text)}`" for text in _items(page, "matches")])
    yield from _listed("Does not match", [f"`{_line(text)}`" for text in _items(page, "but_not")])


def _check_lines(page: Page) -> Iterator[str]:
    """Show one example of each kind; `--json` has all of them."""
    if page["kind"] != "check":
        return
    for title, key in (("Something is found in", "fails"), ("Nothing is found in", "passes")):
        yield f"## {title}\n"
        yield from _example_text(_items(page, key)[0])
    yield f"`heal check --ignore {page['name']} ...` leaves it out.\n"


def _example_text(example: object) -> Iterator[str]:
    assert isinstance(example, dict)
    told = ("options", "variables", "machine")
    given = [f"{name}={value}" for key in told for name, value in example[key].items()]
    facts = f", with `{_line(', '.join(given))}`" if given else ""
    yield f"`{example['file']}`{facts}\n"
    yield from (f"    {line}" for line in example["text"].splitlines())
    yield ""
    for name, text in example["files"].items():
        yield f"`{name}`, beside it\n"
        yield from (f"    {line}" for line in text.splitlines())
        yield ""


def _line(text: object) -> str:
    return " ".join(str(text).replace("`", "'").split())
