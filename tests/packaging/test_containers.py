"""Container images and the development container: what they name exists, and the image's pins suffice."""

from __future__ import annotations

import json
import re
import shutil
import subprocess

import pytest
from import_rules import ROOT
from lone_environment import declared
from packaging.utils import canonicalize_name

from swift.plugins.known import PACKAGES

DOCKERFILE = ROOT / "docker" / "Dockerfile"
STAGE = re.compile(r"^FROM (\S+) AS (\w+)$", re.MULTILINE)


def test_dockerfile_copies_what_exists_and_pins_its_bases() -> None:
    text = DOCKERFILE.read_text()
    for copied in re.findall(r"^COPY (\S+) ", text, re.MULTILINE):
        assert (ROOT / copied).exists()
        assert f"!{copied}\n" in DOCKERFILE.with_name("Dockerfile.dockerignore").read_text()
    stages = STAGE.findall(text)
    assert [name for _, name in stages] == ["base", "cpu", "cuda"]
    for base, _ in stages:
        assert base == "base" or re.search(r":\d+\.\d+[\w.-]+$", base)
    assert all((ROOT / script).is_file() for script in re.findall(r"python3? (\S+\.py)", text))


def test_image_pins_cover_what_backends_declare() -> None:
    files = [ROOT / "requirements" / f"{name}.txt" for name in ("image", "torch", "built")]
    pinned = {canonicalize_name(name) for file in files for name in re.findall(r"^([\w.-]+)==", file.read_text(), re.M)}
    wanted = declared("swift-core", ["standard", "fsdp", "deepspeed", "megatron", "qlora", "tensorboard"])
    assert wanted - PACKAGES - pinned == set()


def test_image_and_development_pin_the_same_versions() -> None:
    pins = {}
    for name in ("image", "dev"):
        text = (ROOT / "requirements" / f"{name}.txt").read_text()
        pins[name] = {tuple(entry) for entry in re.findall(r"^([\w.-]+)==(\S+)", text, re.M)}
    names = {name for name, _ in pins["dev"]}
    assert {pin for pin in pins["image"] if pin[0] in names} <= pins["dev"]


def test_development_container_names_stage_and_target() -> None:
    file = ROOT / ".devcontainer" / "devcontainer.json"
    settings = json.loads(file.read_text())
    build = settings["build"]
    assert (file.parent / build["dockerfile"]).resolve() == DOCKERFILE
    assert build["target"] in {name for _, name in STAGE.findall(DOCKERFILE.read_text())}
    target = settings["postCreateCommand"].removeprefix("make ")
    assert re.search(rf"^{target}:", (ROOT / "Makefile").read_text(), re.MULTILINE)


def test_hadolint_finds_nothing() -> None:
    if (hadolint := shutil.which("hadolint")) is None:
        pytest.skip("hadolint is not installed")
    done = subprocess.run([hadolint, DOCKERFILE], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "")
