"""Third-party flags of training without a key here, and the meaning of each.

A flag whose value swift can use is an alias (`swift.parsing.aliases`). The others are here, so that none is ignored
silently. They work on the command line, in YAML files and as keywords. To add one, write a row into its topic:
`("flag", "other_spelling"): meaning`, flags with `_`. A meaning is one of

- `NotNeeded(note)`: the flag does not change the result. The run continues, with the note.
- `Default(values, note, reason, hint)`: these values match what swift does (note); others are refused.
- `off(reason, hint)`: the same for a switch that is always off: `false` is accepted, `true` is refused.
- `Refused(reason, hint)`: the flag would change the result.

A note is the end of a sentence without a full stop ("... is not needed: NOTE."), a reason is a whole sentence, and a
hint is what to type.
"""

from __future__ import annotations

from collections.abc import Mapping

from swift.config import Default, Meaning, NotNeeded, Refused, off
from swift.contracts import FlagTopic
from swift_migrate.flags.environment import set_by_environment
from swift_migrate.flags.values import (
    IN_BACKWARD,
    LITTLE_STATE,
    UNSUPPORTED_ATTENTION,
    UNSUPPORTED_DEVICES,
    UNSUPPORTED_LOSS_SCALES,
    UNSUPPORTED_OPTIMIZERS,
    UNSUPPORTED_TUNERS,
)

Rows = Mapping[tuple[str, ...], Meaning]

_NO_WORKERS = "the training process makes batches from tokenized data"
_TEMPLATE = "the chat template comes from the model's tokenizer; --chat_template FILE.jinja sets another"
_UPLOAD = ("training uploads nothing.", "After the run type: swift export RUN --push OWNER/NAME")

LOOP: Rows = {
    ("do_train",): Default(("true",), "this command trains", hint="To evaluate type: swift eval MODEL --dataset FILE"),
    ("do_eval",): NotNeeded("swift evaluates if --val_dataset or --split_dataset_ratio is given"),
    ("do_predict", "predict_with_generate"): off(
        "evaluation during training measures the loss and generates no text.",
        "After the run type: swift infer RUN --dataset FILE, or swift eval RUN --dataset FILE",
    ),
    ("eval_accumulation_steps",): NotNeeded("evaluation adds up the loss and keeps no predictions"),
    ("prediction_loss_only", "batch_eval_metrics"): NotNeeded("evaluation keeps no predictions"),
    ("eval_use_gather_object", "include_for_metrics"): NotNeeded("evaluation keeps no predictions"),
    ("acc_strategy",): Default(
        ("token",),
        "token_acc counts tokens",
        "the accuracy during training counts tokens.",
        "For whole responses, after the run type: swift eval RUN --dataset FILE --metric accuracy",
    ),
    ("metric",): Default(
        ("acc", "none"),
        "token_acc is always measured",
        "training measures only the loss and the token accuracy.",
        "After the run type: swift eval RUN --dataset FILE",
    ),
    ("average_tokens_across_devices",): Default(
        ("true",), "the loss is always averaged over the tokens of all processes"
    ),
    ("include_num_input_tokens_seen", "include_tokens_per_second"): NotNeeded("swift always counts tokens"),
    ("early_stopping_threshold",): Default(
        ("0", "0.0"),
        "any improvement counts",
        hint="Leave it out; --early_stop_interval N stops after N evaluations without improvement.",
    ),
    ("auto_find_batch_size",): off(
        "the batch size is not searched for.", "Type --per_device_train_batch_size 1 --gradient_accumulation_steps 16"
    ),
    ("batch_size",): Refused(
        "it is ambiguous: rows per process, or rows per optimizer step.",
        "Type --per_device_train_batch_size N for a process, or --global_batch_size N for a step.",
    ),
    ("train_batch_size",): Refused(
        "it is ambiguous: rows per optimizer step (DeepSpeed), or rows per process.",
        "Type --global_batch_size N for a step, or --per_device_train_batch_size N for a process.",
    ),
    ("use_dft_loss", "enable_dft_loss"): off(
        "the DFT loss is not implemented.", "Leave it out; the loss of sft is cross entropy."
    ),
    ("use_logits_to_keep",): NotNeeded("only the logits that the loss needs are computed"),
    ("activation_cpu_offload", "activation_offloading"): off(
        "activations are not moved to the CPU.", "To save memory type --gradient_checkpointing true"
    ),
    ("vit_gradient_checkpointing", "vit_gradient_checkpointing_kwargs"): NotNeeded(
        "--gradient_checkpointing true includes the vision encoder"
    ),
}

