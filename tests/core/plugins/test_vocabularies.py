"""Vocabularies: what core makes of the files and names of a third-party program that a plugin knows."""

from __future__ import annotations

from pathlib import Path

import pytest
from commands import typed

from swift.errors import ConfigError, PluginError, UsageError
from swift.parsing import config_from_mapping, parse
from swift.plugins import vocabularies

ACME = """
from swift.config import Refused, Set, renamed, request
from swift.contracts import FlagTopic, TranslatedRun, Vocabulary

KEYS = {"checkpoint": "model.path", "rows": "dataset", "rate": "optim.lr"}


class Acme(Vocabulary):
    starts = ("acme",)

    def program_of(self, values):
        return "Acme" if "acme_version" in values else None

    def translate(self, run):
        translated = TranslatedRun(run)
        for key, value in run.values.items():
            if key in KEYS:
                translated.set(KEYS[key], value, key)
            elif key == "acme_version":
                translated.unneeded(key, value, "is the version of the file")
            else:
                translated.lose(key, value, "swift has no such setting")
        return translated

    def advice(self, name):
        return "Write: from swift import Trainer" if name == "AcmeTrainer" else None


class WithFlags(Acme):
    def flags(self):
        topic = FlagTopic(
            "Acme",
            flags=(
                (("acme_rate", "rate_of_acme"), "optim.lr", "value", renamed("optim.lr")),
                (("acme_epochs",), "train.epochs", "value", request("acme_epochs")),
            ),
            meanings={("acme_colour",): Refused("swift has one color.", "Leave it out.")},
            values={"loss_type": {"acme_loss": (Set("objective.loss", "infonce"),)}},
            settle=settle,
        )
        return [topic]


def settle(draft):
    if (request := draft.take("acme_epochs")) is not None:
        draft.set("train.epochs", request.value, request.source)
        draft.note(f"{request.source} counts from one.")


class Rival(Acme):
    def flags(self):
        return [FlagTopic("Acme", flags=((("learning_rate",), "optim.lr", "value", renamed("optim.lr")),))]


class Untyped(Acme):
    def program_of(self, values):
        return 2


class Unrelated:
    def program_of(self, values):
        return None
"""
FILE = "acme_version: 2\ncheckpoint: some-model\nrows: data.jsonl\nrate: 1.0e-4\ncolour: red\n"


def install(monkeypatch: pytest.MonkeyPatch, folder: Path, name: str, *, alone: bool = True) -> Path:
    """Install the class with a name as the vocabulary `acme`; return a configuration file of Acme."""
    info = folder / "site" / "swift_acme_words-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: swift-acme-words\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[swift.vocabularies]\nacme = acme_words_{name.lower()}:{name}\n")
    (folder / "site" / f"acme_words_{name.lower()}.py").write_text(ACME)
    monkeypatch.syspath_prepend(str(folder / "site"))
    if alone:
        monkeypatch.setenv("SWIFT_PLUGINS", "swift-acme-words,swift-objectives")
    (folder / "acme.yaml").write_text(FILE)
    return folder / "acme.yaml"


