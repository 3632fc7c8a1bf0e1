"""Settings of the properties, and the folder in which every case of malformed input begins."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest
import strategies
from hypothesis import HealthCheck, Phase, configuration, settings
from hypothesis.internal.conjecture import providers

# The seed of a property is its own source: the same examples in every run. A failure is a file of a few keys already,
# so that shrinking it would cost minutes and explain nothing.
settings.register_profile(
    "malformed",
    derandomize=True,
    deadline=None,
    database=None,
    phases=(Phase.explicit, Phase.generate),
    suppress_health_check=(HealthCheck.too_slow, HealthCheck.function_scoped_fixture),
)
settings.load_profile("malformed")
configuration.set_hypothesis_home_dir(tempfile.gettempdir())
# Hypothesis also draws constants of our own modules, as far as other tests have imported these: other examples each
# time, and every module parsed.
providers._get_local_constants = lambda: providers._local_constants


def pytest_configure(config: pytest.Config) -> None:
    strategies.QUICK = "not full" in (config.getoption("markexpr") or "")


@pytest.fixture(scope="session")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a tiny model and a good data set; cases get copies."""
    from swift_testing.subjects import conversations, write_jsonl, write_model  # imports torch

    folder = tmp_path_factory.mktemp("template")
    write_model(folder / "model")
    write_jsonl(folder / "data.jsonl", conversations(8))
    return folder


@pytest.fixture
def tracebacks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where files with tracebacks go that belong to no run."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path
