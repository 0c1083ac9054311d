"""Labelled pictures by name: `load("mnist", "train")` reads, `get("mnist")` fetches, and nothing else touches the network."""

from torchcaps.data.encoders import Encoder
from torchcaps.data.entries import DataInfo, DataSet
from torchcaps.data.loading import Labelled, encoder_of, fingerprint, get, hold_out, info, load, status
from torchcaps.data.registry import DATASETS, add_encoder
from torchcaps.data.sets.image_folder import OwnImages
from torchcaps.data.sources.files import DataError

__all__ = [
    "DATASETS",
    "DataError",
    "DataInfo",
    "DataSet",
    "Encoder",
    "Labelled",
    "OwnImages",
    "add_encoder",
    "encoder_of",
    "fingerprint",
    "get",
    "hold_out",
    "info",
    "load",
    "status",
]
