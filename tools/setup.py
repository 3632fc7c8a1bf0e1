"""Make `.venv` ready for work: `make setup` runs this with the machine's own python3.

Needs Python 3.11, pip and nothing else. Everything is installed from the hashed pins in `requirements/`. A second
call compares a fingerprint of these pins with the one that the first left behind, and returns at once. The file is
written so that an older Python can still read it, and say that it is too old.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

OLDEST = (3, 11)
ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / ".venv"
PYTHON = VENV / "bin" / "python"
STAMP = VENV / "setup-fingerprint"
HARNESS = VENV / "harness"
TRACKERS = VENV / "trackers"
SENTENCES = VENV / "sentences"
VISION = VENV / "vision"
REAL = VENV / "real"
SITE = VENV / "site"
CLUSTERS = VENV / "clusters"
CLOUDS = VENV / "clouds"
PINS = ROOT / "requirements"
CLUSTER_PACKAGES = (
    *("ray[default]", "dask[dataframe]", "s3fs", "moto[server]", "gcsfs", "gcp-storage-emulator"),
    "kubeflow-trainer-api",
)
"""What `make clusters` adds to `.venv`: Ray, Dask, object stores with their clients, models of Kubernetes' jobs."""


class SetupError(Exception):
    """What went wrong, and what to type next."""


def main() -> int:
    started = time.monotonic()
    try:
        if sys.argv[1:] in (["site"], ["clusters"]):
            install_for(sys.argv[1])
            return 0
        check_python()
        if sys.argv[1:2] == ["image"]:
            install_for_image(cuda="cuda" in sys.argv[2:])
            return 0
        wanted = fingerprint()
        if STAMP.is_file() and STAMP.read_text() == wanted and PYTHON.exists():
            return 0
        STAMP.unlink(missing_ok=True)
        install()
    except SetupError as error:
        print(f"setup: {error}", file=sys.stderr)
        return 2
    STAMP.write_text(wanted)
    say(f"ready after {time.monotonic() - started:.0f} s; try {VENV.name}/bin/swift --help")
    return 0


def check_python() -> None:
    if sys.version_info < OLDEST:
        found = ".".join(map(str, sys.version_info[:3]))
        raise SetupError(
            f"swift needs Python 3.11 or newer, and {sys.executable} is {found}. "
            "Name a newer one: make setup PYTHON=python3.12"
        )


def fingerprint() -> str:
    """Return a hash that changes with anything that would change the installation."""
    digest = hashlib.sha256()
    for file in sorted([*PINS.iterdir(), *ROOT.glob("packages/*/pyproject.toml"), Path(__file__)]):
        digest.update(f"{file.relative_to(ROOT)}\n".encode())
        digest.update(file.read_bytes())
    digest.update(f"{ROOT} {sys.version_info[:2]} {has_nvidia_driver()}".encode())
    return digest.hexdigest()


def has_nvidia_driver() -> bool:
    return shutil.which("nvidia-smi") is not None or Path("/proc/driver/nvidia").exists()


def install() -> None:
    import pip_settings  # only here: too new for the Python that `check_python` is there for

    offered = pip_settings.for_uv()
    install_pins("dev.txt", cuda=has_nvidia_driver())
    say("lm-evaluation-harness, in a folder of its own")
    harness = ("--target", str(HARNESS), "--requirement", str(PINS / "harness.txt"))
    uv_install(offered, "--no-deps", "--require-hashes", *harness)
    say("small pretrained models, in a folder of their own")
    real = ("--target", str(REAL), "--requirement", str(PINS / "real.txt"))
    uv_install(offered, "--no-deps", "--require-hashes", *real)
    say("experiment trackers, in an environment of their own")
    install_inside(TRACKERS, PINS / "trackers.txt")
    say("sentence-transformers, in an environment of its own")
    install_inside(SENTENCES, PINS / "sentences.txt")
    say("torchvision, in an environment of its own")
    install_inside(VISION, PINS / "vision.txt")
    install_own_packages(cuda=has_nvidia_driver())


def install_for_image(cuda: bool) -> None:
    """Install what a container image has: the backends and their pins, without what only tests need."""
    install_pins("image.txt", cuda)
    install_own_packages(cuda)


