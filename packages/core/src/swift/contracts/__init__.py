"""The values that core and its plugins hand to each other, a file per kind of plugin; import them from here.

This package is importable without torch: tensors appear in annotations only.
"""

from __future__ import annotations

from swift.contracts.backend import Capabilities, ForwardResult, StepResult, TrainState
from swift.contracts.checkpoint import CheckpointReader, CheckpointWriter, ThirdPartyCheckpoint, TrainedState
from swift.contracts.command import Command
from swift.contracts.environment import Environment, EpisodeStart, Observation, Turn
from swift.contracts.exporter import CalibrationRow, ExportRequest, Quantized, QuantizeRequest, Reloaded, SchemeFacts
from swift.contracts.facts import DataFacts, Decision, ModelFacts, QuantizedShare, RejectedSamples, RunFacts
from swift.contracts.inference import (
    TOKEN_SCORES,
    Completion,
    EngineLibrary,
    EngineRequest,
    ImagePrompt,
    InferenceEngine,
    Sampling,
    Score,
    ServeRequest,
)
from swift.contracts.layout import (
    AFTERWARDS,
    GROWING,
    HOST,
    LEAVING,
    PASSING,
    LayerSizes,
    LocalWeights,
    ProcessLayout,
    Traffic,
)
from swift.contracts.model import ModelSource, WeightStream
from swift.contracts.objective import Communication, ExportContext, Objective, OpenRole, ScheduleContext, ServedScores
from swift.contracts.observer import RankFacts, RunSummary, StepRecord, StepTimes
from swift.contracts.optimizer import (
    Matrix,
    Optimizer,
    Placement,
    Reads,
    ScalesGradients,
    Slot,
    StoresMatrixSlots,
    StoresSlots,
    UsesGradientView,
)
from swift.contracts.planner import Basis, ChosenPlan, ExpectedMemory, Planner
from swift.contracts.reward import Reward, RewardItem
from swift.contracts.role import POLICY, ModelRole, fitting_roles
from swift.contracts.rounds import EngineModel, RoundWork
from swift.contracts.run import OpenedRun, RequestedRun, Run, Topology, World
from swift.contracts.schedule import SECONDS_GENERATING, BatchSchedule
from swift.contracts.tuner import Acts, Trains, Tuner, TunerContext
from swift.contracts.views import EVERY_VIEW, LossSums, ModelView, Need
from swift.contracts.vocabulary import (
    FlagTopic,
    Remark,
    ThirdPartyRun,
    TrainingCommand,
    TranslatedRun,
    TranslatedValue,
    Vocabulary,
)

__all__ = [
    "AFTERWARDS",
    "EVERY_VIEW",
    "GROWING",
    "HOOK_API",
    "HOST",
    "LEAVING",
    "PASSING",
    "POLICY",
    "SECONDS_GENERATING",
    "TOKEN_SCORES",
    "Acts",
    "Basis",
    "BatchSchedule",
    "CalibrationRow",
    "Capabilities",
    "CheckpointReader",
    "CheckpointWriter",
    "ChosenPlan",
    "Command",
    "Communication",
    "Completion",
    "DataFacts",
    "Decision",
    "EngineLibrary",
    "EngineModel",
    "EngineRequest",
    "Environment",
    "EpisodeStart",
    "ExpectedMemory",
    "ExportContext",
    "ExportRequest",
    "FlagTopic",
    "ForwardResult",
    "ImagePrompt",
    "InferenceEngine",
    "LayerSizes",
    "LocalWeights",
    "LossSums",
    "Matrix",
    "ModelFacts",
    "ModelRole",
    "ModelSource",
    "ModelView",
    "Need",
    "Objective",
    "Observation",
    "OpenRole",
    "OpenedRun",
    "Optimizer",
    "Placement",
    "Planner",
    "ProcessLayout",
    "QuantizeRequest",
    "Quantized",
    "QuantizedShare",
    "RankFacts",
    "Reads",
    "RejectedSamples",
    "Reloaded",
    "Remark",
    "RequestedRun",
    "Reward",
    "RewardItem",
    "RoundWork",
    "Run",
    "RunFacts",
    "RunSummary",
    "Sampling",
    "ScalesGradients",
    "ScheduleContext",
    "SchemeFacts",
    "Score",
    "ServeRequest",
    "ServedScores",
    "Slot",
    "StepRecord",
    "StepResult",
    "StepTimes",
    "StoresMatrixSlots",
    "StoresSlots",
    "ThirdPartyCheckpoint",
    "ThirdPartyRun",
    "Topology",
    "Traffic",
    "TrainState",
    "TrainedState",
    "TrainingCommand",
    "Trains",
    "TranslatedRun",
    "TranslatedValue",
    "Tuner",
    "TunerContext",
    "Turn",
    "UsesGradientView",
    "Vocabulary",
    "WeightStream",
    "World",
    "fitting_roles",
]

HOOK_API = (1, 0)
"""Version of the hooks that this core speaks: (major, minor)."""
