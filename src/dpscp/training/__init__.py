"""Train privately; each mechanism has an event, a stability and public facts."""

from typing import TYPE_CHECKING

from dpscp._base.lazy import lazy_exports
from dpscp.guarantees.stability import Stability
from dpscp.training.base import Around, GaussianSums, Mechanism, Needs, Trained, TrainingRun
from dpscp.training.engine.influence import corrected_outputs
from dpscp.training.engine.networks import DenseModel
from dpscp.training.mechanisms.dpsgd import DPSGD
from dpscp.training.mechanisms.perturbation import ObjectivePerturbation, OutputPerturbation
from dpscp.training.mechanisms.sufficient_statistics import SufficientStatistics
from dpscp.training.model import FunctionModel, Model, PrivateModel, Trajectory, saved_as
from dpscp.training.preprocessing.encoding import PrivateTargetEncoding
from dpscp.training.preprocessing.preprocessed import Preprocessed, PreprocessedModel
from dpscp.training.preprocessing.private_bounds import PrivateBounds
from dpscp.training.preprocessing.projections import PrivateWhitening, RandomFeatures
from dpscp.training.preprocessing.quantiles import QuantileTransform
from dpscp.training.preprocessing.relevance import PrivateRelevance
from dpscp.training.preprocessing.rescaled import Recalibrated, ScaledTarget
from dpscp.training.preprocessing.steps import (
    ColumnScales,
    NormClip,
    PrivateCentering,
    PrivateStandardize,
    PublicBounds,
    PublicStep,
    Step,
    SummedStep,
    Transform,
    UnitNorm,
)

if TYPE_CHECKING:
    from dpscp.torch.trainer import TorchDPSGD
else:  # six modules that only users of torch need
    __getattr__ = lazy_exports({"TorchDPSGD": "dpscp.torch.trainer"}, __name__)

__all__ = [
    "DPSGD",
    "Around",
    "ColumnScales",
    "DenseModel",
    "FunctionModel",
    "GaussianSums",
    "Mechanism",
    "Model",
    "Needs",
    "NormClip",
    "ObjectivePerturbation",
    "OutputPerturbation",
    "Preprocessed",
    "PreprocessedModel",
    "PrivateBounds",
    "PrivateCentering",
    "PrivateModel",
    "PrivateRelevance",
    "PrivateStandardize",
    "PrivateTargetEncoding",
    "PrivateWhitening",
    "PublicBounds",
    "PublicStep",
    "QuantileTransform",
    "RandomFeatures",
    "Recalibrated",
    "ScaledTarget",
    "Stability",
    "Step",
    "SufficientStatistics",
    "SummedStep",
    "TorchDPSGD",
    "Trained",
    "TrainingRun",
    "Trajectory",
    "Transform",
    "UnitNorm",
    "corrected_outputs",
    "saved_as",
]
