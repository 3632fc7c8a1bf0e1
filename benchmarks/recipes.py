"""Recipes of ms-swift, LLaMA-Factory and TRL, as their users write them, for the model of `benchmarks.imports`.

Rows come in the file's order in all of them: shuffled, each program would draw another order. Where a program brings
chat templates of its own, the recipe names one whose turns end with the token that ends texts (`TEMPLATES`).
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
    """The arguments of the program."""
    template: str | None = None
    """The chat template of the model's folder; `None` for that of `swift.demo`."""
    same: bool = True
    """Whether the losses of all steps are the same: adapters begin at random, so that theirs are at the first alone."""
    remark: str = ""


def _ms_swift(kind: str, words: str, *, template: str = "default", same: bool = True, remark: str = "") -> Recipe:
    own = TEMPLATES["ms-swift"] if template == "default" else None
    script = f"swift {words} {_MS_SWIFT.format(template=template)}\n"
    return Recipe("ms-swift", kind, "run.sh", script, "run.sh", own, same, remark)


def _llama_factory(kind: str, words: str, *, template: str = "openchat", same: bool = True, remark: str = "") -> Recipe:
    own = TEMPLATES["LLaMA-Factory"] if template == "openchat" else None
    text = _LLAMA_FACTORY.format(template=template) + words
    return Recipe("LLaMA-Factory", kind, "run.yaml", text, "train run.yaml", own, same, remark)


_PREFERENCES = "dataset_name: preferences\n"
_NEWLINE = "the line break after <|im_end|> is learned there, and not here"

RECIPES = (
    _ms_swift("sft, full", "sft --tuner_type full --dataset chats.jsonl"),
    _ms_swift("sft, LoRA", "sft --tuner_type lora --dataset chats.jsonl", same=False),
    _ms_swift("dpo, full", "rlhf --rlhf_type dpo --tuner_type full --dataset pairs.jsonl"),
    _ms_swift(
        "sft, full, template chatml",
        "sft --tuner_type full --dataset chats.jsonl",
        template="chatml",
        same=False,
        remark=_NEWLINE,
    ),
    _llama_factory("sft, full", "stage: sft\nfinetuning_type: full\ndataset: chats\n"),
    _llama_factory("sft, LoRA", "stage: sft\nfinetuning_type: lora\ndataset: chats\n", same=False),
    _llama_factory("dpo, full", "stage: dpo\nfinetuning_type: full\ndataset: pairs\n"),
    _llama_factory(
        "sft, full, template chatml",
        "stage: sft\nfinetuning_type: full\ndataset: chats\n",
        template="chatml",
        same=False,
        remark=_NEWLINE,
    ),
    Recipe("TRL", "sft, full", "sft.yaml", _TRL + "dataset_name: chats\n", "sft --config sft.yaml"),
    Recipe("TRL", "dpo, full", "dpo.yaml", _TRL + _PREFERENCES, "dpo --config dpo.yaml", TEMPLATES["LLaMA-Factory"]),
    Recipe(
        "TRL",
        "dpo, full, ChatML",
        "dpo.yaml",
        _TRL + _PREFERENCES,
        "dpo --config dpo.yaml",
        same=False,
        remark="always log 2; ChatML's line break after a response, which is part of it there and not here, moves "
        "later losses",
    ),
)
