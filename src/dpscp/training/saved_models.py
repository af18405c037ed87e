"""Which models can be written to a file and read back: only the classes named here are ever built."""

from collections.abc import Mapping
from typing import Any

from numpy.typing import NDArray

from dpscp._checks import check_choice
from dpscp.training.mechanism import Model
from dpscp.training.networks import DenseModel
from dpscp.training.preprocess import PreprocessedModel
from dpscp.training.scaling import ScaledTargetModel

__all__ = ["load_model", "require_loadable"]


def load_model(config: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]]) -> Model:
    """Rebuild a saved model; only the classes named here can be built."""
    return _LOADABLE[check_choice("model", config["model"], _LOADABLE)].from_parts(config, arrays)


_LOADABLE: Mapping[str, type[Model]] = {
    "dense": DenseModel,
    "preprocessed": PreprocessedModel,
    "scaled_target": ScaledTargetModel,
}


def require_loadable(config: Mapping[str, Any]) -> None:
    """Refuse to save what ``load_model`` could not rebuild: a file that nobody can open is worse than none."""
    if config.get("model") not in _LOADABLE:
        raise TypeError(
            f"a model of kind {config.get('model')!r} cannot be saved: its code is not data; keep its state dict, "
            "ledger_.to_json() and the thresholds yourself"
        )
    if "inner" in config:
        require_loadable(config["inner"])
