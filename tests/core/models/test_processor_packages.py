"""A processor whose packages are not installed is refused with their names."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from transformers import Gemma4Config, Mistral3Config
from transformers.utils import is_torchvision_available

from swift.errors import ModelError
from swift.models.media_processor import load_processor


@pytest.mark.skipif(is_torchvision_available(), reason="needs an environment without torchvision")
@pytest.mark.parametrize(("config", "name"), [(Mistral3Config, "PixtralProcessor"), (Gemma4Config, "Gemma4Processor")])
def test_processor_names_the_package_it_needs(config: Any, name: str, tmp_path: Path) -> None:
    """Whether transformers has a stand-in for the class, or fails to import its file."""
    (tmp_path / "processor_config.json").write_text("{}")
    with pytest.raises(ModelError, match=rf"{name}.*torchvision") as refused:
        load_processor(tmp_path, config(), None)
    assert "core[vision]" in str(refused.value.hint)
