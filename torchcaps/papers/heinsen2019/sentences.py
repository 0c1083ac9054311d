"""Tables 3 and 4 of "An Algorithm for Routing Capsules in All Domains": the Stanford Sentiment Treebank. Page: docs/papers/heinsen2019.md.

The paper routes the embeddings of GPT-2 large; the rows here those of all-mpnet-base-v2, an encoder which anyone can fetch, and of
SmolLM2, a small decoder; the page says of which candidates the chosen rows were the best on the validation part. The paper's own network
has recipes without a row: `sst5-gpt2-large`, `sst2-gpt2-large`.
"""

from dataclasses import replace
from typing import Any

from torchcaps.data.augment.mixup import Mixup
from torchcaps.results.claims import reproduces
from torchcaps.train.optimizers import RAdam
from torchcaps.train.recipe import Run, Stage, Watch
from torchcaps.train.schedules import OneCycle
from torchcaps.train.tasks.sentences import ClassifySentences

_WATCH = Watch(part="validation")  # all of it, for figure 8
_STAGE = Stage(task=ClassifySentences(), epochs=3, batch=20, learning_rate=5e-4, schedule=OneCycle(), optimizer=RAdam(), watch=_WATCH)
# votes of two numbers are small, so the compiled step may hold them; the kernels write out 128 products a vote and compile for long
_ROUTING = {"n_iters": 3, "depth": True, "cost": "separate", "backend": "reference"}
_MLP = {"hidden": (256,), "layers": "all", "dropout": 0.1}
_LINEAR = {"hidden": (), "layers": "all"}
_ACCURACY = "test.accuracy_percent"


def _routed(data: str, learning_rate: float = 5e-4, mixed: bool = True, **model_args: Any) -> Run:
    mixup, stage = (Mixup(0.2),) if mixed else (), replace(_STAGE, learning_rate=learning_rate)
    return Run(data=data, model="em-sentences", model_args=_ROUTING | model_args, augment=mixup, stages=(stage,))


def _pooled(data: str, model_args: dict[str, Any], learning_rate: float = 5e-4) -> Run:
    return Run(data=data, model="pooled-sentences", model_args=model_args, stages=(replace(_STAGE, learning_rate=learning_rate),))


@reproduces(table="3", row="EM routing, SST-5/R, layers of all-mpnet-base-v2, chosen (paper: GPT-2 large)", metric=_ACCURACY, printed=58.5)
def sst5() -> Run:
    """Five labels, trained on every unique phrase of the training trees, tested on whole sentences."""
    return _routed("sst5-mpnet", learning_rate=1e-3)


@reproduces(table="3", row="mean of the tokens + MLP, as we began", metric=_ACCURACY)
def sst5_mlp() -> Run:
    """The means of all layers through a hidden layer of 256: the same phrases, nothing mixed, which suits it better."""
    return _pooled("sst5-mpnet", _MLP, learning_rate=1e-4)


@reproduces(table="3", row="mean of the tokens + linear probe, chosen", metric=_ACCURACY)
def sst5_linear() -> Run:
    """A linear map of the means of all layers: the same phrases, nothing mixed."""
    return _pooled("sst5-mpnet", _LINEAR, learning_rate=1e-4)


@reproduces(table="3", row="mean of the tokens + MLP with more dropout, chosen", metric=_ACCURACY)
def sst5_mlp_dropout() -> Run:
    """Half of features and hidden numbers left out at random, the rate of `sst5-mlp`, nothing mixed."""
    return _pooled("sst5-mpnet", _MLP | {"dropout": 0.5}, learning_rate=1e-4)


@reproduces(
    table="4", row="EM routing, SST-2/R, layers of all-mpnet-base-v2, as we began (paper: GPT-2 large)", metric=_ACCURACY, printed=95.6
)
def sst2() -> Run:
    """Two labels; what is neutral is left out. Nothing is mixed, which is better on the validation part."""
    return _routed("sst2-mpnet", learning_rate=1e-3, mixed=False)


