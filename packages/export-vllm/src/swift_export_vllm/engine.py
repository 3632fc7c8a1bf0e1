"""The engine `vllm` in this process: for training between two steps, and `swift infer` for many prompts."""

from __future__ import annotations

import gc
import os
import random
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from swift.contracts import Completion, EngineRequest, InferenceEngine, Sampling, Score, WeightStream
from swift.errors import DataError, ModelError, UsageError
from swift.toolkit import waiting
from swift_export_vllm.adapters import check_adapter, incompatibility, rank_of, room_for, write_adapter
from swift_export_vllm.command import check_options
from swift_export_vllm.interpreter import check_installed, find_interpreter
from swift_export_vllm.memory import cpu_settings
from swift_export_vllm.plugin import EMBEDDING, GENERATES
from swift_export_vllm.rollout import open_servers
from swift_export_vllm.sampling import DISTRIBUTIONS, KINDS, sampling_settings, score_of
from swift_export_vllm.supported import check_on_cpu
from swift_export_vllm.weights_folder import write_weights
from swift_export_vllm.worker import EXTENSION, missing_weights

_ADAPTER = "adapter"
_QUIET = {
    "VLLM_LOGGING_LEVEL": "ERROR",
    "VLLM_LOGGING_STREAM": "ext://sys.stderr",
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
}
"""Environment without logs and usage reports, unless the user sets it."""


def open_engine(request: EngineRequest) -> InferenceEngine:
    """Return a model in vLLM, in this process; with the setting `servers`, connect to those that serve it.

    Raise `ModelError` for what vLLM cannot do.
    """
    if "servers" in request.options:
        return open_servers(request)
    check_installed()
    if request.options:
        check_options(request.options, find_interpreter(None))
    _check_group()
    if request.adapter is not None:
        check_adapter(request.adapter)
    return VllmInProcess(request)


