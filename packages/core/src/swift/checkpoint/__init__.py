"""Checkpoints: one format for all backends; no process ever holds the whole model.

Names are imported when they are asked for: finding a checkpoint does not need torch's distributed machinery.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from swift.lazy import lazy_names

if TYPE_CHECKING:
    from swift.checkpoint.finite import INVALID_VALUES as INVALID_VALUES
    from swift.checkpoint.finite import invalid_tensors as invalid_tensors
    from swift.checkpoint.folders import checkpoint_folder as checkpoint_folder
    from swift.checkpoint.folders import find_checkpoint as find_checkpoint
    from swift.checkpoint.folders import is_checkpoint as is_checkpoint
    from swift.checkpoint.folders import whole_checkpoints as whole_checkpoints
    from swift.checkpoint.load import Checkpoint as Checkpoint
    from swift.checkpoint.load import open_checkpoint as open_checkpoint
    from swift.checkpoint.manifest import MANIFEST as MANIFEST
    from swift.checkpoint.manifest import Manifest as Manifest
    from swift.checkpoint.manifest import read_manifest as read_manifest
    from swift.checkpoint.save import before_update as before_update
    from swift.checkpoint.save import save_checkpoint as save_checkpoint
    from swift.checkpoint.storage import StoredTensors as StoredTensors
    from swift.checkpoint.tensor_slices import TensorSlices as TensorSlices
    from swift.checkpoint.tensor_slices import flat_slices as flat_slices
    from swift.checkpoint.tensor_slices import part_slices as part_slices
    from swift.checkpoint.weights_location import WeightsLocation as WeightsLocation
    from swift.checkpoint.weights_location import check_weights_of as check_weights_of
    from swift.checkpoint.weights_location import display_name as display_name
    from swift.checkpoint.weights_location import find_weights as find_weights

__getattr__ = lazy_names(__name__)
