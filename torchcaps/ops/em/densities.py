"""Models of the votes that an output uses: a Gaussian, or another that Heinsen 2019 (section 7) would try.

Each is a product over the pose dimensions, like Eq. 3. Paper's symbols: votes V_ijch, data used D_ij, poses μ_jch,
variances σ²_jch, here `var`. `off` is V - μ, sums run over the inputs i, and factors that are the same for all outputs
are left out.

- `gaussian` (Algorithm 1): density exp(-off² / 2 var) / √var. M-step: μ = Σ D V / Σ D, var = Σ D off² / Σ D.
- `student-t` (section 7, another probabilistic model) with n = 4 degrees of freedom and scale s² = var (n - 2) / n:
  density (1 + off² / n s²)^(-(n + 1) / 2) / s. M-step: μ = Σ D u V / Σ D u, s² = Σ D u off² / Σ D.
- `laplace` (the same) with scale b, var = 2 b²: density exp(-|off| / b) / b. M-step: μ = Σ D u V / Σ D u,
  b = Σ D |off| / Σ D.
- `k-means` (section 7, clustering without probabilities; soft, since R has to have a slope): exp(-off² / 2), whatever
  the spread. M-step as for the Gaussian; its var is returned, and routing does not look at it.

Student-t and Laplace are Gaussians whose precision differs from vote to vote. u is that precision as expected by the
model of the iteration before, (n + 1) / (n + off² / s²) and b / |off|: a vote far off counts less. It makes the M-step
a step of EM for these models too, and one with a slope everywhere, which a weighted median has not. The first iteration
has no model before it: u is 1, and the Student-t's var is the Gaussian's.
"""

from collections.abc import Callable
from typing import NamedTuple

from jaxtyping import Float
from torch import Tensor

EPS = 1e-5  # added to the data used by an output, and to its variances (the author's code; not in the paper)
FREEDOM = 4.0  # n above: tails far heavier than the Gaussian's, and still a variance

Votes = Float[Tensor, "*b i j r e"]
Share = Float[Tensor, "*b i j 1 1"]
Model = Float[Tensor, "*b j r e"]


class Density(NamedTuple):
    """Functions in which the models differ."""

    log: Callable[[Votes, Model], Float[Tensor, "*b i j"]]  # log density of a vote at this distance, by variances
    # Σ over the inputs; divided by the data used it is var, or √var if `linear`
    spread: Callable[[Share, Votes, Votes | None], Model]
    trust: Callable[[Votes, Model], Votes] | None = None  # u, or None where every vote counts in full
    linear: bool = False


class Fit(NamedTuple):
    """Result of an M-step."""

    means: Model
    off: Votes  # how far every vote is from the mean
    variances: Model


def fit(density: Density, used: Float[Tensor, "*b i j"], votes: Votes, trust: Votes | None) -> Fit:
    """Run the M-step: find the model of every output that makes the votes it uses most probable."""
    share = used[..., None, None]
    total = share.sum(-4) + EPS
    if trust is None:
        means = (share * votes).sum(-4) / total
    else:
        trusted = share * trust
        means = (trusted * votes).sum(-4) / (trusted.sum(-4) + EPS)
    off = votes - means.unsqueeze(-4)
    spread = density.spread(share, off, trust) / total
    return Fit(means, off, (spread.square() if density.linear else spread) + EPS)


def _gaussian(off: Votes, variances: Model) -> Float[Tensor, "*b i j"]:
    return (
        -(off.square() / (2 * variances).unsqueeze(-4)).sum((-2, -1)) - variances.log().sum((-2, -1)).unsqueeze(-2) / 2
    )


def _squares(share: Share, off: Votes, trust: Votes | None) -> Model:
    return (share * off.square()).sum(-4)


def _student(off: Votes, variances: Model) -> Float[Tensor, "*b i j"]:
    tails = (off.square() / ((FREEDOM - 2) * variances).unsqueeze(-4)).log1p().sum((-2, -1))  # n s² is (n - 2) var
    return -(FREEDOM + 1) / 2 * tails - variances.log().sum((-2, -1)).unsqueeze(-2) / 2


def _student_trust(off: Votes, variances: Model) -> Votes:
    return (FREEDOM + 1) / (FREEDOM + off.square() / (variances * ((FREEDOM - 2) / FREEDOM)).unsqueeze(-4))


def _student_spread(share: Share, off: Votes, trust: Votes | None) -> Model:
    if trust is None:
        return _squares(share, off, trust)
    return FREEDOM / (FREEDOM - 2) * (share * trust * off.square()).sum(-4)


def _laplace(off: Votes, variances: Model) -> Float[Tensor, "*b i j"]:
    scale = (variances / 2).sqrt()
    return -(off.abs() / scale.unsqueeze(-4)).sum((-2, -1)) - scale.log().sum((-2, -1)).unsqueeze(-2)


def _laplace_trust(off: Votes, variances: Model) -> Votes:
    # a vote that hits the pose would be trusted without end
    return (variances / 2).sqrt().unsqueeze(-4) * (off.square() + EPS).rsqrt()


def _laplace_spread(share: Share, off: Votes, trust: Votes | None) -> Model:
    return 2**0.5 * (share * off.abs()).sum(-4)  # √var is √2 b


def _distance(off: Votes, variances: Model) -> Float[Tensor, "*b i j"]:
    return -off.square().sum((-2, -1)) / 2


DENSITIES = {
    "gaussian": Density(_gaussian, _squares),
    "student-t": Density(_student, _student_spread, _student_trust),
    "laplace": Density(_laplace, _laplace_spread, _laplace_trust, linear=True),
    "k-means": Density(_distance, _squares),
}


def density_named(name: str) -> Density:
    """Look up a model of the votes by its name."""
    if name not in DENSITIES:
        raise ValueError(f"em_routing: density must be one of {', '.join(DENSITIES)}; got {name!r}")
    return DENSITIES[name]
