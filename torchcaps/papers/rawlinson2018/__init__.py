"""Rawlinson, Ahmed, Kowadlo 2018, "Sparse Unsupervised Capsules Generalize Better"."""
