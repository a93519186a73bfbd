"""Markov chain Monte Carlo: posterior draws of latent functions, alone or together with kernel parameters."""
