"""Flags that other programs have and swift does not, and what each means here.

A flag whose value swift can use is an alias (`swift.config.aliases`); the others stand here, so that none is ignored
silently and none is answered by a guess from its spelling. They work on the command line, in YAML files and as keywords
alike. To add one, write a row into its topic: `("flag", "other_spelling"): meaning`, flags with `_`, where the meaning
is one of

- `NotNeeded(note)`: nothing about the result changes, whatever the value. One line of note, and the run goes on.
- `Default(values, note, reason, hint)`: these values say what swift does anyway (note), others are refused.
- `off(reason, hint)`: the same for a switch that is off here: `false` is fine, `true` is refused.
- `Refused(reason, hint)`: it would change the result.

A note is the end of a sentence without a full stop ("... is not needed: NOTE."); a reason is a whole sentence, and a
hint says what to type. `other_program(flag)` looks a flag up; `meaning.answer(source, value)` returns the note, or
raises the refusal.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache

from swift.config.compat import megatron, online
from swift.config.compat.meanings import Default, Meaning, NotNeeded, Refused, off
from swift.config.compat.values import IN_BACKWARD, LITTLE_STATE

Rows = Mapping[tuple[str, ...], Meaning]

_NO_WORKERS = "batches are put together in the training process, from data that is tokenised before"
_TEMPLATE = "the chat template of the model's own tokenizer is used; --chat_template FILE.jinja names another"
_UPLOAD = ("training uploads nothing.", "When it has ended: swift export RUN --push OWNER/NAME")

LOOP: Rows = {
    ("do_train",): Default(
        ("true",), "this command trains", "this command trains.", "To evaluate only: swift eval MODEL --dataset FILE"
    ),
    ("do_eval",): NotNeeded("swift evaluates whenever --val_dataset or --split_dataset_ratio holds rows out"),
    ("do_predict", "predict_with_generate"): off(
        "evaluation while training takes the loss, and writes no answers.",
        "After the run: swift infer RUN --dataset FILE, or swift eval RUN --dataset FILE",
    ),
    ("eval_accumulation_steps",): NotNeeded("evaluation sums the loss batch by batch, and keeps no predictions"),
    ("prediction_loss_only", "batch_eval_metrics"): NotNeeded("evaluation keeps no predictions"),
    ("eval_use_gather_object", "include_for_metrics"): NotNeeded("evaluation keeps no predictions"),
    ("acc_strategy",): Default(
        ("token",),
        "token_acc counts tokens",
        "the accuracy while training counts tokens.",
        "For whole answers, after the run: swift eval RUN --dataset FILE --metric accuracy",
    ),
    ("metric",): Default(
        ("acc", "none"),
        "token_acc is always measured",
        "training measures the loss and the accuracy of tokens, and writes no answers to compare.",
        "After the run: swift eval RUN --dataset FILE",
    ),
    ("average_tokens_across_devices",): Default(
        ("true",),
        "the loss is divided once, by the weight of all tokens of a step over all processes",
        "the loss is always divided by the weight of all tokens of a step over all processes.",
        "Leave it out.",
    ),
    ("include_num_input_tokens_seen", "include_tokens_per_second"): NotNeeded("swift always counts tokens"),
    ("early_stopping_threshold",): Default(
        ("0", "0.0"),
        "any improvement counts",
        "any improvement counts, however small.",
        "Leave it out; --early_stop_interval N stops after N evaluations without one.",
    ),
    ("auto_find_batch_size",): off(
        "swift does not look for a batch that fits.",
        "Name one: --per_device_train_batch_size 1 --gradient_accumulation_steps 16",
    ),
    ("batch_size",): Refused(
        "some programs mean the rows of one process by it, others those of a whole optimizer step.",
        "Type --per_device_train_batch_size N for a process, or --global_batch_size N for a step.",
    ),
    ("train_batch_size",): Refused(
        "DeepSpeed means the rows of an optimizer step over all processes by it, others those of one process.",
        "Type --global_batch_size N for a step, or --per_device_train_batch_size N for a process.",
    ),
    ("use_dft_loss", "enable_dft_loss"): off(
        "the DFT loss is not implemented.", "Leave it out; sft takes the cross entropy of the tokens that are learned."
    ),
    ("use_logits_to_keep",): NotNeeded("logits are computed as the loss needs them"),
    ("activation_cpu_offload", "activation_offloading"): off(
        "activations are not moved to the CPU.",
        "To save memory recompute them: --gradient_checkpointing true",
    ),
    ("vit_gradient_checkpointing", "vit_gradient_checkpointing_kwargs"): NotNeeded(
        "--gradient_checkpointing true is for the layers of a tower too"
    ),
}

OPTIMIZER: Rows = {
    ("galore_quantization", "galore_proj_quant"): off(
        "projections in 4 bits and moments in 8 are an optimizer of their own.",
        "Instead of --use_galore type --optim q_galore",
    ),
    ("galore_proj_bits",): Default(
        ("4",), "projections of q_galore are in 4 bits", "projections of q_galore are in 4 bits.", "Leave it out."
    ),
    ("galore_with_embedding",): off(
        "embeddings and heads are updated by AdamW.", "Leave it out, or --freeze_parameters model.embed_tokens"
    ),
    ("galore_layerwise", "galore_optim_per_parameter", "apollo_layerwise"): off(
        IN_BACKWARD, "Leave it out; for little memory: --optim q_galore or apollo_mini"
    ),
    ("apollo_proj",): Default(
        ("random",),
        "APOLLO draws its projections",
        "projections of APOLLO are drawn.",
        "For those of a decomposition: --optim galore",
    ),
    ("apollo_proj_type",): Default(
        ("std",), "APOLLO projects the shorter side", "APOLLO projects the shorter side of a matrix.", "Leave it out."
    ),
    ("apollo_scale_front",): off("updates are scaled after they are limited.", "Leave it out."),
    ("use_badam",): off("BAdam is a tuner here.", "Type: --train_type badam --tuner.interval 50"),
    ("use_lomo",): off(IN_BACKWARD, LITTLE_STATE),
    ("lisa_activated_layers", "lisa_step_interval"): Default(
        ("0",),
        "all layers are trained in every step",
        "LISA is a tuner here.",
        "Type: --train_type lisa --tuner.layers 2 --tuner.interval 20",
    ),
    ("optimizer_args",): Refused(
        "an optimizer's options are flags of their own here.",
        "For AdamW: --adam_beta1 0.9 --adam_beta2 0.95 --adam_epsilon 1e-8; all: swift sft --help",
    ),
    ("embedding_lr", "embedding_learning_rate", "embedding_lr_scale"): Refused(
        "all weights have one learning rate (with LoRA+, the adapters' B have a larger one).",
        "Type --learning_rate LR, and with LoRA --lorap_lr_ratio 16",
    ),
}

DATA: Rows = {
    ("remove_unused_columns",): NotNeeded("swift reads the columns that it knows, and reports the others"),
    ("label_names",): Default(
        ("labels",), "labels follow from --loss_scale", "labels are made from the conversation.", "Leave it out."
    ),
    ("group_by_length", "length_grouped_sampling"): off(
        "samples are not sorted by length.", "To spend nothing on padding: --packing true, or --padding_free true"
    ),
    ("length_column_name",): NotNeeded("swift measures samples itself"),
    ("dataloader_pin_memory", "dataloader_prefetch_factor", "dataloader_persistent_workers"): NotNeeded(_NO_WORKERS),
    ("dataloader_num_workers", "num_workers"): NotNeeded(
        _NO_WORKERS + "; --dataset_num_proc N tokenises in N processes"
    ),
    ("dataloader_drop_last",): Default(
        ("false",),
        "the last rows of an epoch make a smaller step",
        "every row is trained on: the last ones of an epoch make a smaller step.",
        "Leave it out.",
    ),
    ("accelerator_config", "dispatch_batches", "split_batches"): NotNeeded("every process reads its own rows"),
    ("lazy_tokenize",): NotNeeded("samples are tokenised once and kept; --streaming true tokenises while training"),
    ("load_from_cache_file", "overwrite_cache"): NotNeeded(
        "tokenised data is used again when neither the rows nor the settings changed"
    ),
    ("packing_cache", "tokenized_path", "dataset_prepared_path"): NotNeeded(
        "tokenised data is kept in the user's cache folder; --data.cache FOLDER names another"
    ),
    ("packing_num_proc", "buffer_size", "preprocessing_batch_size"): NotNeeded("swift packs and tokenises as it needs"),
    ("packing_strategy",): Default(
        ("bfd", "ffd"),
        "packs are filled with whole samples",
        "packs are filled with whole samples; none is divided over two packs.",
        "Leave it out.",
    ),
    ("interleave_prob", "interleave_probs"): Refused(
        "data sets are concatenated, and not drawn by probability.",
        "Weigh them by size: --dataset a.jsonl#5000 b.jsonl#1000",
    ),
    ("mix_strategy", "stopping_strategy"): Default(
        ("concat",),
        "data sets are concatenated",
        "data sets are concatenated.",
        "Weigh them by size: --dataset a.jsonl#5000 b.jsonl#1000",
    ),
    ("shuffle_buffer_size",): Default(
        ("4096",),
        "a stream is shuffled 4,096 rows at a time",
        "a stream is shuffled 4,096 rows at a time, which is no option.",
        "Leave it out, or shuffle the file.",
    ),
    ("cached_dataset", "cached_val_dataset"): Refused(
        "tokens of another program are not read.",
        "Give the rows: --dataset FILE; swift keeps what it tokenised and uses it again.",
    ),
    ("cache_dir",): Refused(
        "it names two things: where downloads are kept, and where tokenised data is.",
        "Type --data.cache FOLDER for tokenised data; for downloads set HF_HOME=FOLDER in front of the command.",
    ),
    ("model_author", "model_name"): Refused(
        "swift does not fill names into a data set about the model itself.", "Write them into the rows of --dataset."
    ),
    ("custom_register_path", "custom_dataset_info"): Refused(
        "Python files are not loaded by a flag.",
        "Data in another format: --columns. More needs a plugin: see docs/plugins and `swift plugins`.",
    ),
    ("dataset_dir",): Refused(
        "data sets are named by their path.",
        "Type: --dataset FOLDER/NAME for a name of its dataset_info.json, or --dataset FOLDER/FILE",
    ),
}

TEMPLATE: Rows = {
    ("template", "template_type"): NotNeeded(_TEMPLATE),
    ("template_backend", "agent_template", "tools_prompt", "tool_format"): NotNeeded(_TEMPLATE),
    ("use_chat_template",): Default(
        ("true",),
        "conversations go through the chat template",
        "swift sft writes conversations with the chat template.",
        "For plain text: swift pt; for another template: --chat_template FILE.jinja",
    ),
    ("response_template", "instruction_template"): Refused(
        "what is learned follows from the roles of a conversation, not from a text in it.",
        "Type --loss_scale default (all answers), --loss_scale last_round, or --loss_scale all",
    ),
    ("response_prefix",): Refused(
        "answers begin as the chat template writes them.", "Type --chat_template FILE.jinja with one of your own."
    ),
    ("video_max_pixels",): NotNeeded("--max_pixels limits the images of videos too"),
    ("default_padding_side", "padding_side"): NotNeeded("padding has no part in the loss"),
    ("pad_to_multiple_of",): NotNeeded("padding has no part in the loss"),
}

MODEL: Rows = {
    ("use_swift_lora",): off("adapters are made by PEFT.", "Leave it out."),
    ("use_unsloth",): off(
        "Unsloth is not used.", "For fast kernels on a GPU: --use_liger_kernel true --attn_impl flash_attn"
    ),
    ("check_model",): NotNeeded("model files are checked when they are loaded"),
    ("use_hf",): Default(
        ("true",),
        "names are looked up on the Hugging Face hub",
        "models come from the Hugging Face hub, and not from ModelScope.",
        "Download it first, and type --model FOLDER; data sets: --dataset ms::OWNER/NAME",
    ),
    ("device_map",): Default(
        ("auto", "none", "null", "cuda", "cpu"),
        "each process puts the model on its device; --backend fsdp --nproc N divides it over GPUs",
        "layers are not placed by hand.",
        "To divide a model over GPUs: --backend fsdp --nproc N; to train on the CPU: --device cpu",
    ),
    ("max_memory",): Refused(
        "layers are not placed by the memory of a device.", "To divide a model over GPUs: --backend fsdp --nproc N"
    ),
    ("low_cpu_mem_usage", "fast_init"): NotNeeded("weights are always read shard by shard"),
    ("new_special_tokens", "add_tokens", "additional_special_tokens"): Refused(
        "swift does not extend a vocabulary.",
        "Add them with transformers (add_tokens, resize_token_embeddings, save_pretrained), and type --model FOLDER "
        "--modules_to_save embed_tokens lm_head",
    ),
    ("resize_vocab", "resize_token_embeddings"): off(
        "swift does not extend a vocabulary.",
        "Do it with transformers (resize_token_embeddings), and type --model FOLDER",
    ),
    ("rope_scaling",): Refused(
        "positions are scaled as the model's config.json says.",
        'Write "rope_scaling" into the config.json of the model\'s folder, and type --model FOLDER',
    ),
    ("max_model_len", "max_position_embeddings"): Refused(
        "the longest context is the one of the model's config.json.",
        'To limit samples: --max_length N; to extend the model write "rope_scaling" into its config.json',
    ),
    ("model_kwargs", "model_init_kwargs", "config_overrides"): Default(
        ("{}", "none", "null"),
        "a model is loaded as its config.json says",
        "a model is loaded as its config.json says.",
        "Change the config.json in the model's folder; precision and attention: --torch_dtype, --attn_impl",
    ),
    ("freeze_trainable_layers",): Default(
        ("0", "0.0"),
        "nothing is frozen by it",
        "weights are frozen by name or by their part of all.",
        "Type --train_type full --freeze_parameters_ratio 0.9, or --freeze_parameters model.layers.0. ...",
    ),
    ("ref_model", "ref_model_type", "ref_adapters"): Refused(
        "the reference is the model that training begins with, under the adapter or scored once before.",
        "Leave it out if they are the same; else begin from it: --model REFERENCE",
    ),
}

TUNERS: Rows = {
    ("lora_dtype",): Default(
        ("float32", "fp32", "auto", "none"),
        "adapters are trained in fp32",
        "what is trained has fp32 weights, whatever the precision of the model.",
        "Leave it out.",
    ),
    ("lora_modules",): Refused("in ms-swift it names adapters for inference.", "To continue one: --adapters FOLDER"),
    ("pissa_init",): off("it is a way for adapters to begin.", "Type: --init_lora_weights pissa, or pissa_niter_16"),
    ("additional_target",): Refused("modules next to the adapters have a flag.", "Type: --modules_to_save NAMES"),
}

RESULTS: Rows = {
    ("disable_tqdm",): NotNeeded("a terminal shows a progress bar, a file gets a line per logging step"),
    ("log_level", "log_level_replica", "log_on_each_node"): NotNeeded("the first process writes what a run has to say"),
    ("logging_first_step",): NotNeeded("the first step is always logged"),
    ("logging_nan_inf_filter",): NotNeeded("a loss that is not finite stops the run (--train.detect_nan)"),
    ("logging_dir",): NotNeeded("TensorBoard's files are in the run's own folder: tensorboard --logdir OUTPUT_DIR"),
    ("add_version",): Default(
        ("true",),
        "every run gets a folder of its own",
        "every run gets a folder of its own.",
        "Type --run_name NAME for OUTPUT_DIR/NAME",
    ),
    ("overwrite_output_dir",): NotNeeded("every run gets a folder of its own, so that nothing is overwritten"),
    ("create_checkpoint_symlink",): NotNeeded("RUN/last-checkpoint and RUN/best-checkpoint always exist"),
    ("save_safetensors",): Default(
        ("true",), "weights are safetensors", "swift writes no pickled weights.", "Leave it out."
    ),
    ("safe_serialization",): Default(
        ("true",), "weights are safetensors", "swift writes no pickled weights.", "Leave it out."
    ),
    ("save_on_each_node",): off(
        "all machines write one checkpoint into one folder, which they share.", "Leave it out."
    ),
    ("ignore_data_skip",): off(
        "a run is resumed with the row after the last one.",
        "To start over from its weights, add --resume_only_model true",
    ),
    ("push_to_hub",): Default(("false", "none"), "training uploads nothing", *_UPLOAD),
    ("hub_model_id",): Refused(*_UPLOAD),
    ("hub_strategy", "hub_private_repo", "hub_always_push", "hub_revision"): NotNeeded(
        "training uploads nothing; afterwards: swift export RUN --push OWNER/NAME"
    ),
    ("hub_token",): Refused(
        "a token on a command line is seen by everybody on this machine.",
        "Set HF_TOKEN, or log in once: hf auth login",
        secret=True,
    ),
}

PROCESSES: Rows = {
    ("ddp_find_unused_parameters", "ddp_bucket_cap_mb", "ddp_broadcast_buffers"): NotNeeded(
        "gradients are added up by swift's backends, which need no such setting"
    ),
    ("ddp_backend", "distributed_backend"): Default(
        ("nccl", "gloo"),
        "processes talk over NCCL on GPUs and over gloo on the CPU",
        "processes talk over NCCL on GPUs and over gloo on the CPU.",
        "Leave it out.",
    ),
    ("torch_compile_backend",): Default(
        ("inductor",), "--torch_compile uses inductor", "--torch_compile uses inductor.", "Leave it out."
    ),
    ("torch_compile_mode",): Default(
        ("default", "none"), "--torch_compile uses the default mode", "there is one mode.", "Leave it out."
    ),
    ("zero_hpz_partition_size",): Default(
        ("1",),
        "that is DeepSpeed's default",
        "it is a key of DeepSpeed's JSON file.",
        'swift config deepspeed zero3 > ds.json, write "zero_hpz_partition_size" into zero_optimization, and type '
        "--deepspeed ds.json",
    ),
}

TOPICS: Mapping[str, Rows] = {
    "Training and evaluation": LOOP,
    "Optimizer": OPTIMIZER,
    "Data": DATA,
    "Chat template and what is learned": TEMPLATE,
    "Model": MODEL,
    "Tuners": TUNERS,
    "Megatron": megatron.ROWS,
    "Online learning": online.ROWS,
    "Output, checkpoints and the hub": RESULTS,
    "Processes": PROCESSES,
}
"""Heading in the documentation → rows."""


@cache
def other_programs() -> dict[str, Meaning]:
    """Return flag → meaning, for all rows."""
    return {flag: meaning for rows in TOPICS.values() for flags, meaning in rows.items() for flag in flags}


def other_program(flag: str) -> Meaning | None:
    """Return what a flag of another program means here; None for one that the table does not have."""
    return other_programs().get(flag)
