"""Third-party flags that infer, chat, eval, sample, export and serve accept or refuse with a reason.

`swift_migrate.flags.training` has those of training, and explains the rows.
"""

from __future__ import annotations

from swift.config import Default, NotNeeded, Refused, off
from swift.contracts import FlagTopic
from swift_migrate.flags.training import Rows

_ZERO = ("0", "0.0")
_HUB: Rows = {
    ("use_hf",): Default(
        ("true",),
        "models and data sets come from the Hugging Face hub",
        "Models and data sets come from the Hugging Face hub only.",
        "Leave it out, or download the model first and pass its folder.",
    ),
    ("use_modelscope",): off("ModelScope is not supported.", "Download the model first, and pass its folder."),
    ("hub_token", "token"): Refused(
        "Other users of this machine can read the command line.", "Type HF_TOKEN=... before the command."
    ),
    ("model_type",): NotNeeded("the model's config.json has its type"),
    ("template", "template_type"): Refused(
        "The chat template comes from the model's tokenizer.",
        "Leave it out. To use another template, save it in the model's folder as chat_template.jinja.",
    ),
    ("load_args",): NotNeeded("runs and checkpoints contain their model and system message"),
    ("bf16", "fp16"): Refused("Precision is set by --torch_dtype.", "Type --torch_dtype bfloat16, float16 or float32."),
}
_QUANTIZED = "Weights are loaded as stored."
_QUANTIZE = "Type swift export MODEL --to vllm --quant w4a16 --out FOLDER, then load FOLDER."
_LOAD: Rows = {
    ("merge_lora",): NotNeeded("an adapter is applied to its model when it is loaded"),
    ("quant_bits", "quantization_bit", "load_in_4bit", "load_in_8bit"): Default(
        ("0", "none", "false"), "weights are loaded as stored", _QUANTIZED, _QUANTIZE
    ),
    ("quant_method",): Refused(_QUANTIZED, _QUANTIZE),
    ("device_map",): Default(
        ("auto",),
        "the model is loaded on a GPU if there is one",
        "A model is loaded on one device.",
        "Type --device cuda:1, or for several GPUs --engine vllm --tensor_parallel_size 2",
    ),
    ("use_flash_attn", "flash_attn"): off(
        "The attention kernel is set by --attn_impl.", "Type --attn_impl flash_attention_2"
    ),
    ("sglang_tp_size", "sglang_mem_fraction_static", "sglang_context_length"): Refused(
        "SGLang is supported only as a server.",
        "Type: swift serve MODEL --engine sglang --sglang_tp_size 2, then connect with --engine http://127.0.0.1:8000",
    ),
    ("lmdeploy_tp", "tp", "lmdeploy_session_len", "lmdeploy_cache_max_entry_count"): Refused(
        "LMDeploy is supported only as a server.",
        "Type: swift serve MODEL --engine lmdeploy --tp 2, then connect with --engine http://127.0.0.1:8000",
    ),
}
_SERVER_SAMPLES = "Pass it in requests to a server: swift serve MODEL"
_SAMPLING: Rows = {
    ("num_beams",): Default(("1",), "one sequence is generated per prompt", "Beam search is not supported."),
    ("n", "num_return_sequences"): Default(
        ("1",),
        "a prompt gets one response",
        "A prompt gets one response.",
        "To keep the best of several type: swift sample MODEL --dataset FILE --num_return_sequences 8",
    ),
    ("logprobs",): off("Responses contain text only.", _SERVER_SAMPLES),
    ("top_logprobs",): Default(_ZERO, "it is always off", "Responses contain text only.", _SERVER_SAMPLES),
    ("min_p", "frequency_penalty", "presence_penalty", "no_repeat_ngram_size"): Default(
        _ZERO, "it is always off", "The only penalty is --repetition_penalty.", _SERVER_SAMPLES
    ),
    ("length_penalty",): Default(("1", "1.0"), "it is always off", "Beam search is not supported."),
    ("response_prefix",): Refused("The chat template starts the response.", "Put it into the prompt."),
}
_PROMPTS: Rows = {
    ("load_data_args",): off(
        "Prompts come from --dataset.", "Type --dataset RUN/val_dataset.jsonl for the rows that the run held out."
    ),
    ("val_dataset_sample", "max_samples"): Refused("The number of rows follows the name.", "Type --dataset FILE#200"),
    ("write_batch_size",): NotNeeded("every response is written as soon as it is complete"),
}
_EVAL: Rows = {
    ("eval_dataset",): Refused(
        "Benchmarks are tasks of lm-evaluation-harness.",
        "Type --tasks gsm8k,arc_easy, or --dataset FILE for your own questions.",
    ),
    ("eval_backend",): Default(
        ("native",),
        "swift runs the evaluation itself",
        hint="Leave it out; type --dataset FILE for your own questions, or --tasks NAMES for lm-evaluation-harness.",
    ),
    ("eval_output_dir",): Refused("Responses are written to one file.", "Type --result_path responses.jsonl"),
    ("eval_num_proc",): Refused("One process evaluates in batches.", "Type --batch_size 16"),
    ("eval_generation_config",): Refused(
        "Each setting has a flag.", "Type --max_new_tokens 512 --temperature 0.7 --top_p 0.9"
    ),
    ("eval_url",): Refused("A server is an engine.", "Type --engine http://HOST:PORT"),
}
_EXPORT: Rows = {
    ("merge_lora",): Default(
        ("true",), "--to hf, the default, merges adapters", "--to hf merges adapters.", "Type --to adapter"
    ),
    ("to_hf",): Default(("true",), "--to hf is the default", "The format is set by --to.", "Type --to adapter"),
    ("to_peft_format",): Default(
        ("false",), "--to hf is the default", "The format is set by --to.", "Type --to adapter"
    ),
    ("to_ollama", "gguf", "ollama_output_dir"): off(
        "The format is set by --to.",
        "Type --to gguf: it writes a Modelfile for Ollama, too.",
    ),
    ("to_mcore", "mcore_adapters", "mcore_model"): off(
        "The Megatron backend reads Hugging Face folders.",
        "Type --to hf, then train with --backend megatron --model FOLDER",
    ),
    ("to_cached_dataset",): off("Training tokenizes data sets once.", "Type swift sft --data.cache FOLDER"),
    ("safe_serialization",): Default(
        ("true",), "weights are written as safetensors", "Weights are written as safetensors, never as pickles."
    ),
    ("device_map", "device"): NotNeeded("the export selects its device, and the result does not depend on it"),
    ("hub_private_repo",): Default(
        ("true", "false"),
        "an existing repository is not changed",
        "It must be true or false.",
        "Create the repository on the hub first.",
    ),
    ("group_size", "quant_group_size"): Default(
        ("128",),
        "the group size is 128 where it divides the layers",
        "The group size is 128, or 64 or 32 where 128 does not divide the layers.",
    ),
    ("quant_batch_size",): NotNeeded("the result does not depend on it"),
}
_SERVE_SAMPLING = Refused(
    "Sampling settings belong to requests.",
    """To change the server's defaults type --override-generation-config '{"temperature": 0.7}'""",
)
_SERVE: Rows = {
    **{(name,): _SERVE_SAMPLING for name in ("temperature", "top_p", "top_k", "repetition_penalty", "stop_words")},
    ("max_new_tokens", "max_tokens", "num_beams", "do_sample"): _SERVE_SAMPLING,
    ("log_interval",): NotNeeded("vLLM's log has these figures, and --verbose shows it"),
    ("stream",): NotNeeded("each request selects streaming"),
    ("max_batch_size",): Refused("vLLM has its own flag.", "Type --max-num-seqs 64"),
    ("attn_impl", "attn_implementation"): Refused("vLLM has its own kernels.", "Type --attention-backend NAME"),
    ("device_map",): _LOAD[("device_map",)],
    ("merge_lora",): NotNeeded("adapters are served by name, together with their model"),
    ("system",): Refused("The system message belongs to requests.", "Put it into the messages of a request."),
}
_SAMPLE: Rows = {
    ("resume",): NotNeeded("repeating a command continues it"),
    ("num_sampling_batch_size",): NotNeeded("every completion is saved at once; --batch_size sets the batch"),
    ("num_sampling_batches",): Refused("The number of prompts follows the name.", "Type --dataset FILE#200"),
    ("sampler_type",): Default(
        ("sample",),
        "the model generates the completions",
        "Distillation from a larger model is ordinary sampling.",
        "Leave it out, and pass the larger model, or its server: swift sample --engine http://HOST:PORT",
    ),
    ("dataset_shuffle",): NotNeeded("rows are written in the order of the data set"),
    ("stream",): NotNeeded("completions are written to files"),
}

_ASKING = ("infer", "chat", "eval", "sample")
_EXPORTING = ("export", "merge-lora")
_SERVING = ("serve", "deploy")
TOPICS = tuple(
    FlagTopic(title, meanings=rows, commands=frozenset(commands))
    for title, rows, commands in (
        ("Models and the hub (commands that do not train)", _HUB, (*_ASKING, *_EXPORTING, *_SERVING)),
        ("Loading a model (infer, chat, eval)", _LOAD, _ASKING),
        ("Sampling (infer, chat, eval)", _SAMPLING, _ASKING),
        ("Prompts (infer, eval)", _PROMPTS, ("infer", "eval", "sample")),
        ("swift eval", _EVAL, ("eval",)),
        ("swift export and merge-lora", _EXPORT, _EXPORTING),
        ("swift serve", _SERVE, _SERVING),
        ("swift sample", _SAMPLE, ("sample",)),
    )
)
"""In the order of the documentation."""
