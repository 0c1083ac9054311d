"""Convolutions of a CapsNet, where cuDNN is slow at them: few channels, or a large kernel with a stride."""

import torch
from einops import rearrange
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import conv2d, linear, pad
from torch.overrides import handle_torch_function, has_torch_function

from torchcaps.ops.backend import cannot_multiply
from torchcaps.ops.convolution.triton_op import convolve_strided, supports

FEW = 256  # values of a patch up to which the patches are worth writing out
MOST = 64 << 20  # bytes of all patches up to which they are
MULTIPLE = 8  # tensor cores want rows of a multiple of 16 bytes
MANY_TAPS = 25  # kernels of fewer taps are left to cuDNN
FEW_IMAGES = 4  # on a CPU: oneDNN rearranges the weight in every call, which costs more than so few patches
LARGE_WEIGHT = 4 << 20  # bytes of a weight from which that shows


def convolve(
    images: Float[Tensor, "b c h w"],
    weight: Float[Tensor, "k c y x"],
    bias: Float[Tensor, "k"] | None = None,
    stride: int = 1,
    padding: int = 0,
) -> Float[Tensor, "b k p q"]:
    """Compute `conv2d`, by another way where that is faster.

    On a CPU the patches of a few images, without gradients, are multiplied by a large weight as it lies in memory:
    CapsNet's second convolution, one image on one core, took 7 ms instead of 12. On CUDA small patches make it a matrix
    product over all patches, and a large kernel with a stride in bfloat16 a Triton kernel. cuDNN is slow at one
    channel: at batch 128, 28x28, 256 filters of 9x9 its forward and weight gradient took nearly a hundred microseconds
    each in a profile on an H200, the patches and both products 45 together.
    """
    # a mode sees one convolution, whichever way it is computed; a compiler, which knows no `convolve`, sees the way
    if not torch.compiler.is_compiling() and has_torch_function((images, weight)):
        return handle_torch_function(convolve, (images, weight), images, weight, bias, stride, padding)
    if not _on_cuda(images):
        if stride > 1 and _has_few_images(images, weight, padding):
            around = pad(images, [padding] * 4) if padding else images
            if _patch_bytes(around, weight, stride, False) <= MOST:
                return _by_patches(around, weight, bias, stride)
        return conv2d(images, weight, bias, stride, padding)
    low = in_bfloat16(images, weight)
    around = pad(images, [padding] * 4) if padding else images
    if weight[0].numel() <= FEW and _patch_bytes(around, weight, stride, low) <= MOST:
        return _by_patches(around, weight, bias, stride)
    if low and stride > 1 and weight[0, 0].numel() >= MANY_TAPS and cannot_multiply(images) is None:
        last = [rearrange(x.to(torch.bfloat16), "b c h w -> b h w c") for x in (around, weight)]
        if supports(*last):
            maps = convolve_strided(*last, stride)
            return rearrange(maps if bias is None else maps + bias.to(torch.bfloat16), "b h w c -> b c h w")
    return conv2d(images, weight, bias, stride, padding)


def _on_cuda(tensor: Tensor) -> bool:
    return tensor.device.type == "cuda"


def _has_few_images(images: Tensor, weight: Tensor, padding: int) -> bool:
    """Whether a CPU is asked about a few images, without gradients, with a weight that is large."""
    if torch.compiler.is_compiling() or not images.device.type == weight.device.type == "cpu":
        return False
    if not images.ndim == weight.ndim == 4 or images.shape[1] != weight.shape[1]:  # conv2d takes one image, or refuses
        return False
    if any(size + 2 * padding < kernel for size, kernel in zip(images.shape[2:], weight.shape[2:], strict=True)):
        return False
    records = torch.is_grad_enabled() and (images.requires_grad or weight.requires_grad)
    plain = images.dtype == weight.dtype == torch.float32 and not torch.is_autocast_enabled("cpu")
    return plain and not records and 0 < len(images) <= FEW_IMAGES and weight.nbytes >= LARGE_WEIGHT


def _patch_bytes(images: Tensor, weight: Tensor, stride: int, low: bool) -> int:
    places = [(size - kernel) // stride + 1 for size, kernel in zip(images.shape[2:], weight.shape[2:], strict=True)]
    return len(images) * places[0] * places[1] * weight[0].numel() * (2 if low else images.itemsize)


def in_bfloat16(images: Tensor, weight: Tensor) -> bool:
    """Whether conv2d would run in bfloat16: autocast leaves float64 alone, and without it nothing is converted."""
    if torch.is_autocast_enabled("cuda"):
        return torch.get_autocast_dtype("cuda") == torch.bfloat16 and torch.float64 not in (images.dtype, weight.dtype)
    return images.dtype == weight.dtype == torch.bfloat16


def _by_patches(images: Tensor, weight: Tensor, bias: Tensor | None, stride: int) -> Tensor:
    patches, places = patches_of(images, weight, stride)
    weight = weight.flatten(1)
    if bias is not None and patches.shape[1] % MULTIPLE:
        # its gradient comes with that of the weight, while a sum would read the gradient of all maps once more
        patches, weight, bias = with_ones(patches), with_bias(weight, bias), None
    return as_maps(linear(padded(patches), padded(weight), bias), places)


def patches_of(images: Tensor, weight: Tensor, stride: int) -> tuple[Float[Tensor, "n taps"], tuple[int, int, int]]:
    """Write out all patches; also count images, rows and columns of the maps, n together."""
    rows, columns = weight.shape[2:]
    windows = images.unfold(2, rows, stride).unfold(3, columns, stride)
    # a matrix from the start: TorchInductor pads rows of pixels in memory, and would copy all patches to pack them
    patches = rearrange(windows, "b c h w y x -> b h w (c y x)").flatten(0, 2)
    return patches, (windows.shape[0], *windows.shape[2:4])


def with_ones(patches: Float[Tensor, "n taps"]) -> Float[Tensor, "n more"]:
    """Append a value of 1 to every patch, whose weight is the bias."""
    return pad(patches, (0, 1), value=1.0)


def with_bias(weight: Float[Tensor, "k taps"], bias: Float[Tensor, "k"]) -> Float[Tensor, "k more"]:
    """Append the bias to every filter, as the weight of a further value."""
    return torch.cat([weight, bias[:, None]], 1)


def padded(rows: Float[Tensor, "n taps"]) -> Float[Tensor, "n wide"]:
    """Append zeros up to a multiple of `MULTIPLE`: they add nothing to a product."""
    extra = -rows.shape[1] % MULTIPLE
    return pad(rows, (0, extra)) if extra else rows


def as_maps(rows: Float[Tensor, "n k"], places: tuple[int, int, int]) -> Float[Tensor, "b k h w"]:
    """View a row for each place as maps: channels-last in memory, as the next convolution wants them."""
    return rearrange(rows.unflatten(0, places), "b h w k -> b k h w")