def install_pins(name: str, cuda: bool) -> None:
    """Make `.venv` with torch and the pins of one file."""
    import pip_settings

    make_venv()
    say("uv")
    pip("install", "-qq", "--require-hashes", "--requirement", str(PINS / "uv.txt"))
    install_torch(pip_settings.for_uv(), index_only=pip_settings.for_uv(offers=False), cuda=cuda)
    say("all other pins")
    uv_install(pip_settings.for_uv(), "--no-deps", "--require-hashes", "--requirement", str(PINS / name))


def install_own_packages(cuda: bool) -> None:
    """Install what is built here: DeepSpeed, and the packages of this repository."""
    import pip_settings

    offered = pip_settings.for_uv()
    say("what is built here: deepspeed")
    built_here = {**offered, "DS_BUILD_OPS": "0", **({} if cuda else {"DS_ACCELERATOR": "cpu"})}
    built = ("--no-deps", "--no-build-isolation", "--require-hashes", "--requirement", str(PINS / "built.txt"))
    uv_install(built_here, *built)
    packages = [file.parent for file in sorted(ROOT.glob("packages/*/pyproject.toml"))]
    say("this repository's packages: " + ", ".join(package.name for package in packages))
    editable = [argument for package in packages for argument in ("--editable", str(package))]
    uv_install(offered, "--no-deps", "--no-build-isolation", *editable)


def install_for(command: str) -> None:
    """Install what only `make site` or `make clusters` needs, each in an environment of its own."""
    if command == "site":
        once(SITE, ["mkdocs"])
    else:
        once(CLUSTERS, CLUSTER_PACKAGES, inside=True)
        once(CLOUDS, ["skypilot"])  # by itself: it needs an older click than transformers


def once(folder: Path, packages: Sequence[str], inside: bool = False) -> None:
    """Install packages in an environment, once for each set of pins; `inside` adds them to what `.venv` has."""
    stamp = folder / "setup-fingerprint"
    wanted = f"{fingerprint()} {packages}"
    if stamp.is_file() and stamp.read_text() == wanted:
        return
    say(f"{', '.join(packages)}, in an environment of their own")
    with tempfile.TemporaryDirectory(prefix="swift-pins-") as temporary:
        pins = Path(temporary) / "pins.txt"
        pins.write_text(resolved(packages, PINS / "dev.txt" if inside else None))
        (install_inside if inside else install_apart)(folder, pins)
    stamp.write_text(wanted)


def resolved(packages: Sequence[str], installed: Path | None) -> str:
    """Return hashed pins of packages as of the date in pyproject.toml, less those that the file `installed` pins."""
    import pip_settings

    command = [str(VENV / "bin" / "uv"), "pip", "compile", "-", "--quiet", "--generate-hashes", "--no-header"]
    command += ["--no-annotate", "--python", str(PYTHON), *(["--constraint", str(installed)] if installed else [])]
    settings = {**pip_settings.for_uv(), **os.environ}
    done = subprocess.run(
        command, cwd=str(ROOT), env=settings, input="\n".join(packages), stdout=subprocess.PIPE, text=True
    )
    if done.returncode:
        raise SetupError(f"cannot resolve {', '.join(packages)}: see above. It takes an index of packages.")
    there = set(re.findall(r"^[^ #]+==[^ ]+", installed.read_text(), re.MULTILINE)) if installed else set()
    entries = re.split(r"\n(?=\S)", done.stdout.strip())
    return "\n".join(each for each in entries if each.split()[0] not in there) + "\n"


def make_venv() -> None:
    version = "{}.{}".format(*sys.version_info[:2])
    say(f"{VENV.name} with Python {version}")
    if not (VENV / "lib" / f"python{version}").is_dir() or not PYTHON.exists():
        run([quick_python(), "-m", "venv", "--clear", "--without-pip", str(VENV)])


def quick_python(system: Path = Path("/usr/bin")) -> str:
    """Return this Python, or the system's of the same version where this one was built without optimisations.

    So pyenv builds unless it is told otherwise, and whatever is Python takes a fifth longer; distributions build with a
    profile.
    """
    other = system / "python{}.{}".format(*sys.version_info[:2])
    optimised = "--enable-optimizations" in str(sysconfig.get_config_var("CONFIG_ARGS"))
    if optimised or Path(sys.executable).resolve() == other.resolve() or not is_complete(other):
        return sys.executable
    say(f"{sys.executable} was built without optimisations: {other} is taken instead")
    return str(other)


def is_complete(python: Path) -> bool:
    """Whether it is there, with what distributions put into packages of their own: venv, and headers to compile for."""
    program = "import os, sysconfig, venv; assert os.path.isfile(sysconfig.get_config_h_filename())"
    return python.is_file() and subprocess.run([str(python), "-c", program], capture_output=True).returncode == 0


