"""Posteriors of latent functions seen through a likelihood. Importing it registers the inferences of `methods`."""

from mercer.inference import methods  # noqa: F401
