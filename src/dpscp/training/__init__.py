"""The training room: private training mechanisms, each with its event, its stability and its public facts."""

from typing import TYPE_CHECKING

from dpscp._elsewhere import held_by
from dpscp.guarantees.stability import Stability
from dpscp.training.dpsgd import DPSGD
from dpscp.training.influence import corrected_outputs, self_shift_bounds
from dpscp.training.mechanism import Mechanism, Model, Trained, Trajectory
from dpscp.training.networks import DenseModel
from dpscp.training.opacus import OpacusTraining
from dpscp.training.perturbation import ObjectivePerturbation, OutputPerturbation
from dpscp.training.preprocess import Preprocessed, PreprocessedModel
from dpscp.training.private_bounds import PrivateBounds
from dpscp.training.private_model import FunctionModel, PrivateModel
from dpscp.training.steps import NormClip, PrivateCentring, PrivateStandardize, PublicBounds, UnitNorm
from dpscp.training.summary import SufficientStatistics

if TYPE_CHECKING:
    from dpscp.paper import CoupledRun, coupled_run

__all__ = [
    "DPSGD",
    "CoupledRun",
    "DenseModel",
    "FunctionModel",
    "Mechanism",
    "Model",
    "NormClip",
    "ObjectivePerturbation",
    "OpacusTraining",
    "OutputPerturbation",
    "Preprocessed",
    "PreprocessedModel",
    "PrivateBounds",
    "PrivateCentring",
    "PrivateModel",
    "PrivateStandardize",
    "PublicBounds",
    "Stability",
    "SufficientStatistics",
    "Trained",
    "Trajectory",
    "UnitNorm",
    "corrected_outputs",
    "coupled_run",
    "self_shift_bounds",
]

if not TYPE_CHECKING:  # what is listed and not imported above; the product needs none of it
    __getattr__ = held_by(dict.fromkeys(__all__, "dpscp.paper"), __name__)
