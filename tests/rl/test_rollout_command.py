"""`swift rollout` is `swift serve` that takes new weights, and stays on this machine."""

from __future__ import annotations

import pytest

from swift.cli.main import run
from swift_export_vllm.worker import EXTENSION
from swift_rl.rollout_command import server


def test_rollout_server_takes_weights_and_reports_version() -> None:
    """A server of rollouts takes weights and tells what it samples from."""
    arguments, environment = server(["tiny", "--port", "9000", "--vllm_max_num_seqs", "8"], {"HOME": "/h"})
    assert arguments[:5] == ["-m", "swift", "serve", "tiny", "--port"]
    assert arguments[-5:-2] == ["8", "--logprobs-mode", "processed_logprobs"]
    assert arguments[-2:] == ["--worker-extension-cls", EXTENSION]
    elsewhere, _ = server(["tiny", "--python", "serving/bin/python"], {})
    assert "--worker-extension-cls" not in elsewhere, "that environment may lack it"
    assert environment == {"HOME": "/h", "VLLM_SERVER_DEV_MODE": "1"}


@pytest.mark.parametrize("said", [["--logprobs_mode", "raw_logprobs"], ["--vllm_logprobs_mode=raw_logprobs"]])
def test_the_users_kind_of_log_probabilities_stays(said: list[str]) -> None:
    arguments, _ = server(["tiny", *said], {})
    assert arguments == ["-m", "swift", "serve", "tiny", *said, "--worker-extension-cls", EXTENSION]


@pytest.mark.parametrize("host", [["--host", "0.0.0.0"], ["--host=example.org"]])
def test_a_server_that_others_reach_is_refused(host: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["rollout", "tiny", *host]) == 2
    assert "can replace its weights" in capsys.readouterr().err
    assert server(["tiny", "--host", "localhost"], {})[0][4:6] == ["--host", "localhost"]


def test_help_shows_client_flags(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["rollout", "--help"]) == 0
    assert "--rollout_engine http://127.0.0.1:8000" in capsys.readouterr().out
    assert run(["rollout"]) == 2
