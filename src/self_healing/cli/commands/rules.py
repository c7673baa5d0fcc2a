"""`heal rules`: the catalogue, or the configuration with where each value came from."""

from __future__ import annotations

import os
from typing import Annotated

import typer


def command(
    show_config: Annotated[
        bool, typer.Option("--show-config", help="Show every value of the configuration and where it came from.")
    ] = False,
    config: Annotated[
        str | None, typer.Option("--config", metavar="FILE", help="A healing.toml to read, with --show-config.")
    ] = None,
    overrides: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Set one key, with --show-config.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """List the rules, actions, causes, patterns and checks, or show the configuration."""
    if show_config:
        _show_config(config, overrides or [], as_json=as_json)
        return
    if config is not None or overrides:
        raise typer.BadParameter("--config and --set need --show-config here")
    if as_json:
        _json()
    else:
        _tables()


def _json() -> None:
    from .. import catalogue
    from ..output import show_json

    show_json(
        {
            "v": 1,
            "rules": [catalogue.rule_entry(rule) for rule in catalogue.rules().values()],
            "actions": [catalogue.action_entry(action) for action in catalogue.actions().values()],
            "patterns": [catalogue.pattern_entry(pattern) for pattern in catalogue.patterns().values()],
            "causes": [catalogue.cause_entry(cause) for cause in catalogue.causes().values()],
            "checks": [catalogue.check_entry(check) for check in catalogue.checks().values()],
        }
    )


def _tables() -> None:
    from .. import catalogue
    from ..output import show, show_table

    rules, actions, causes = catalogue.rules(), catalogue.actions(), catalogue.causes()
    patterns, checks = catalogue.patterns(), catalogue.checks()
    show_table(
        f"Rules ({len(rules)}): what is detected",
        ("rule", "severity", "failure", "class", "what it reports"),
        [(name, rule.severity, rule.failure, rule.fine, rule.summary()) for name, rule in rules.items()],
        widest="what it reports",
    )
    show_table(
        f"Actions ({len(actions)}): what can be done",
        ("action", "effect", "needs", "what it does"),
        [(name, action.effect, _needs(action), action.summary()) for name, action in actions.items()],
        widest="what it does",
    )
    show_table(
        f"Causes ({len(causes)}): what may be behind it, from numbers",
        ("cause", "explains", "what it says"),
        [(name, ", ".join(cause.explains), cause.summary()) for name, cause in causes.items()],
        widest="what it says",
    )
    show_table(
        f"Patterns ({len(patterns)}): what may be behind it, from text",
        ("pattern", "failure", "class", "what it says"),
        [(name, row.failure, row.fine, row.says) for name, row in patterns.items()],
        widest="what it says",
    )
    show_table(
        f"Checks ({len(checks)}): what 'heal check' looks at before a run",
        ("check", "what should be true"),
        [(name, catalogue.check_entry(check)["summary"]) for name, check in checks.items()],
        widest="what should be true",
    )
    show("heal explain NAME tells more about each of them.")


def _needs(action: type) -> str:
    from ...core.action import Action
    from .. import catalogue

    assert issubclass(action, Action)
    needs = action.capability()
    if needs is None:
        return "-"
    return needs if catalogue.offered(action) else f"{needs} ({catalogue.NOT_OFFERED})"


def _show_config(path: str | None, overrides: list[str], *, as_json: bool) -> None:
    from ...config import HealingConfig
    from ...config.sources import without_secrets
    from ..output import plain, show_json, show_table, warn

    config = HealingConfig.load(toml=path, overrides=overrides)
    rows = [row._replace(value=without_secrets(row.key, row.value)) for row in config.provenance()]
    switch = os.environ.get("SELF_HEALING")
    if switch:
        mode = config.effective_mode()
        rows = [r._replace(value=mode, source="SELF_HEALING") if r.key == "mode" else r for r in rows]
    for sentence in config.ineffective():
        warn(sentence)
    if as_json:
        show_json({"v": 1, "config": [{"key": r.key, "value": r.value, "source": r.source} for r in rows]})
        return
    shown = [(row.key, _as_text(plain(row.value)), row.source) for row in rows]
    show_table("Configuration", ("key", "value", "from"), shown, widest="value")


def _as_text(value: object) -> str:
    """Return a value as TOML would write it."""
    if value is None or isinstance(value, bool):
        return str(value).lower()
    return str(value)
