"""Interface of vocabularies: what swift understands of a third-party training program."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from swift.config.draft import Draft
    from swift.config.flags import TranslatedFlags
    from swift.config.meanings import Meaning
    from swift.config.settings import Settings
    from swift.errors import ConfigError

TrainingCommand = Literal["pt", "sft", "rlhf", "train"]


@dataclass(frozen=True)
class ThirdPartyRun:
    """The settings of one training run of a third-party program, as they were read.

    - `program`: The program's name, for messages.
    - `source`: The file, with the line of the command if there are several, or the command itself.
    - `command`: The program's command; empty where the settings determine it.
    - `folder`: A folder that relative paths may start from, besides the working folder.
    - `remarks`: (key, value, reason) of settings that could not be read, and change the run.
    """

    program: str
    values: dict[str, Any]
    source: str
    command: str = ""
    folder: Path = field(default_factory=Path)
    processes: int = 1
    remarks: tuple[tuple[str, Any, str], ...] = ()


@dataclass(frozen=True)
class Remark:
    """A setting that was not imported unchanged, and why."""

    key: str
    value: Any
    text: str
    kind: Literal["lost", "changed", "unneeded"]


@dataclass(frozen=True)
class TranslatedValue:
    """The value of a key of swift, and the setting that it comes from."""

    value: Any
    origin: str


class TranslatedRun:
    """A run of a third-party program in swift's keys: what is set, and a remark about every other setting."""

    def __init__(self, recipe: ThirdPartyRun) -> None:
        self.recipe = recipe
        self.command: TrainingCommand = "sft"
        self.settings: dict[str, TranslatedValue] = {}
        self.remarks: list[Remark] = []
        self.processes = recipe.processes
        self.flags: list[str] = []
        """Flags to type after the file, for keys that a file cannot set."""
        self.empty: list[str] = []
        """Settings that are empty or off, which mean nothing."""
        for key, value, text in recipe.remarks:
            self.lose(key, value, text)

    def set(self, key: str, value: Any, origin: str) -> None:
        """Set a key of swift, or one of its flags; `origin` is the third-party setting."""
        self.settings[key] = TranslatedValue(value, origin)

    def lose(self, key: str, value: Any, text: str) -> None:
        """Note a setting that is not imported and would change the run."""
        self.remarks.append(Remark(key, value, text, "lost"))

    def changed(self, key: str, value: Any, text: str) -> None:
        """Note a setting that has another meaning here, or is left to swift."""
        self.remarks.append(Remark(key, value, text, "changed"))

    def unneeded(self, key: str, value: Any, text: str) -> None:
        """Note a setting that does not change the training."""
        self.remarks.append(Remark(key, value, text, "unneeded"))

    @property
    def lost(self) -> list[Remark]:
        """Return the remarks about settings that are not imported."""
        return [remark for remark in self.remarks if remark.kind == "lost"]

    @property
    def read_with_others(self) -> list[str]:
        """Return the settings that were read together with others, and appear in no key or remark."""
        named = {each.origin for each in self.settings.values()} | {remark.key for remark in self.remarks}
        return [key for key in self.recipe.values if key not in named and key not in self.empty]


@dataclass(frozen=True, eq=False)
class FlagTopic:
    """Flags that a vocabulary adds to those of swift's commands, and what the documentation lists together.

    `swift.config` has what its tables are made of: `renamed`, `switch`, `request`, `NotNeeded`, `Refused` and others.

    - `title`: The heading in the documentation.
    - `flags`: Flags that set keys: (names, the key under which help lists them, how many values they take,
      translation).
    - `meanings`: Third-party flags without a key: not needed, accepted with some values, or refused.
    - `values`: Flag of core (`loss_type`, `optimizer`, `train_type` …) → further value → what it sets, or why it is
      refused.
    - `commands`: The commands that have these flags, where they are not those that train. They have `meanings` only.
    - `trained_by`: Task of models, or command that trains → the objective where the user names none.
    - `read_environment`: Sets keys from environment variables, once the objective is known.
    - `settle`: Takes the requests of the flags from the draft, once it has all settings, and sets keys instead.
    - `options`: Options of the vocabulary's own objectives that no objective of core has.
    - `misplaced`: (flag, name of the objective, whether it is swift's own) → the error for an option of `options`
      elsewhere.
    """

    title: str
    flags: TranslatedFlags = ()
    meanings: Mapping[tuple[str, ...], Meaning] = field(default_factory=dict)
    values: Mapping[str, Mapping[str, Settings | Meaning]] = field(default_factory=dict)
    commands: frozenset[str] = frozenset()
    trained_by: Mapping[str, str] = field(default_factory=dict)
    read_environment: Callable[[Draft, Mapping[str, str]], None] | None = None
    settle: Callable[[Draft], None] | None = None
    options: frozenset[str] = frozenset()
    misplaced: Callable[[str, str, bool], ConfigError] | None = None


class Vocabulary:
    """One vocabulary. The entry point in `swift.vocabularies` names a subclass, which is made without arguments.

    Override what the program has: configuration files (`program_of`, `translate`), command lines and other files
    (`starts`, `read`), flags (`flags`), a Python API (`advice`). Do not import torch.

    - `starts`: Words that a command line of the program begins with, so that `swift config import` takes it without
      quotes.
    """

    starts: tuple[str, ...] = ()

    def program_of(self, values: Mapping[str, Any]) -> str | None:
        """Return the program whose configuration file has these values, which `swift sft FILE` refuses.

        Return None for files of swift, for those of programs that the vocabulary does not know, and for those whose
        keys are all flags of swift.
        """
        return None

    def read(self, source: str) -> Sequence[ThirdPartyRun] | None:
        """Return the training runs of a file, or of a command line; None for what the vocabulary does not know.

        Without an override, YAML and JSON files that `program_of` knows have one run. Raise `swift.errors.NotTrainable`
        for a file of the program that trains nothing.
        """
        from swift.config.files import read_settings

        path = Path(source)
        values = read_settings(path)
        program = None if values is None else self.program_of(values)
        return None if values is None or program is None else [ThirdPartyRun(program, values, source)]

    def translate(self, run: ThirdPartyRun) -> TranslatedRun:
        """Return a run that `read` returned in swift's keys. A remark names each setting that has none."""
        raise NotImplementedError(f"{type(self).__name__} reads runs of {run.program}, and has no `translate`")

    def flags(self) -> Sequence[FlagTopic]:
        """Return the flags that the vocabulary adds. Called for most commands."""
        return ()

    def advice(self, name: str) -> str | None:
        """Return what to write instead of importing a name of the program from `swift`; None for unknown names.

        A module of `swift` that only the program has is a name with a dot: `swift.llm`.
        """
        return None
