"""Flags that the commands of other programs have where swift's infer, chat, eval, export and serve have none.

Rows are those of `swift.config.compat.table`, which is the table for training: read there what a row may be.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from swift.config.compat.meanings import Default, Meaning, NotNeeded, Refused, off
from swift.config.compat.table import Rows
from swift.config.flags import Arity
from swift.errors import UsageError

MAX_LENGTH = ("max_model_len", "vllm_max_model_len")
"""Flags for the longest prompt and answer together."""
ENGINE_KWARGS = "vllm_engine_kwargs"
_SCHEMES_OF_BITS = {4: ("w4a16", "gptq", "awq", "bnb"), 8: ("w8a8", "fp8")}
"""Bits per weight, as other programs name them → schemes of `--quant`."""

_ZERO = ("0", "0.0")
_HUB: Rows = {
    ("use_hf",): Default(
        ("true",),
        "models and data sets come from the Hugging Face hub",
        "Models and data sets come from the Hugging Face hub only.",
        "Leave it out, or download the model first and name its folder.",
    ),
    ("use_modelscope",): off("The ModelScope hub is not there.", "Download the model first, and name its folder."),
    ("hub_token", "token"): Refused(
        "Others on this machine can read a command line.", "Type HF_TOKEN=... in front of the command."
    ),
    ("model_type",): NotNeeded("the model's own config.json says its type"),
    ("template", "template_type"): Refused(
        "The chat template is the one in the model's tokenizer.",
        "Leave it out; for another template put it into the model's folder as chat_template.jinja.",
    ),
    ("load_args",): NotNeeded("a run and a checkpoint know their model and system message"),
    ("bf16", "fp16"): Refused("Precision is named here.", "Type --torch_dtype bfloat16, float16 or float32."),
}
_QUANTISED = "Weights are loaded as they are stored."
_QUANTISE = "Type swift export MODEL --to vllm --quant w4a16 --out FOLDER, and use FOLDER."
_LOAD: Rows = {
    ("merge_lora",): NotNeeded("an adapter is applied to its model in memory"),
    ("quant_bits", "quantization_bit", "load_in_4bit", "load_in_8bit"): Default(
        ("0", "none", "false"), "weights are loaded as they are stored", _QUANTISED, _QUANTISE
    ),
    ("quant_method",): Refused(_QUANTISED, _QUANTISE),
    ("device_map",): Default(
        ("auto",),
        "the model is loaded on the GPU where there is one",
        "A model is loaded on one device.",
        "Type --device cuda:1, or for several GPUs --engine vllm --tensor_parallel_size 2",
    ),
    ("use_flash_attn", "flash_attn"): off("The kernel is named here.", "Type --attn_impl flash_attention_2"),
    ("sglang_tp_size", "sglang_mem_fraction_static", "sglang_context_length"): Refused(
        "SGLang answers as a server only.",
        "Type: swift serve MODEL --engine sglang --sglang_tp_size 2, and ask it with --engine http://127.0.0.1:8000",
    ),
    ("lmdeploy_tp", "tp", "lmdeploy_session_len", "lmdeploy_cache_max_entry_count"): Refused(
        "LMDeploy answers as a server only.",
        "Type: swift serve MODEL --engine lmdeploy --tp 2, and ask it with --engine http://127.0.0.1:8000",
    ),
}
_SERVER_SAMPLES = "A server takes it in its requests: swift serve MODEL"
_SAMPLING: Rows = {
    ("num_beams",): Default(
        ("1",), "answers are drawn one token at a time", "Beam search is not there.", "Leave it out."
    ),
    ("n", "num_return_sequences"): Default(
        ("1",),
        "a question gets one answer",
        "A question gets one answer.",
        "Several, of which the best are kept: swift sample MODEL --dataset FILE --num_return_sequences 8",
    ),
    ("logprobs",): off("Answers are written as text alone.", _SERVER_SAMPLES),
    ("top_logprobs",): Default(_ZERO, "that is off anyway", "Answers are written as text alone.", _SERVER_SAMPLES),
    ("min_p", "frequency_penalty", "presence_penalty", "no_repeat_ngram_size"): Default(
        _ZERO, "that is off anyway", "Of penalties --repetition_penalty is there.", _SERVER_SAMPLES
    ),
    ("length_penalty",): Default(("1", "1.0"), "that is off anyway", "Beam search is not there.", "Leave it out."),
    ("response_prefix",): Refused("The chat template begins the answer.", "Put it into the question."),
}
_ASKING: Rows = {
    ("load_data_args",): off(
        "Questions are named here.", "Type --dataset RUN/val_dataset.jsonl for what the run held out."
    ),
    ("val_dataset_sample", "max_samples"): Refused("The number stands behind the name.", "Type --dataset FILE#200"),
    ("write_batch_size",): NotNeeded("every answer is written as soon as it is made"),
}
_EVAL: Rows = {
    ("eval_dataset",): Refused(
        "Benchmarks are tasks of lm-evaluation-harness here, with its names.",
        "Type --tasks gsm8k,arc_easy, or --dataset FILE for questions of your own.",
    ),
    ("eval_backend",): Default(
        ("native",),
        "swift asks the model itself",
        "swift asks the model itself: --dataset for questions of your own, --tasks for lm-evaluation-harness.",
        "Leave it out.",
    ),
    ("eval_output_dir",): Refused("Answers are written to a file.", "Type --result_path answers.jsonl"),
    ("eval_num_proc",): Refused("One process asks in batches.", "Type --batch_size 16"),
    ("eval_generation_config",): Refused(
        "Each has a flag of its own.", "Type --max_new_tokens 512 --temperature 0.7 --top_p 0.9"
    ),
    ("eval_url",): Refused("A server is an engine here.", "Type --engine http://HOST:PORT"),
}
_EXPORT: Rows = {
    ("merge_lora",): Default(
        ("true",), "--to hf, the default, merges adapters", "--to hf merges adapters.", "Type --to adapter"
    ),
    ("to_hf",): Default(("true",), "--to hf is the default", "Name the format with --to.", "Type --to adapter"),
    ("to_peft_format",): Default(
        ("false",), "--to hf is the default", "Name the format with --to.", "Type --to adapter"
    ),
    ("to_ollama", "gguf", "ollama_output_dir"): off(
        "GGUF, the format of Ollama and llama.cpp, is not there.",
        "Type --to hf, and convert what it writes with llama.cpp's convert_hf_to_gguf.py.",
    ),
    ("to_mcore", "mcore_adapters", "mcore_model"): off(
        "Megatron starts from Hugging Face folders here, and its checkpoints are exported as any other.",
        "Type --to hf, and train with --backend megatron --model FOLDER",
    ),
    ("to_cached_dataset",): off("Data sets are tokenised once by training.", "Type swift sft --data.cache FOLDER"),
    ("safe_serialization",): Default(
        ("true",),
        "weights are written as safetensors",
        "Weights are written as safetensors, never as pickles.",
        "Leave it out.",
    ),
    ("device_map", "device"): NotNeeded("the export finds its device itself, and the result is the same on any"),
    ("hub_private_repo",): Default(
        ("true", "false"),
        "an existing repository stays as it is",
        "It is true or false.",
        "Create the repository on the hub first.",
    ),
    ("group_size", "quant_group_size"): Default(
        ("128",),
        "groups are of 128 inputs where the layers can be divided so",
        "Groups are of 128 inputs, or of 64 or 32 where the layers cannot be divided so.",
        "Leave it out.",
    ),
    ("quant_batch_size",): NotNeeded("the result does not depend on it"),
}
_SERVE_SAMPLING = Refused(
    "Requests say how answers are drawn.",
    """For a server's own defaults: --override-generation-config '{"temperature": 0.7}'""",
)
_SERVE: Rows = {
    **{(name,): _SERVE_SAMPLING for name in ("temperature", "top_p", "top_k", "repetition_penalty", "stop_words")},
    ("max_new_tokens", "max_tokens", "num_beams", "do_sample"): _SERVE_SAMPLING,
    ("log_interval",): NotNeeded("vLLM's own log has its figures, and --verbose shows it"),
    ("stream",): NotNeeded("each request says whether its answer is streamed"),
    ("max_batch_size",): Refused("vLLM has a flag of its own.", "Type --max-num-seqs 64"),
    ("attn_impl", "attn_implementation"): Refused("vLLM has kernels of its own.", "Type --attention-backend NAME"),
    ("device_map",): _LOAD[("device_map",)],
    ("merge_lora",): NotNeeded("adapters are served next to their model, by name"),
    ("system",): Refused("Requests bring their system message.", "Put it into the messages of a request."),
}
_SAMPLE: Rows = {
    ("resume",): NotNeeded("the same command always continues an interrupted one"),
    ("num_sampling_batch_size",): NotNeeded("every answer is kept as soon as it is drawn; --batch_size has answers"),
    ("num_sampling_batches",): Refused("The number of prompts stands behind the name.", "Type --dataset FILE#200"),
    ("sampler_type",): Default(
        ("sample",),
        "answers are drawn by the model that is named",
        "Answers of a larger model are drawn like any other.",
        "Leave it out, and name the larger model, or its server: swift sample --engine http://HOST:PORT",
    ),
    ("dataset_shuffle",): NotNeeded("rows are written in the order of the data set"),
    ("stream",): NotNeeded("answers go to files"),
}