class VllmInProcess:
    """Implements `swift.contracts.InferenceEngine`.

    Prompts are handed over at once, and vLLM batches them continuously. A draw is seeded per prompt, so that it does
    not depend on what is answered next to it. Log-probabilities are the model's own (vLLM's `raw_logprobs`), or with
    the setting `logprobs_mode: processed_logprobs` those of the distribution that is drawn from.
    """

    def __init__(self, request: EngineRequest) -> None:
        self._numbers = count()
        self._task = request.task
        self._environment: dict[str, tuple[str | None, str | None]] = {}
        self._had_group = dist.is_initialized()
        tensor_parallel = int(request.options.get("tensor_parallel_size", 1))
        self._in_process = tensor_parallel == 1
        before = dict(os.environ)
        os.environ.update({name: value for name, value in _QUIET.items() if name not in os.environ})
        if self._in_process:
            # In a process of its own vLLM could not be handed weights as a stream.
            os.environ.update(VLLM_ENABLE_V1_MULTIPROCESSING="0", VLLM_CPU_OMP_THREADS_BIND="nobind")
        try:
            with _undisturbed(), _busy(f"vLLM loads {request.model}"):
                self._llm: Any = _load(request, own_process=not self._in_process)
        finally:
            changed = {name for name in {*before, *os.environ} if before.get(name) != os.environ.get(name)}
            self._environment = {name: (before.get(name), os.environ.get(name)) for name in changed}
        self._eager = self._in_process and bool(self._llm.model_config.enforce_eager)
        self._longest = int(self._llm.model_config.max_model_len)
        self._logprobs = KINDS.get(str(self._llm.model_config.logprobs_mode))
        self._ends = _end_tokens(self._llm, request.end_tokens)
        self._lora: Any = None
        self._adapters = count(1)
        self.takes_adapters = _takes(request) is None
        """Whether the adapters in training are sent alone."""
        if request.adapter is not None:
            self._lora = self._added(request.adapter)
        if self._llm.llm_engine.vllm_config.parallel_config.worker_extension_cls == EXTENSION:
            self._llm.collective_rpc("swift_sample_by_seed")

    def generate(self, prompts: Sequence[Sequence[int]], sampling: Sampling) -> Iterator[tuple[int, Completion]]:
        """Yield completions as vLLM finishes them."""
        self._check_logprobs(sampling)
        for prompt in prompts:
            self._check_length(prompt)
        for index, output in self._ask(
            ((index, prompt, self._parameters(sampling, index)) for index, prompt in enumerate(prompts)),
            sampling.is_over,
        ):
            completion = output.outputs[0]
            over = sampling.is_over is not None and sampling.is_over(completion.token_ids)
            if output.finished or over:
                ids = list(completion.token_ids)
                logprobs = [step[token].logprob for token, step in zip(ids, completion.logprobs, strict=True)]
                stopped = over or completion.finish_reason == "stop"
                yield index, Completion(ids, logprobs, "stop" if stopped else "length")

    def stream(self, prompt: Sequence[int], sampling: Sampling) -> Iterator[int]:
        """Tokens as each step of vLLM brings them."""
        self._check_length(prompt)
        count = 0
        for _, output in self._ask([(0, prompt, self._parameters(sampling, 0))], sampling.is_over):
            ids = output.outputs[0].token_ids
            yield from ids[count:]
            count = len(ids)

    def score(self, prompts: Sequence[Sequence[int]], *, top: int = 0) -> Iterator[tuple[int, Score]]:
        """Log-probabilities of the prompt's own tokens; vLLM makes one more token, which is not looked at."""
        from vllm import SamplingParams

        self._check_top(top)
        parameters = SamplingParams(temperature=0.0, max_tokens=1, prompt_logprobs=top, detokenize=False)
        for prompt in prompts:
            self._check_length(prompt)
        requests = [(index, prompt, parameters) for index, prompt in enumerate(prompts)]
        # vLLM's adapters on a CPU take the logits of a prompt for those of as many requests: one at a time is right.
        alone = self._lora is not None and self._eager
        for together in [[request] for request in requests] if alone else [requests]:
            for index, output in self._ask(together):
                if output.finished:
                    steps = [
                        {token: (each.logprob, each.rank) for token, each in (step or {}).items()}
                        for step in output.prompt_logprobs
                    ]
                    yield index, score_of(prompts[index], steps, top)

    def outputs(self, prompts: Sequence[Sequence[int]]) -> Iterator[tuple[int, list[float]]]:
        """Scores of the prompts, or their vectors, as the model returns them: neither activated nor scaled."""
        from vllm import PoolingParams

        for prompt in prompts:
            self._check_length(prompt)
        parameters = PoolingParams(use_activation=False)
        kind = "embed" if self._task == EMBEDDING else "classify"
        inputs = [{"prompt_token_ids": list(prompt)} for prompt in prompts]
        with torch.compiler.set_stance("force_eager") if self._eager else nullcontext():
            found = self._llm.encode(inputs, parameters, pooling_task=kind, use_tqdm=False)
        yield from enumerate(each.outputs.data.float().tolist() for each in found)

    def update_weights(self, weights: WeightStream) -> None:
        """Load new weights one at a time, then drop vLLM's caches of prompts."""
        self._take_off()
        with missing_weights() as missing:
            if self._in_process:
                # vLLM keeps the tensors of a layer until it has all of them; whoever streams may use the memory again.
                kept = ((name, tensor.detach().clone()) for name, tensor in weights)
                self._llm.collective_rpc("reload_weights", kwargs={"weights_iterator": kept})
            else:
                # Generators do not travel between processes; files do.
                with tempfile.TemporaryDirectory(prefix="swift-weights-") as folder:
                    write_weights(weights, Path(folder))
                    self._llm.collective_rpc("reload_weights", kwargs={"weights_path": folder})
        if missing:
            raise ModelError(
                f"The engine did not receive all weights ({missing[0]} is missing). It would mix old and new weights.",
                hint="Stream every weight of the model; adapters are merged first.",
            )
        if not self._llm.reset_prefix_cache():
            raise ModelError("vLLM could not drop its cache of prompts, because requests are in progress.")

    def update_adapter(self, weights: WeightStream, config: Mapping[str, Any]) -> None:
        """Put the adapters in training on the model as it was opened, instead of those before."""
        self._take_off()
        with tempfile.TemporaryDirectory(prefix="swift-adapter-") as folder:
            write_adapter(weights, config, Path(folder))
            self._lora = self._added(Path(folder))

    def close(self) -> None:
        """Give back memory, and what vLLM changed in this process."""
        if self._llm is None:
            return
        self._llm.llm_engine.engine_core.shutdown()
        self._llm = None
        if self._in_process:
            _leave_groups(own=not self._had_group)
        gc.collect()
        for name, (before, after) in self._environment.items():
            if os.environ.get(name) == after:
                if before is None:
                    os.environ.pop(name, None)
                else:
                    os.environ[name] = before

    def _ask(self, requests: Any, is_over: Callable[[Sequence[int]], bool] | None = None) -> Iterator[tuple[int, Any]]:
        """(index, vLLM's output) at every step, until all are complete or the reader stops.

        A request whose completion is over before vLLM ends it is aborted.
        """
        engine = self._llm.llm_engine
        indices: dict[str, int] = {}
        try:
            for index, prompt, parameters in requests:
                name = f"swift-{next(self._numbers)}"
                engine.add_request(name, {"prompt_token_ids": list(prompt)}, parameters, lora_request=self._lora)
                indices[name] = index
            while indices:
                for output in self._step():
                    if output.request_id in indices:
                        yield indices[output.request_id], output
                        over = is_over is not None and is_over(output.outputs[0].token_ids)
                        if over and not output.finished:
                            engine.abort_request([output.request_id])
                        if over or output.finished:
                            del indices[output.request_id]
        finally:
            if indices:
                engine.abort_request(list(indices))

    def _step(self) -> list[Any]:
        """Return one step of everything that is under way."""
        # Compiling the few lines that vLLM compiles even when it is told not to takes longer than what they do.
        with torch.compiler.set_stance("force_eager") if self._eager else nullcontext():
            outputs: list[Any] = self._llm.llm_engine.step()
            return outputs

    def _parameters(self, sampling: Sampling, index: int) -> Any:
        from vllm import SamplingParams

        return SamplingParams(**sampling_settings(sampling, index, self._ends), detokenize=False)

    def _check_length(self, prompt: Sequence[int]) -> None:
        if not prompt:
            raise DataError("A prompt has no tokens.", hint="Remove the empty prompt, or give it some text.")
        if len(prompt) >= self._longest:
            raise DataError(
                f"A prompt has {len(prompt)} tokens, but the maximum length with the completion is {self._longest}.",
                hint="Raise --max_length, up to the model's limit, or shorten the prompt.",
            )

    def _check_top(self, top: int) -> None:
        most = int(self._llm.model_config.max_logprobs)
        if 0 <= most < top:
            raise UsageError(
                f"vLLM returns at most {most} log-probabilities per token, but {top} were requested.",
                hint=f'Set "max_logprobs": {top} in --engine_options.',
            )

    def _check_logprobs(self, sampling: Sampling) -> None:
        if self._logprobs != sampling.logprobs and not (self._logprobs and sampling.samples_unmodified):
            mode = next(mode for mode, kind in KINDS.items() if kind == sampling.logprobs)
            raise UsageError(
                f"vLLM returns {self._llm.model_config.logprobs_mode}, but log-probabilities "
                f"{DISTRIBUTIONS[sampling.logprobs]} were requested.",
                hint=f'Set "logprobs_mode": "{mode}" in --engine_options.',
            )

    def _take_off(self) -> None:
        if self._lora is not None:
            self._llm.llm_engine.remove_lora(self._lora.lora_int_id)
            self._lora = None

    def _added(self, adapter: Path) -> Any:
        from vllm.lora.request import LoRARequest

        # vLLM remembers prompts by the name of the adapter that they were computed with.
        number = next(self._adapters)
        request = LoRARequest(f"{_ADAPTER}-{number}", number, str(adapter))
        try:
            self._llm.llm_engine.add_lora(request)
        except Exception as cause:
            self.close()
            raise ModelError(
                f"vLLM cannot load the adapter {adapter}: {reason_of(cause)}",
                hint="Merge it first with swift export RUN --to hf --out FOLDER, then use FOLDER.",
            ) from cause
        return request


