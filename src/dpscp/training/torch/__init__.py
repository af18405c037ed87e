"""Train, save and load torch modules."""
