"""The result of importing each kind of published recipe, as the table on the import page lists it.

The recipes are short, with the keys of published ones; a different result must change the page.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from swift.cli.imported_run import imported, read_runs
from swift.errors import NotTrainable

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "import-a-configuration.md"

_LLAMA = """
model_name_or_path: someone/some-model
dataset: chats
template: qwen3
cutoff_len: 2048
learning_rate: 1.0e-4
num_train_epochs: 3.0
lr_scheduler_type: cosine
warmup_ratio: 0.1
bf16: true
output_dir: saves
plot_loss: true
"""
_SWIFT = "--model someone/some-model --use_hf true --dataset d --max_length 2048 --torch_dtype bfloat16"
_TRL = "--model_name_or_path someone/some-model --dataset_name someone/chats"
_AXOLOTL = """
base_model: someone/some-model
sequence_len: 2048
micro_batch_size: 2
gradient_accumulation_steps: 4
num_epochs: 1
learning_rate: 2e-4
lr_scheduler: cosine
warmup_steps: 10
bf16: auto
"""
_CHAT = "datasets: [{path: someone/chats, type: chat_template}]\n"
_LORA = "adapter: lora\nlora_r: 16\nlora_alpha: 32\nlora_target_linear: true\n"
_TUNE = """
tokenizer: {_component_: torchtune.models.qwen3.qwen3_tokenizer, path: /tmp/model/vocab.json}
checkpointer: {_component_: torchtune.training.FullModelHFCheckpointer, checkpoint_dir: /tmp/model/}
batch_size: 2
epochs: 1
optimizer: {_component_: torch.optim.AdamW, lr: 2e-5}
dtype: bf16
"""
_NEMO = """
step_scheduler: {global_batch_size: 32, local_batch_size: 4, num_epochs: 1}
model: {_target_: nemo_automodel.NeMoAutoModelForCausalLM.from_pretrained,
        pretrained_model_name_or_path: someone/some-model}
