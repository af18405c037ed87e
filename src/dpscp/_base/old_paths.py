"""Import paths of versions 0.1 to 0.3 that moved: each still gives its module."""

import sys
from collections.abc import Sequence
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

_PACKAGE = "dpscp"
# Longer paths come first: a package's own modules may have moved elsewhere.
_MOVED = {
    "privacy.account": "privacy.store_log",
    "privacy.seeds": "privacy.random_streams",
    "privacy.solving": "privacy.noise_search",
    "sources.given": "data.sources.dispatch",
    "sources.scratch": "data.sources.spill",
    "training.descent": "training.engine.loop",
    "training.dpsgd": "training.mechanisms.dpsgd",
    "training.networks": "training.engine.networks",
    "training.opacus": "training.torch.trainer",
    "training.perturbation": "training.mechanisms.perturbation",
    "training.preprocess": "training.preprocessing.preprocess",
    "training.private_bounds": "training.preprocessing.private_bounds",
    "training.private_target": "training.preprocessing.private_target",
    "training.scaling": "training.preprocessing.scaling",
    "training.steps": "training.preprocessing.sums",
    "training.summary": "training.mechanisms.sufficient_statistics",
    "training.torch_model": "training.torch.model",
    "training.transforms": "training.preprocessing.transforms",
    "training.whitening": "training.preprocessing.whitening",
    "audit.play": "audit.run",
    "budget": "privacy.store",
    "calibration": "core.calibrate",
    "conformal": "estimators",
    "frames": "data.frames",
    "persistence": "data.model_files",
    "persons": "data.persons",
    "planning": "core.planning",
    "records": "data.validation",
    "release": "core.release",
    "schema": "data.schema",
    "searches": "core.search_plan",
    "sets": "scores.sets",
    "sources": "data.sources",
    "strategy": "core.plan",
    "tasks": "core.tasks",
}


def moved_to(name: str) -> str | None:
    """Return the present path of the module ``name`` of 0.1 to 0.3, or None."""
    for old, new in _MOVED.items():
        if name == f"{_PACKAGE}.{old}" or name.startswith(f"{_PACKAGE}.{old}."):
            return f"{_PACKAGE}.{new}" + name.removeprefix(f"{_PACKAGE}.{old}")
    return None


class _OldPaths(MetaPathFinder, Loader):
    """Import the module at the new path for an old path."""

    def find_spec(
        self,
        fullname: str,
        path: Sequence[str] | None = None,  # noqa: ARG002 (the import system passes it)
        target: ModuleType | None = None,  # noqa: ARG002 (likewise)
    ) -> ModuleSpec | None:
        return ModuleSpec(fullname, self) if moved_to(fullname) else None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        module = import_module(moved_to(spec.name) or spec.name)
        spec.loader_state = module.__spec__
        return module

    def exec_module(self, module: ModuleType) -> None:
        # the import system has put the spec of the old path on the module
        spec = module.__spec__
        if spec is not None and spec.loader_state is not None:
            module.__spec__ = spec.loader_state


def keep_old_paths() -> None:
    """Make the old import paths work; a second call changes nothing."""
    if not any(isinstance(finder, _OldPaths) for finder in sys.meta_path):
        # first in the list: a folder that an update left behind must not be imported instead
        sys.meta_path.insert(0, _OldPaths())
