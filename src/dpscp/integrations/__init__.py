"""Take a fitted estimator to other systems: MLflow and ONNX."""
