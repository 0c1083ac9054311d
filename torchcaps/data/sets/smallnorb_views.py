"""smallNORB by viewpoint: the toys of the official TEST part, seen from some sides to train on and from others to test on.

Which sides is what Hinton, Sabour and Frosst 2018 ("Matrix Capsules with EM Routing", section 5.1) chose: azimuths of 300 to 40
degrees to train on and 60 to 280 to test on; or the three lowest elevations and the other six. They had the viewpoints of all
toys, trained on the training toys and tested on the others. Here the toys are the same on both sides, and they are those of the test
part, since its viewpoints are the ones at hand: such a row is about viewpoints alone, and its name has to say what it was trained on.

Of the familiar views one light in six is kept aside, another one for every toy, elevation and azimuth in turn: the same toys from the
same sides, never seen in this light. A network that fails on those fails for another reason than the viewpoint.
"""

from __future__ import annotations

from jaxtyping import Bool
from torch import Tensor, isin, tensor

from torchcaps.data.sets.smallnorb import Factors
from torchcaps.data.sources.formats import Pictures

FAMILIAR = {"azimuth": (30, 32, 34, 0, 2, 4), "elevation": (0, 1, 2)}  # as the official table numbers them
N_TRAIN, N_FAMILIAR, N_NOVEL = 6_750, 1_350, 16_200  # for both


def part_of(factors: Factors, vary: str, part: str) -> Bool[Tensor, " n"]:
    """Which pairs are in "train", "familiar" or "novel" where `vary`, azimuth or elevation, tells the views apart."""
    familiar = isin(getattr(factors, vary), tensor(FAMILIAR[vary]))
    aside = (factors.instance + factors.elevation + factors.azimuth // 2) % 6 == factors.lighting
    return {"train": familiar & ~aside, "familiar": familiar & aside, "novel": ~familiar}[part]


def by_viewpoint(pictures: Pictures, factors: Factors, vary: str, part: str) -> Pictures:
    wanted = part_of(factors, vary, part)
    return Pictures(pictures.images[wanted], pictures.labels[wanted])
