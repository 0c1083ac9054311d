"""Labelled pictures by name: `load("mnist", "train")` reads, `get("mnist")` fetches, and nothing else touches the network."""

from torchcaps.data.encoders import Encoder
from torchcaps.data.entries import DataInfo, DataSet
from torchcaps.data.files import DataError
from torchcaps.data.loading import Labelled, encoder_of, fingerprint, get, hold_out, info, load, status
from torchcaps.data.own import OwnImages
from torchcaps.data.registry import DATASETS, add_encoder

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