def _load(request: EngineRequest, *, own_process: bool) -> Any:
    """Load the model with vLLM, with settings for this machine beneath the requested ones."""
    import vllm
    from vllm.platforms import current_platform

    if request.device is not None and torch.device(request.device).type != current_platform.device_type:
        raise UsageError(
            f"This vLLM runs on {current_platform.device_type}, not on {request.device}.",
            hint="Remove --device, or pass --engine transformers.",
        )
    settings: dict[str, Any] = {
        "model": str(request.model),
        "dtype": request.dtype,
        "trust_remote_code": request.trust_remote_code,
        "max_model_len": request.max_length,
        # Prompts come as tokens, and answers leave as tokens. Poolers of vectors want a tokenizer all the same.
        "skip_tokenizer_init": request.task == GENERATES,
        "use_tqdm_on_load": False,
        "distributed_executor_backend": "mp" if own_process else "uni",
        "worker_extension_cls": EXTENSION,
    }
    if request.task != GENERATES:
        settings["runner"] = "pooling"
    if request.batch_size is not None:
        settings["max_num_seqs"] = request.batch_size
    if request.adapter is not None:
        rank = room_for([request.adapter], more=False)
        settings |= {"enable_lora": True, "max_lora_rank": rank, "max_loras": 1}
    elif request.trained_adapter is not None:
        if why := _takes(request):
            request.say(f"Sending whole weights with the adapter merged in to vLLM. {why}")
        else:
            settings |= {"enable_lora": True, "max_lora_rank": rank_of(request.trained_adapter), "max_loras": 1}
    if current_platform.is_cpu():
        check_on_cpu(request.model, find_interpreter(None))
        settings |= cpu_settings(request)
    settings |= request.options
    try:
        return vllm.LLM(**settings)
    except TypeError as cause:
        raise UsageError(f"vLLM rejected its options: {reason_of(cause)}", hint="Check --engine_options.") from cause
    except Exception as cause:  # vLLM fails with whatever its parts raise
        raise ModelError(
            f"vLLM {vllm.__version__} cannot load {request.model}: {reason_of(cause)}",
            hint="Try --engine transformers.",
        ) from cause


