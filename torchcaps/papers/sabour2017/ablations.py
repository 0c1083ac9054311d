"""Rows without a printed number: routing iterations (appendix A), a small network, MultiMNIST with shift 6."""

from torchcaps.papers.sabour2017.rows import (
    EXACT,
    HALF,
    SEGMENTED,
    cifar10_plain,
    mnist_r3_recon,
    multimnist_4_cnn,
    multimnist_4_r3_high,
)
from torchcaps.results.claims import Variant, variants

_APPENDIX = {"table": "A", "metric": "test.error_percent"}

MNIST_BY_ITERATIONS = variants(
    mnist_r3_recon,
    {
        "mnist-r2-recon": Variant("CapsNet, 2 iterations, reconstruction", {"n_iters": 2}),
        "mnist-r4-recon": Variant("CapsNet, 4 iterations, reconstruction", {"n_iters": 4}),
        # once per epoch it logs how far each iteration moves the logits: figure A.1
        "mnist-r5-recon": Variant("CapsNet, 5 iterations, reconstruction", {"n_iters": 5, "probe_every": 468}),
    },
    **_APPENDIX,
)
# a sixth of the parameters, decoder included: in bfloat16 its weights take less than 3 MB
MNIST_SMALL = variants(
    mnist_r3_recon,
    {
        "mnist-small": Variant(
            "CapsNet, 3 iterations, reconstruction, 1.3 million parameters",
            {"channels": 128, "n_types": 8, "hidden": (128, 256)},
        ),
    },
    **_APPENDIX,
)
_LEAKY = {"couplings": "leaky"}
CIFAR_BY_ITERATIONS = variants(
    cifar10_plain,
    {
        "cifar10-r1": Variant("CIFAR-10, CapsNet, 1 iteration, leaky, one model", {"n_iters": 1} | _LEAKY),
        "cifar10-r2": Variant("CIFAR-10, CapsNet, 2 iterations, leaky, one model", {"n_iters": 2} | _LEAKY),
        "cifar10-r5": Variant("CIFAR-10, CapsNet, 5 iterations, leaky, one model", {"n_iters": 5} | _LEAKY),
    },
    **_APPENDIX,
)
_SHIFT_6 = {"data": "multimnist-6"}
SHIFT_6 = variants(
    multimnist_4_r3_high,
    {
        "multimnist-6-r3": Variant(
            "MultiMNIST, shift 6: CapsNet, 3 iterations, reconstruction, twice MNIST's learning rate",
            _SHIFT_6,
        ),
    },
    beside=(HALF, SEGMENTED),
    **EXACT,
)
SHIFT_6_CNN = variants(
    multimnist_4_cnn,
    {"multimnist-6-cnn": Variant("MultiMNIST, shift 6: baseline CNN", _SHIFT_6)},
    beside=(HALF,),
    **EXACT,
)
