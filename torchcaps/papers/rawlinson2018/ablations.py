"""Networks that test remarks of the paper, or why our numbers differ from it."""

from dataclasses import replace

from torchcaps.data.augment import Anywhere
from torchcaps.ops.sparse import fair_frequencies
from torchcaps.papers.rawlinson2018.rows import AFFINE_TEST, WINS, like_sparse, mnist_sparse
from torchcaps.results.claims import Variant, reproduces, variants
from torchcaps.train.recipe import Run

_STEERED = {
    "boost_gain": 0.02
}  # our rule: every batch, log boosts change by 0.02 · (1 / 16 - fraction of the batch won)
_DEPTH = {"table": "depth", "metric": "test.squared_error"}
_LAYERS = tuple(f"extras.layer_{number}_activity_middle" for number in (1, 2, 3))

BOOSTS = variants(
    mnist_sparse,
    {
        "mnist-no-boost": Variant("no boosting (section 2.3), 28x28", {"boost_step": 0.0}),
        "mnist-steered": Variant("boosts that follow the wins of every batch (our rule), 28x28", _STEERED),
        # section 4: the range as a function of the number of capsules, 0.64 / n to 1.6 / n, the paper's for 16
        "mnist-8": Variant(
            "8 capsules, frequencies 0.08 to 0.2 (section 4's idea), 28x28",
            {"n_latent": 8, "frequencies": fair_frequencies(8)},
        ),
        "mnist-32": Variant(
            "32 capsules, frequencies 0.02 to 0.05 (section 4's idea), 28x28",
            {"n_latent": 32, "frequencies": fair_frequencies(32)},
        ),
    },
    table="ablation", metric="test.squared_error", beside=WINS,
)  # fmt: skip
# what helps the supervised network on the same images
NETWORKS = variants(
    like_sparse,
    {
        "like-paper-sparse": Variant(
            "CapsNet's preset paper, sparse, squared error on affnist-like", {"capsnet_preset": "paper"}
        ),
        "like-types-sparse": Variant(
            "a transform per type, sparse, squared error on affnist-like", {"sharing": "places"}
        ),
    },
    table="ablation", metric=f"{AFFINE_TEST}.squared_error", beside=("test.squared_error", *WINS),
)  # fmt: skip
PLACED = variants(
    like_sparse,
    {
        "like-steered": Variant(
            "boosts that follow the wins of every batch (our rule), squared error on affnist-like", _STEERED
        ),
        "like-anywhere-sparse": Variant(
            "training digits anywhere in the frame, sparse, squared error on affnist-like", {"augment": (Anywhere(),)}
        ),
    },
    table="ablation", metric=f"{AFFINE_TEST}.squared_error", beside=("test.squared_error", *WINS),
)  # fmt: skip


@reproduces(row="three latent layers, sparse, routing by agreement, 10,000 steps", beside=_LAYERS, **_DEPTH)
def stack_sparse() -> Run:
    """H200, 2 min; squared error 27.9 (1 seed). Does activity become uniform with depth (section 4)?"""
    run = mnist_sparse()
    args = {"preset": "sparse", "routing": "dynamic", "n_layers": 3}
    return replace(run, model="stackedcaps", model_args=args, stages=(replace(run.stages[0], steps=10_000),))


# 8 types of 4x4 poses in place of 32 types of 8 dimensions: half as many dimensions, and votes that fit in memory
_EM = {"routing": "em", "n_types": 8, "d_primary": 16}
STACKS = variants(
    stack_sparse,
    {
        "stack-dense": Variant("three latent layers, dense, routing by agreement, 10,000 steps", {"preset": "dense"}),
        "stack-em-sparse": Variant("three latent layers, sparse, EM routing, 10,000 steps", _EM),
        "stack-em-dense": Variant("three latent layers, dense, EM routing, 10,000 steps", {"preset": "dense", **_EM}),
    },
    beside=_LAYERS, **_DEPTH,
)  # fmt: skip
