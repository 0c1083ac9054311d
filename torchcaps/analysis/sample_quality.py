"""Sample quality of a generator and linear probes of its capsules, since Hauser 2019 prints no numbers.

A small CNN, trained on the labelled images, classifies every sample. Fréchet distances use the features before its last
layer: they compare models with each other, not with results on another network's features.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from jaxtyping import Float, Int64, UInt8
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, one_hot

from torchcaps.analysis.classifiers import fit_linear
from torchcaps.analysis.metrics import error_percent
from torchcaps.analysis.routing import evaluating
from torchcaps.data import Labelled
from torchcaps.data.augment import as_seen
from torchcaps.layers import ExpertCapsules
from torchcaps.models import Baseline

PURE = 0.8  # fraction of a capsule's samples in one class from which it counts as pure
AT_ONCE = 500
Pictures = Float[Tensor, "n j c h w"]


class Judge(NamedTuple):
    """Classifier of samples, and its error on the test images.

    Example:

        from torchcaps.data import load
        judge = train_judge(load("generated", "train"), load("generated", "test"), torch.device("cpu"), seed=0, steps=1)
        classes, features = judge(torch.rand(5, 1, 28, 28))
        list(classes.shape), len(features)  # ([5], 5)
    """

    net: Baseline
    error_percent: float

    def __call__(self, pictures: Float[Tensor, "n c h w"]) -> tuple[Int64[Tensor, "n"], Float[Tensor, "n f"]]:
        """Predict classes, and return them with the features."""
        with evaluating(self.net):
            features = torch.cat([self.net.features(part) for part in pictures.split(AT_ONCE)])
            return self.net.classes(features).argmax(-1), features


def train_judge(train: Labelled, test: Labelled, device: torch.device, seed: int, steps: int) -> Judge:
    """Train the classifier of samples with cross entropy, Adam and a linearly decaying learning rate."""
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        torch.manual_seed(seed)
        net = Baseline(tuple(train.images.shape[1:]), int(train.labels.max()) + 1, preset="judge").to(device)
        rng = torch.Generator().manual_seed(seed)
        picks = torch.randint(len(train.labels), (steps, 128), generator=rng).to(device)
        images, labels = train.images.to(device), train.labels.to(device)
        optimizer = torch.optim.Adam(net.parameters(), 1e-3)
        for step, pick in enumerate(picks):
            optimizer.param_groups[0]["lr"] = 1e-3 * (1 - step / steps)
            optimizer.zero_grad()
            cross_entropy(net(as_seen(images[pick])), labels[pick]).backward()
            optimizer.step()
    judge = Judge(net, 0.0)
    return judge._replace(error_percent=error_percent(judge(as_seen(test.images.to(device)))[0].cpu(), test.labels))


def frechet_distance(one: Float[Tensor, "n f"], other: Float[Tensor, "m f"]) -> float:
    """Compute the squared Fréchet distance of fitted Gaussians: |m1 - m2|² + tr(C1 + C2 - 2 (C1 C2)^½)."""
    (mean_1, root_1, trace_1), (mean_2, root_2, trace_2) = (_gaussian(features.double()) for features in (one, other))
    # the trace of (C1 C2)^½ is the sum of the singular values of C1^½ C2^½
    common = torch.linalg.svdvals(root_1 @ root_2).sum()
    return ((mean_1 - mean_2).square().sum() + trace_1 + trace_2 - 2 * common).item()


def _gaussian(features: Float[Tensor, "n f"]) -> tuple[Tensor, Tensor, Tensor]:
    """Compute mean, square root of the covariance, and trace of the covariance."""
    mean, covariance = features.mean(0), features.T.cov()
    values, vectors = torch.linalg.eigh(covariance)
    return mean, (vectors * values.clamp(min=0).sqrt()) @ vectors.T, covariance.trace()


def class_purity(classes: Int64[Tensor, "n j"], n_classes: int) -> dict[str, Any]:
    """Compute each capsule's most frequent class, its fraction, and the entropy of the class fractions in nats."""
    shares = one_hot(classes, n_classes).double().mean(0)  # [j k]
    modal = shares.max(-1)
    pure = modal.values >= PURE
    return {
        "modal_class": modal.indices.tolist(),
        "modal_share": modal.values.tolist(),
        "entropy_nats": torch.special.entr(shares).sum(-1).tolist(),
        "n_pure": int(pure.sum()),
        "n_classes_pure": len(modal.indices[pure].unique()),
        "n_classes_modal": len(modal.indices.unique()),
    }


