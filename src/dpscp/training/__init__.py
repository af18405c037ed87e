"""Private training mechanisms, each with its event, its stability and its public facts."""

from typing import TYPE_CHECKING

from dpscp._base.lazy import lazy_exports
from dpscp.guarantees.stability import Stability
from dpscp.training.coupling import CoupledRun, coupled_run
from dpscp.training.engine.influence import corrected_outputs, self_shift_bounds
from dpscp.training.engine.networks import DenseModel
from dpscp.training.mechanism import Mechanism, Trained
from dpscp.training.mechanisms.dpsgd import DPSGD
from dpscp.training.mechanisms.perturbation import ObjectivePerturbation, OutputPerturbation
from dpscp.training.mechanisms.sufficient_statistics import SufficientStatistics
from dpscp.training.model import Model, Trajectory
from dpscp.training.preprocessing.components import PrivatePCA
from dpscp.training.preprocessing.preprocess import Preprocessed, PreprocessedModel
from dpscp.training.preprocessing.private_bounds import PrivateBounds
from dpscp.training.preprocessing.quantile_transform import QuantileTransform
from dpscp.training.preprocessing.random_features import RandomFeatures
from dpscp.training.preprocessing.scaling import ScaledTarget
from dpscp.training.preprocessing.sums import (
    ColumnScales,
    NormClip,
    PrivateCentring,
    PrivateStandardize,
    PublicBounds,
    UnitNorm,
)
from dpscp.training.preprocessing.whitening import PrivateWhitening
from dpscp.training.private_model import FunctionModel, PrivateModel
from dpscp.training.recalibration import Recalibrated

if TYPE_CHECKING:
    from dpscp.training.torch.trainer import OpacusTraining
else:  # six modules that only users of torch need
    __getattr__ = lazy_exports({"OpacusTraining": "dpscp.training.torch.trainer"}, __name__)

__all__ = [
    "DPSGD",
    "ColumnScales",
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
    "PrivatePCA",
    "PrivateStandardize",
    "PrivateWhitening",
    "PublicBounds",
    "QuantileTransform",
    "RandomFeatures",
    "Recalibrated",
    "ScaledTarget",
    "Stability",
    "SufficientStatistics",
    "Trained",
    "Trajectory",
    "UnitNorm",
    "corrected_outputs",
    "coupled_run",
    "self_shift_bounds",
]
