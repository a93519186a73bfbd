"""Kernels from generative models: densities, mixtures, latent variables, hidden Markov models and Fisher scores."""
