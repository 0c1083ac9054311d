"""Batches that never leave the device: images, overlapping pairs, sentences."""
