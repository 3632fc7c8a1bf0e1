"""Train on a Ray cluster: Ray Train starts the workers, and each runs swift.

    ray job submit --working-dir . -- python ray_train.py --workers 16 --gpus sft sft.yaml --logging.run_name job-17

Ray restarts lost workers up to `--failures` times with the same command. With a run name and `--resume_from_checkpoint
auto`, which this script adds, they resume from the last checkpoint. All machines must share the output folder.
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
    """Train as one process of Ray's group, in a new interpreter.

    Ray calls this function in a thread, which cannot receive signals, and has its own process group.
    """
    context = ray.train.get_context()
    rank = {
        "RANK": context.get_world_rank(),
        "WORLD_SIZE": context.get_world_size(),
        "LOCAL_RANK": context.get_local_rank(),
        "LOCAL_WORLD_SIZE": context.get_local_world_size(),
        "GROUP_RANK": context.get_node_rank(),
        "MASTER_ADDR": os.environ["MASTER_ADDR"],
        "MASTER_PORT": int(os.environ["MASTER_PORT"]) + 1,  # Ray's own group uses the first
    }
    environment = os.environ | {name: str(value) for name, value in rank.items()}
    command = [sys.executable, "-m", "swift", *settings["words"]]
    done = subprocess.run(command, env=environment, check=False, preexec_fn=end_with_the_worker)
    if done.returncode:
        raise RuntimeError(f"swift ended with {done.returncode} on worker {context.get_world_rank()}")


def end_with_the_worker() -> None:
    """Make Linux kill this process when its parent dies, so that it does not block the run's folder."""
    death = 1  # PR_SET_PDEATHSIG
    ctypes.CDLL(None).prctl(death, signal.SIGKILL)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--gpus", action="store_true", help="a GPU for each worker")
    parser.add_argument("--failures", type=int, default=3)
    arguments, flags = parser.parse_known_args()
    trainer = TorchTrainer(
        work,
        train_loop_config={"words": [*flags, "--resume_from_checkpoint", "auto"]},
        torch_config=TorchConfig(backend="gloo"),
        scaling_config=ScalingConfig(num_workers=arguments.workers, use_gpu=arguments.gpus),
        run_config=RunConfig(failure_config=FailureConfig(max_failures=arguments.failures)),
    )
    trainer.fit()


if __name__ == "__main__":
    main()
