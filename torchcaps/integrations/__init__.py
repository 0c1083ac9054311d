"""Integrations: scikit-learn, folders of images, ONNX and torch.export."""
