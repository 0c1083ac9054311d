"""Classifiers of frozen features: SVMs fitted by scikit-learn and applied by PyTorch, and softmax regression.

scikit-learn's SVC solves one problem for every pair of classes. Here the pairs are fitted in parallel processes, with
the same result. The decision function is in PyTorch, so that gradients flow through it.
"""

import io
import os
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor, as_completed
from itertools import combinations
from multiprocessing import get_context
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Int64
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from torchcaps.runtime.distributed import n_cores
from torchcaps.runtime.files import write_whole
from torchcaps.runtime.metrics_log import progress_bar

CACHE_MB = 1000  # kernel cache per process: holds the whole kernel of a pair with 12,000 samples
LARGEST_KERNEL = 16_000  # samples of a pair up to which its kernel is precomputed (2 GB), which is faster
PROCESS_BYTES = 3 << 30  # memory of a process for a pair with 13,000 samples: kernel, SVC's cache and PyTorch
AT_ONCE = 2000  # images per batch in the comparison with all support vectors


class PairMachine(NamedTuple):
    """Support vector machine of two classes; its decision is positive for the first."""

    support: np.ndarray  # indices of the support vectors among all samples
    coefficients: np.ndarray
    intercept: float


class SvmDecision(nn.Module):
    """Decision function of the SVMs of all pairs of classes. Buffers are float64 unless converted."""

    def __init__(
        self, vectors: Tensor, coefficients: Tensor, intercepts: Tensor, classes: Tensor, gamma: float
    ) -> None:
        super().__init__()
        self.gamma = gamma
        self.register_buffer("vectors", vectors)  # [v f]
        self.register_buffer("coefficients", coefficients)  # [p v]
        self.register_buffer("intercepts", intercepts)  # [p]
        self.register_buffer("classes", classes)  # [k]
        first, second = torch.tensor(list(combinations(range(len(classes)), 2))).unbind(1)
        signs = torch.zeros(len(first), len(classes), dtype=vectors.dtype)
        signs[torch.arange(len(first)), first], signs[torch.arange(len(first)), second] = 1, -1
        self.register_buffer("signs", signs)  # [p k]

    def pairs(self, features: Float[Tensor, "n f"]) -> Float[Tensor, "n p"]:
        """Compute the decision value of every pair of classes, positive for the first."""
        features = features.to(self.vectors.dtype)
        squares = features.square().sum(-1, keepdim=True) + self.vectors.square().sum(-1)
        distances = (squares - 2 * features @ self.vectors.T).clamp(min=0)
        return torch.exp(-self.gamma * distances) @ self.coefficients.T + self.intercepts

    def forward(self, features: Float[Tensor, "n f"]) -> Float[Tensor, "n k"]:
        """Compute class scores: sums of margins against all other classes. Unlike votes, they have gradients."""
        return self.pairs(features) @ self.signs

    @torch.no_grad()
    def predict(self, features: Float[Tensor, "n f"]) -> Int64[Tensor, " n"]:
        """Predict the class that wins most pairs; the first among equals, as in scikit-learn."""
        said = []
        for part in features.split(AT_ONCE):
            won = torch.where(self.pairs(part) > 0, 1.0, -1.0).to(self.signs.dtype) @ self.signs
            order = torch.arange(won.shape[-1], 0, -1, device=won.device, dtype=won.dtype)
            said.append((won + order / (2 * len(order))).argmax(-1))
        return self.classes[torch.cat(said)]


def fit_svm(
    features: Float[Tensor, "n f"], labels: Int64[Tensor, " n"], C: float, gamma: float, jobs: int = 1, title: str = ""
) -> SvmDecision:
    """Fit one SVM for every pair of classes in `jobs` processes. With a `title`, show a progress bar."""
    try:
        import sklearn.svm  # noqa: F401
    except ImportError as error:
        raise ValueError("support vector machines need scikit-learn; pip install 'torchcaps[experiments]'") from error
    classes = labels.unique()
    pairs = list(combinations(classes.tolist(), 2))
    if not pairs:
        raise ValueError(f"a classifier needs two classes at least, got {classes.tolist()}")
    wide, said = features.double().numpy(), labels.numpy()
    machines: dict[tuple[int, int], PairMachine] = {}
    began = time.perf_counter()
    with progress_bar(title, len(pairs), 0, bool(title)) as show:
        for pair, machine in _machines(wide, said, pairs, C, gamma, min(jobs, len(pairs))):
            machines[pair] = machine
            show(len(machines), f"pairs of classes, {len(labels):,} samples, {time.perf_counter() - began:.0f} s")
    used = np.unique(np.concatenate([machine.support for machine in machines.values()]))
    coefficients = np.zeros((len(pairs), len(used)))
    for row, pair in enumerate(pairs):
        coefficients[row, np.searchsorted(used, machines[pair].support)] = machines[pair].coefficients
    intercepts = torch.tensor([machines[pair].intercept for pair in pairs], dtype=torch.float64)
    return SvmDecision(torch.from_numpy(wide[used]), torch.from_numpy(coefficients), intercepts, classes, gamma)


def _machines(
    features: np.ndarray, labels: np.ndarray, pairs: list[tuple[int, int]], C: float, gamma: float, jobs: int
):
    if jobs <= 1:
        for pair in pairs:
            yield pair, _fit_pair(features, labels, pair, C, gamma)
        return
    # every process maps the same file, so that features are not copied through pipes
    with tempfile.TemporaryDirectory() as folder:
        paths = Path(folder) / "features.npy", Path(folder) / "labels.npy"
        np.save(paths[0], features)
        np.save(paths[1], labels)
        with ProcessPoolExecutor(jobs, mp_context=get_context("spawn")) as workers:
            waiting = {workers.submit(_fit_pair_of_files, *paths, pair, C, gamma): pair for pair in pairs}
            for done in as_completed(waiting):
                yield waiting[done], done.result()


