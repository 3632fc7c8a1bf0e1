"""Names that ms-swift and the Hugging Face Trainer export, and what to write instead of importing them."""

from __future__ import annotations

_CONFIG = 'Swift.from_config(TrainerConfig(model="...", dataset="...", learning_rate=1e-5)).train()'
_TRAINER = 'Trainer(model="...", args={"learning_rate": 1e-5}, train_dataset=rows).train()'
_COMMAND = "on the command line: swift {command} --help"

INSTEAD: dict[str, str] = {
    **dict.fromkeys(
        (
            "TrainingArguments",
            "Seq2SeqTrainingArguments",
            "TrainArguments",
            "SftArguments",
            "BaseArguments",
            "SFTConfig",
            "DPOConfig",
        ),
        f"Pass arguments as keywords, or as a mapping: {_TRAINER}",
    ),
    **dict.fromkeys(("Seq2SeqTrainer", "TrainerFactory"), f"There is one trainer: {_TRAINER}"),
    **dict.fromkeys(
        ("SFTTrainer", "DPOTrainer", "KTOTrainer", "ORPOTrainer", "CPOTrainer"),
        'Pass the objective as a keyword: Trainer(model="...", args={"objective": "dpo"}, train_dataset=rows).train()',
    ),
    **dict.fromkeys(("sft_main", "pt_main", "rlhf_main", "train_main"), _CONFIG),
    **dict.fromkeys(
        ("infer_main", "InferArguments", "PtEngine", "TransformersEngine"), _COMMAND.format(command="infer")
    ),
    **dict.fromkeys(("VllmEngine", "LmdeployEngine", "SglangEngine"), _COMMAND.format(command="infer") + " (--engine)"),
    **dict.fromkeys(("InferRequest", "RequestConfig", "InferClient"), _COMMAND.format(command="infer")),
    **dict.fromkeys(("deploy_main", "DeployArguments", "run_deploy"), _COMMAND.format(command="serve")),
    **dict.fromkeys(("export_main", "ExportArguments", "merge_lora"), _COMMAND.format(command="export")),
    **dict.fromkeys(("eval_main", "EvalArguments"), _COMMAND.format(command="eval")),
    **dict.fromkeys(
        ("get_model_tokenizer", "get_model_processor", "get_template", "get_model_and_template", "load_dataset"),
        f"The run opens models, templates and data sets by name: {_CONFIG}",
    ),
    **dict.fromkeys(
        ("LoRAConfig", "LoraConfig", "AdaLoraConfig", "SwiftConfig", "PeftModel", "get_peft_model"),
        'Configure adapters with keywords: TrainerConfig(model="...", dataset="...", tuner_type="lora", lora_rank=8)',
    ),
}
"""Name → what to write instead of importing it from `swift`."""


def advice(name: str) -> str | None:
    """Return the message for a name or module; None for an unknown one."""
    if name == "swift.llm":
        return (
            "swift.llm is a module of ms-swift. Import Swift, Trainer, TrainerConfig and SwiftModel from `swift`. "
            f"For example: from swift import Swift, TrainerConfig; {_CONFIG}. For other commands use the command line: "
            "swift --help"
        )
    instead = INSTEAD.get(name)
    return None if instead is None else f"swift has no {name}. {instead}"
