"""Train from a script, for launchers that need a file: `deepspeed`, `torchrun`, or plain `python`.

    deepspeed --num_gpus=8 train.py --model_id qwen/Qwen-72B --train_type cpt --dataset corpus.jsonl
    python train.py --model_id qwen3-0.6b --train_type sft --dataset data.jsonl --max_steps 20

The flags are those of `swift train`.
"""

import sys

from swift.cli.main import run

if __name__ == "__main__":
    sys.exit(run(["train", *sys.argv[1:]]))