def _fit_pair_of_files(features: Path, labels: Path, pair: tuple[int, int], C: float, gamma: float) -> PairMachine:
    return _fit_pair(np.load(features, mmap_mode="r"), np.load(labels), pair, C, gamma)


def _fit_pair(features: np.ndarray, labels: np.ndarray, pair: tuple[int, int], C: float, gamma: float) -> PairMachine:
    from sklearn.svm import SVC
    from threadpoolctl import threadpool_limits  # scikit-learn brings it

    # the first class first, each in its order, as SVC orders a pair itself
    rows = np.concatenate([np.flatnonzero(labels == one) for one in pair])
    with threadpool_limits(1):  # other pairs use the other cores
        kernel = radial_basis(features[rows], gamma) if len(rows) <= LARGEST_KERNEL else None
    machine = SVC(C=C, gamma=gamma, kernel="rbf" if kernel is None else "precomputed", cache_size=CACHE_MB)
    machine.fit(features[rows] if kernel is None else kernel, labels[rows] == pair[1])
    return PairMachine(rows[machine.support_], -machine.dual_coef_[0], -float(machine.intercept_[0]))


def radial_basis(features: np.ndarray, gamma: float) -> np.ndarray:
    """Compute the RBF kernel of all pairs of samples as one matrix product, much faster than SVC's own loop."""
    kernel = features @ features.T
    squares = kernel.diagonal().copy()
    kernel *= -2
    kernel += squares[:, None]
    kernel += squares
    np.maximum(kernel, 0, out=kernel)
    kernel *= -gamma
    return np.exp(kernel, out=kernel)


def save_svm(path: Path, machine: SvmDecision) -> None:
    """Save an SVM as a .npz file."""
    content = io.BytesIO()
    np.savez(
        content,
        gamma=np.array(machine.gamma),
        **{name: tensor.cpu().numpy() for name, tensor in machine.named_buffers()},
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, content.getvalue())


def load_svm(path: Path) -> SvmDecision:
    """Load an SVM that `save_svm` wrote."""
    found = np.load(io.BytesIO(path.read_bytes()))  # np.load leaves a damaged file open
    parts = (torch.from_numpy(found[name]) for name in ("vectors", "coefficients", "intercepts", "classes"))
    return SvmDecision(*parts, gamma=float(found["gamma"]))


class LinearDecision(nn.Module):
    """Linear classifier of standardised features."""

    def __init__(self, mean: Tensor, deviation: Tensor, weight: Tensor, bias: Tensor) -> None:
        super().__init__()
        for name, tensor in (("mean", mean), ("deviation", deviation), ("weight", weight), ("bias", bias)):
            self.register_buffer(name, tensor)

    def forward(self, features: Float[Tensor, "n f"]) -> Float[Tensor, "n k"]:
        return (features - self.mean) / self.deviation @ self.weight.T + self.bias

    def predict(self, features: Float[Tensor, "n f"]) -> Int64[Tensor, " n"]:
        """Predict the class with the largest logit."""
        return self(features).argmax(-1)


def fit_linear(
    features: Float[Tensor, "n f"], labels: Int64[Tensor, " n"], decay: float, n_iters: int = 300
) -> LinearDecision:
    """Minimise cross entropy + decay · |weight|²/2 by L-BFGS from zero; deterministic."""
    mean, deviation = features.mean(0), features.std(0).clamp(min=1e-6)  # constant features stay zero
    known = (features - mean) / deviation
    weight = torch.zeros(int(labels.max()) + 1, features.shape[1], device=features.device, requires_grad=True)
    bias = torch.zeros(len(weight), device=features.device, requires_grad=True)
    optimiser = torch.optim.LBFGS(
        [weight, bias], max_iter=n_iters, tolerance_change=1e-9, line_search_fn="strong_wolfe"
    )

    def loss() -> Tensor:
        optimiser.zero_grad()
        total = cross_entropy(known @ weight.T + bias, labels) + decay / 2 * weight.square().sum()
        total.backward()
        return total

    optimiser.step(loss)
    return LinearDecision(mean, deviation, weight.detach(), bias.detach())


class Components(NamedTuple):
    """Principal components of features; a call projects onto them."""

    mean: Float[Tensor, "f"]
    axes: Float[Tensor, "f k"]

    def __call__(self, features: Float[Tensor, "n f"]) -> Float[Tensor, "n k"]:
        return (features - self.mean) @ self.axes


def principal_components(features: Float[Tensor, "n f"], n: int = 256) -> Components:
    """Compute the `n` directions of largest variance, without scaling."""
    mean = features.double().mean(0)
    spread = features.double() - mean
    _, axes = torch.linalg.eigh(spread.T @ spread)  # the largest last
    return Components(mean.float(), axes.flip(1)[:, :n].float())


def processes() -> int:
    """Return the number of processes for `fit_svm`: one per available core, as far as memory allows."""
    cores = n_cores()
    memory = (
        os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        if "SC_PHYS_PAGES" in getattr(os, "sysconf_names", ())
        else 0
    )
    return max(1, min(cores, memory // PROCESS_BYTES)) if memory else cores