TOPICS: Mapping[str, Rows] = {
    "Models and the hub (commands that do not train)": _HUB,
    "Loading a model (infer, chat, eval)": _LOAD,
    "Answers (infer, chat, eval)": _SAMPLING,
    "Questions (infer, eval)": _ASKING,
    "swift eval": _EVAL,
    "swift export and merge-lora": _EXPORT,
    "swift serve": _SERVE,
    "swift sample": _SAMPLE,
}
"""Heading in the documentation → rows."""
_HUB_TOPIC, _LOAD_TOPIC, _ANSWERS, _QUESTIONS, _EVAL_TOPIC, _EXPORT_TOPIC, _SERVE_TOPIC, _SAMPLE_TOPIC = TOPICS
TOPICS_OF_COMMANDS: Mapping[str, tuple[str, ...]] = {
    "infer": (_HUB_TOPIC, _LOAD_TOPIC, _ANSWERS, _QUESTIONS),
    "chat": (_HUB_TOPIC, _LOAD_TOPIC, _ANSWERS),
    "eval": (_HUB_TOPIC, _LOAD_TOPIC, _ANSWERS, _QUESTIONS, _EVAL_TOPIC),
    "sample": (_HUB_TOPIC, _LOAD_TOPIC, _ANSWERS, _QUESTIONS, _SAMPLE_TOPIC),
    "export": (_HUB_TOPIC, _EXPORT_TOPIC),
    "merge-lora": (_HUB_TOPIC, _EXPORT_TOPIC),
    "serve": (_HUB_TOPIC, _SERVE_TOPIC),
    "deploy": (_HUB_TOPIC, _SERVE_TOPIC),
}
"""Verb → the topics whose flags it answers."""


