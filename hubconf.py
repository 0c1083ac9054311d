"""Entry points of torch.hub: `torch.hub.load(REPOSITORY, "capsnet_digits")`, or `source="local"` with a checkout.

There is one for every pretrained model, its dashes written as underscores, and `load` for a name as it stands.
"""

from functools import partial

dependencies = ["torch", "numpy", "einops", "jaxtyping", "rich", "safetensors"]


def load(name, device="cpu", n_classes=None):
    """Load a pretrained model in eval mode, as `torchcaps.load` does; `n_classes` gives it a new head."""
    import torchcaps

    return torchcaps.load(name, device, n_classes=n_classes)


def _entry_points():
    from torchcaps.pretrained import entries

    found = {}
    for name, one in entries().items():
        point = found[name.replace("-", "_")] = partial(load, name)
        point.__doc__ = f"{one.about.rstrip('.')}. Takes device and n_classes, as `load` does."
    return found


globals().update(_entry_points())
del partial  # torch.hub lists whatever can be called
