"""Options of `swift sample`, with the flags that ms-swift's command of this name has."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, ClassVar, Literal

from pydantic import Field

from swift.config.limits import FilePath, Fraction, Name, Rows
from swift.config.options import Aliases, Parts, RunsCode
from swift.errors import UsageError
from swift_infer import InferenceOptions, SamplingOptions
from swift_rl.reward_options import RewardOptions

NO_ENGINE = "no"
"""`--engine no`: completions come from `--cache_files`."""


class SampleOptions(RewardOptions, SamplingOptions, InferenceOptions):
    """Samples several completions per prompt, scores them, and writes the best as training data.

    Without rewards every completion is written. After an interruption, the same command continues. With other rewards
    or thresholds it reuses the completions.
    """

    examples: ClassVar[tuple[str, ...]] = (
        "swift sample qwen3-0.6b --dataset prompts.jsonl --reward_funcs exact_match --result_path best.jsonl",
        "swift sample qwen3-0.6b --dataset prompts.jsonl --reward_model output/rm --rows dpo --result_path pairs.jsonl",
    )
    engine: Annotated[Name, Aliases("infer_backend", "sampler_engine")] = Field(
        "transformers",
        description="An installed inference engine, the address of a server (http://HOST:PORT), or no: "
        "read completions from cache_files",
    )
    num_return_sequences: Annotated[Rows, Aliases("num_generations", "n")] = Field(
        8, description="Completions per prompt"
    )
    temperature: Annotated[float, Field(gt=0.0, le=2.0)] = Field(1.0, description="Sampling temperature")
    rows: Literal["sft", "dpo", "kto"] = Field(
        "sft",
        description="Format of the rows. sft: the best completions; dpo: the best, each with the worst as "
        "rejected_response; kto: all completions, with a label that is true if they pass",
    )
    n_best_to_keep: Rows = Field(1, description="Number of completions to keep per prompt; equal ones count once")
    reward_funcs: Annotated[tuple[Name, ...], RunsCode(), Aliases("orm_model")] = Field(
        (), description="Rewards: names (see swift plugins), FILE.py:FUNCTION, or names registered by external_plugins"
    )
    reward_model: Annotated[tuple[Name, ...], Aliases("prm_model")] = Field(
        (), description="Models that score completions: runs, checkpoints, exports, or http:// addresses of servers"
    )
    reward_threshold: float | None = Field(
        None, description="Keep only completions with a weighted sum of rewards above this"
    )
    thresholds: Annotated[dict[Name, float], Parts(prm_threshold="reward_model")] = Field(
        default_factory=dict, description='Keep only completions whose rewards are above these: {"accuracy": 0}'
    )
    easy_query_threshold: Fraction | None = Field(
        None, description="Leave out prompts if more than this fraction of their completions pass"
    )
    keep_truncated: bool = Field(False, description="Also keep completions that were cut off at max_new_tokens")
    data_range: tuple[int, ...] = Field((), description="Use only this part of the prompts: 0 4 is the first of four")
    cache_files: tuple[FilePath, ...] = Field(
        (),
        description="Files of stored completions, one per row, for --engine no",
    )
    result_path: Annotated[FilePath | None, Aliases("result_jsonl", "output_file")] = Field(
        None, description="Output file; completions and scores are kept next to it"
    )
    output_dir: FilePath | None = Field(None, description="Folder of result_path")
    overwrite: Annotated[bool, Aliases("override_exist_file")] = Field(
        False, description="Sample and score again instead of continuing"
    )

    @property
    def result(self) -> Path:
        """Return the output file; raise without one."""
        if self.result_path is None:
            raise UsageError("No output file is given.", hint="Pass --result_path best.jsonl")
        return self.result_path if self.output_dir is None else self.output_dir / self.result_path

    @property
    def max_completion_length(self) -> int:
        """The most tokens of a completion, under the name that rewards use."""
        return self.max_new_tokens

    def check(self) -> None:
        """Raise where the options contradict each other."""
        if self.do_sample is False and self.num_return_sequences > 1:
            raise UsageError(
                f"--do_sample false would write the same completion {self.num_return_sequences} times per prompt.",
                hint="Leave it out, or pass --num_return_sequences 1.",
            )
        self._check_source()
        rewards = self.reward_funcs or self.reward_model
        filters = {
            "reward_threshold": self.reward_threshold is not None,
            "thresholds": bool(self.thresholds),
            "easy_query_threshold": self.easy_query_threshold is not None,
            f"rows {self.rows}": self.rows != "sft",
        }
        for flag, given in filters.items():
            if given and not rewards:
                raise UsageError(f"--{flag} needs rewards.", hint="Pass --reward_funcs NAME or --reward_model MODEL.")
        if self.data_range and not (len(self.data_range) == 2 and 0 <= self.data_range[0] < self.data_range[1]):
            raise UsageError(
                f"--data_range {' '.join(map(str, self.data_range))} is invalid.",
                hint="Pass the number of the part, from 0, and the number of parts: --data_range 0 4",
            )

    def _check_source(self) -> None:
        if self.engine == NO_ENGINE and not self.cache_files:
            raise UsageError("--engine no needs stored completions.", hint="Pass --cache_files FILE.")
        if self.engine != NO_ENGINE and self.cache_files:
            raise UsageError(
                "--cache_files cannot be combined with an engine.", hint="Pass --engine no, or leave --cache_files out."
            )
        if not self.dataset and not self.cache_files:
            raise UsageError("No prompts are given.", hint="Pass --dataset FILE")