def inverted(pictures: Float[Tensor, "*n c h w"], mean_image: Float[Tensor, "c h w"]) -> Tensor:
    """Mark images that are negatives: those with a correlation below 0 with the mean training image."""
    centred = pictures - pictures.mean((-3, -2, -1), keepdim=True)
    return (centred * (mean_image - mean_image.mean())).sum((-3, -2, -1)) < 0


def spread(pictures: Pictures) -> Float[Tensor, "j"]:
    """Compute the root mean square distance of a capsule's images from their mean.

    It is 0 if all images are the same, which class purity alone would not show.
    """
    return (pictures - pictures.mean(0)).square().sum((-3, -2, -1)).mean(0).sqrt()


def nearest_distance(
    pictures: Float[Tensor, "n c h w"], images: UInt8[Tensor, "m c h w"], at_once: int = 5_000
) -> Float[Tensor, "n"]:
    """Compute the Euclidean distance of each sample to the nearest image, in blocks of `at_once` (100 MB)."""
    known = [as_seen(part).flatten(1) for part in images.to(pictures.device).split(at_once)]
    parts = pictures.flatten(1).split(at_once)
    return torch.cat([torch.stack([torch.cdist(part, some).amin(1) for some in known]).amin(0) for part in parts])


def linear_probe(
    features: Callable[[Float[Tensor, "n c h w"]], Float[Tensor, "n f"]],
    train: Labelled,
    test: Labelled,
    device: torch.device,
) -> float:
    """Compute the test accuracy in percent of a linear softmax classifier on these features.

    Features are whitened first, since a capsule has little variance outside its main direction; a linear function can
    undo it.
    """
    seen, unseen = (_all_features(features, part, device) for part in (train, test))
    mean, whiten = _whitening(seen)
    decision = fit_linear((seen - mean) @ whiten, train.labels.to(device), decay=2e-3, n_iters=200)
    return 100 - error_percent(decision.predict((unseen - mean) @ whiten).cpu(), test.labels)


def _whitening(features: Float[Tensor, "n f"]) -> tuple[Float[Tensor, "f"], Float[Tensor, "f k"]]:
    """Compute the mean, and the directions with at least 1e-7 of the largest variance, scaled to variance 1.

    With fewer images than features, the n x n Gram matrix replaces the f x f covariance.
    """
    mean = features.mean(0)
    centred = (features - mean).double()
    few = len(centred) < centred.shape[1]
    values, vectors = torch.linalg.eigh((centred @ centred.T if few else centred.T @ centred) / len(features))
    kept = values > 1e-7 * values[-1].item() + 1e-30
    values, vectors = values[kept], vectors[:, kept]
    if few:
        vectors = centred.T @ vectors * (len(features) * values).rsqrt()  # unit length
    return mean, (vectors * values.rsqrt()).to(features.dtype)


@torch.no_grad()
def _all_features(features: Callable[[Tensor], Tensor], data: Labelled, device: torch.device) -> Float[Tensor, "n f"]:
    return torch.cat([features(as_seen(part.to(device))).flatten(1).float() for part in data.images.split(AT_ONCE)])


def sampled_pictures(model: nn.Module, n: int, seed: int, device: torch.device) -> dict[str, Pictures]:
    """Sample `n` images per capsule from the complete and the restricted domain, and from negated noise."""
    layer = model.encoders[-1]
    numbers = torch.randn(n, layer.n_out, layer.d_out, generator=torch.Generator().manual_seed(seed)).to(device)
    with evaluating(model):
        complete, negated = (model.draw_samples(part, restricted=False) for part in (numbers, -numbers))
        return {"complete": complete, "negated": negated, "restricted": model.draw_samples(numbers, restricted=True)}


