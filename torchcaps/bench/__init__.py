"""Speed and memory, measured: CUDA events or the wall clock, after a warm-up, medians, next to the reference in the same run."""

from torchcaps.bench.ladder import bench_ladder
from torchcaps.bench.ops import bench_ops
from torchcaps.bench.scale import bench_scale
from torchcaps.bench.timing import time_ms
from torchcaps.bench.train import CHUNK, bench_train

__all__ = ["CHUNK", "bench_ladder", "bench_ops", "bench_scale", "bench_train", "time_ms"]
