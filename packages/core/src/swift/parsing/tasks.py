"""Tasks of models (`model.task`), and the views that an objective may request of each."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from swift.config.settings import Set, Settings, unknown_value
from swift.contracts import Need
from swift.errors import ConfigError, ModelError
from swift.parsing.plugin_flags import flag_topics
from swift.plugins.discover import objective_names

if TYPE_CHECKING:
    from swift.config.sections import ModelSection
    from swift.contracts import ModelSource, Objective

CAUSAL_LM, EMBEDDING = "causal_lm", "embedding"
HEADED = ("seq_cls", "reward", "value")
"""Tasks of a model with a head instead of the unembedding."""

_OF_LOGITS = frozenset(
    {Need.TOKEN_LOGPS, Need.TOKEN_CORRECT, Need.MEAN_LOGPS, Need.TOKEN_ENTROPY, Need.CANDIDATE_LOGPS}
)
_OF_HEAD = frozenset({Need.SCORES, Need.VALUES})
_VIEWS_OF = {CAUSAL_LM: _OF_LOGITS, EMBEDDING: frozenset({Need.POOLED}), **dict.fromkeys(HEADED, _OF_HEAD)}
"""Task → views of which an objective must request at least one: the others leave a part of the model untrained."""
TASKS = tuple(_VIEWS_OF)


def task_type(source: str, value: Any) -> Settings:
    """Read `--task_type`: the task of a model, or an objective, which brings the task of its models."""
    name = str(value).lower()
    if name in TASKS:
        return (Set("model.task", name),)
    if name in objective_names():
        return (Set("objective.name", name),)
    raise unknown_value(source, value, dict.fromkeys((*TASKS, *objective_names())))


def trained_by(name: str) -> str | None:
    """Return the objective for models of a task, or of a command, where the user names none."""
    defaults = {"pt": "pt", "sft": "sft"}
    for topic in flag_topics():
        defaults |= topic.trained_by
    return defaults.get(name) or (name if name in objective_names() else None)


def task_of(source: ModelSource) -> str:
    """Return the task of a model; a causal language model where it declares none."""
    return str(getattr(source, "task", CAUSAL_LM))


def task_of_config(config: Mapping[str, Any]) -> str:
    """Return the task of a model by the class named in its config.json."""
    listed = config.get("architectures")
    name = str(listed[0]) if isinstance(listed, list) and listed else ""
    if name.endswith("ForSequenceClassification"):
        return "seq_cls"
    # Remote code may give its classes any name.
    bare = name.endswith("Model") and not name.endswith(("LMHeadModel", "LMModel", "HeadsModel"))
    return EMBEDDING if bare and "auto_map" not in config else CAUSAL_LM


def returns(task: str) -> str:
    """Return the name of what a model of a task returns."""
    return {CAUSAL_LM: "text", EMBEDDING: "vectors"}.get(task, "scores")


def check_generates(name: str, task: str) -> None:
    """Raise `ModelError` for a model that generates no text."""
    if task == CAUSAL_LM:
        return
    raise ModelError(
        f"{name} generates no text: its task is {task}, which returns {returns(task)}.",
        hint=f"For {returns(task)} type: swift infer MODEL --dataset FILE. To load it with transformers type: "
        "swift export MODEL --to hf",
    )


def view_of(task: str) -> Need | None:
    """Return the view that a backend must support for a task; None for a task that every backend supports."""
    if task in HEADED:
        return Need.VALUES if task == "value" else Need.SCORES
    return Need.POOLED if task == EMBEDDING else None


def for_objective(section: ModelSection, objective: Objective) -> ModelSection:
    """Return the section with the objective's task and number of labels where the user set none.

    Raise `ConfigError` where the user set another number of labels than the objective's.
    """
    settings: dict[str, Any] = {}
    if "task" not in section.model_fields_set:
        settings["task"] = objective.task
    labels = objective.num_labels
    if section.labels and section.num_labels is None:
        settings["num_labels"] = len(section.labels)
    if labels is not None and settings.get("task", section.task) in HEADED:
        if section.num_labels not in (None, labels):
            raise ConfigError(
                f"model.num_labels is {section.num_labels}, but the objective {objective.name!r} needs {labels}.",
                hint="Leave model.num_labels out.",
            )
        settings["num_labels"] = labels
    causal = settings.get("task", section.task) == CAUSAL_LM
    if causal and Need.VALUES in objective.needs and objective.needs & _OF_LOGITS:
        settings["value_head"] = True
    return section.model_copy(update=settings)


def problem_type_of(section: ModelSection, labels: int) -> str:
    """Return transformers' problem type, with its default for this number of labels."""
    return section.problem_type or ("regression" if labels == 1 else "single_label_classification")


def check_labels(section: ModelSection) -> None:
    """Raise `ConfigError` for settings of labels that do not fit the task or each other."""
    task = section.task
    if section.num_labels not in (None, 1) and task in ("reward", "value"):
        raise ConfigError(
            f"model.num_labels is {section.num_labels}, but a {task} model returns one number.",
            hint="Leave it out, or type --model.task seq_cls.",
        )
    for key in ("labels", "problem_type"):
        if getattr(section, key) and task != "seq_cls":
            raise ConfigError(
                f"model.{key} needs model.task seq_cls, not {task}.",
                hint=f"Type --model.task seq_cls, or leave model.{key} out.",
            )
    if section.num_labels is not None and task not in HEADED:
        raise ConfigError(
            f"model.num_labels needs a model with labels, and model.task is {task}.",
            hint="Type --model.task seq_cls, or leave model.num_labels out.",
        )
    if len(set(section.labels)) != len(section.labels):
        raise ConfigError("model.labels has a duplicate.", hint="Give every label a different name.")
    if section.labels and section.num_labels not in (None, len(section.labels)):
        raise ConfigError(
            f"model.num_labels is {section.num_labels}, but model.labels has {len(section.labels)} names.",
            hint="Leave model.num_labels out.",
        )


def check_task(section: ModelSection, objective: Objective) -> None:
    """Raise `ConfigError` where the objective needs a view that a model of this task does not have."""
    check_labels(section)
    task = section.task
    needs = frozenset(objective.needs) - {Need.REFERENCE_LOGPS}
    own_head = frozenset({Need.VALUES}) if section.value_head and task == CAUSAL_LM else frozenset()
    missing = needs - _VIEWS_OF[task] - {Need.POOLED} - own_head
    if not missing and needs and not needs & _VIEWS_OF[task]:
        missing = needs
    if Need.VALUES in needs and task == "seq_cls" and section.num_labels != 1:
        missing = frozenset({Need.VALUES})
    if section.value_head and not own_head & needs:
        raise ConfigError(
            f"The objective {objective.name!r} with model.task {task} does not train a value head (model.value_head).",
            hint="Leave model.value_head out.",
        )
    if missing:
        views = ", ".join(sorted(missing))
        fitting = [each for each, own in _VIEWS_OF.items() if needs <= own | {Need.POOLED} and needs & own]
        if Need.VALUES in needs:
            fitting = [each for each in ("value", "reward") if each in fitting]
        raise ConfigError(
            f"The objective {objective.name!r} needs {views}, which model.task {task} does not provide.",
            hint=f"Type --model.task {' or '.join(fitting)}." if fitting else "Choose another objective.",
        )
