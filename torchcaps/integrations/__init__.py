"""Ways in and out: scikit-learn, folders of images, ONNX and torch.export."""
