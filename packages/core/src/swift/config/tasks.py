"""Tasks of models (`model.task`), and the views of them that an objective may ask for."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from swift.contracts import Need
from swift.errors import ConfigError, ModelError

if TYPE_CHECKING:
    from swift.config.sections import ModelSection
    from swift.contracts import ModelSource, Objective

CAUSAL_LM, EMBEDDING = "causal_lm", "embedding"
HEADED = ("seq_cls", "reward", "value")
"""Tasks of a model with a head of its own instead of the unembedding."""

TRAINED_BY = {"seq_cls": "seq_cls", EMBEDDING: "embedding", "reward": "rm"}
"""Task → the objective that trains it where the user names none."""

_OF_LOGITS = frozenset(
    {Need.TOKEN_LOGPS, Need.TOKEN_CORRECT, Need.MEAN_LOGPS, Need.TOKEN_ENTROPY, Need.CANDIDATE_LOGPS}
)
_OF_HEAD = frozenset({Need.SCORES, Need.VALUES})
_VIEWS_OF = {CAUSAL_LM: _OF_LOGITS, EMBEDDING: frozenset({Need.POOLED}), **dict.fromkeys(HEADED, _OF_HEAD)}
"""Task → views of which an objective must ask for at least one: the others leave a part of the model untrained."""


def task_of(source: ModelSource) -> str:
    """Return what a model is for; one that does not say is a causal language model."""
    return str(getattr(source, "task", CAUSAL_LM))


def task_of_config(config: Mapping[str, Any]) -> str:
    """Return the task of a model by its config.json, as far as the name of its class tells."""
    listed = config.get("architectures")
    name = str(listed[0]) if isinstance(listed, list) and listed else ""
    if name.endswith("ForSequenceClassification"):
        return "seq_cls"
    # Code that comes with a model gives its classes any name.
    bare = name.endswith("Model") and not name.endswith(("LMHeadModel", "LMModel", "HeadsModel"))
    return EMBEDDING if bare and "auto_map" not in config else CAUSAL_LM


def returns(task: str) -> str:
    """Return the word for what a model of a task returns."""
    return {CAUSAL_LM: "text", EMBEDDING: "vectors"}.get(task, "scores")


def check_generates(name: str, task: str) -> None:
    """Raise `ModelError` where text is asked of a model for another task."""
    if task == CAUSAL_LM:
        return
    raise ModelError(
        f"{name} returns {returns(task)} ({task}) and generates no text: there is nothing to talk to.",
        hint=f"For its {returns(task)}, type: swift infer MODEL --dataset FILE. For other programs: swift export MODEL "
        "--to hf",
    )


def view_of(task: str) -> Need | None:
    """Return the view that a backend must have for models of a task; None for one that every backend trains."""
    if task in HEADED:
        return Need.VALUES if task == "value" else Need.SCORES
    return Need.POOLED if task == EMBEDDING else None


def for_objective(section: ModelSection, objective: Objective) -> ModelSection:
    """Return the section with the objective's task and number of labels where the user named none.

    Raise `ConfigError` where the user asks for another number of labels than the objective's.
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
                f"model.num_labels is {section.num_labels}, and the objective {objective.name!r} trains {labels}.",
                hint="Leave model.num_labels out.",
            )
        settings["num_labels"] = labels
    causal = settings.get("task", section.task) == CAUSAL_LM
    if causal and Need.VALUES in objective.needs and objective.needs & _OF_LOGITS:
        settings["value_head"] = True
    return section.model_copy(update=settings)


def problem_type_of(section: ModelSection, labels: int) -> str:
    """Return what the scores of a head with so many labels are, by transformers' names and its default."""
    return section.problem_type or ("regression" if labels == 1 else "single_label_classification")


def check_labels(section: ModelSection) -> None:
    """Raise `ConfigError` where the model of this task has no head, or one with fewer labels than named."""
    task = section.task
    if section.num_labels not in (None, 1) and task in ("reward", "value"):
        raise ConfigError(
            f"model.num_labels is {section.num_labels}, and a {task} model returns one number.",
            hint="Leave it out, or type --model.task seq_cls",
        )
    if section.num_labels is not None and task not in HEADED:
        raise ConfigError(
            f"model.num_labels is {section.num_labels}, and model.task {task} has no head that would return labels.",
            hint="Type --model.task seq_cls, or leave model.num_labels out.",
        )
    for key in ("labels", "problem_type"):
        if getattr(section, key) and task != "seq_cls":
            raise ConfigError(
                f"model.{key} is about the labels of a model of model.task seq_cls, and this one is {task}.",
                hint=f"Type --model.task seq_cls, or leave model.{key} out.",
            )
    if len(set(section.labels)) != len(section.labels):
        raise ConfigError("Two of model.labels are the same.", hint="Give every label a name of its own.")
    if section.labels and section.num_labels not in (None, len(section.labels)):
        raise ConfigError(
            f"model.num_labels is {section.num_labels}, and model.labels has {len(section.labels)} names.",
            hint="Leave model.num_labels out.",
        )


def check_task(section: ModelSection, objective: Objective) -> None:
    """Raise `ConfigError` where the model of this task has no view that the objective needs, or too many labels."""
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
            f"model.value_head puts a second head on a causal language model, and the objective {objective.name!r} "
            f"with model.task {task} does not train one.",
            hint="Leave model.value_head out.",
        )
    if missing:
        views = ", ".join(sorted(missing))
        fitting = [each for each, own in _VIEWS_OF.items() if needs <= own | {Need.POOLED} and needs & own]
        if Need.VALUES in needs:
            fitting = [each for each in ("value", "reward") if each in fitting]
        raise ConfigError(
            f"The objective {objective.name!r} needs {views}, which a model of model.task {task} is not trained to "
            "return.",
            hint=f"Type --model.task {' or '.join(fitting)}" if fitting else "Choose another objective.",
        )
