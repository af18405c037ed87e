"""The steps from a request to a release: plan, train, score, find the thresholds."""
