"""Where a model comes from: a folder, the hub cache, or random weights from a configuration."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import cached_property
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
import xxhash

from swift.config.sections import ModelSection
from swift.contracts import ModelSource
from swift.errors import ModelError, listed
from swift.models.classes import (
    DECODERS,
    ENCODER_TASKS,
    OF_ENCODERS,
    OF_HALVES,
    auto_class,
    causal_name,
    encoder_class,
    encoder_half,
    has_encoder,
    is_encoder,
    refusal,
)
from swift.models.config_file import CONFIG
from swift.models.files import SafetensorsFolder
from swift.models.heads import (
    HEAD,
    VALUE_HEAD,
    add_value_head,
    class_of_task,
    head_modules,
    initial_head,
    value_head_of,
)
from swift.models.locate import locate_model
from swift.models.longer_context import check_scalable, config_in_force
from swift.models.media_processor import FILES, load_processor, settings_in_force
from swift.models.names import NameMap, name_map_of_skeleton
from swift.models.opening import as_model_error, check_files
from swift.models.quiet import quiet_libraries
from swift.models.reordered import Reordered
from swift.models.score_padding import padding_of_scores, set_padding, with_padding
from swift.models.sentence_files import copy_length, stored_pooling, write_sentence_files
from swift.models.tokenizer import check_has_tokenizer, copy_tokenizer, load_tokenizer
from swift.models.trust import TRUST_FLAG
from swift.models.weights_check import check_finite, check_weights
from swift.parsing.tasks import CAUSAL_LM, EMBEDDING, HEADED, problem_type_of, task_of_config
from swift.untrusted import read_json_object

PASSING = ("transformers_version", "dtype", "torch_dtype", "_name_or_path", "use_cache")
"""Keys of config.json that say nothing about what the model computes."""
_COPY_AGAIN = "Copy or download the model again."


def open_source(section: ModelSection, *, say: Callable[[str], None], seed: int = 42) -> HfSource:
    """Return the model that the `model` section names, checked to be there and to be a causal language model.

    Cheap: weights are read later, by name or by `build`. `seed` decides random weights.
    """
    quiet_libraries()
    name, folder = locate_model(section, say=say)
    source = HfSource(name, folder, section, seed=seed, say=say)
    source.check()
    return source


class HfSource:
    """Implements `swift.contracts.ModelSource` for Hugging Face folders.

    Names are those that transformers' `save_pretrained` would write. A folder may differ from them in the prefix of
    the base model (`wte.weight` for `transformer.wte.weight`); reading bridges that.
    """

    def __init__(
        self, name: str, folder: Path, section: ModelSection, *, seed: int, say: Callable[[str], None]
    ) -> None:
        self.name = name
        """What the user knows the model by: the hub id or the path."""
        self.folder = folder
        self.random = section.random_weights
        self.task = section.task
        self.trust_remote_code = section.trust_remote_code
        """Whether Python code that comes with the model may run, as the user said."""
        self._section = section
        self._seed = seed
        self._say = say

    def check(self) -> None:
        """Refuse what can be known to fail before anything big is read."""
        _check_causal(self.config, self._section)
        check_files(self.folder)
        if self.random:
            return
        check_has_tokenizer(self.folder)
        check_weights(self._files, self._config_json, self.folder)
        self._check_head()
        if self._pads_scores and self.task != "value":  # which is asked at every token
            _ = self._padding

    @cached_property
    def config(self) -> Any:
        from transformers import AutoConfig

        _ = self._config_json
        with as_model_error(
            f"{self.folder / CONFIG} cannot be read as a model's configuration",
            hint=f"Try a newer transformers. If the model comes with its own code, add {TRUST_FLAG}",
        ):
            config = AutoConfig.from_pretrained(self.folder, trust_remote_code=self._section.trust_remote_code)
            if self._section.rope_scaling is not None:
                check_scalable(config, self._section)
                config = type(config).from_dict(self._config_json)
        _check_quantisation(self._config_json, self.folder)
        if self.task in HEADED:
            config.num_labels = self._labels(config)
            if self._section.labels:
                config.id2label = dict(enumerate(self._section.labels))
                config.label2id = {name: index for index, name in config.id2label.items()}
        return config

    @cached_property
    def pooling(self) -> str:
        """Which hidden states make a vector: the user's choice, that of sentence-transformers, or the usual one."""
        section = self._section
        if self.task != EMBEDDING or "pooling" in section.model_fields_set:
            return section.pooling
        return stored_pooling(self.folder) or ("mean" if is_encoder(self.config) else section.pooling)

    @cached_property
    def tokenizer(self) -> Any:
        """The transformers tokenizer, with the chat template in force."""
        return load_tokenizer(self.folder, self._section, self.config, say=self._say)

    @cached_property
    def processor(self) -> Any:
        """The processor that prepares images and sounds; None where the model reads text alone, or has none."""
        if not has_encoder(self.config):
            return None
        trust = self._section.trust_remote_code
        return load_processor(self.folder, self.config, self.tokenizer, trust_remote_code=trust)

    @cached_property
    def fingerprint(self) -> str:
        """Changes when the weights or the architecture change; see `SafetensorsFolder.digest` for the cost."""
        settings = {key: value for key, value in self._config_json.items() if key not in PASSING}
        facts = [settings, f"random {self._seed}" if self.random else self._files.digest()]
        if self.task != CAUSAL_LM:
            facts.append({"task": self.task, "labels": self.config.num_labels, "fresh": self.lacks_head and self._seed})
        return xxhash.xxh3_128_hexdigest(json.dumps(facts, sort_keys=True).encode())

    @cached_property
    def name_map(self) -> NameMap:
        """Which names on disk each parameter in memory holds."""
        return name_map_of_skeleton(self._skeleton)

    def name_map_by(self, skeleton: torch.nn.Module) -> NameMap:
        """Return `name_map`, read off a module of `build(weights=False)` that is unchanged: it spares another."""
        if "name_map" not in self.__dict__:
            self.__dict__.setdefault("_base_prefix", skeleton.base_model_prefix)
            self.__dict__.setdefault("padding_row", _padding_row(skeleton))
            self.__dict__["name_map"] = name_map_of_skeleton(skeleton)
        return self.name_map

    @cached_property
    def padding_row(self) -> int | None:
        """Row of the embedding that gets no gradient from inputs in transformers; None where each row gets its own.

        Not every architecture with a `pad_token_id` has one. With tied weights it still learns as an unembedding's row.
        """
        return _padding_row(self._skeleton)

    def names(self) -> list[str]:
        """Hugging Face names of all weights, tied ones once."""
        return self.name_map.names()

    def shape(self, name: str) -> tuple[int, ...]:
        """Shape of one weight, without reading it."""
        return self.name_map.owner(name)[1].shape

    def read(self, name: str) -> torch.Tensor:
        """Return one weight, or an extra one, in the precision of the file (random ones in fp32)."""
        if self.random:
            owner, piece = self.name_map.owner(name)
            return piece.view_of(self._random_state[owner])
        if name in self.unused_names:
            return self._files.read(name)
        if name == VALUE_HEAD:
            return initial_head(self.shape(name), seed=self._seed)
        if name in self._fresh:
            return initial_head(self.shape(name), seed=self._seed, name=name)
        tensor = self.read_from(self._files, name)
        check_finite(name, tensor, self.folder)
        return tensor

    def read_from(self, files: SafetensorsFolder, name: str) -> torch.Tensor:
        """Return one weight out of the files of this model or of an export of it."""
        group = next((each for each in self.name_map.reordered if name in each.parameters), None)
        if group is None or any(each in files for each in self.spellings(name)):
            return files.read(self._stored_name(files, name, self.shape(name)))
        return group.read(name, lambda disk: files.read(self._stored_name(files, disk, group.tensors[disk])))

    def extra_names(self) -> list[str]:
        """Names of weights in the files that training leaves alone and exports keep, such as those of drafting layers.

        None of a model that is exported for another task, or out of a quantised folder: they would not fit.
        """
        return [] if self.task != CAUSAL_LM or "quantization_config" in self._config_json else self.unused_names

    @cached_property
    def unused_names(self) -> list[str]:
        """Names in the files for which the model has no parameter or buffer."""
        if self.random:
            return []
        tensors = (*self._skeleton.named_parameters(remove_duplicate=False), *self._skeleton.named_buffers())
        reordered = (name for group in self.name_map.reordered for name in group.tensors)
        names = {*self.names(), *reordered, *(name for name, _ in tensors)}
        known = {spelling for name in names for spelling in self.spellings(name)}
        return [name for name in self._files.names() if name not in known and not self._is_dropped(name)]

    def build(self, *, dtype: torch.dtype, device: str = "cpu", weights: bool = True) -> torch.nn.Module:
        """Return the transformers module; with `weights=False` on the meta device, uninitialised.

        Random weights are drawn in fp32 on the CPU, so that they are the same for every `dtype` and `device`.
        """
        model: torch.nn.Module
        if not weights:
            with torch.device("meta"), self._making():
                model = self._from_config(dtype)
        elif self.random:
            with torch.random.fork_rng(devices=[]), self._making():
                torch.manual_seed(self._seed)
                model = self._from_config(torch.float32)
            self._start_head(model)
            for parameter in model.parameters():
                parameter.data = parameter.data.to(dtype)
            model.to(device)
        else:
            model = self._load(dtype, device).to(device)
        # PEFT writes this into the adapter's configuration: the name that others can find, not our cache.
        model.name_or_path = self.name  # type: ignore[assignment]  # a plain attribute of PreTrainedModel
        return model

    def as_exported(self) -> HfSource:
        """Return the model as others know it: without a head for values next to its unembedding."""
        if not self._section.value_head:
            return self
        section = self._section.model_copy(update={"value_head": False})
        source = HfSource(self.name, self.folder, section, seed=self._seed, say=self._say)
        source.__dict__["processor"] = self.processor  # with the limits of pixels that are in force
        return source

    def write_assets(self, folder: Path, dtype: str) -> None:
        """Put next to exported weights what makes them a model: config, generation config, tokenizer, template.

        Files are copied as they are where they can be; `dtype` is the precision of the exported weights.
        """
        from transformers import GenerationConfig

        _ = self.tokenizer  # an export whose tokenizer cannot be read is none
        config = dict(self._config_json)
        for key in ("torch_dtype", "quantization_config", "_name_or_path"):
            config.pop(key, None)
        config["dtype"] = dtype
        if self.task == CAUSAL_LM:
            config.setdefault("architectures", [causal_name(self.config, self._section)])
        else:
            config |= self._task_settings()
        if self._pads_scores:
            config = with_padding(config, self._padding)
        if self.task == EMBEDDING:
            size = self.config.get_text_config().hidden_size
            write_sentence_files(folder, size=size, pooling=self.pooling)
            copy_length(self.folder, folder)
        (folder / "config.json").write_text(json.dumps(config, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
        generation = self.folder / "generation_config.json"
        if self.task != CAUSAL_LM:
            pass  # it does not generate
        elif generation.is_file():
            shutil.copyfile(generation, folder / generation.name)
        else:
            GenerationConfig.from_model_config(self.config).save_pretrained(folder)
        if self._section.trust_remote_code:
            for file in self.folder.glob("*.py"):
                shutil.copyfile(file, folder / file.name)
        self._write_processor(folder)
        replaced = self._section.chat_template is not None
        copy_tokenizer(self.folder, folder, template=self.tokenizer.chat_template if replaced else None)
        if self._pads_scores and self._padding is not None:
            set_padding(folder, self.tokenizer.convert_ids_to_tokens(self._padding))

    @property
    def _pads_scores(self) -> bool:
        """Whether the padding token decides which token is scored: the last one that is another."""
        return self.task in HEADED and not is_encoder(self.config)

    @cached_property
    def _padding(self) -> int | None:
        """The padding token of exported models that score; one that is not the tokenizer's own is told."""
        own = self.tokenizer.pad_token
        found = padding_of_scores(self.tokenizer, self.config, self.folder)
        if own is not None and found != self.tokenizer.pad_token_id:
            other = "have no padding token, so transformers can score only one sequence at a time"
            if found is not None:
                other = f"pad with {self.tokenizer.convert_ids_to_tokens(found)}"
            self._say(
                f"{own} is both the padding and the end-of-sequence token. swift scores the last token, "
                f"transformers the last one that is not {own}. Exported models {other}."
            )
        return found

    def _write_processor(self, folder: Path) -> None:
        """Copy the files of the processor, with the limits of pixels that were in force."""
        present = [name for name in FILES if (self.folder / name).is_file()]
        for name in present:
            shutil.copyfile(self.folder / name, folder / name)
        if not present or self.processor is None or not (limits := settings_in_force(self.processor)):
            return
        for name in ("processor_config.json", "preprocessor_config.json"):
            if name not in present:
                continue
            content = read_json_object(folder / name, ModelError)
            holder = content.get("image_processor", content if name == "preprocessor_config.json" else None)
            if isinstance(holder, dict) and holder.get("size") != limits["size"]:
                holder.update(limits)
                for old in ("min_pixels", "max_pixels"):
                    holder.pop(old, None)
                (folder / name).write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")

    @cached_property
    def _files(self) -> SafetensorsFolder:
        return SafetensorsFolder(self.folder)

    @property
    def lacks_head(self) -> bool:
        """Whether the model has a head for scores of which a part is in no file: a new one, at random."""
        return bool(self._fresh)

    @cached_property
    def _fresh(self) -> frozenset[str]:
        """Names of the weights of the head that no file holds."""
        if self.task not in HEADED:
            return frozenset()
        if not is_encoder(self.config):
            return frozenset({HEAD} if self.random or HEAD not in self._files else ())
        modules = tuple(f"{name}." for name in head_modules(self._skeleton))
        names = [
            piece.name
            for name in self.name_map.parameters()
            if name.startswith(modules)
            for piece in self.name_map.pieces(name)
        ]
        return frozenset(
            name for name in names if self.random or not any(each in self._files for each in self.spellings(name))
        )

    def check_has_head(self) -> None:
        """Refuse a model whose scores would be those of a head that nothing has trained."""
        if self.lacks_head:
            raise ModelError(
                f"{self.folder} has no score head ({', '.join(sorted(self._fresh))}).",
                hint="Copy or download the model again, or train a head: swift sft --task_type seq_cls",
            )

    def _labels(self, config: Any) -> int:
        if self.task != "seq_cls":
            return 1
        return self._section.num_labels or len(self._section.labels) or self._stored_labels(config) or 2

    def _stored_labels(self, config: Any) -> int:
        """Return the number of labels of the head in the files; 0 without one."""
        if is_encoder(config):
            stored = self._config_json
            with_head = task_of_config(stored) == "seq_cls"
            return (len(stored.get("id2label") or ()) or stored.get("num_labels") or 2) if with_head else 0
        shape = () if self.random or HEAD not in self._files else self._files.shape(HEAD)
        return shape[0] if shape else 0

    def _check_head(self) -> None:
        if self.task not in HEADED or self.lacks_head:
            return
        if not is_encoder(self.config):
            stored = self._files.shape(HEAD)
            if len(stored) != 2 or not stored[0]:
                raise ModelError(
                    f"{HEAD} in {self.folder} has shape {stored}; model.task {self.task} needs [labels, hidden size].",
                    hint="Copy or download the model again.",
                )
        wanted, labels = self.config.num_labels, self._stored_labels(self.config)
        if labels not in (0, wanted):
            raise ModelError(
                f"{self.folder} has a head with {labels} labels, but model.task {self.task} needs {wanted}.",
                hint=f"Type --model.task seq_cls --model.num_labels {labels}, or use a model without a head.",
            )

    @cached_property
    def _class(self) -> Any:
        """The transformers class of a task other than causal_lm."""
        return class_of_task(self.config, self.task)

    def _from_config(self, dtype: torch.dtype) -> torch.nn.Module:
        """Make the module with uninitialised or random weights."""
        if self.task != CAUSAL_LM:
            made: torch.nn.Module = self._class._from_config(self.config, dtype=dtype)
            return made
        trust = self._section.trust_remote_code
        auto = auto_class(self.config)
        model: torch.nn.Module = auto.from_config(self.config, dtype=dtype, trust_remote_code=trust)
        if self._section.value_head:
            add_value_head(model, self.config, dtype)
        return model

    @torch.no_grad()
    def _start_head(self, model: torch.nn.Module) -> None:
        for name in self._fresh:
            parameter, piece = self.name_map.owner(name)
            weight = piece.view_of(model.get_parameter(parameter))
            weight.copy_(initial_head(piece.shape, seed=self._seed, name=name))
        if self._section.value_head:
            weight = value_head_of(model).weight
            weight.copy_(initial_head(tuple(weight.shape), seed=self._seed))

    def _task_settings(self) -> dict[str, Any]:
        """Return what config.json says of a model for another task than the one that it was published for."""
        settings: dict[str, Any] = {"architectures": [self._class.__name__]}
        if self.task not in HEADED:
            return settings
        config = self.config
        names = {str(label): name for label, name in config.id2label.items()}
        settings |= {"num_labels": config.num_labels, "id2label": names}
        settings["label2id"] = {name: int(label) for label, name in names.items()}
        if self._section.problem_type or config.num_labels == 1:
            settings["problem_type"] = problem_type_of(self._section, config.num_labels)
        return settings

    @cached_property
    def _random_state(self) -> dict[str, torch.Tensor]:
        model = self.build(dtype=torch.float32)
        return {name: tensor.detach() for name, tensor in model.state_dict().items()}

    @cached_property
    def _skeleton(self) -> torch.nn.Module:
        return self.build(dtype=torch.float32, weights=False)

    @cached_property
    def _base_prefix(self) -> str:
        return str(self._skeleton.base_model_prefix)

    @cached_property
    def _config_json(self) -> dict[str, Any]:
        return config_in_force(self.folder, self._section)

    def _making(self) -> AbstractContextManager[None]:
        return as_model_error(
            f"The model that {self.folder / CONFIG} describes cannot be built",
            hint="Some of its values are invalid or contradict each other. Copy or download it again.",
            config=self._config_json,
        )

    def spellings(self, name: str) -> tuple[str, ...]:
        """Return the names a weight may have in files: unchanged, and without and with the prefix of the base model.

        The vectors of a model with an encoder are made by a class of its own, whose names on disk may be others.
        """
        prefix = f"{self._base_prefix}."
        plain = (name, name.removeprefix(prefix), prefix + name)
        return (*plain, *self._written_by_writer.get(name, ()))

    @cached_property
    def _written_by_writer(self) -> dict[str, tuple[str, ...]]:
        """Names of weights on disk → what the class that also writes text calls the same, for vectors by an encoder."""
        if self.task != EMBEDDING or not has_encoder(self.config):
            return {}
        with torch.device("meta"), self._making():
            writer = auto_class(self.config).from_config(self.config)
        theirs, inside = name_map_of_skeleton(writer), f"{writer.base_model_prefix}."
        return {
            own.name: (other.name,)
            for parameter in self.name_map.parameters()
            for own, other in zip(self.name_map.pieces(parameter), theirs.pieces(inside + parameter), strict=True)
        }

    def _stored_name(self, files: SafetensorsFolder, name: str, shape: tuple[int, ...]) -> str:
        for candidate in self.spellings(name):
            if candidate in files and files.shape(candidate) == shape:
                return candidate
        raise ModelError(
            f"{files.folder} has no weight {name} of shape {shape}.",
            hint="Check that config.json belongs to these weights.",
        )

    def _load(self, dtype: torch.dtype, device: str) -> torch.nn.Module:
        settings: dict[str, Any] = {"dtype": dtype, "use_safetensors": True, "output_loading_info": True}
        if device != "cpu" and find_spec("accelerate") is not None:
            # Tensor by tensor onto the device, where they are cast and looked at too; transformers needs accelerate.
            settings["device_map"] = {"": device}
        if self._section.rope_scaling is not None or self.task != CAUSAL_LM:
            settings["config"] = self.config
        fits = as_model_error(
            f"The weights in {self.folder} do not fit its {CONFIG}", hint=_COPY_AGAIN, config=self._config_json
        )
        try:
            # A head that is not there would be drawn from the generator of this process.
            with fits, torch.random.fork_rng(devices=[]):
                if self.task == CAUSAL_LM:
                    trust = self._section.trust_remote_code
                    auto = auto_class(self.config)
                    model, info = auto.from_pretrained(self.folder, trust_remote_code=trust, **settings)
                else:
                    model, info = self._class.from_pretrained(self.folder, **settings)
        except ModelError as error:
            raise self._misfit() or error from error
        if self._section.value_head:
            with torch.random.fork_rng(devices=[]):
                add_value_head(model, self.config, dtype)
        self._start_head(model)
        missing = sorted(set(info["missing_keys"]) - {self.name_map.owner(name)[0] for name in self._fresh})
        if missing:
            raise ModelError(
                f"{self.folder} lacks weights of the model: {listed(missing)}.",
                hint="Check that config.json belongs to these weights and that this is a causal language model.",
            )
        loaded: torch.nn.Module = model
        # Loading forgets which weights the model's own code keeps from being trained.
        fixed = {name for name, parameter in self._skeleton.named_parameters() if not parameter.requires_grad}
        for name, parameter in loaded.named_parameters():
            check_finite(name, parameter, self.folder)
            if name in fixed:
                parameter.requires_grad_(False)
        return loaded

    def _is_dropped(self, name: str) -> bool:
        """Return whether a weight that is not part of the model is the unembedding, which this task does without."""
        rows = self.config.get_text_config().vocab_size
        return self.task != CAUSAL_LM and name in self._files and self._files.shape(name)[:1] == (rows,)

    def _misfit(self) -> ModelError | None:
        """Return what to say of the first weight whose shape is not the one that config.json gives it."""
        for name, tensor in self._skeleton.state_dict().items():
            for stored in self.spellings(name):
                if stored in self._files and self._files.shape(stored) != tuple(tensor.shape):
                    return ModelError(
                        f"{stored} in {self.folder} has shape {self._files.shape(stored)}, but {CONFIG} "
                        f"requires {tuple(tensor.shape)}.",
                        hint=_COPY_AGAIN,
                    )
        return None


def _padding_row(model: Any) -> int | None:
    row: int | None = getattr(model.get_input_embeddings(), "padding_idx", None)
    return row


def as_exported(source: ModelSource) -> ModelSource:
    """Return a model as others know it: without what a run has added that no export has."""
    return source.as_exported() if isinstance(source, HfSource) else source


def reordered_in(source: ModelSource) -> Sequence[Reordered]:
    """Return the weights of a model that files hold in another order than memory."""
    names: NameMap | None = getattr(source, "name_map", None)  # also of the low-bit copy of a source
    return () if names is None else names.reordered


def architecture_of(source: ModelSource) -> str:
    """Name of the transformers class, as config.json gives it to engines."""
    task = getattr(source, "task", CAUSAL_LM)
    if task != CAUSAL_LM:
        return str(class_of_task(source.config, task).__name__)
    listed = getattr(source.config, "architectures", None) or []
    return str(listed[0]) if listed else str(causal_name(source.config, ModelSection()))


def _check_quantisation(config: Mapping[str, Any], folder: Path) -> None:
    """Refuse an unknown quantisation, whose weights transformers would load as if they were plain ones."""
    quantization = config.get("quantization_config")
    if quantization is None:
        return
    from transformers.quantizers.auto import AUTO_QUANTIZER_MAPPING

    method = quantization.get("quant_method")
    known = method in AUTO_QUANTIZER_MAPPING if isinstance(method, str) else bool(quantization.get("load_in_8bit"))
    if not known and not quantization.get("load_in_4bit"):
        raise ModelError(
            f"{folder / CONFIG}: transformers does not support the quantization method {method!r}.",
            hint="Try a newer transformers.",
        )


def _check_causal(config: Any, section: ModelSection) -> None:
    if is_encoder(config):
        if section.task not in ENCODER_TASKS:
            hint = OF_ENCODERS if encoder_half(config) is None else OF_HALVES
            raise ModelError(refusal(config, str(section.path)), hint=hint)
        return
    from transformers.models.auto.modeling_auto import MODEL_FOR_MASKED_LM_MAPPING

    reads_both_ways = type(config) in MODEL_FOR_MASKED_LM_MAPPING and not getattr(config, "is_decoder", False)
    causal = causal_name(config, section) is not None
    if (thinker := getattr(config, "thinker_config", None)) is not None and not causal:
        kind = encoder_class(thinker)
        raise ModelError(
            f"{section.path} is a {config.model_type} model, which combines several models. swift trains only its "
            "thinker, which reads text, images and audio.",
            hint="Save the thinker in a folder of its own, in Python: "
            + (f"transformers.{kind.__name__}" if kind is not None else "the class of its thinker")
            + f".from_pretrained({str(section.path)!r}).save_pretrained('thinker'); save its processor in the same "
            "way.",
        )
    if not causal or reads_both_ways or getattr(config, "is_encoder_decoder", False):
        raise ModelError(refusal(config, str(section.path)), hint=DECODERS)
