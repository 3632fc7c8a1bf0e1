"""Open several folders with vLLM, one after the other in this process, and write down what each says.

`python ask_vllm.py ANSWERS PROMPTS FOLDER...`: plain vLLM, nothing of swift's.
"""

from __future__ import annotations

import gc
import json
import os
import sys
from pathlib import Path

os.environ |= {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_PLUGINS": "",
    "HF_HUB_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
    "VLLM_LOGGING_LEVEL": "ERROR",
    # The few lines that vLLM compiles even when it is told not to take longer to compile than all questions here.
    "TORCH_COMPILE_DISABLE": "1",
}


def main(answers: Path, prompts: Path, folders: list[Path]) -> None:
    from vllm import LLM, SamplingParams
    from vllm.distributed import cleanup_dist_env_and_memory

    asked = [{"prompt_token_ids": tokens} for tokens in json.loads(prompts.read_text())]
    told = {}
    for folder in folders:
        llm = LLM(
            str(folder),
            dtype="bfloat16",
            enforce_eager=True,
            max_model_len=256,
            kv_cache_memory_bytes=32 << 20,
            max_num_seqs=8,
            distributed_executor_backend="uni",
        )
        sampling = SamplingParams(temperature=0, max_tokens=24, logprobs=0)
        outputs = [output.outputs[0] for output in llm.generate(asked, sampling, use_tqdm=False)]
        told[folder.name] = [
            {
                "tokens": list(each.token_ids),
                "logps": [of[token].logprob for token, of in zip(each.token_ids, each.logprobs, strict=True)],
            }
            for each in outputs
        ]
        del llm
        gc.collect()
        cleanup_dist_env_and_memory()
    answers.write_text(json.dumps(told))


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), [Path(each) for each in sys.argv[3:]])
