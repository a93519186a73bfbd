"""Posteriors of latent functions behind class labels. Importing the package registers the methods of `methods`."""

from mercer.inference import methods  # noqa: F401