def install_inside(folder: Path, pins: Path) -> None:
    """Make an environment that has all of `.venv` too. What it adds is found first, and not found from `.venv`."""
    install_apart(folder, pins)
    packages, inner = (next(each.glob("lib/python*/site-packages")) for each in (VENV, folder))
    (inner / "outer.pth").write_text(f"import site; site.addsitedir({str(packages)!r})\n")


def install_apart(folder: Path, pins: Path) -> None:
    """Make an environment that has nothing of `.venv`."""
    import pip_settings

    run([str(PYTHON), "-m", "venv", "--clear", "--without-pip", str(folder)])
    python = folder / "bin" / "python"
    uv_install(pip_settings.for_uv(), "--no-deps", "--require-hashes", "--requirement", str(pins), python=python)


def install_torch(offered: dict[str, str], index_only: dict[str, str], cuda: bool) -> None:
    """Install the CPU build if CUDA is not wanted and pip's settings offer it, else the index's default."""
    with tempfile.TemporaryDirectory(prefix="swift-torch-") as folder:
        wheel = None
        if sys.platform == "linux" and not cuda:
            wheel = download_cpu_torch(Path(folder))
            if wheel is None:
                say("no NVIDIA driver, but pip's settings (find-links, extra-index-url) offer no CPU build of torch")
        if wheel is not None:
            say(f"torch for CPU, {wheel.stat().st_size / 1e6:.0f} MB: {check_hash(wheel)}")
            uv_install(offered, "--no-deps", str(wheel))
        else:
            say("torch, the index's default build" + (" (with CUDA: several GB)" if sys.platform == "linux" else ""))
            uv_install(index_only, "--no-deps", "--require-hashes", "--requirement", str(PINS / "torch.txt"))


def download_cpu_torch(folder: Path) -> Path | None:
    """Ask pip itself, so that every place it knows of is looked at. None where it finds nothing."""
    match = re.search(r"^torch==([^ ]+)", (PINS / "torch.txt").read_text(), re.MULTILINE)
    if match is None:
        raise SetupError(f"{PINS / 'torch.txt'} pins no torch. Write the pins again: make lock")
    wanted = f"torch=={match[1]}+cpu"
    try:
        pip("download", "-qq", "--no-deps", "--only-binary=:all:", "--dest", str(folder), wanted, quiet=True)
    except SetupError:
        return None
    return next(folder.glob("*.whl"))


def check_hash(wheel: Path) -> str:
    """Refuse a wheel that isn't the one pinned under its name; say so where none is pinned."""
    pinned = dict(line.split()[::-1] for line in (PINS / "torch-cpu.sha256").read_text().splitlines())
    found = hashlib.sha256(wheel.read_bytes()).hexdigest()
    if wheel.name not in pinned:
        return f"taken on the word of pip's settings, no hash of {wheel.name} is pinned (sha256 {found})"
    if pinned[wheel.name] != found:
        raise SetupError(
            f"{wheel.name} is not the file that requirements/torch-cpu.sha256 pins: its sha256 is {found}. "
            "Look at where pip's find-links and extra-index-url point: python3 -m pip config list"
        )
    return "its pinned hash is right"


def pip(*arguments: str, quiet: bool = False) -> None:
    """Run this Python's pip in `.venv`."""
    run([sys.executable, "-m", "pip", "--disable-pip-version-check", "--python", str(PYTHON), *arguments], quiet=quiet)


def uv_install(settings: dict[str, str], *arguments: str, python: Path | None = None) -> None:
    """Install with uv, which compiles what it installs: its own progress bars on a terminal, silence in a log."""
    silent = [] if sys.stderr.isatty() else ["--quiet"]
    command = [str(VENV / "bin" / "uv"), "pip", "install", *silent, "--no-config", "--python", str(python or PYTHON)]
    run([*command, "--compile-bytecode", *arguments], environment={**settings, **os.environ})


def run(command: list[str], environment: dict[str, str] | None = None, quiet: bool = False) -> None:
    output = subprocess.DEVNULL if quiet else None
    if subprocess.run(command, env=environment, stdout=output, stderr=output, check=False).returncode:
        raise SetupError(f"this failed: {' '.join(command)}\nFix the error above and type the same again.")


def say(line: str) -> None:
    print(f"setup: {line}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
