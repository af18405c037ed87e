"""Find out on synthetic rows whether a module looks numbers of a row up in an ``Embedding``."""

import copy
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpscp.training.torch.modules import load_torch, rows_dtype
from dpscp.training.torch.synthetic_rows import UNIT

_ROWS, _MOST_IDS = 32, 8
# With two ids, a comparison (x > 0) gives the same indices as the ids themselves.
_FEWEST_IDS = 3


def looks_up_rows(module: Any, input_shape: tuple[int, ...]) -> bool:
    """Return whether numbers of a row, perhaps plus a constant, are the indices of an embedding.

    Such rows are token ids or categories, and a step that scales them makes other ids of them.
    """
    torch = load_torch()
    kinds = torch.nn.Embedding, torch.nn.EmbeddingBag
    count = min((part.num_embeddings for part in module.modules() if isinstance(part, kinds)), default=0)
    if count < _FEWEST_IDS:
        return False
    copied, indices = copy.deepcopy(module).cpu().eval(), []
    for part in copied.modules():
        if isinstance(part, kinds):
            part.register_forward_pre_hook(lambda _, inputs: indices.append(inputs[0].reshape(_ROWS, -1).numpy()))
    ids = (UNIT.rows(input_shape, _ROWS) * min(count, _MOST_IDS)).floor()
    try:
        with torch.no_grad():
            copied(ids.to(rows_dtype(module)))
    except Exception:  # rows that the module was not made for; all it can say is about synthetic rows
        return False
    known = _varying_columns(ids.reshape(_ROWS, -1).numpy())
    return any(known & _varying_columns(found) for found in indices)


def _varying_columns(values: NDArray[Any]) -> set[bytes]:
    """Return the columns that are not constant, without their first number."""
    columns = (values - values[:1]).astype(np.int64).T
    return {column.tobytes() for column in np.ascontiguousarray(columns) if column.any()}
