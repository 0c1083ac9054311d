"""Pure functions: no parameters, no state, no device choice."""

from torchcaps.ops.backend import without_kernels
from torchcaps.ops.conv_relu import convolve_relu
from torchcaps.ops.conv_routing import LocalGrid, local_grid, local_routing
from torchcaps.ops.convolution import convolve
from torchcaps.ops.couplings import COUPLINGS
from torchcaps.ops.dynamic import dynamic_routing, dynamic_routing_backend
from torchcaps.ops.dynamic.reference import Routed, RoutingStep, dynamic_routing_steps, recover_couplings
from torchcaps.ops.em import em_routing, em_routing_backend
from torchcaps.ops.em.densities import DENSITIES
from torchcaps.ops.em.reference import EMRouted, EMStep, em_routing_steps, own_output_prior
from torchcaps.ops.inverted import inverted_routing, inverted_routing_steps
from torchcaps.ops.ladder import Kept, code_loss, keep_most_active, ladder_activity, misfit, propagate, regress
from torchcaps.ops.lazy import LazyRouted, LazyStep, LazyWeights, lazy_routing, lazy_routing_steps
from torchcaps.ops.losses import (
    LOSSES,
    cross_entropy_loss,
    likelihood_loss,
    margin_loss,
    presence_loss,
    reconstruction_loss,
    spread_loss,
)
from torchcaps.ops.matrix_em import matrix_em_routing, matrix_em_routing_backend
from torchcaps.ops.matrix_em.reference import MatrixEMRouted, MatrixEMStep, matrix_em_routing_steps
from torchcaps.ops.self_attention import self_attention_routing, self_attention_routing_steps
from torchcaps.ops.self_routing import SelfRouted, SelfRoutingStep, self_routing, self_routing_steps
from torchcaps.ops.silu_sums import conv_silu_with_sums, silu_with_sums
from torchcaps.ops.sparse import (
    Winning,
    after_batch,
    boosted_ranks,
    count_wins,
    rank_mask,
    recover_support,
    routing_support,
)
from torchcaps.ops.squash import length, squash, squash_exponential, unsquash

__all__ = [
    "COUPLINGS",
    "DENSITIES",
    "LOSSES",
    "EMRouted",
    "EMStep",
    "Kept",
    "LazyRouted",
    "LazyStep",
    "LazyWeights",
    "LocalGrid",
    "MatrixEMRouted",
    "MatrixEMStep",
    "Routed",
    "RoutingStep",
    "SelfRouted",
    "SelfRoutingStep",
    "Winning",
    "after_batch",
    "boosted_ranks",
    "code_loss",
    "conv_silu_with_sums",
    "convolve",
    "convolve_relu",
    "count_wins",
    "cross_entropy_loss",
    "dynamic_routing",
    "dynamic_routing_backend",
    "dynamic_routing_steps",
    "em_routing",
    "em_routing_backend",
    "em_routing_steps",
    "inverted_routing",
    "inverted_routing_steps",
    "keep_most_active",
    "ladder_activity",
    "lazy_routing",
    "lazy_routing_steps",
    "length",
    "likelihood_loss",
    "local_grid",
    "local_routing",
    "margin_loss",
    "matrix_em_routing",
    "matrix_em_routing_backend",
    "matrix_em_routing_steps",
    "misfit",
    "own_output_prior",
    "presence_loss",
    "propagate",
    "rank_mask",
    "reconstruction_loss",
    "recover_couplings",
    "recover_support",
    "regress",
    "routing_support",
    "self_attention_routing",
    "self_attention_routing_steps",
    "self_routing",
    "self_routing_steps",
    "silu_with_sums",
    "spread_loss",
    "squash",
    "squash_exponential",
    "unsquash",
    "without_kernels",
]
