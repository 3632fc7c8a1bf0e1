"""Recipes of ms-swift, LLaMA-Factory and TRL for the model of `benchmarks.imports`.

All use the rows in the file's order, since each library would shuffle differently. If a library has its own chat
templates, the recipe selects one whose turns end with the end-of-text token (`TEMPLATES`).
"""

from __future__ import annotations

from dataclasses import dataclass

TEMPLATES = {
    "ms-swift": (
        "{{ 'You are a helpful assistant.\\n\\n' }}"
        "{% for message in messages %}{% if message.role == 'user' %}"
        "{{ '### Human:\\n' + message.content + '\\n\\n### Assistant:\\n' }}"
        "{% else %}{{ message.content + eos_token }}{% endif %}{% endfor %}"
    ),
    "LLaMA-Factory": (
        "{% for message in messages %}{% if message.role == 'user' %}"
        "{{ 'GPT4 Correct User: ' + message.content + eos_token + 'GPT4 Correct Assistant:' }}"
        "{% else %}{{ message.content + eos_token }}{% endif %}{% endfor %}"
    ),
}
"""Two of their templates, `default` and `openchat`, as chat templates of a model's folder. TRL uses the model's own."""

_MS_SWIFT = """\
--model model --model_type qwen3 --template {template} --torch_dtype float32 --max_length 512 \\
    --per_device_train_batch_size 2 --gradient_accumulation_steps 2 --num_train_epochs 1 --learning_rate 1e-3 \\
    --warmup_ratio 0.25 --train_dataloader_shuffle false --dataset_shuffle false --split_dataset_ratio 0 \\
    --use_hf true --logging_steps 1 --save_strategy no --output_dir theirs"""
_LLAMA_FACTORY = """\
model_name_or_path: model
do_train: true
dataset_dir: .
template: {template}
cutoff_len: 512
disable_shuffling: true
output_dir: theirs
logging_steps: 1
save_strategy: "no"
report_to: none
per_device_train_batch_size: 2
gradient_accumulation_steps: 2
learning_rate: 1.0e-3
num_train_epochs: 1.0
lr_scheduler_type: cosine
warmup_ratio: 0.25
use_cpu: true
"""
_TRL = """\
model_name_or_path: model
output_dir: theirs
logging_steps: 1
save_strategy: epoch
report_to: none
per_device_train_batch_size: 2
gradient_accumulation_steps: 2
learning_rate: 1.0e-3
num_train_epochs: 1
warmup_steps: 2
dtype: float32
bf16: false
train_sampling_strategy: sequential
use_cpu: true
"""


@dataclass(frozen=True)
class Recipe:
    """One file of a program, what trains it, and what swift should make of it."""

    program: str
    kind: str
    file: str
    text: str
    command: str
    template: str | None = None
    """The chat template of the model's folder; `None` for that of `swift_demo`."""
    same: bool = True
    """Whether the losses of all steps are the same: adapters begin at random, so that theirs are at the first alone."""
    remark: str = ""


def _recipe(program: str, kind: str, typed: str, template: str = "", *, same: bool = True, remark: str = "") -> Recipe:
    """Return a recipe of one that has templates: its own first one unless another is named."""
    usual = {"ms-swift": "default", "LLaMA-Factory": "openchat"}[program]
    own = None if template else TEMPLATES[program]
    if program == "ms-swift":
        script = f"swift {typed} {_MS_SWIFT.format(template=template or usual)}\n"
        return Recipe(program, kind, "run.sh", script, "run.sh", own, same, remark)
    text = _LLAMA_FACTORY.format(template=template or usual) + typed
    return Recipe(program, kind, "run.yaml", text, "train run.yaml", own, same, remark)


_CHATS, _FULL, _LORA = "dataset: chats\n", "finetuning_type: full\n", "finetuning_type: lora\n"
_PREFERENCES = "dataset_name: preferences\n"
_NEWLINE = "the line break after <|im_end|> is learned there, and not here"
_PAIR = "always log 2; ChatML's line break after a response, which is part of it there and not here, moves later losses"

RECIPES = (
    _recipe("ms-swift", "sft, full", "sft --tuner_type full --dataset chats.jsonl"),
    _recipe("ms-swift", "sft, LoRA", "sft --tuner_type lora --dataset chats.jsonl", same=False),
    _recipe("ms-swift", "dpo, full", "rlhf --rlhf_type dpo --tuner_type full --dataset pairs.jsonl"),
    _recipe(
        "ms-swift", "sft, full, template chatml", "sft --tuner_type full --dataset chats.jsonl", "chatml",
        same=False, remark=_NEWLINE,
    ),
    _recipe("LLaMA-Factory", "sft, full", f"stage: sft\n{_FULL}{_CHATS}"),
    _recipe("LLaMA-Factory", "sft, LoRA", f"stage: sft\n{_LORA}{_CHATS}", same=False),
    _recipe("LLaMA-Factory", "dpo, full", f"stage: dpo\n{_FULL}dataset: pairs\n"),
    _recipe(
        "LLaMA-Factory", "sft, full, template chatml", f"stage: sft\n{_FULL}{_CHATS}", "chatml",
        same=False, remark=_NEWLINE,
    ),
    Recipe("TRL", "sft, full", "sft.yaml", _TRL + "dataset_name: chats\n", "sft --config sft.yaml"),
    Recipe("TRL", "dpo, full", "dpo.yaml", _TRL + _PREFERENCES, "dpo --config dpo.yaml", TEMPLATES["LLaMA-Factory"]),
    Recipe("TRL", "dpo, full, ChatML", "dpo.yaml", _TRL + _PREFERENCES, "dpo --config dpo.yaml", None, False, _PAIR),
)  # fmt: skip
