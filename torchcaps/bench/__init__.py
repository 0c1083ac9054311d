"""Benchmarks of speed and memory against the reference: medians after a warm-up, by CUDA events or wall clock."""

from torchcaps.bench.kernels import bench_kernels
from torchcaps.bench.ops import bench_ops
from torchcaps.bench.predict import Subject, bench_predict
from torchcaps.bench.scale import bench_scale
from torchcaps.bench.timing import time_ms
from torchcaps.bench.train import CHUNK, bench_train

__all__ = ["CHUNK", "Subject", "bench_kernels", "bench_ops", "bench_predict", "bench_scale", "bench_train", "time_ms"]
