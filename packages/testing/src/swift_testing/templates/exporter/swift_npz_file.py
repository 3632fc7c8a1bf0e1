"""Writes the weights of a model as one file of NumPy arrays."""

from typing import Literal

from pydantic import Field

from swift import HOOK_API, Section, hookimpl
from swift.contracts import Reloaded

WEIGHTS = "weights.npz"


class NpzFileOptions(Section):
    """Options of `npz-file`."""

    store: Literal["float32", "int8"] = Field("float32", description="Type of the stored matrices")


class NpzFile:
    HOOK_API = HOOK_API
    options_model = NpzFileOptions

    @hookimpl
    def swift_export(self, weights, request):
        import numpy as np

        from swift.toolkit import merged

        if request.adapter is not None:
            weights = merged(request.source, weights, request.adapter)
        arrays = {}
        for name, tensor in weights:
            values = tensor.detach().float().cpu().numpy()
            if request.own.store == "int8" and values.ndim == 2:
                scale = np.abs(values).max(axis=1, keepdims=True) / 127 + 1e-12
                arrays[f"{name}:scale"] = scale
                values = np.round(values / scale).astype(np.int8)
            arrays[name] = values
        np.savez(request.destination / WEIGHTS, **arrays)
        request.source.write_assets(request.destination, "float32")
        return request.destination

    @hookimpl
    def swift_reload(self, folder, source):
        import numpy as np

        with np.load(folder / WEIGHTS) as arrays:
            stored = dict(arrays)
        scaled = any(name.endswith(":scale") for name in stored)
        return Reloaded(self.decoded(stored), rounding=0.02 if scaled else 0.0)

    def decoded(self, stored):
        import torch

        for name, values in stored.items():
            if not name.endswith(":scale"):
                yield name, torch.from_numpy(values * stored.get(f"{name}:scale", 1.0)).float()
