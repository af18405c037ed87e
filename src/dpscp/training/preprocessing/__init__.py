"""Private and public transforms of features and targets before training."""
