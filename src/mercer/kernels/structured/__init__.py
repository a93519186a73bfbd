"""Kernels on objects that are not vectors: sets, sequences, text and graphs."""