def study(
    model: nn.Module, train: Labelled, test: Labelled, device: torch.device, seed: int, n: int, judge_steps: int = 1500
) -> dict[str, Any]:
    """Compute all measurements of an ExpertNet in docs/papers/hauser2019.md, from `n` samples per capsule."""
    judge = train_judge(train, test, device, seed, judge_steps)
    pictures = sampled_pictures(model, n, seed, device)
    mean_image = as_seen(train.images).mean(0).to(device)
    real = judge(as_seen(test.images.to(device)))[1]
    found: dict[str, Any] = {
        "judge_error_percent": judge.error_percent,
        "n_samples": n,
        "n_pictures": n * model.encoders[-1].n_out,
    }
    found["n_nearest"] = found["n_pictures"]  # result files without this entry used 2,000
    for domain in ("complete", "restricted"):
        flat = pictures[domain].flatten(0, 1)
        classes, features = judge(flat)
        purity = class_purity(classes.unflatten(0, pictures[domain].shape[:2]), judge.net.n_classes)
        upside = inverted(flat, mean_image)
        near = nearest_distance(flat, train.images)
        found |= {f"{domain}_{name}": value for name, value in purity.items()}
        found[f"{domain}_inverted_percent"] = 100 * upside.double().mean().item()
        found[f"{domain}_frechet"] = frechet_distance(features, real)
        found[f"{domain}_spread"] = spread(pictures[domain]).tolist()
        found[f"{domain}_nearest_mean"], found[f"{domain}_nearest_least"] = near.mean().item(), near.min().item()
    other = [inverted(pictures[name].flatten(0, 1), mean_image) for name in ("complete", "negated")]
    found["swapped_percent"] = 100 * (other[0] != other[1]).double().mean().item()
    held_out = nearest_distance(as_seen(test.images.to(device)), train.images)
    found["test_nearest_mean"], found["test_nearest_least"] = held_out.mean().item(), held_out.min().item()
    # spread within each class of the test images: the reference for a capsule of one class
    kinds = [as_seen(test.images[test.labels == label]).unsqueeze(1) for label in test.labels.unique()]
    found["test_spread"] = torch.cat([spread(kind) for kind in kinds]).tolist()
    return found | probes(model, train, test, device, seed)


def probes(model: nn.Module, train: Labelled, test: Labelled, device: torch.device, seed: int) -> dict[str, float]:
    """Compute linear probes of the highest layer, squashed and not, of an untrained one, and of the feature maps."""
    with evaluating(model):
        below = lambda images: model.below(images, len(model.encoders) - 1)[0]  # noqa: E731
        fresh = untrained_like(model.encoders[-1], seed)
        fresh.scale_to(below(as_seen(train.images[:AT_ONCE].to(device))), 0.2)
    return {
        "probe_accuracy": linear_probe(lambda images: model(images).poses, train, test, device),
        "probe_accuracy_unsquashed": linear_probe(lambda images: model.phase(images).sums, train, test, device),
        "probe_accuracy_untrained": linear_probe(lambda images: fresh(below(images)).poses, train, test, device),
        "probe_accuracy_untrained_unsquashed": linear_probe(
            lambda images: fresh.phase(below(images)).sums, train, test, device
        ),
        "probe_accuracy_maps": linear_probe(model.features, train, test, device),
    }


def untrained_like(layer: ExpertCapsules, seed: int) -> ExpertCapsules:
    """Build a layer of the same kind and size with a new initialisation."""
    rule = layer.rule
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        fresh = ExpertCapsules(
            layer.n_in,
            layer.n_out,
            layer.d_in,
            layer.d_out,
            n_iters=rule.n_iters,
            over=rule.over,
            start=rule.start,
            n_plain=layer.n_plain,
        )
    return fresh.to(layer.weight.device)
