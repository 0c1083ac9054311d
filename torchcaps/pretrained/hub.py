"""Hugging Face Hub versions of all models, through huggingface_hub's mixin (extra `hub`).

    from torchcaps.pretrained import hub
    model = hub.CapsNet((1, 28, 28), 10)              # any model, with save_pretrained, from_pretrained, push_to_hub
    model.save_pretrained("folder")                   # model.safetensors, config.json, README.md
    model = hub.CapsNet.from_pretrained("folder")     # or "user/name" on the hub
    hub.of(torchcaps.load("capsnet-digits")).save_pretrained("folder")

`hub.NAME` is the model class of that name with the mixin. It is made on first access, which imports huggingface_hub.
Weights are loaded completely or not at all, and never from a pickle.
"""

from functools import cache
from inspect import Parameter, Signature, signature
from pathlib import Path
from typing import Any

from safetensors.torch import load_file
from torch import nn

from torchcaps.models import MODELS, SENTENCE_MODELS
from torchcaps.pretrained.loading import describe, usual_labels
from torchcaps.train.checkpoint import load_into
from torchcaps.train.recipe import stored_run

CARD = """---
{{ card_data }}
---

A `NAME`, a capsule network of torchcaps.

```python
from torchcaps.pretrained import hub

model = hub.NAME.from_pretrained("this folder, or user/name")
```

`model.labels` names its classes, and `model.about` describes the run that trained it, where config.json has one.
`torchcaps.pretrained.prepare(model, pixels)` turns images into its input.
"""
CLASSES = {kind.__name__: kind for kind in (*MODELS.values(), *SENTENCE_MODELS.values())}


def __getattr__(name: str) -> Any:
    if name in CLASSES:
        return on_hub(CLASSES[name])
    raise AttributeError(f"torchcaps.pretrained.hub has no {name}; it has {', '.join(CLASSES)}")


def of(model: nn.Module) -> nn.Module:
    """Wrap a model from `torchcaps.load` with the mixin; the weights are shared."""
    if type(model).__module__ == __name__:
        return model
    about = getattr(model, "about", None)
    if about is None or type(model).__name__ not in CLASSES:
        raise ValueError(
            "hub.of takes a model of `torchcaps.load`, which knows what it was built with; "
            f"got a {type(model).__name__} without: "
            f"build it as one of torchcaps.pretrained.hub, {', '.join(CLASSES)}"
        )
    run = stored_run(about["run"])
    *shape, usual = run.sizes()
    renamed = tuple(model.labels) != usual_labels(run, about)
    about = {key: value for key, value in about.items() if key != "labels"}
    about |= {"labels": list(model.labels)} if renamed else {}
    args = dict(run.model_args)
    decoded = "reconstruction" in signature(type(model).__init__).parameters
    if decoded and model.decoder is None:  # the user may have taken it out
        args["reconstruction"] = False
    made = on_hub(type(model))(*shape, about.get("n_classes", usual), **args, about=about)
    made.load_state_dict(model.state_dict(), assign=True)
    return made.train(model.training)


@cache
def on_hub(kind: type[nn.Module]) -> type[nn.Module]:
    """Add the mixin to a model class. Its config holds the constructor arguments and two more.

    `about` is the attribute that `torchcaps.load` sets. `architecture` is the class name, so that the config of another
    class is refused.
    """
    try:
        from huggingface_hub import PyTorchModelHubMixin
    except ImportError as error:
        raise ImportError(
            "save_pretrained and from_pretrained are huggingface_hub's: pip install 'torchcaps[hub]'"
        ) from error

    settings = {
        "license": "mit",
        "tags": ["capsule-networks", kind.__name__],
        "model_card_template": CARD.replace("NAME", kind.__name__),
    }

    class OnHub(kind, PyTorchModelHubMixin, library_name="torchcaps", **settings):
        def __init__(
            self, *settings: Any, about: dict[str, Any] | None = None, architecture: str = kind.__name__, **more: Any
        ) -> None:
            if architecture != kind.__name__:
                raise ValueError(
                    f"{kind.__name__} was asked for, and this is the config of a {architecture}; "
                    f"take hub.{architecture}"
                )
            super().__init__(*map(_tuples, settings), **{key: _tuples(value) for key, value in more.items()})
            if about is not None:
                describe(self, stored_run(about["run"]), about)

        __init__.__signature__ = _with_more(signature(kind.__init__), about=None, architecture=kind.__name__)

        @classmethod
        def _load_as_safetensor(cls, model: nn.Module, model_file: str, map_location: str, strict: bool) -> nn.Module:
            load_into(model, load_file(model_file), model_file)
            return model.to(map_location).eval()

        @classmethod
        def _load_as_pickle(cls, model: nn.Module, model_file: str, map_location: str, strict: bool) -> nn.Module:
            raise ValueError(
                f"{Path(model_file).name} is a pickle, which can run any code, and there is no model.safetensors; "
                "take another"
            )

    OnHub.__name__ = OnHub.__qualname__ = kind.__name__
    OnHub.__module__ = __name__  # so that a user can pickle the model
    return OnHub


def _with_more(plain: Signature, **more: Any) -> Signature:
    """Add keyword arguments to a signature, from which the mixin reads the settings to store."""
    given = list(plain.parameters.values())
    at = len(given) - (given[-1].kind is Parameter.VAR_KEYWORD)
    added = [Parameter(name, Parameter.KEYWORD_ONLY, default=value) for name, value in more.items()]
    return plain.replace(parameters=[*given[:at], *added, *given[at:]])


def _tuples(value: Any) -> Any:
    """Convert lists to tuples, since JSON has only lists."""
    return tuple(map(_tuples, value)) if isinstance(value, list | tuple) else value
