"""Training on a Ray cluster: Ray Train starts the workers and tells them of each other, swift trains in them.

    ray job submit --working-dir . -- python ray_train.py --workers 16 --gpus sft sft.yaml --logging.run_name job-17

Workers that are lost are started anew as often as `--failures` says, with the same command: with a run name and
`--resume_from_checkpoint auto`, which is added, they resume from the last checkpoint. The output folder must lie on a
file system that all machines see.
"""

from __future__ import annotations

import argparse
import ctypes
import os
import signal
import subprocess
import sys
from typing import Any

import ray.train
from ray.train import FailureConfig, RunConfig, ScalingConfig
from ray.train.torch import TorchConfig, TorchTrainer


def work(settings: dict[str, Any]) -> None:
    """Train as one process of the group that Ray describes.

    In an interpreter of its own: Ray calls this in a thread, which can take no signals, and has a group of its own.
    """
    context = ray.train.get_context()
    place = {
        "RANK": context.get_world_rank(),
        "WORLD_SIZE": context.get_world_size(),
        "LOCAL_RANK": context.get_local_rank(),
        "LOCAL_WORLD_SIZE": context.get_local_world_size(),
        "GROUP_RANK": context.get_node_rank(),
        "MASTER_ADDR": os.environ["MASTER_ADDR"],
        "MASTER_PORT": int(os.environ["MASTER_PORT"]) + 1,  # Ray's own group holds the first
    }
    environment = os.environ | {name: str(value) for name, value in place.items()}
    command = [sys.executable, "-m", "swift", *settings["words"]]
    done = subprocess.run(command, env=environment, check=False, preexec_fn=end_with_the_worker)
    if done.returncode:
        raise RuntimeError(f"swift ended with {done.returncode} on worker {context.get_world_rank()}")


def end_with_the_worker() -> None:
    """Have Linux end this process when its parent dies: it would hold the run's folder against those that go on."""
    death = 1  # PR_SET_PDEATHSIG
    ctypes.CDLL(None).prctl(death, signal.SIGKILL)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--gpus", action="store_true", help="a GPU for each worker")
    parser.add_argument("--failures", type=int, default=3)
    arguments, words = parser.parse_known_args()
    trainer = TorchTrainer(
        work,
        train_loop_config={"words": [*words, "--resume_from_checkpoint", "auto"]},
        torch_config=TorchConfig(backend="gloo"),
        scaling_config=ScalingConfig(num_workers=arguments.workers, use_gpu=arguments.gpus),
        run_config=RunConfig(failure_config=FailureConfig(max_failures=arguments.failures)),
    )
    trainer.fit()


if __name__ == "__main__":
    main()
