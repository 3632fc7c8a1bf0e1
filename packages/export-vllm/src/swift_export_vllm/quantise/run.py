"""From a model on disk to its quantised form: a block at a time, measured on the way, read back at the end."""

from __future__ import annotations

import json
from contextlib import nullcontext
from typing import Any

import torch
import xxhash

from swift.contracts import Quantized, QuantizeRequest
from swift.errors import ExportError
from swift.models.files import SafetensorsFolder
from swift.toolkit import DTYPES, progress
from swift_export_vllm.quantise.calibrate import check_unchanged, observe, round_block, rounded_inputs
from swift_export_vllm.quantise.cost import Cost, check, table
from swift_export_vllm.quantise.formats import NF4_BLOCK, configuration, decode
from swift_export_vllm.quantise.schemes import SCHEMES, Scheme, group_size
from swift_export_vllm.quantise.walk import TokenBatch, Walk, batches, check_fits
from swift_export_vllm.weights_folder import Shards

REPORT = "quantisation.json"


def quantise(request: QuantizeRequest) -> Quantized:
    """Write the quantised model; what it costs stands in `quantisation.json` next to it."""
    return _Quantiser(request).run()


class _Quantiser:
    def __init__(self, request: QuantizeRequest) -> None:
        self._request = request
        self._scheme: Scheme = SCHEMES[request.scheme]
        self._say = request.say
        sequences = [row.tokens for row in request.held_out]
        prompts = [list(prompt) for prompt in request.prompts]
        self._weights = [row.weights for row in request.held_out]
        # Without samples the fixed prompts have to tell what it costs.
        self._weights += [[0.0 if sequences else 1.0] * len(prompt) for prompt in prompts]
        self._first_prompt = len(sequences)
        calibration = [row.tokens for row in request.calibration] if self._scheme.method != "nearest" else []
        self._measured = sequences + prompts
        tokens = sum(map(len, calibration)) + 2 * sum(map(len, self._measured))
        check_fits(request.source, tokens)
        self._samples = batches(calibration)
        self._before = batches(self._measured)
        self._after = batches(self._measured)
        self._digests: dict[str, str] = {}

    def run(self) -> Quantized:
        request, scheme = self._request, self._scheme
        device = "cuda" if torch.cuda.is_available() else "cpu"
        walk = Walk(request.source, device)
        dtype = self._dtype()
        layers = [module for module in walk.blocks[0].modules() if isinstance(module, torch.nn.Linear)]
        group = group_size([layer.in_features for layer in layers])
        left = self._left(walk, group)
        shards = Shards(request.destination, int(request.options.shard_size_gb * 10**9))
        for index, block in progress(walk.walk(), f"Quantising ({scheme.name})", total=len(walk.blocks)):
            self._block(walk, index, block, shards, group=group, dtype=dtype, left=left)
        cost = self._measure(walk, dtype)
        for name, tensor in walk.outside():
            shards.add(name, tensor.to(dtype))
        del walk
        shards.finish()
        request.source.write_assets(request.destination, _spelled(dtype))
        self._configure(configuration(scheme, group=group, left=["lm_head", *sorted(left)], dtype=_spelled(dtype)))
        self._read_back(SafetensorsFolder(request.destination))
        before = sum(request.source.read(name).nbytes for name in request.source.names())
        tolerance = request.options.quant_tolerance or scheme.tolerance
        report = cost.report(scheme, bytes_before=before, bytes_after=shards.bytes, tolerance=tolerance)
        report |= {"group_size": group if scheme.grouped else None, "left_in_full": ["lm_head", *sorted(left)]}
        report |= {"measured_on": "samples held out" if request.held_out else "fixed prompts"}
        for line in table(report):
            self._say(f"  {line}")
        check(report)
        (request.destination / REPORT).write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
        prompts = range(self._first_prompt, self._first_prompt + len(request.prompts))
        tolerance = scheme.engine
        if scheme.inputs is not None:
            # Rounded inputs turn a difference in the last bit into a step of their grid. After many blocks an engine's
            # rounding is another one than the measured: both are as far from the exact values, on opposite sides.
            changes = [change for text in prompts for change in cost.changes[text]]
            tolerance = max(tolerance, 2 * sum(changes) / max(1, len(changes)))
        return Quantized([cost.logps[text] for text in prompts], tolerance, _spelled(dtype), report)

    def _dtype(self) -> torch.dtype:
        """Return the dtype of everything that is not quantised: engines compute in 16 bits around it."""
        names = [name for name in self._request.source.names() if len(self._request.source.shape(name)) > 1]
        own = self._request.source.read(names[0]).dtype
        if own in (torch.bfloat16, torch.float16):
            return own
        self._say("What is not quantised is written in bfloat16: kernels for quantised layers compute in 16 bits")
        return DTYPES["bfloat16"]

    def _left(self, walk: Walk, group: int) -> set[str]:
        """Layers whose inputs no group divides, and all that share a kernel with them; the head is never quantised."""
        tied = bool(walk.source.config.get_text_config().tie_word_embeddings)
        head = "the embedding, which is the head too, stays" if tied else "embedding and head stay"
        self._say(f"{self._scheme.described}; {head} in full precision")
        left = set()
        for block in walk.blocks:
            for parent in block.modules():
                siblings = [each for each in parent.children() if isinstance(each, torch.nn.Linear)]
                if any(self._misfit(layer, group) for layer in siblings):
                    left |= {walk.path(layer) for layer in siblings}
        if left:
            every = sum(isinstance(module, torch.nn.Linear) for block in walk.blocks for module in block.modules())
            if len(left) == every:
                raise ExportError(
                    f"No layer of this model can be stored as {self._scheme.name}: their sizes are no multiples "
                    f"of {NF4_BLOCK if self._scheme.name == 'bnb' else group} inputs and 8 outputs.",
                    hint="Take a quantisation without groups: --quant w8a8 or --quant fp8",
                )
            self._say(f"{len(left)} layers stay in full precision, no group fits them; the first is {min(left)}")
        return left

    def _misfit(self, layer: torch.nn.Linear, group: int) -> bool:
        if self._scheme.name == "bnb":
            return layer.in_features % NF4_BLOCK != 0
        return self._scheme.grouped and (layer.in_features % group != 0 or layer.out_features % 8 != 0)

    def _block(
        self,
        walk: Walk,
        index: int,
        block: torch.nn.Module,
        shards: Shards,
        *,
        group: int,
        dtype: torch.dtype,
        left: set[str],
    ) -> None:
        for batch in self._before:
            batch.hidden = walk.run(index, batch).cpu()
        # What comes before the first block goes through it as it will be read.
        with walk.as_written(dtype) if index == 0 else nullcontext():
            seen = observe(walk, index, self._samples) if self._samples else []
            sample = self._samples[0] if self._scheme.method == "scaling" else None
            probe = None if sample is None else walk.run(index, sample)

            def scaled() -> None:
                if sample is not None and probe is not None:
                    check_unchanged(probe, walk.run(index, sample), walk.path(block))

            stored = round_block(walk, self._scheme, seen, block, group=group, dtype=dtype, left=left, scaled=scaled)
            del seen
            rounded = [module for module in block.modules() if isinstance(module, torch.nn.Linear)]
            rounded = [module for module in rounded if walk.path(module) in stored]
            with rounded_inputs(self._scheme, rounded):
                for batch in (*self._samples, *self._after):
                    batch.hidden = walk.run(index, batch).cpu()
        for module in block.modules():
            for leaf, parameter in module._parameters.items():
                name = walk.path(module)
                if parameter is not None and not (name in stored and leaf == "weight"):
                    shards.add(walk.stored_name(module, leaf), parameter.to(dtype))
        for name, each in stored.items():
            self._digests[name] = _digest(each.weight)
            for suffix, tensor in each.tensors.items():
                shards.add(f"{name}.{suffix}", tensor)

    @torch.no_grad()
    def _measure(self, walk: Walk, dtype: torch.dtype) -> Cost:
        cost = Cost()
        pairs: list[tuple[TokenBatch, TokenBatch]] = list(zip(self._before, self._after, strict=True))
        for before, after in pairs:
            was = walk.logits(before)
            with walk.as_written(dtype):
                now = walk.logits(after)
            for at, text in enumerate(before.rows):
                length = int(before.real[at].sum())
                tokens = before.tokens[at, :length].to(was.device)
                cost.add(text, tokens, self._weights[text], was[at, :length], now[at, :length])
        return cost

    def _configure(self, quantisation: dict[str, Any]) -> None:
        path = self._request.destination / "config.json"
        config = json.loads(path.read_text(encoding="utf-8"))
        config["quantization_config"] = quantisation
        path.write_text(json.dumps(config, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")

    def _read_back(self, written: SafetensorsFolder) -> None:
        """Check that every quantised layer decoded from its file is the one that was measured."""
        by_layer: dict[str, list[str]] = {}
        for name in written.names():
            layer = next((each for each in _parents(name) if each in self._digests), None)
            if layer is not None:
                by_layer.setdefault(layer, []).append(name.removeprefix(f"{layer}."))
        for layer, parts in by_layer.items():
            tensors = {suffix: written.read(f"{layer}.{suffix}") for suffix in parts if suffix != "bias"}
            if _digest(decode(self._scheme, tensors)) != self._digests[layer]:
                raise ExportError(
                    f"The quantised export differs from what was measured: {layer} decodes to other values.",
                    hint="Export again; if it happens twice, the disk alters data.",
                )


def _parents(name: str) -> list[str]:
    parts = name.split(".")
    return [".".join(parts[:end]) for end in range(len(parts) - 1, 0, -1)]


def _digest(weight: torch.Tensor) -> str:
    same_zeros = weight.detach().cpu().float() + 0.0  # an integer has no -0
    return str(xxhash.xxh3_128_hexdigest(same_zeros.contiguous().numpy().tobytes()))


def _spelled(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
