"""Where a model comes from: a folder, the hub cache, or random weights from a configuration."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import xxhash

from swift.config.sections import ModelSection
from swift.errors import ModelError
from swift.models.config_file import CONFIG, read_config
from swift.models.files import SafetensorsFolder
from swift.models.locate import locate
from swift.models.names import NameMap, name_map_of_skeleton
from swift.models.opening import as_model_error, check_files
from swift.models.quiet import quiet_libraries
from swift.models.tokenizer import TOKENIZER_FILES, copy_tokenizer, load_tokenizer
from swift.models.trust import TRUST_FLAG
from swift.models.weights_check import check_finite, check_weights

if TYPE_CHECKING:
    from swift.contracts import ModelSource

PASSING = ("transformers_version", "dtype", "torch_dtype", "_name_or_path", "use_cache")
"""Keys of config.json that say nothing about what the model computes."""
_COPY_AGAIN = "Copy or download the model again."


def open_source(section: ModelSection, *, say: Callable[[str], None], seed: int = 42) -> HfSource:
    """The model that the `model` section names, checked to be there and to be a causal language model.

    Cheap: weights are read later, by name or by `build`. `seed` decides random weights.
    """
    quiet_libraries()
    name, folder = locate(section, say=say)
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
        if not any(True for pattern in TOKENIZER_FILES for _ in self.folder.glob(pattern)):
            raise ModelError(
                f"{self.folder} has no tokenizer: tokenizer.json is missing.",
                hint="Copy the tokenizer's files beside the weights.",
            )
        check_weights(self._files, self._config_json, self.folder)

    @cached_property
    def config(self) -> Any:
        """The transformers configuration."""
        from transformers import AutoConfig

        _ = self._config_json
        with as_model_error(
            f"{self.folder / CONFIG} cannot be read as a model's configuration",
            hint=f"A newer transformers may know it; code that comes with a model needs {TRUST_FLAG}",
        ):
            config = AutoConfig.from_pretrained(self.folder, trust_remote_code=self._section.trust_remote_code)
        _check_quantisation(self._config_json, self.folder)
        return config

    @cached_property
    def tokenizer(self) -> Any:
        """The transformers tokenizer, with the chat template in force."""
        return load_tokenizer(self.folder, self._section, self.config, say=self._say)

    @cached_property
    def fingerprint(self) -> str:
        """Changes when the weights or the architecture change; see `SafetensorsFolder.digest` for the cost."""
        settings = {key: value for key, value in self._config_json.items() if key not in PASSING}
        weights = f"random {self._seed}" if self.random else self._files.digest()
        return xxhash.xxh3_128_hexdigest(json.dumps([settings, weights], sort_keys=True).encode())

    @cached_property
    def name_map(self) -> NameMap:
        """Which names on disk each parameter in memory holds."""
        return name_map_of_skeleton(self._skeleton)

    def names(self) -> list[str]:
        """Hugging Face names of all weights, tied ones once."""
        return self.name_map.names()

    def shape(self, name: str) -> tuple[int, ...]:
        """Shape of one weight, without reading it."""
        return self.name_map.owner(name)[1].shape

    def read(self, name: str) -> torch.Tensor:
        """One weight, in the precision of the file (random ones in fp32)."""
        if self.random:
            owner, piece = self.name_map.owner(name)
            return piece.view_of(self._random_state[owner])
        stored = self._stored_name(name)
        tensor = self._files.read(stored)
        check_finite(stored, tensor, self.folder)
        return tensor

    def build(self, *, dtype: torch.dtype, device: str = "cpu", weights: bool = True) -> torch.nn.Module:
        """The transformers module; with `weights=False` on the meta device, uninitialised.

        Random weights are drawn in fp32 on the CPU, so that they are the same for every `dtype` and `device`.
        """
        from transformers import AutoModelForCausalLM

        trust = self._section.trust_remote_code
        model: torch.nn.Module
        if not weights:
            with torch.device("meta"), self._making():
                model = AutoModelForCausalLM.from_config(self.config, dtype=dtype, trust_remote_code=trust)
        elif self.random:
            with torch.random.fork_rng(devices=[]), self._making():
                torch.manual_seed(self._seed)
                model = AutoModelForCausalLM.from_config(self.config, dtype=torch.float32, trust_remote_code=trust)
            for parameter in model.parameters():
                parameter.data = parameter.data.to(dtype)
            model.to(device)
        else:
            model = self._load(dtype).to(device)
        # PEFT writes this into the adapter's configuration: the name that others can find, not our cache.
        model.name_or_path = self.name  # type: ignore[assignment]  # a plain attribute of PreTrainedModel
        return model

    def write_assets(self, folder: Path, dtype: str) -> None:
        """Put beside exported weights what makes them a model: config, generation config, tokenizer, template.

        Files are copied as they are where they can be; `dtype` is the precision of the exported weights.
        """
        from transformers import GenerationConfig

        _ = self.tokenizer  # an export whose tokenizer cannot be read is none
        config = dict(self._config_json)
        for key in ("torch_dtype", "quantization_config", "_name_or_path"):
            config.pop(key, None)
        config["dtype"] = dtype
        config.setdefault("architectures", [_causal_class(self.config, self._section)])
        (folder / "config.json").write_text(json.dumps(config, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
        generation = self.folder / "generation_config.json"
        if generation.is_file():
            shutil.copyfile(generation, folder / generation.name)
        else:
            GenerationConfig.from_model_config(self.config).save_pretrained(folder)
        if self._section.trust_remote_code:
            for file in self.folder.glob("*.py"):
                shutil.copyfile(file, folder / file.name)
        replaced = self._section.chat_template is not None
        copy_tokenizer(self.folder, folder, template=self.tokenizer.chat_template if replaced else None)

    @cached_property
    def _files(self) -> SafetensorsFolder:
        return SafetensorsFolder(self.folder)

    @cached_property
    def _random_state(self) -> dict[str, torch.Tensor]:
        model = self.build(dtype=torch.float32)
        return {name: tensor.detach() for name, tensor in model.state_dict().items()}

    @cached_property
    def _skeleton(self) -> torch.nn.Module:
        return self.build(dtype=torch.float32, weights=False)

    @cached_property
    def _config_json(self) -> dict[str, Any]:
        return read_config(self.folder)

    def _making(self) -> AbstractContextManager[None]:
        return as_model_error(
            f"{self.folder / CONFIG} describes a model that cannot be made",
            hint="Its values contradict each other, or are none that the architecture takes: copy it again.",
            config=self._config_json,
        )

    def spellings(self, name: str) -> tuple[str, str, str]:
        """What a weight may be called in files: as it is, and without and with the prefix of the base model."""
        prefix = f"{self._skeleton.base_model_prefix}."
        return name, name.removeprefix(prefix), prefix + name

    def _stored_name(self, name: str) -> str:
        for candidate in self.spellings(name):
            if candidate in self._files and self._files.shape(candidate) == self.shape(name):
                return candidate
        raise ModelError(
            f"{self.folder} has no weight {name} of shape {self.shape(name)}.",
            hint="The files and config.json do not belong together.",
        )

    def _load(self, dtype: torch.dtype) -> torch.nn.Module:
        from transformers import AutoModelForCausalLM

        try:
            with as_model_error(
                f"The weights in {self.folder} do not fit its {CONFIG}", hint=_COPY_AGAIN, config=self._config_json
            ):
                model, info = AutoModelForCausalLM.from_pretrained(
                    self.folder,
                    dtype=dtype,
                    use_safetensors=True,
                    trust_remote_code=self._section.trust_remote_code,
                    output_loading_info=True,
                )
        except ModelError as error:
            raise self._misfit() or error from error
        if info["missing_keys"]:
            missing = sorted(info["missing_keys"])
            raise ModelError(
                f"{self.folder} lacks {len(missing)} of the model's weights, the first is {missing[0]}.",
                hint="The files and config.json do not belong together, or the model is not a causal language model.",
            )
        if info["unexpected_keys"]:
            extra = sorted(info["unexpected_keys"])
            self._say(f"{len(extra)} weights in {self.folder} are not part of the model, the first is {extra[0]}")
        loaded: torch.nn.Module = model
        for name, parameter in loaded.named_parameters():
            check_finite(name, parameter, self.folder)
        return loaded

    def _misfit(self) -> ModelError | None:
        """Returns what to say of the first weight whose shape is not the one that config.json gives it."""
        for name, tensor in self._skeleton.state_dict().items():
            for stored in self.spellings(name):
                if stored in self._files and self._files.shape(stored) != tuple(tensor.shape):
                    return ModelError(
                        f"{stored} in {self.folder} has the shape {self._files.shape(stored)}, and {CONFIG} makes it "
                        f"{tuple(tensor.shape)}.",
                        hint=_COPY_AGAIN,
                    )
        return None


def architecture_of(source: ModelSource) -> str:
    """Name of the transformers class, as config.json gives it to engines."""
    listed = getattr(source.config, "architectures", None) or []
    return str(listed[0]) if listed else str(_causal_class(source.config, ModelSection()))


def _causal_class(config: Any, section: ModelSection) -> str | None:
    """Name of the class that makes a causal language model of this configuration, if there is one."""
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING

    remote = (getattr(config, "auto_map", None) or {}).get("AutoModelForCausalLM")
    if remote and section.trust_remote_code:
        return str(remote).rpartition(".")[2]
    if type(config) not in MODEL_FOR_CAUSAL_LM_MAPPING:
        return None
    return str(MODEL_FOR_CAUSAL_LM_MAPPING[type(config)].__name__)


def _check_quantisation(config: Mapping[str, Any], folder: Path) -> None:
    """transformers would load weights of a quantisation that it does not know as if they were plain ones."""
    said = config.get("quantization_config")
    if said is None:
        return
    from transformers.quantizers.auto import AUTO_QUANTIZER_MAPPING

    method = said.get("quant_method")
    known = method in AUTO_QUANTIZER_MAPPING if isinstance(method, str) else bool(said.get("load_in_8bit"))
    if not known and not said.get("load_in_4bit"):
        raise ModelError(
            f"{folder / CONFIG}: quantization_config names the method {method!r}, which transformers does not know.",
            hint="A newer transformers may know it.",
        )


def _check_causal(config: Any, section: ModelSection) -> None:
    from transformers.models.auto.modeling_auto import MODEL_FOR_MASKED_LM_MAPPING

    reads_both_ways = type(config) in MODEL_FOR_MASKED_LM_MAPPING and not getattr(config, "is_decoder", False)
    causal = _causal_class(config, section) is not None
    if not causal or reads_both_ways or getattr(config, "is_encoder_decoder", False):
        raise ModelError(
            f"{section.path} is a {config.model_type} model, which is not a causal language model.",
            hint="swift trains models that transformers' AutoModelForCausalLM can load.",
        )
