"""Block expansion (LLaMA Pro, arXiv:2401.02415): add blocks to a model that are the identity at first."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from swift.config.sections import ModelSection
from swift.errors import CheckpointError, ModelError
from swift.export import ShardedSafetensorsWriter, TensorSpec, export_dtypes, main_dtype
from swift.models import HfSource, open_source
from swift.models.quiet import quiet_libraries
from swift.terminal import Say, say_nothing, waiting
from swift_migrate.convert.write import new_folder

_SHARD_BYTES = 5 * 10**9
_LAST = re.compile(r"\b(?:[a-z_]*o_proj|out_proj|c_proj|dense|down_proj|dense_4h_to_h|w2|fc2|fc_out)\.(?:weight|bias)$")
"""The last tensors of attention and feed-forward: where they are zero, a block is the identity."""
_PROBE = 24
_WITHIN = 1e-4
"""Maximum difference of a log-probability in fp32, for rounding of sums with added zeros."""


@dataclass(frozen=True)
class Expansion:
    """Positions of the old and new blocks in the expanded model."""

    layers: int
    blocks: int

    @property
    def group(self) -> int:
        """Return the number of old blocks between two new ones."""
        return self.layers // self.blocks

    def moved(self, layer: int) -> int:
        """Return the new number of a block."""
        return layer + layer // self.group

    @property
    def added(self) -> dict[int, int]:
        """Return the number of each new block → the old number of the block before it, which it copies."""
        return {(self.group + 1) * (index + 1) - 1: self.group * (index + 1) - 1 for index in range(self.blocks)}

    def settings(self, config: Mapping[str, Any]) -> dict[str, Any]:
        """Return the configuration of the expanded model; lists with an entry per layer are expanded too."""
        changed = dict(config)
        for key, value in config.items():
            if isinstance(value, dict) and "num_hidden_layers" in value:
                changed[key] = self.settings(value)
            elif isinstance(value, list) and len(value) == self.layers and key != "architectures":
                added = self.added
                old = iter(value)
                changed[key] = [value[added[n]] if n in added else next(old) for n in range(self.layers + self.blocks)]
        for key in ("num_hidden_layers", "n_layer"):
            if config.get(key) == self.layers:
                changed[key] = self.layers + self.blocks
        return changed


def expand_blocks(path: Path, *, blocks: int, out: Path, say: Say, trust_remote_code: bool = False) -> Path:
    """Write a model with `blocks` more blocks, one after each equal group of the old ones, with the same output.

    The new model's log-probabilities are compared with the old ones before the folder appears.
    """
    quiet_libraries()
    if out.exists():
        raise CheckpointError(f"{out} already exists.", hint="Choose another folder with --out.")
    source = open_source(ModelSection(path=str(path), trust_remote_code=trust_remote_code), say=say)
    layers = int(source.config.get_text_config().num_hidden_layers)
    if layers % blocks:
        divisors = [str(n) for n in range(1, layers + 1) if layers % n == 0]
        raise CheckpointError(
            f"--expand-blocks must divide the number of blocks, {layers}, and {blocks} does not.",
            hint=f"Valid values: {', '.join(divisors)}",
        )
    expansion = Expansion(layers, blocks)
    stem = _stem_of_blocks(source, layers)
    with new_folder(out) as temporary:
        with waiting(f"Writing {out}"):
            _write(source, expansion, stem, temporary)
        with waiting("Comparing it with the model"):
            _compare(source, temporary, trust_remote_code=trust_remote_code)
    trained = " ".join(f"{stem}{number}." for number in expansion.added)
    say(f"Expanded to {out}: {layers} + {blocks} blocks, with the same output.")
    command = f"swift sft --model {out} --train_type full --trainable_parameters {trained} --dataset DATA"
    say(f"To train the new blocks type {command}")
    return out


def _stem_of_blocks(source: HfSource, layers: int) -> str:
    """Return the prefix of the blocks' weights, such as `model.layers.`."""
    found: dict[str, set[int]] = {}
    for name in source.names():
        first = re.match(r"(.*?\.)(\d+)\.", name)
        if first is not None:
            found.setdefault(first[1], set()).add(int(first[2]))
    stems = [stem for stem, numbers in found.items() if numbers == set(range(layers))]
    if len(stems) != 1:
        raise ModelError(f"{source.folder} cannot be expanded: it does not have one list of {layers} blocks.")
    return stems[0]


def _write(source: HfSource, expansion: Expansion, stem: str, folder: Path) -> None:
    dtypes = export_dtypes(source, "auto")
    sources = {new: (old, zero) for old in source.names() for new, zero in _new_names(old, expansion, stem)}
    specs = {new: TensorSpec(dtypes[old], source.shape(old)) for new, (old, _) in sources.items()}
    if not any(zero for _, zero in sources.values()):
        raise ModelError(f"{source.folder} cannot be expanded: the output projections of its blocks are unknown.")
    with ShardedSafetensorsWriter(folder, specs, shard_bytes=_SHARD_BYTES) as writer:
        for new, (old, zero) in sources.items():
            tensor = source.read(old).to(dtypes[old])
            writer.write(new, torch.zeros_like(tensor) if zero else tensor)
            del tensor
        writer.finish()
    source.write_assets(folder, main_dtype(dtypes.values()))
    config = expansion.settings(json.loads((folder / "config.json").read_text(encoding="utf-8")))
    (folder / "config.json").write_text(json.dumps(config, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def _new_names(name: str, expansion: Expansion, stem: str) -> Iterator[tuple[str, bool]]:
    """Yield the new names of a weight and its copies, and whether each is zero."""
    number, dot, rest = name.removeprefix(stem).partition(".")
    if not name.startswith(stem) or not dot or not number.isdecimal():
        yield name, False
        return
    yield f"{stem}{expansion.moved(int(number))}.{rest}", False
    for new, before in expansion.added.items():
        if before == int(number):
            yield f"{stem}{new}.{rest}", _LAST.search(rest) is not None


@torch.no_grad()
def _compare(source: HfSource, folder: Path, *, trust_remote_code: bool) -> None:
    """Raise `ModelError` where the expanded model's log-probabilities differ from the original's."""
    vocabulary = source.config.get_text_config().vocab_size
    ids = torch.arange(1, _PROBE + 1).mul(7919).remainder(vocabulary)[None]
    expected = source.build(dtype=torch.float32)(input_ids=ids).logits.log_softmax(-1)
    section = ModelSection(path=str(folder), trust_remote_code=trust_remote_code)
    expanded = open_source(section, say=say_nothing).build(dtype=torch.float32)
    off = (expanded(input_ids=ids).logits.log_softmax(-1) - expected).abs().max().item()
    if not off <= _WITHIN:
        raise ModelError(
            f"{type(expanded).__name__} cannot be expanded: with the new blocks its log-probabilities differ by "
            f"{off:.1e}.",
            hint="Train an adapter, or some of its blocks.",
        )
