"""Trained models for other programs: ONNX, TorchScript, a state dict, and a model card."""
