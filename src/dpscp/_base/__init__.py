"""Checks, formatting and file helpers that every package may import."""
