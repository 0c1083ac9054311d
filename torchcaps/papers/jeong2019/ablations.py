"""Ablations of the ladder network on affine digits.

15x15 kernels and K = 70 of 1152 are the paper's best. Two ablations also run with 9x9
kernels, where more capsules take turns at being kept.
"""

from torchcaps.papers.jeong2019 import rows
from torchcaps.results.claims import Variant, reproduces, variants
from torchcaps.train.recipe import Run
from torchcaps.train.vary import vary

_CLAIM = rows.AFFINE | {"table": "ablations", "beside": ("test.error_percent", "extras.n_kept")}
_NO_CODE_LOSS = {"code_weight": 0.0}  # epsilon
_CONSTANT_CODE = {"code": "constant"}

WIDE_ROWS = variants(
    rows.like_wide_k70,
    {
        "like-no-ladder": Variant("affnist-like, 15x15, no ladder: activity is length", {"agreement": "none"}),
        "like-constant-code": Variant("affnist-like, 15x15, constant code", _CONSTANT_CODE),
        "like-no-code-loss": Variant("affnist-like, 15x15, no loss of the code", _NO_CODE_LOSS),
        "like-no-pruning": Variant("affnist-like, 15x15, no pruning: K = 1152", {"n_kept": None}),
        "like-share-k6": Variant("affnist-like, 15x15, K = 6, 0.5 % of the capsules", {"n_kept": 6}),
    },
    **_CLAIM,
)


def _like_k70() -> Run:
    return rows.AFFINE_ROWS["like-k70"]()


SMALL_ROWS = variants(
    _like_k70,
    {
        "like-k70-constant-code": Variant("affnist-like, 9x9, constant code", _CONSTANT_CODE),
        "like-k70-no-code-loss": Variant("affnist-like, 9x9, no loss of the code", _NO_CODE_LOSS),
    },
    **_CLAIM,
)


@reproduces(row="affnist-like, 9x9, K = 50, agreement of the predictions in place of a ladder", **_CLAIM)
def like_k50_up() -> Run:
    """Capsules have to predict the same class pose, nothing is regressed: best on warped held-out digits.

    H200, 2 min a seed; 12.0 % error (3 seeds).
    """
    return vary(rows.like_k50(), {"agreement": "up"})


@reproduces(row="affnist-like, CapsNet, both kernels 15x15", **(rows.AFFINE | {"table": "ablations"}))
def like_wide_capsnet() -> Run:
    """CapsNet with the kernels of `like-wide-k70`, so with as many capsules. H200, 2 min; 19.4 % error (1 seed)."""
    from torchcaps.papers import RECIPES  # which is made of this module too

    return vary(RECIPES["sabour2017/like-r3-end"].make(), rows.WIDE)
