"""Compile every kernel for the H200 at the shapes that are benched; print their names. Run without TRITON_INTERPRET."""

import sys

import torch
from ahead import compiled_instead_of_run

from torchcaps.ops import convolve_triton, dynamic_triton


def dynamic(dtype: torch.dtype, weight: tuple[int, ...], batch: int = 128, n_in: int = 1152) -> None:
    weight = torch.zeros(weight)
    *_, n_out, d_in, d_out = weight.shape
    poses, bias = torch.zeros(batch, n_in, d_in, dtype=dtype), torch.zeros(n_out, d_out)
    low = dtype == torch.bfloat16
    outputs = dynamic_triton.route(poses, weight, bias, n_out, 3, False, False, low)
    dynamic_triton.route_backward(outputs[0], None, poses, weight, *outputs[2:], False, False)


def convolve() -> None:
    images, weight = torch.zeros(128, 20, 20, 256, dtype=torch.bfloat16), torch.zeros(256, 9, 9, 256, dtype=torch.bfloat16)
    maps = convolve_triton.convolve_strided(images, weight, 2)
    convolve_triton.convolve_strided_backward(maps, weight, images, 2)


if __name__ == "__main__":
    with compiled_instead_of_run() as names:
        dynamic(torch.bfloat16, (1152, 10, 8, 16))
        dynamic(torch.float32, (32, 10, 8, 16))
        dynamic(torch.float32, (1152, 10, 8, 16), batch=1)
        for dtype in (torch.float32, torch.bfloat16):
            dynamic(dtype, (33, 7, 64, 64), batch=70, n_in=33)
            dynamic(dtype, (7, 33, 64), batch=70, n_in=33)
            dynamic(dtype, (33, 7, 1, 64), batch=70, n_in=33)
        convolve()
    sys.stdout.write(" ".join(sorted(set(names))))