OPTIMIZER: Rows = {
    ("galore_quantization", "galore_proj_quant"): off(
        "Q-GaLore is a separate optimizer.", "Instead of --use_galore type --optim q_galore"
    ),
    ("galore_proj_bits",): Default(("4",), "q_galore has 4-bit projections"),
    ("galore_with_embedding",): off(
        "AdamW updates embeddings and heads.", "Leave it out, or type --freeze_parameters model.embed_tokens"
    ),
    ("galore_layerwise", "galore_optim_per_parameter", "apollo_layerwise"): off(
        IN_BACKWARD, "Leave it out; to save memory type --optim q_galore or apollo_mini"
    ),
    ("apollo_proj",): Default(
        ("random",), "APOLLO uses random projections", hint="For projections by SVD type --optim galore"
    ),
    ("apollo_proj_type",): Default(
        ("std",), "APOLLO projects the shorter side", "APOLLO projects the shorter side of a matrix."
    ),
    ("apollo_scale_front",): off("updates are scaled after they are limited."),
    ("use_badam",): off("BAdam is a tuner.", "Type: --train_type badam --tuner.interval 50"),
    ("use_lomo",): off(IN_BACKWARD, LITTLE_STATE),
    ("lisa_activated_layers", "lisa_step_interval"): Default(
        ("0",),
        "all layers are trained in every step",
        "LISA is a tuner.",
        "Type: --train_type lisa --tuner.layers 2 --tuner.interval 20",
    ),
    ("optimizer_args",): Refused(
        "optimizer options are separate flags.",
        "For AdamW type --adam_beta1 0.9 --adam_beta2 0.95 --adam_epsilon 1e-8. All flags: swift sft --help all",
    ),
    ("embedding_lr", "embedding_learning_rate", "embedding_lr_scale"): Refused(
        "embeddings have no separate learning rate.", "Type --learning_rate LR, and with LoRA --lorap_lr_ratio 16"
    ),
}

DATA: Rows = {
    ("remove_unused_columns",): NotNeeded("swift reads the columns that it knows, and reports the others"),
    ("label_names",): Default(("labels",), "labels follow from --loss_scale", "labels are made from the conversation."),
    ("group_by_length", "length_grouped_sampling"): off(
        "samples are not sorted by length.", "To avoid padding type --packing true, or --padding_free true"
    ),
    ("length_column_name",): NotNeeded("swift measures samples itself"),
    ("dataloader_pin_memory", "dataloader_prefetch_factor", "dataloader_persistent_workers"): NotNeeded(_NO_WORKERS),
    ("dataloader_num_workers", "num_workers"): NotNeeded(
        _NO_WORKERS + "; --dataset_num_proc N tokenizes in N processes"
    ),
    ("dataloader_drop_last",): Default(("false",), "the last rows of an epoch make a smaller step"),
    ("accelerator_config", "dispatch_batches", "split_batches"): NotNeeded("every process reads its own rows"),
    ("lazy_tokenize",): NotNeeded("samples are tokenized once and cached; --streaming true tokenizes during training"),
    ("load_from_cache_file", "overwrite_cache"): NotNeeded(
        "the cache is used again unless the rows or the settings changed"
    ),
    ("packing_cache", "tokenized_path", "dataset_prepared_path"): NotNeeded(
        "tokenized data is cached in the user's cache folder; --data.cache FOLDER sets another"
    ),
    ("packing_num_proc", "buffer_size", "preprocessing_batch_size"): NotNeeded("swift selects it"),
    ("packing_strategy",): Default(("bfd", "ffd"), "packs contain whole samples"),
    ("interleave_prob", "interleave_probs"): Refused(
        "data sets are concatenated, not sampled by probability.",
        "Set the number of rows: --dataset a.jsonl#5000 b.jsonl#1000",
    ),
    ("mix_strategy", "stopping_strategy"): Default(
        ("concat",), "data sets are concatenated", hint="Set the number of rows: --dataset a.jsonl#5000 b.jsonl#1000"
    ),
    ("shuffle_buffer_size",): Default(
        ("4096",),
        "the shuffle buffer has 4,096 rows",
        "the shuffle buffer always has 4,096 rows.",
        "Leave it out, or shuffle the file.",
    ),
    ("cached_dataset", "cached_val_dataset"): Refused(
        "data sets tokenized by third-party tools are not read.",
        "Pass the rows: --dataset FILE. swift tokenizes them once and caches the result.",
    ),
    ("cache_dir",): Refused(
        "it is ambiguous: the cache of downloads, or of tokenized data.",
        "Type --data.cache FOLDER for tokenized data, or HF_HOME=FOLDER before the command for downloads.",
    ),
    ("model_author", "model_name"): Refused(
        "names are not filled into self-cognition data.", "Write them into the rows of --dataset."
    ),
    ("custom_register_path", "custom_dataset_info"): Refused(
        "flags do not load Python files.",
        "To rename columns type --columns. Other formats need a plugin: see docs/plugins and `swift plugins`.",
    ),
    ("dataset_dir",): Refused(
        "data sets are given by their path.",
        "Type --dataset FOLDER/NAME for a name in its dataset_info.json, or --dataset FOLDER/FILE",
    ),
}