@dataclass(frozen=True)
class Elsewhere:
    """The flags of other programs that one command answers."""

    meanings: Mapping[str, Meaning]
    arities: Mapping[str, Arity]


def elsewhere(command: str, *, but: Collection[str] = ()) -> Elsewhere:
    """Return the flags of other programs that a command answers, without those that it has itself (`but`)."""
    meanings = {
        flag: meaning
        for topic in TOPICS_OF_COMMANDS.get(command, ())
        for flags, meaning in TOPICS[topic].items()
        for flag in flags
        if flag not in but
    }
    return Elsewhere(meanings, {flag: _arity(flag, meaning) for flag, meaning in meanings.items()})


_SWITCHES = ("merge_lora", "load_args", "stream")


def _arity(flag: str, meaning: Meaning) -> Arity:
    """Return 'switch' where a word behind the flag may be an argument: `swift infer --merge_lora MODEL`."""
    on_or_off = isinstance(meaning, Default) and bool({"true", "false"} & set(meaning.values))
    return "switch" if on_or_off or flag in _SWITCHES else "optional"


def check_bits(bits: int | None, scheme: str | None) -> None:
    """Raise `UsageError` where the scheme of an export does not have as many bits as are asked for."""
    if bits is None:
        return
    if bits not in _SCHEMES_OF_BITS:
        raise UsageError(f"Weights are stored in 4 or 8 bits, not in {bits}.", hint="Type: --quant w4a16, or w8a8")
    instead = f"Type: --quant {' or '.join(_SCHEMES_OF_BITS[bits])}"
    if scheme is None:
        raise UsageError(f"--quant_bits {bits} needs a scheme.", hint=instead)
    if any(scheme in schemes for other, schemes in _SCHEMES_OF_BITS.items() if other != bits):
        raise UsageError(f"--quant {scheme} does not store weights in {bits} bits.", hint=instead)
