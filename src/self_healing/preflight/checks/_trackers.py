"""Which trackers a run reports to."""

from __future__ import annotations

from ..finding import Place
from ..subject import Subject


def reported_to(subject: Subject) -> dict[str, Place]:
    """Return each tracker that is named, and where; `all` and `none` name none."""
    setting = subject.setting("report_to")
    if setting is None:
        return {}
    names = setting.value if isinstance(setting.value, list | tuple) else [setting.value]
    return {str(name): setting.place for name in names if isinstance(name, str) and name not in ("all", "none", "")}