TEMPLATE: Rows = {
    ("template", "template_type"): NotNeeded(_TEMPLATE),
    ("template_backend", "agent_template", "tools_prompt", "tool_format"): NotNeeded(_TEMPLATE),
    ("use_chat_template",): Default(
        ("true",),
        "conversations use the chat template",
        "swift sft always applies the chat template.",
        "For plain text type swift pt, for another template --chat_template FILE.jinja",
    ),
    ("response_template", "instruction_template"): Refused(
        "the roles of a conversation select the tokens with loss.",
        "Type --loss_scale default (all assistant messages), --loss_scale last_round, or --loss_scale all",
    ),
    ("response_prefix",): Refused(
        "the chat template starts the response.", "Type --chat_template FILE.jinja with your own template."
    ),
    ("video_max_pixels",): NotNeeded("--max_pixels limits the frames of videos too"),
    ("default_padding_side", "padding_side", "pad_to_multiple_of"): NotNeeded("padding does not change the loss"),
}

MODEL: Rows = {
    ("use_swift_lora",): off("adapters use PEFT."),
    ("use_unsloth",): off(
        "Unsloth is not supported.", "For fast kernels on a GPU type --use_liger_kernel true --attn_impl flash_attn"
    ),
    ("check_model",): NotNeeded("model files are checked when they are loaded"),
    ("use_hf",): Default(
        ("true",),
        "names are looked up on the Hugging Face hub",
        "models come from the Hugging Face hub, not from ModelScope.",
        "Download it first, and type --model FOLDER. For data sets type --dataset ms::OWNER/NAME",
    ),
    ("device_map",): Default(
        ("auto", "none", "null", "cuda", "cpu"),
        "each process loads the model on its device; --backend fsdp --nproc N shards it over GPUs",
        "layers are not assigned to devices one by one.",
        "To shard a model over GPUs type --backend fsdp --nproc N, to train on the CPU --device cpu",
    ),
    ("max_memory",): Refused(
        "layers are not assigned to devices by memory.", "To shard a model over GPUs type --backend fsdp --nproc N"
    ),
    ("low_cpu_mem_usage", "fast_init"): NotNeeded("weights are always read shard by shard"),
    ("new_special_tokens", "add_tokens", "additional_special_tokens"): Refused(
        "the vocabulary cannot be extended.",
        "Add them with transformers (add_tokens, resize_token_embeddings, save_pretrained), then type --model FOLDER "
        "--modules_to_save embed_tokens lm_head",
    ),
    ("resize_vocab", "resize_token_embeddings"): off(
        "the vocabulary cannot be extended.",
        "Do it with transformers (resize_token_embeddings), then type --model FOLDER",
    ),
    ("max_position_embeddings",): Refused(
        "the context length comes from the model's config.json.",
        "To limit samples type --max_length N; to extend the model type --rope_scaling yarn --max_model_len N",
    ),
    ("model_kwargs", "model_init_kwargs", "config_overrides"): Default(
        ("{}", "none", "null"),
        "a model is loaded by its config.json",
        hint="Edit the config.json in the model's folder. For precision and attention type --torch_dtype, --attn_impl",
    ),
    ("freeze_trainable_layers",): Default(
        ("0", "0.0"),
        "it freezes nothing",
        "weights are frozen by name or by their fraction.",
        "Type --train_type full --freeze_parameters_ratio 0.9, or --freeze_parameters model.layers.0. ...",
    ),
    ("ref_model", "ref_model_type", "ref_adapters"): Refused(
        "the reference is always the model at the start of training.",
        "Leave it out if they are the same; otherwise start from the reference: --model REFERENCE",
    ),
}

