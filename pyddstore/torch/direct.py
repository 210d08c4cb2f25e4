"""Batches as default_collate makes them, read in one piece: no samples in between."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch.utils.data import default_collate

from .dataset import DistDataset, DistDatasetReader
from .rows import Buffers, Rows
from .samples import SINGLE, Structure
from .windows import WindowedDataset


class Direct:
    """Reads stacked fields of a dataset, as default_collate of samples gives them."""

    def __init__(
        self, dataset: Rows | WindowedDataset, structure: Structure, like: Any
    ) -> None:
        self._dataset = dataset
        self._structure = structure
        self._dtypes = [one.dtype for one in _fields_of(structure, like)]
        self._container = type(like)

    def __call__(self, indices: Any, out: Buffers | None) -> Any:
        """The batch, in memory of its own."""
        batch = []
        for stacked, dtype in zip(
            self._dataset._stacked(indices, out), self._dtypes, strict=True
        ):
            tensor = stacked
            if not isinstance(stacked, torch.Tensor):
                tensor = torch.from_numpy(stacked)
            own = tensor.to(dtype)
            batch.append(own.clone() if out is not None and own is tensor else own)
        if self._structure.container == SINGLE:
            return batch[0]
        if self._container is dict:
            return dict(zip(self._structure.keys, batch, strict=True))
        return self._container(batch)


def direct(dataset: Rows | WindowedDataset) -> Direct | None:
    """None: only the samples tell what a batch of them is."""
    rows = dataset.dataset if isinstance(dataset, WindowedDataset) else dataset
    kinds = (DistDataset, DistDatasetReader, WindowedDataset)
    if type(dataset) not in kinds or type(rows) not in kinds:
        return None  # a class of the user's own may do anything
    structure = dataset._structure
    decoded = rows is dataset and rows._decode is not None
    if decoded or not structure.fields or any(f.ragged for f in structure.fields):
        return None
    try:
        like = default_collate(dataset._like_samples())
        for stacked, one in zip(
            dataset._stacked_zeros(), _fields_of(structure, like), strict=True
        ):
            tensor = stacked
            if isinstance(stacked, np.ndarray):
                tensor = torch.from_numpy(stacked)
            if type(one) is not torch.Tensor or one.shape != tensor.shape:
                return None
            if one.device != tensor.device:
                return None  # the default device gets numbers
    except Exception:
        return None  # what it refuses is refused for the batch at hand
    return Direct(dataset, structure, like)


def _fields_of(structure: Structure, batch: Any) -> list[Any]:
    """The fields of a collated batch. TypeError: it is something else."""
    if structure.container == SINGLE:
        return [batch]
    if type(batch) is dict:
        return [batch[key] for key in structure.keys]
    if type(batch) in (list, tuple):
        return list(batch)
    raise TypeError(type(batch).__name__)
