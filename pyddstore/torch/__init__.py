"""Datasets of PyTorch whose samples lie in the memory of many processes."""

from .dataset import DistDataset, DistDatasetReader
from .loader import ThreadDataLoader
from .rows import Buffers
from .samples import Ragged, RaggedRows
from .windows import WindowedDataset, row_of

__all__ = [
    "Buffers",
    "DistDataset",
    "DistDatasetReader",
    "Ragged",
    "RaggedRows",
    "ThreadDataLoader",
    "WindowedDataset",
    "row_of",
]