def test_file_of_vocabulary_is_imported(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The keys are written with their origin, and a lost setting is exit code 1."""
    file = install(monkeypatch, tmp_path, "Acme")
    done = typed(["config", "import", str(file)], tmp_path)
    assert done.code == 1
    assert f"# Acme: {file}, by swift config import" in done.output
    assert "  path: some-model  # checkpoint" in done.output
    assert "#   acme_version: 2 (is the version of the file)" in done.output
    assert "Not imported: colour: red (swift has no such setting)" in done.output


def test_training_refuses_file_of_vocabulary(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """`swift sft FILE` names the program and what to type."""
    file = install(monkeypatch, tmp_path, "Acme")
    done = typed(["sft", str(file)], tmp_path)
    assert done.code == 2
    assert "acme.yaml is a configuration of Acme, not of swift." in done.output
    assert f"Type: swift config import {file} --out run.yaml" in done.output


def test_vocabularies_of_two_packages_share_work(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A file that one vocabulary refuses as unknown is read by the other."""
    file = install(monkeypatch, tmp_path, "Acme", alone=False)
    (acme,) = vocabularies.read_runs(str(file))
    assert acme.run.program == "Acme"
    (other,) = vocabularies.read_runs("trl sft --model_name_or_path m --dataset_name d")
    assert other.run.program == "TRL"
    assert vocabularies.starts_command("acme")
    assert vocabularies.starts_command("trl")


def test_name_of_vocabulary_gets_advice(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """An import of the third-party name names what to write; other names stay unknown."""
    install(monkeypatch, tmp_path, "Acme")
    with pytest.raises(ImportError, match="Write: from swift import Trainer"):
        exec("from swift import AcmeTrainer")
    with pytest.raises(ImportError, match="cannot import name 'AcmeModel'"):
        exec("from swift import AcmeModel")


@pytest.mark.parametrize(
    ("name", "message"),
    [("Untyped", r"returned the int 2 from program_of"), ("Unrelated", r"names .*Unrelated")],
)
def test_wrong_vocabulary_is_blamed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str, message: str) -> None:
    """A value of the wrong type, or a class that is no vocabulary, is the plugin's error."""
    file = install(monkeypatch, tmp_path, name)
    with pytest.raises(PluginError, match=message):
        vocabularies.check_is_own([str(file)])


def test_flags_of_vocabulary_set_keys(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Flags, requests and values of a vocabulary are those of every command that trains, and no longer without it."""
    with pytest.raises(ConfigError, match="Unknown flag --acme-rate"):
        parse(["--acme-rate", "0.5"], "sft", complete=False)
    install(monkeypatch, tmp_path, "WithFlags")
    parsed = parse(["--acme-rate", "0.5", "--acme_epochs", "3"], "sft", complete=False)
    assert (parsed.config.optim.lr, parsed.config.train.epochs) == (0.5, 3)
    assert "--acme_epochs counts from one." in parsed.notes
    assert config_from_mapping({"rate_of_acme": 0.25}, "sft").config.optim.lr == 0.25
    with pytest.raises(ConfigError, match=r"--acme_colour red is not supported: swift has one color.\nLeave it out."):
        parse(["--acme_colour", "red"], "sft", complete=False)
    embedding = parse(["--task_type", "embedding", "--loss_type", "acme_loss"], "sft", complete=False)
    assert embedding.objective.options.model_dump()["loss"] == "infonce"


def test_flag_that_swift_has_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A vocabulary cannot change the meaning of a flag."""
    install(monkeypatch, tmp_path, "Rival")
    with pytest.raises(PluginError, match="adds the flag --learning_rate, which swift has already"):
        parse(["--max_steps", "1"], "sft", complete=False)


@pytest.mark.usefixtures("without_rl")
def test_missing_objective_is_named_before_its_flags(tmp_path: Path) -> None:
    """Without the package of an objective, its flags are unknown: the error names the package, not the flag."""
    with pytest.raises(PluginError, match=r'grpo.* is not installed.\n.*core\[rl\]"'):
        parse(["--num_generations", "4", "--rlhf_type", "grpo"], "rlhf", complete=False)
    file = tmp_path / "grpo.yaml"
    file.write_text("rlhf_type: grpo\nnum_generations: 4\n")
    with pytest.raises(PluginError, match=r'grpo.* is not installed.\n.*core\[rl\]"'):
        parse([str(file)], "rlhf", complete=False)


def test_without_vocabulary_package_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Without swift-migrate, an import says what to install, or that SWIFT_PLUGINS leaves it out."""
    file = install(monkeypatch, tmp_path, "Acme")
    (tmp_path / "other.yaml").write_text("base_model: m\ndatasets: []\n")
    with pytest.raises(UsageError) as caught:
        vocabularies.read_runs(str(tmp_path / "other.yaml"))
    assert "swift-migrate" in str(caught.value)
    assert "SWIFT_PLUGINS leaves it out" in str(caught.value)
    monkeypatch.setattr(vocabularies, "list_plugins", lambda _: [])
    monkeypatch.setattr(vocabularies, "allowed_plugins", lambda _: [])
    with pytest.raises(UsageError, match=r'core\[migrate\]"'):
        vocabularies.read_runs(str(file))
    vocabularies.check_is_own([str(file)])
    with pytest.raises(ImportError, match=r"core\[migrate\]"):
        import swift.llm  # noqa: F401


@pytest.mark.usefixtures("without_migrate")
@pytest.mark.parametrize("line", ["convert checkpoint-500 --out x", "config import trl sft --dataset_name d"])
def test_missing_commands_name_package(line: str, tmp_path: Path) -> None:
    """Without swift-migrate its commands name what to install."""
    done = typed(line.split(), tmp_path)
    assert done.code == 2
    assert 'core[migrate]"' in done.output


def test_broken_file_of_arguments_is_refused(tmp_path: Path) -> None:
    """A file that is no YAML is refused before any vocabulary sees it."""
    (tmp_path / "broken.yaml").write_text("a: [")
    with pytest.raises(ConfigError, match="invalid YAML"):
        vocabularies.check_is_own([str(tmp_path / "broken.yaml")])
