"""Data sets by name or specification: `load` reads, `get` fetches, and nothing else touches the network."""

from torchcaps.data.catalogue import DATASETS, add_encoder, spec, stand_in
from torchcaps.data.grouping import Groups, groups
from torchcaps.data.loading import class_names, encoder_of, fingerprint, get, info, load, status
from torchcaps.data.sets.image_folder import OwnImages
from torchcaps.data.sources.encoders import Encoder
from torchcaps.data.sources.files import DataError
from torchcaps.data.sources.formats import Labelled
from torchcaps.data.specs import DataInfo, DataSpec
from torchcaps.data.subsets import hold_out

__all__ = [
    "DATASETS",
    "DataError",
    "DataInfo",
    "DataSpec",
    "Encoder",
    "Groups",
    "Labelled",
    "OwnImages",
    "add_encoder",
    "class_names",
    "encoder_of",
    "fingerprint",
    "get",
    "groups",
    "hold_out",
    "info",
    "load",
    "spec",
    "stand_in",
    "status",
]
