"""Compare PPO with TRL's last PPOTrainer (0.29.1, from its wheel), which runs for two rounds.

swift's functions receive the inputs from which TRL computed advantages, returns and losses. Two updates use each round,
so that ratios are not 1 in the second. A model with random weights rarely ends a completion: all have one length, which
excludes the additional position that TRL counts after a completion that has ended.
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import torch

from benchmarks.commands import call_module
from benchmarks.estimators import unpacked
from benchmarks.facts import Figure
from benchmarks.inputs import MODEL, PROMPTS, WORK, ensure, write_prompts
from benchmarks.peer import common_arguments, read_order

TRL = "0.29.1"
SCORER = MODEL.with_name(f"{MODEL.name}-scorer")
COMPLETIONS, LENGTH, EPOCHS = 8, 16, 2
PENALTY, KL_COEF = 0.7, 0.3
EQUAL = 1e-5
_NAMES = ("advantages", "old_logps", "returns", "old_values")


def measure(quick: bool) -> tuple[list[Figure], dict[str, Any]]:
    """Return differences of numbers, which are the same in a quick run."""
    make_inputs()
    order = {
        "python": str(unpacked("trl", TRL).parent), "model": str(MODEL), "scorer": str(SCORER),
        "data": str(PROMPTS), "completions": COMPLETIONS, "longest": LENGTH, "epochs": EPOCHS,
        "penalty": PENALTY, "kl_coef": KL_COEF, "learning_rate": 1e-3,
    }  # fmt: skip
    figures = []
    for white in (False, True):
        kept = WORK / f"ppo-round-{white}.pt"
        call_module("benchmarks.ppo", {**order, "white": white, "kept": str(kept), "folder": str(WORK / "ppo")})
        for what, apart in compared(torch.load(kept, weights_only=True), white=white):
            title = f"{what}, rewards {'whitened' if white else 'as they are'}: largest relative difference"
            figures.append(Figure(title, apart, unit="", at_most=EQUAL))
    details = {
        "TRL": TRL, "completions_of_a_round": COMPLETIONS, "tokens_of_a_completion": LENGTH, "epochs": EPOCHS,
        "missing_eos_penalty": PENALTY, "kl_coef": KL_COEF,
    }  # fmt: skip
    return figures, details


def compared(round_: dict[str, Any], *, white: bool) -> list[tuple[str, float]]:
    """Return how far swift's numbers are from TRL's, of the tensors of one round of TRL."""
    from swift_rl import gae
    from swift_rl.options import PpoOptions

    options = PpoOptions(whiten_rewards=white, kl_coef=KL_COEF, vf_coef=1.0)
    rows = {name: list(round_[name].double().numpy()) for name in ("values", "logps", "ref_logps")}
    divergences = [ours - theirs for ours, theirs in zip(rows["logps"], rows["ref_logps"], strict=True)]
    masks = [np.ones(len(each), dtype=bool) for each in divergences]
    scores = round_["scores"].double().numpy() - PENALTY  # none of the completions has an end
    made = gae.estimate(scores, rows["values"], divergences, masks, options, kl_coef=KL_COEF)
    found = [
        ("advantages", _apart(np.stack(made.advantages), round_["advantages"])),
        ("returns", _apart(np.stack(made.returns), round_["returns"])),
    ]
    given = dict(zip(_NAMES, (round_["advantages"], round_["logps"], round_["returns"], round_["values"]), strict=True))
    steps = zip(round_["order"], round_["new_logps"], round_["new_values"], strict=True)
    ours = [_losses(given, *step, options) for step in steps]
    for index, name in enumerate(("policy", "value")):
        theirs = round_[f"{name}_losses"].flatten()
        found.append((f"losses of the {name}", _apart(np.array([each[index] for each in ours]), theirs)))
    return found


def _losses(
    given: dict[str, torch.Tensor], order: torch.Tensor, logps: torch.Tensor, values: torch.Tensor, options: Any
) -> tuple[float, float]:
    """Return swift's losses of a step: what policy and critic say of its completions, in their order, is given."""
    from swift.contracts import ModelView
    from swift.data.batch import collate
    from swift.data.samples import Encoded, Segment
    from swift_rl.critic import ValueLoss
    from swift_rl.ppo import Ppo

    length = logps.shape[1]
    weights = np.concatenate([[0.0], np.ones(length)]).astype(np.float32)
    samples = []
    for number, row in enumerate(order.tolist()):
        token_values = {name: np.concatenate([[0.0], each[row]]).astype(np.float32) for name, each in given.items()}
        samples.append(Encoded(number, (Segment(np.zeros(length + 1, np.int32), weights, token_values),)))
    batch = collate(samples, flat=False)
    views = [torch.zeros(batch.weights.shape).masked_scatter(batch.weights > 0, each) for each in (logps, values)]
    view = ModelView(token_logps=views[0], values=views[1])
    both = (Ppo(options), ValueLoss(options))
    policy, value = (each.loss(view, batch).loss / each.row_weight(samples) for each in both)
    return float(policy), float(value)


def _apart(ours: np.ndarray, theirs: torch.Tensor) -> float:
    expected = theirs.double().numpy()
    return float(np.abs(ours - expected).max() / np.abs(expected).max())


def make_inputs() -> None:
    """Make the models and the prompts: the scorer is reward model and what the critic begins as."""
    ensure()
    write_prompts()
    if SCORER.exists():
        return
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    torch.manual_seed(2)
    tokenizer = AutoTokenizer.from_pretrained(MODEL)
    pad = tokenizer.pad_token_id
    scorer = AutoModelForSequenceClassification.from_pretrained(MODEL, num_labels=1, pad_token_id=pad, dtype="float32")
    scorer.save_pretrained(SCORER)
    tokenizer.save_pretrained(SCORER)


def trainer_of(order: dict[str, Any]) -> Any:
    """Return TRL's trainer of policy, critic, reference and reward model."""
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
    completions = order["completions"]
    return PPOTrainer(
        model=policy,
        ref_model=reference,
        reward_model=scorer(),
        value_model=scorer(),
        processing_class=tokenizer,
        train_dataset=prompts.map(encoded, remove_columns=prompts.column_names),
        eval_dataset=prompts.select(range(completions)).map(encoded, remove_columns=prompts.column_names),
        args=PPOConfig(
            **common_arguments(order), per_device_train_batch_size=completions, gradient_accumulation_steps=1,
            num_mini_batches=1, num_ppo_epochs=order["epochs"], local_rollout_forward_batch_size=completions,
            total_episodes=completions, response_length=order["longest"], stop_token="eos",
            missing_eos_penalty=order["penalty"], kl_coef=order["kl_coef"], whiten_rewards=order["white"],
            temperature=1.0, num_sample_generations=0, gradient_checkpointing=False, seed=1,
        ),
    )  # fmt: skip


def keep(order: dict[str, Any]) -> None:
    """Keep what one round of TRL's makes numbers of, and the numbers."""
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
    start = (
        kept["values"][0].logits.shape[1] - longest - 1
    )  # of the position that predicts the first token of a completion
    (full_values, _, _), (_, scores, _) = kept["rewards"]
    raw, mask, advantages = kept["white"][-1]
    means = kept["means"][-4 * steps :]  # before, whitening has taken means too
    if not mask.all():
        sys.exit(
            "ppo: a completion of TRL's has ended before the longest, where it counts one position more than swift"
        )
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
    own = read_order()
    sys.path.insert(0, own["python"])
    keep(own)