@reproduces(table="4", row="mean of the tokens + MLP, as we began", metric=_ACCURACY)
def sst2_mlp() -> Run:
    """The same with two labels."""
    return _pooled("sst2-mpnet", _MLP, learning_rate=1e-4)


@reproduces(table="4", row="mean of the tokens + linear probe, chosen", metric=_ACCURACY)
def sst2_linear() -> Run:
    """The same with two labels."""
    return _pooled("sst2-mpnet", _LINEAR, learning_rate=1e-4)


@reproduces(table="4", row="EM routing with poses of four numbers, chosen", metric=_ACCURACY)
def sst2_wide() -> Run:
    """Two labels, poses of four numbers instead of two."""
    return _routed("sst2-mpnet", learning_rate=1e-3, mixed=False, d_pose=4)


@reproduces(table="4", row="mean of the tokens + MLP of 4096, rate 5e-5, one round before", metric=_ACCURACY)
def sst2_mlp_wider() -> Run:
    """Two labels, a hidden layer of 4096 and a rate of 5e-5."""
    return _pooled("sst2-mpnet", _MLP | {"hidden": (4096,)}, learning_rate=5e-5)


@reproduces(table="4", row="mean of the tokens + MLP of 4096, rate 2.5e-5, chosen", metric=_ACCURACY)
def sst2_mlp_wider_slow() -> Run:
    """Two labels, a hidden layer of 4096 and a rate of 2.5e-5."""
    return _pooled("sst2-mpnet", _MLP | {"hidden": (4096,)}, learning_rate=2.5e-5)


@reproduces(table="3", row="EM routing, layers of SmolLM2-135M-Instruct in 4 bits, a decoder (nothing chosen for it)", metric=_ACCURACY)
def sst5_smollm2() -> Run:
    """`sst5` on the layers of a decoder, with the same settings."""
    return replace(sst5(), data="sst5-smollm2")


@reproduces(table="4", row="EM routing, layers of SmolLM2-135M-Instruct in 4 bits, a decoder (nothing chosen for it)", metric=_ACCURACY)
def sst2_smollm2() -> Run:
    """`sst2` on the layers of a decoder, with the same settings."""
    return replace(sst2(), data="sst2-smollm2")


@reproduces(table="ablation, SST-5/R", row="no depth-of-layer parameter", metric=_ACCURACY)
def sst5_no_depth() -> Run:
    """The routing is not told from which layer an embedding comes."""
    return _routed("sst5-mpnet", learning_rate=1e-3, depth=False)


@reproduces(table="ablation, SST-2/R", row="no depth-of-layer parameter", metric=_ACCURACY)
def sst2_no_depth() -> Run:
    """The same with two labels; nothing is mixed, as in the row."""
    return _routed("sst2-mpnet", learning_rate=1e-3, mixed=False, depth=False)


@reproduces(table="ablation, SST-5/R", row="no mixup", metric=_ACCURACY)
def sst5_no_mixup() -> Run:
    """Every training example is one phrase."""
    return _routed("sst5-mpnet", learning_rate=1e-3, mixed=False)


@reproduces(table="ablation, SST-5/R", row="whole sentences alone, 30 epochs", metric=_ACCURACY)
def sst5_roots() -> Run:
    """The 8,544 root sentences without their parts: about half the steps, at the paper's rate. Their embeddings fit on a disk."""
    return replace(_routed("sst5-mpnet-roots"), stages=(replace(_STAGE, epochs=30),))


def sst5_gpt2_large() -> Run:
    """The paper's network of 140,480 parameters; the weights of GPT-2 large have to be put into the encoder's folder."""
    return _routed("sst5-gpt2-large")


def sst2_gpt2_large() -> Run:
    """The paper's network of 138,944 parameters."""
    return _routed("sst2-gpt2-large")


def sst5_kernels() -> Run:
    """The row with Triton kernels instead, for `torchcaps bench train`, which times both."""
    return _routed("sst5-mpnet", learning_rate=1e-3, backend="auto")


def sst5_minilm_roots() -> Run:
    """A small encoder and whole sentences alone: trains on a CPU in minutes."""
    return replace(_routed("sst5-minilm-roots"), stages=(replace(_STAGE, epochs=6),))
