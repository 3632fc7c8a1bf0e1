"""Observers that send logged lines to Weights & Biases, SwanLab, MLflow, Trackio and Aim (`--report_to wandb`).

Each tracker's own environment variables and configuration decide where it stores runs and whether it contacts a
server (`WANDB_MODE=offline`, `MLFLOW_TRACKING_URI`).
"""

from __future__ import annotations

import json
import os
import time
from abc import ABC, abstractmethod
from collections.abc import Generator, Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, ClassVar

from swift.contracts import Run, RunSummary, StepRecord
from swift.errors import UsageError
from swift.files import replace_file
from swift.hookspecs import hookimpl
from swift.installation import pip_install
from swift.observers import mfu_of
from swift.observers.lines import Meter, scalars_of

IDS = "trackers.json"
"""The file in the run's folder that maps trackers to their ids of the run, for a resumed run."""


@dataclass(frozen=True)
class TrackedRun:
    """The facts of a run that a tracker receives when it begins."""

    name: str
    project: str | None
    """None where the user named none."""
    folder: Path
    config: Mapping[str, Any]
    """The configuration by section and key."""
    id: str | None
    """The tracker's id of this run from an earlier session."""

    def project_or(self, variable: str) -> str:
        """Return the project: the user's flag, the tracker's environment variable, or 'swift'."""
        return self.project or os.environ.get(variable) or "swift"


class Tracker(ABC):
    """Base class of the observers of trackers."""

    package: ClassVar[str]
    """The package to import when a run begins; importing this module does not need it."""
    extra: ClassVar[str]
    """The extra of swift-core that installs it, which is also the observer's name."""
    _run: Any
    """The tracker's own run."""

    @abstractmethod
    def begin(self, run: TrackedRun) -> str:
        """Open the run in the tracker, or reopen the one with its id; return the id."""

    def log(self, values: Mapping[str, float], step: int) -> None:
        """Record the values of one step."""
        self._run.log(dict(values), step=step)

    @abstractmethod
    def end(self, completed: bool) -> None:
        """Close the run, as failed unless it `completed`."""

    @hookimpl(wrapper=True)
    def swift_check_layout(self) -> Generator[None, Any, Any]:
        """Refuse a run whose tracker is not installed, before anything is loaded."""
        if find_spec(self.package) is None:
            raise UsageError(
                f"--report_to {self.extra} needs the package {self.package}, which is not installed.",
                hint=f"Run: {pip_install(f'swift-core[{self.extra}]')}",
            )
        return (yield)

    @hookimpl
    def swift_run_start(self, run: Run) -> None:
        self._meter = Meter(run.config.logging.steps, mfu=mfu_of(run))
        ids = _read_ids(run.folder / IDS)
        tracked = TrackedRun(
            name=run.config.logging.run_name or f"{run.folder.parent.name}-{run.folder.name}",
            project=run.config.logging.project,
            folder=run.folder,
            config=run.config.model_dump(mode="json"),
            id=ids.get(self.extra),
        )
        ids[self.extra] = self.begin(tracked)
        replace_file(run.folder / IDS, json.dumps(ids, indent=2) + "\n")

    @hookimpl
    def swift_step_end(self, run: Run, record: StepRecord) -> None:
        line = self._meter.take(record)
        if line is not None:
            self.log(scalars_of(line), line["step"])

    @hookimpl
    def swift_run_end(self, run: Run, summary: RunSummary) -> None:
        line = self._meter.rest()
        if line is not None:
            self.log(scalars_of(line), line["step"])
        self.end(summary.status == "completed")


class WandbObserver(Tracker):
    """Logs to Weights & Biases. Its files are in the run's folder unless `WANDB_DIR` is set."""

    package = extra = "wandb"

    def begin(self, run: TrackedRun) -> str:
        import wandb

        self._run = wandb.init(
            project=run.project_or("WANDB_PROJECT"),
            name=run.name,
            id=run.id,
            resume="allow",
            config=run.config,
            dir=os.environ.get("WANDB_DIR", run.folder),
        )
        return str(self._run.id)

    def end(self, completed: bool) -> None:
        self._run.finish(exit_code=0 if completed else 1)


class SwanLabObserver(Tracker):
    """Logs to SwanLab. Its files are in the run's folder unless `SWANLAB_LOG_DIR` is set."""

    package = extra = "swanlab"

    def begin(self, run: TrackedRun) -> str:
        import swanlab

        self._run = swanlab.init(
            project=run.project_or("SWANLAB_PROJ_NAME"),
            name=run.name,
            id=run.id,
            resume="allow",
            config=run.config,
            log_dir=os.environ.get("SWANLAB_LOG_DIR", str(run.folder / "swanlog")),
        )
        return str(self._run.id)

    def end(self, completed: bool) -> None:
        if completed:
            self._run.finish()
        else:
            self._run.finish(state="crashed", error="The run did not complete.")


class MlflowObserver(Tracker):
    """Logs to the tracking URI of MLflow."""

    package = extra = "mlflow"

    def begin(self, run: TrackedRun) -> str:
        import mlflow

        self._client = mlflow.MlflowClient()
        if run.id is None:
            experiment = mlflow.set_experiment(run.project_or("MLFLOW_EXPERIMENT_NAME")).experiment_id
            self._id = str(self._client.create_run(experiment, run_name=run.name).info.run_id)
            for section, values in run.config.items():
                for key, value in values.items():
                    self._client.log_param(self._id, f"{section}.{key}", str(value)[:6000])
        else:
            self._id = run.id
            self._client.update_run(self._id, status="RUNNING")
        return self._id

    def log(self, values: Mapping[str, float], step: int) -> None:
        from mlflow.entities import Metric

        # MLflow's names have no parentheses.
        names = {name: name.replace("(", "_").replace(")", "") for name in values}
        now = int(time.time() * 1000)
        self._client.log_batch(self._id, [Metric(names[name], value, now, step) for name, value in values.items()])

    def end(self, completed: bool) -> None:
        self._client.set_terminated(self._id, "FINISHED" if completed else "FAILED")


class TrackioObserver(Tracker):
    """Logs to Trackio."""

    package = extra = "trackio"

    def begin(self, run: TrackedRun) -> str:
        import trackio

        name = run.id or run.name
        self._run = trackio.init(
            project=run.project_or("TRACKIO_PROJECT"), name=name, resume="allow", config=run.config
        )
        return name

    def end(self, completed: bool) -> None:
        self._run.finish()


class AimObserver(Tracker):
    """Logs to Aim, in the repository `.aim` of the working folder or of one above it."""

    package = extra = "aim"

    def begin(self, run: TrackedRun) -> str:
        import aim

        self._run = aim.Run(
            run_hash=run.id,
            experiment=run.project_or("AIM_EXPERIMENT"),
            system_tracking_interval=None,
            log_system_params=False,
            capture_terminal_logs=False,
        )
        self._run.name = run.name
        self._run["config"] = run.config
        return str(self._run.hash)

    def log(self, values: Mapping[str, float], step: int) -> None:
        for name, value in values.items():
            subset, _, metric = name.partition("/")
            self._run.track(value, name=metric, step=step, context={"subset": subset})

    def end(self, completed: bool) -> None:
        self._run.close()


def _read_ids(path: Path) -> dict[str, str]:
    try:
        ids = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return ids if isinstance(ids, dict) else {}
