"""What happens to images in training."""
