"""Summaries to read."""
