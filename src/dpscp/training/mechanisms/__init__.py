"""Private training mechanisms of the library."""
