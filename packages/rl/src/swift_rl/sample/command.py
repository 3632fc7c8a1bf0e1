"""`swift sample MODEL`: best-of-n and rejection sampling into rows to train on."""

from __future__ import annotations

import json
from pathlib import Path

from swift.errors import ConfigError, did_you_mean
from swift.files import replace_file
from swift_infer import check_model, check_result, quiet_libraries
from swift_rl.sample.options import NO_ENGINE, SampleOptions


class SampleCommand:
    """Implements `swift.contracts.Command`."""

    group = "Train"
    summary = "Sample several completions per prompt and keep the best as training data"
    options_model = SampleOptions

    def run(self, options: SampleOptions) -> int:
        """Draw, score and choose; return the exit code."""
        options.check()
        result = options.result
        if options.output_dir is not None:
            options.output_dir.mkdir(parents=True, exist_ok=True)
        check_result(result)
        if options.engine != NO_ENGINE:
            check_model("sample", options)
            quiet_libraries(options)
        sample(options, result)
        return 0


def sample(options: SampleOptions, result: Path) -> None:
    """Write the rows, and files of completions and scores next to them."""
    from swift.toolkit import print_note
    from swift_rl.rewards.select import check_columns, select_rewards
    from swift_rl.sample.choice import Choice
    from swift_rl.sample.completions import sampled_prompts
    from swift_rl.sample.scores import score

    selected = select_rewards(options.reward_funcs, options)
    names = [reward.name for reward in selected]
    for name in options.thresholds:
        if name not in names:
            raise ConfigError(
                f"thresholds.{name}: no reward of this name is selected.{did_you_mean(name, names)}",
                hint=f"Selected: {', '.join(names)}",
            )
    check_columns(selected, _columns(options))
    prompts = sampled_prompts(options, result.with_suffix(f".completions{result.suffix}"))
    if selected:
        score(prompts, selected, options, result.with_suffix(f".scores{result.suffix}"))
    choice = Choice(options, {reward.name: reward.weight for reward in selected})
    rows = (row for prompt in prompts for row in choice.rows(prompt))
    lines = "".join(json.dumps(row, ensure_ascii=False, default=str) + "\n" for row in rows)
    replace_file(result, lines, synced=True)
    tally = choice.tally
    parts = [f"{tally.completions} completions to {tally.prompts} prompts"]
    parts += [f"{tally.cut_off} cut off and left out (--keep_truncated takes them)"] if tally.cut_off else []
    if selected:
        parts.append(f"{tally.passing / max(1, tally.completions):.1%} pass")
        parts += [f"{tally.failed} have no reward"] if tally.failed else []
        parts += [f"{tally.too_easy} prompts are too easy"] if tally.too_easy else []
        parts += [f"{tally.without_row} prompts give no row"] if tally.without_row else []
    print_note(f"{', '.join(parts)}; {tally.rows} rows written to {result}")


def _columns(options: SampleOptions) -> list[str]:
    """Return the columns that rewards find, as the first rows have them; raise where none can be read."""
    from swift_infer import read_questions
    from swift_rl.rewards.stored import read_completions

    found: dict[str, None] = {}
    if options.dataset:
        questions = read_questions(options.dataset, options.columns, system=options.system)
        for index in range(min(len(questions), 20)):
            question = questions[index]
            found |= dict.fromkeys([*question.extras, *(["solution"] if question.expected is not None else [])])
    else:
        for item in read_completions(options.cache_files[0])[:20]:
            found |= dict.fromkeys(item.columns)
    return list(found)
