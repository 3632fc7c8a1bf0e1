"""Checks of a run without torch and without weights: data, packages, layout, the model's folder.

`swift config show` and every run make them before heavy imports. `swift config validate` makes only those that hold on
any machine.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from importlib.util import find_spec
from typing import Any

from swift.checkpoint.folders import find_checkpoint
from swift.config.incompatibilities import (
    GPU_ATTENTION,
    adapter_without_lora,
    attention_needs_gpu,
    endless_stream,
    misfit_of_start,
    never_evaluated,
    no_attention,
    no_cuda,
    no_gpu_to_see,
    no_liger,
    no_quantiser,
    no_such_module,
    trained_in_low_bit,
    uneven_batch,
    unsplit_stream,
)
from swift.config.own_options import LoraOptions
from swift.config.sections import Config
from swift.contracts import RequestedRun, World
from swift.data.sources.spec import parse_source
from swift.errors import SwiftError, about
from swift.export.destination import check_destination
from swift.models.adapter_file import read_adapter_config
from swift.models.classes import check_no_encoder
from swift.models.config_file import StoredConfig
from swift.models.files import SafetensorsFolder
from swift.models.locate import folder_of
from swift.models.longer_context import config_in_force
from swift.models.opening import check_files
from swift.models.sizes import experts_of
from swift.models.tokenizer import check_has_tokenizer
from swift.models.weights_check import check_weights
from swift.optim.selected import check_packages
from swift.parsing import Parsed
from swift.plugins.blame import failing
from swift.plugins.entry import PluginEntry
from swift.plugins.hooks import Hooks, layout_of, open_hooks
from swift.plugins.load import load_backend, load_observers
from swift.processes.group import wanted_group, wanted_machines
from swift.terminal import say_nothing

_NOT_IN_FILES = frozenset({"lm_head", "score"})
"""Modules that may have no weights in the model's files: tied to others, or created for the task."""


def check_anywhere(config: Config) -> None:
    """Raise the error of this configuration that occurs on any machine."""
    data, tuner = config.data, config.tuner
    if data.streaming and data.split_ratio:
        raise unsplit_stream()
    if data.streaming and config.train.max_steps is None:
        raise endless_stream()
    if tuner.kind == "full" and tuner.quantize != "none":
        raise trained_in_low_bit(tuner.quantize)
    if tuner.kind == "full" and tuner.adapter is not None:
        raise adapter_without_lora()
    if tuner.kind == "lora":
        _raise(misfit_of_start(tuner.options(LoraOptions).init, tuner.quantize))
    no_data = not data.validation and not data.split_ratio
    if (data.train and no_data) or config.train.eval_strategy == "no":
        _raise(never_evaluated(config, no_data=no_data))


def check_here(config: Config) -> None:
    """Raise the error of this configuration on this machine, before anything is loaded."""
    check_anywhere(config)
    for key, names in (("data.train", config.data.train), ("data.validation", config.data.validation)):
        with about(key):
            for name in names:
                parse_source(name)
    _check_packages(config)
    device = getattr(config.backend, "device", "auto")
    if device == "cuda" and no_gpu_to_see("auto"):
        raise no_cuda()
    on_cpu = no_gpu_to_see(device)
    if config.model.attention in GPU_ATTENTION and on_cpu:
        raise no_attention(config.model.attention, attention_needs_gpu("cpu"))


def _check_packages(config: Config) -> None:
    """Raise the error for a setting whose package is not installed."""
    if config.model.liger and find_spec("liger_kernel") is None:
        raise no_liger()
    check_packages(config.optim)
    kind = config.tuner.quantize.partition("-")[0]
    package = {"bnb": "bitsandbytes", "torchao": "torchao"}.get(kind)
    if package is not None and find_spec(package) is None:
        raise no_quantiser(package)


def check_layout(parsed: Parsed) -> None:
    """Raise `UnsupportedLayout` where the layout does not fit the typed number of processes."""
    if parsed.nproc is not None:
        here, machines = wanted_group(parsed.environment, parsed.nproc)
        layout_of(load_backend(parsed.config.backend.name), parsed.config, here * machines)


def check_run(parsed: Parsed, processes: int) -> RequestedRun:
    """Return the run on so many processes; raise the error with which the backend or an observer refuses it.

    For a model in a local folder, this also checks its config.json and the names of its weights.
    """
    config = parsed.config
    backend = load_backend(config.backend.name)
    hooks = open_hooks(backend, observers=load_observers(config.observers))
    world = World(size=processes, machines=wanted_machines(parsed.environment))
    run = RequestedRun(config, parsed.backend_options, config.logging.output, world, say_nothing)
    with failing(backend.entry, "swift_check_layout"):
        hooks.swift_check_layout(run)
    layout = layout_of(backend, config, processes)
    if config.train.global_batch is not None:
        _raise(uneven_batch(config.train.global_batch, layout.data))
    _check_files(config)
    if config.model.path is not None:
        _check_model(hooks, run, backend.entry)
    return run


def _check_files(config: Config) -> None:
    """Refuse a checkpoint or an adapter that does not exist, and an export's destination that does."""
    if config.checkpoint.resume not in (None, "auto"):
        with about("checkpoint.resume"):
            find_checkpoint(config.checkpoint.resume, output=config.logging.output)
    if config.tuner.adapter is not None:
        with about("tuner.adapter"):
            read_adapter_config(config.tuner.adapter)
    if config.export.to is not None and config.export.out is not None:
        with about("export.out"):
            check_destination(config.export.out, config.export, out="--export.out", exist_ok="--export.exist_ok true")


def _check_model(hooks: Hooks, run: RequestedRun, backend: PluginEntry) -> None:
    """Refuse an invalid model folder, a model that the layout does not divide, and adapters on unknown modules."""
    section = run.config.model
    folder = folder_of(section.path or "")
    if folder is None:
        return
    content = config_in_force(folder, section)
    check_no_encoder(str(section.path), content, section.task)
    check_files(folder)
    # transformers knows a default for a key that is left out
    with failing(backend, "swift_check_model"), suppress(AttributeError):
        hooks.swift_check_model(run, StoredConfig(content))
    if section.random_weights:
        return
    check_has_tokenizer(folder)
    files = SafetensorsFolder(folder)
    check_weights(files, content, folder)
    _check_targets(run.config, content, files)


def _check_targets(config: Config, content: Mapping[str, Any], files: SafetensorsFolder) -> None:
    """Refuse adapters on modules without weights; models with experts are skipped, which have other names in memory."""
    tuner = config.tuner
    if tuner.kind != "lora" or tuner.adapter is not None:
        return
    options = tuner.options(LoraOptions)
    targets = () if options.target_regex is not None or options.all_linear else options.targets
    if not targets or experts_of(StoredConfig(content).get_text_config()):
        return
    modules = {part for name in files.names() for part in name.split(".")[:-1] if not part.isdecimal()}
    for target in targets:
        if target.rpartition(".")[2] not in modules | _NOT_IN_FILES:
            raise no_such_module(target, modules)


def _raise(error: SwiftError | None) -> None:
    if error is not None:
        raise error