def _takes(request: EngineRequest) -> str | None:
    """Return why adapters in training are not sent alone, as a sentence; '' where none are trained."""
    if request.trained_adapter is None or request.adapter is not None:
        return ""
    if request.options.get("enable_lora") is False:
        return "enable_lora is false."
    trait = incompatibility(request.trained_adapter)
    return None if trait is None else f"vLLM cannot load the adapter: it {trait}."


def _check_group() -> None:
    """Refuse a process group of several, which vLLM would use as its own."""
    if dist.is_initialized() and dist.get_world_size() > 1:
        raise ModelError(
            f"vLLM cannot run in this process, which is one of {dist.get_world_size()} that train together.",
            hint="Start a separate server, and connect to it: see swift_export_vllm.rollout.connect",
        )


def _end_tokens(llm: Any, given: Sequence[int]) -> list[int]:
    configured = llm.model_config.try_get_generation_config().get("eos_token_id")
    listed = configured if isinstance(configured, list) else [configured]
    return sorted({*given, *(int(token) for token in listed if token is not None)})


def _leave_groups(*, own: bool) -> None:
    """Leave vLLM's groups, and the one beneath them if vLLM has created it. Training may have ended them already."""
    from vllm.distributed import parallel_state

    if dist.is_initialized():
        parallel_state.destroy_model_parallel()
        if parallel_state._WORLD is not None:
            parallel_state._WORLD.destroy()
        if own:
            dist.destroy_process_group()
    for name, value in list(vars(parallel_state).items()):
        if isinstance(value, parallel_state.GroupCoordinator):
            setattr(parallel_state, name, None)
    parallel_state._NODE_COUNT = None


def reason_of(error: BaseException) -> str:
    """Return the line of an error with its reason."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    kept = [line for line in lines if not line.startswith(("For further information", "1 validation error"))]
    line = kept[0] if kept else type(error).__name__
    return line.removeprefix("Value error, ").split(" [type=")[0]


@contextmanager
def _undisturbed() -> Iterator[None]:
    """Restore random states and thread settings, which vLLM changes for the whole process."""
    states = random.getstate(), np.random.get_state()
    set_num_threads, threads = torch.set_num_threads, torch.get_num_threads()
    try:
        with torch.random.fork_rng():
            yield
    finally:
        random.setstate(states[0])
        np.random.set_state(states[1])
        torch.set_num_threads = set_num_threads
        torch.set_num_threads(threads)


@contextmanager
def _busy(what: str) -> Iterator[None]:
    """Show progress on a terminal instead of the output of vLLM and its libraries, which raise their errors."""
    sys.stderr.flush()
    terminal = os.dup(2)
    with warnings.catch_warnings(), Path(os.devnull).open("w") as nowhere, os.fdopen(terminal, "w") as output:
        warnings.simplefilter("ignore")
        os.dup2(nowhere.fileno(), 2)
        try:
            with waiting(what, output):
                yield
        finally:
            sys.stderr.flush()
            os.dup2(output.fileno(), 2)
