"""Train, save and load torch modules whose records cannot meet."""
