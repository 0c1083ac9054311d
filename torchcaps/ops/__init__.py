"""Pure functions: no parameters, no state, no device choice."""

from torchcaps.ops.convolve import convolve
from torchcaps.ops.couplings import COUPLINGS
from torchcaps.ops.dynamic import Routed, RoutingStep, dynamic_routing, dynamic_routing_backend, dynamic_routing_steps, recover_couplings
from torchcaps.ops.em import EMRouted, EMStep, em_routing, em_routing_steps
from torchcaps.ops.local import LocalGrid, local_grid, local_routing
from torchcaps.ops.losses import margin_loss, reconstruction_loss, spread_loss
from torchcaps.ops.squash import length, squash, unsquash

__all__ = [
    "COUPLINGS",
    "EMRouted",
    "EMStep",
    "LocalGrid",
    "Routed",
    "RoutingStep",
    "convolve",
    "dynamic_routing",
    "dynamic_routing_backend",
    "dynamic_routing_steps",
    "em_routing",
    "em_routing_steps",
    "length",
    "local_grid",
    "local_routing",
    "margin_loss",
    "reconstruction_loss",
    "recover_couplings",
    "spread_loss",
    "squash",
    "unsquash",
]
