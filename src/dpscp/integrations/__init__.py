"""Take a fitted estimator to other systems: MLflow."""
