"""MLflow: metrics are stored under the names they are logged with."""

from __future__ import annotations

from typing import Any

from ..family import TrackerFamily


class Mlflow(TrackerFamily):
    """Figures ride along with what is logged. The active run belongs to a thread, so that reports stay where they are."""

    callback = "MLflowCallback"
    logs_by = ("mlflow", "log_metrics")

    def rides_along(self) -> bool:
        """Say that nothing is put before the names."""
        return True

    def page(self, callback: Any) -> str | None:
        """Return the run's page on a tracking server."""
        mlflow: Any = callback._ml_flow  # noqa: SLF001  # where the callback keeps it
        run = mlflow.active_run() if mlflow is not None else None
        where = str(mlflow.get_tracking_uri()).rstrip("/") if run is not None else ""
        if run is None or not where.startswith(("http://", "https://")):
            return None
        return f"{where}/#/experiments/{run.info.experiment_id}/runs/{run.info.run_id}"