TUNERS: Rows = {
    ("lora_dtype",): Default(
        ("float32", "fp32", "auto", "none"), "adapters are trained in fp32", "trained weights are always fp32."
    ),
    ("lora_modules",): Refused("it is for inference.", "To continue training an adapter type --adapters FOLDER"),
    ("pissa_init",): off("it is an adapter initialization.", "Type: --init_lora_weights pissa, or pissa_niter_16"),
    ("additional_target",): Refused("it has another name.", "Type: --modules_to_save NAMES"),
}

RESULTS: Rows = {
    ("disable_tqdm",): NotNeeded("a terminal gets a progress bar, a file gets a line per logging step"),
    ("log_level", "log_level_replica", "log_on_each_node"): NotNeeded("only the first process prints"),
    ("logging_first_step",): NotNeeded("the first step is always logged"),
    ("logging_nan_inf_filter",): NotNeeded("a non-finite loss stops the run (--train.detect_nan)"),
    ("logging_dir",): NotNeeded("TensorBoard's files are in the run's folder: tensorboard --logdir OUTPUT_DIR"),
    ("add_version",): Default(
        ("true",), "every run gets a new folder", hint="Type --run_name NAME for OUTPUT_DIR/NAME"
    ),
    ("overwrite_output_dir",): NotNeeded("every run gets a new folder"),
    ("create_checkpoint_symlink",): NotNeeded("RUN/last-checkpoint and RUN/best-checkpoint always exist"),
    ("save_safetensors", "safe_serialization"): Default(
        ("true",), "weights are saved as safetensors", "weights are always saved as safetensors."
    ),
    ("save_on_each_node",): off("all machines write one checkpoint into a shared folder."),
    ("ignore_data_skip",): off(
        "a resumed run continues with the next row.", "To start a new run from its weights add --resume_only_model true"
    ),
    ("push_to_hub",): Default(("false", "none"), "training uploads nothing", *_UPLOAD),
    ("hub_model_id",): Refused(*_UPLOAD),
    ("hub_strategy", "hub_private_repo", "hub_always_push", "hub_revision"): NotNeeded(
        "training uploads nothing; after the run type swift export RUN --push OWNER/NAME"
    ),
    ("hub_token",): Refused(
        "other users of this machine can read the command line.",
        "Set HF_TOKEN, or log in once: hf auth login",
        secret=True,
    ),
}

PROCESSES: Rows = {
    ("ddp_find_unused_parameters", "ddp_bucket_cap_mb", "ddp_broadcast_buffers"): NotNeeded(
        "the backends reduce gradients themselves"
    ),
    ("ddp_backend", "distributed_backend"): Default(("nccl", "gloo"), "processes use NCCL on GPUs and gloo on the CPU"),
    ("torch_compile_backend",): Default(("inductor",), "--torch_compile uses inductor"),
    ("torch_compile_mode",): Default(
        ("default", "none"), "--torch_compile uses the default mode", "only the default mode is supported."
    ),
    ("zero_hpz_partition_size",): Default(
        ("1",),
        "it is DeepSpeed's default",
        "it is a key of DeepSpeed's JSON file.",
        'Type swift config deepspeed zero3 > ds.json, write "zero_hpz_partition_size" into zero_optimization, then '
        "type --deepspeed ds.json",
    ),
}

TOPICS = (
    FlagTopic(
        "Training and evaluation",
        meanings=LOOP,
        values={
            "attn_impl": UNSUPPORTED_ATTENTION,
            "device": UNSUPPORTED_DEVICES,
            "loss_scale": UNSUPPORTED_LOSS_SCALES,
            "loss_type": {"dft": LOOP["use_dft_loss", "enable_dft_loss"]},
            "optimizer": UNSUPPORTED_OPTIMIZERS,
            "train_type": UNSUPPORTED_TUNERS,
        },
        read_environment=set_by_environment,
    ),
    FlagTopic("Optimizer", meanings=OPTIMIZER),
    FlagTopic("Data", meanings=DATA),
    FlagTopic("Chat template and loss", meanings=TEMPLATE),
    FlagTopic("Model", meanings=MODEL),
    FlagTopic("Tuners", meanings=TUNERS),
    FlagTopic("Output, checkpoints and the hub", meanings=RESULTS),
    FlagTopic("Processes", meanings=PROCESSES),
)
