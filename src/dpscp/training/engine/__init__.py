"""The DP-SGD engine: batches, gradients, clipping, noise and updates."""