dataset: {_target_: nemo_automodel.components.datasets.llm.chat_dataset.ChatDataset, path_or_dataset_id: someone/chats}
optimizer: {_target_: torch.optim.AdamW, lr: 1.0e-5, weight_decay: 0}
"""

KINDS: list[tuple[str, str, str]] = [
    ("LLaMA-Factory", "SFT, LoRA", _LLAMA + "stage: sft\nfinetuning_type: lora\nlora_target: all\nlora_rank: 8\n"),
    ("LLaMA-Factory", "SFT, full, ZeRO-3", _LLAMA + "stage: sft\nfinetuning_type: full\ndeepspeed: ds_z3.json\n"),
    ("LLaMA-Factory", "SFT, QLoRA", _LLAMA + "stage: sft\nquantization_bit: 4\nquantization_method: bnb\n"),
    ("LLaMA-Factory", "pre-training", _LLAMA + "stage: pt\nfinetuning_type: lora\n"),
    ("LLaMA-Factory", "DPO", _LLAMA + "stage: dpo\npref_beta: 0.1\npref_loss: sigmoid\n"),
    ("LLaMA-Factory", "ORPO", _LLAMA + "stage: dpo\npref_beta: 0.1\npref_loss: orpo\n"),
    ("LLaMA-Factory", "KTO", _LLAMA + "stage: kto\npref_beta: 0.1\n"),
    ("LLaMA-Factory", "reward model", _LLAMA + "stage: rm\n"),
    ("LLaMA-Factory", "PPO", _LLAMA + "stage: ppo\nreward_model: saves/reward\n"),
    ("LLaMA-Factory", "SFT on images", _LLAMA + "stage: sft\nimage_max_pixels: 262144\nvideo_max_pixels: 16384\n"),
    ("LLaMA-Factory", "SFT with GaLore", _LLAMA + "stage: sft\nfinetuning_type: full\nuse_galore: true\n"),
    ("LLaMA-Factory", "SFT of some layers", _LLAMA + "stage: sft\nfinetuning_type: freeze\n"),
    ("ms-swift", "SFT, LoRA", f"swift sft {_SWIFT} --tuner_type lora --lora_rank 8 --target_modules all-linear"),
    ("ms-swift", "SFT, full, ZeRO-3", f"swift sft {_SWIFT} --tuner_type full --deepspeed zero3"),
    ("ms-swift", "SFT, QLoRA", f"swift sft {_SWIFT} --tuner_type lora --quant_bits 4 --quant_method bnb"),
    ("ms-swift", "pre-training", f"swift pt {_SWIFT} --tuner_type full --packing true --streaming true --max_steps 9"),
    ("ms-swift", "DPO", f"swift rlhf --rlhf_type dpo {_SWIFT} --beta 0.1 --rpo_alpha 0.1"),
    ("ms-swift", "KTO", f"swift rlhf --rlhf_type kto {_SWIFT} --beta 0.1 --desirable_weight 1"),
    ("ms-swift", "ORPO", f"swift rlhf --rlhf_type orpo {_SWIFT}"),
    ("ms-swift", "reward model", f"swift rlhf --rlhf_type rm {_SWIFT}"),
    ("ms-swift", "embedding", f"INFONCE_TEMPERATURE=0.1 swift sft --task_type embedding --loss_type infonce {_SWIFT}"),
    ("ms-swift", "reranker", f"swift sft --task_type reranker --loss_type pointwise_reranker {_SWIFT}"),
    ("ms-swift", "SFT on images", "swift sft --model Qwen/Qwen2.5-VL-3B-Instruct --dataset d --freeze_vit true"),
    ("ms-swift", "GRPO", f"swift rlhf --rlhf_type grpo {_SWIFT} --num_generations 8 --reward_funcs accuracy"),
    ("ms-swift", "PPO", f"swift rlhf --rlhf_type ppo {_SWIFT} --reward_model someone/judge"),
    ("ms-swift", "GKD", f"swift rlhf --rlhf_type gkd {_SWIFT} --teacher_model someone/large"),
    ("ms-swift", "Megatron, SFT", f"megatron sft {_SWIFT} --lr 1e-5 --train_iters 100 --tensor_model_parallel_size 2"),
    ("TRL", "SFT, full", f"trl sft {_TRL}"),
    ("TRL", "SFT, LoRA", f"trl sft {_TRL} --use_peft --lora_r 16 --lora_target_modules all-linear"),
    ("TRL", "SFT, QLoRA", f"trl sft {_TRL} --use_peft --load_in_4bit --lora_target_modules all-linear"),
    ("TRL", "SFT, uploaded", f"trl sft {_TRL} --push_to_hub --hub_model_id someone/mine"),
    ("TRL", "DPO", f"trl dpo {_TRL} --beta 0.1"),
    ("TRL", "KTO", f"trl kto {_TRL}"),
    ("TRL", "reward model", f"trl reward {_TRL} --num_labels 1"),
    ("TRL", "GRPO", f"trl grpo {_TRL} --reward_funcs accuracy_reward"),
    ("TRL", "PPO", f"trl ppo {_TRL} --reward_model_path someone/judge --num_mini_batches 2"),
    ("TRL", "distillation", f"python trl/scripts/gkd.py {_TRL}"),
    ("axolotl", "SFT, LoRA", _AXOLOTL + _CHAT + _LORA),
    ("axolotl", "SFT, QLoRA", _AXOLOTL + _CHAT + _LORA.replace("lora\n", "qlora\n", 1) + "load_in_4bit: true\n"),
    ("axolotl", "DPO", _AXOLOTL + "rl: dpo\ndatasets: [{path: someone/pairs, type: chat_template.default}]\n" + _LORA),
    ("axolotl", "GRPO", _AXOLOTL + "rl: grpo\ntrl: {num_generations: 8, reward_funcs: [rewards.mine]}\n" + _CHAT),
    ("axolotl", "reward model", _AXOLOTL + "reward_model: true\nnum_labels: 1\n" + _CHAT),
    ("torchtune", "SFT, full", _TUNE + "model: {_component_: torchtune.models.qwen3.qwen3_0_6b_instruct}\n"
                                       "dataset: {_component_: torchtune.datasets.alpaca_dataset}\n"),
    ("NeMo Automodel", "SFT, full", _NEMO),
    ("NeMo Automodel", "SFT, LoRA", _NEMO + "peft: {_target_: nemo_automodel.components._peft.lora.PeftConfig,\n"
                                            "       dim: 8, alpha: 32, target_modules: '*_proj'}\n"),
]  # fmt: skip


def outcome(text: str, folder: Path) -> str:
    """Return what becomes of a recipe, as in the table."""
    source = text
    if text.startswith("\n"):
        path = folder / "recipe.yaml"
        path.write_text(text)
        source = str(path)
    (recipe,) = read_runs(source)
    try:
        run = imported(recipe)
    except NotTrainable as error:
        if "which is not imported" in error.message:
            what = error.message.partition(" recipe of ")[2].partition(", which ")[0]
            return f"refused: type it by hand, [{what}]({what.lower()}.md)"
        if "Python package" in error.message:
            return "refused: its rewards are functions of a Python package"
        return "refused: swift does not have " + error.message.partition(" recipe of ")[2].partition(", which ")[0]
    different = re.search(r"# Different in swift:\n((?:#   .*\n)+)", run.text)
    changed = re.findall(r"#   ([\w.]+):", different[1]) if different else []
    said = "imported"
    if run.lost:
        said += "; not imported: " + ", ".join(f"`{key}`" for key in dict.fromkeys(each.key for each in run.lost))
    if changed:
        said += "; different here: " + ", ".join(f"`{key}`" for key in dict.fromkeys(changed))
    return said


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    folder = tmp_path_factory.mktemp("recipes")
    return [f"| {program} | {kind} | {outcome(text, folder)} |" for program, kind, text in KINDS]


def test_page_lists_every_kind_of_recipe(rows: list[str]) -> None:
    text = PAGE.read_text(encoding="utf-8")
    table = text.partition("| program | recipe | what becomes of it |\n|---|---|---|\n")[2].partition("\n\n")[0]
    assert table.splitlines() == rows, "the table should be:\n" + "\n".join(rows)
