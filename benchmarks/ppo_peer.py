"""One round of TRL's PPOTrainer, which is kept to be taken apart.

python -m benchmarks.ppo_peer ORDER.json
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any


def trainer_of(order: dict[str, Any], **given: Any) -> Any:
    """Return TRL's trainer of policy, critic, reference and reward model."""
    import torch
    from datasets import load_dataset
    from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification, AutoTokenizer
    from trl.experimental.ppo import PPOConfig, PPOTrainer

    tokenizer = AutoTokenizer.from_pretrained(order["model"], padding_side="left")
    prompts = load_dataset("json", data_files=order["data"], split="train", cache_dir=order["folder"])

    def encoded(row: dict[str, Any]) -> dict[str, Any]:
        ids = tokenizer.apply_chat_template(row["messages"], add_generation_prompt=True, return_dict=True)["input_ids"]
        return {"input_ids": ids}

    def scorer() -> Any:
        return AutoModelForSequenceClassification.from_pretrained(order["scorer"], num_labels=1, dtype=torch.float32)

    policy, reference = (AutoModelForCausalLM.from_pretrained(order["model"], dtype=torch.float32) for _ in range(2))
    answers = order["answers"]
    return PPOTrainer(
        model=policy,
        ref_model=reference,
        reward_model=scorer(),
        value_model=scorer(),
        processing_class=tokenizer,
        train_dataset=prompts.map(encoded, remove_columns=prompts.column_names),
        eval_dataset=prompts.select(range(answers)).map(encoded, remove_columns=prompts.column_names),
        args=PPOConfig(
            output_dir=order["folder"], per_device_train_batch_size=answers, gradient_accumulation_steps=1,
            num_mini_batches=1, num_ppo_epochs=order["epochs"], local_rollout_forward_batch_size=answers,
            total_episodes=order.get("episodes", answers), response_length=order["longest"], stop_token="eos",
            missing_eos_penalty=order["penalty"], kl_coef=order["kl_coef"], whiten_rewards=order["white"],
            learning_rate=order["learning_rate"], lr_scheduler_type="constant", temperature=1.0,
            num_sample_generations=0, gradient_checkpointing=False, bf16=False, use_cpu=True, report_to="none",
            save_strategy="no", disable_tqdm=True, seed=1,
        ),
        **given,
    )  # fmt: skip


def keep(order: dict[str, Any]) -> None:
    """Keep what one round of TRL's makes numbers of, and the numbers."""
    import numpy as np
    import torch
    import trl.experimental.ppo.ppo_trainer as module

    kept: dict[str, list[Any]] = {name: [] for name in ("logps", "rewards", "values", "white", "order", "means")}

    def watched(name: str, function: Any, pick: Any = lambda given, found: found) -> Any:
        def work(*given: Any, **named: Any) -> Any:
            found = function(*given, **named)
            kept[name].append(pick(given, found))
            return found

        return work

    module.selective_log_softmax = watched("logps", module.selective_log_softmax)
    module.get_reward = watched("rewards", module.get_reward)
    module.masked_whiten = watched("white", module.masked_whiten, lambda given, found: (*given[:2], found))
    module.masked_mean = watched("means", module.masked_mean)
    module.forward = watched("values", module.forward)
    module.np.random.permutation = watched("order", np.random.permutation)
    trainer = trainer_of(order)
    trainer.train()
    steps, longest = order["epochs"], order["longest"]
    start = kept["values"][0].logits.shape[1] - longest - 1  # of the place that says the first token of an answer
    (full_values, _, _), (_, scores, _) = kept["rewards"]
    raw, mask, advantages = kept["white"][-1]
    means = kept["means"][-4 * steps :]  # before, whitening has taken means too
    if not mask.all():
        sys.exit("ppo: an answer of TRL's has ended before the longest, where it counts one place more than swift")
    values = full_values[:, start:-1].squeeze(-1)
    torch.save(
        {
            "logps": kept["logps"][0], "ref_logps": kept["logps"][1], "values": values,
            "scores": scores, "advantages": advantages, "returns": raw + values,
            "order": [torch.from_numpy(each) for each in kept["order"][-steps:]],
            "new_logps": [each.detach() for each in kept["logps"][2:]],
            "new_values": [each[1][:, start:-1].squeeze(-1).detach() for each in kept["values"][-steps:]],
            # Of each step: the critic's loss, how often it is clipped, the policy's loss, how often that is clipped.
            "value_losses": torch.stack([0.5 * each.detach() for each in means[0::4]]),
            "policy_losses": torch.stack([each.detach() for each in means[2::4]]),
        },
        order["kept"],
    )  # fmt: skip


if __name__ == "__main__":
    told = json.loads(Path(sys.argv[1]).read_text())
    sys.path.insert(0, told["python"])
    keep(told)
