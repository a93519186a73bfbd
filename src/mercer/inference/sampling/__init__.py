"""Markov chain Monte Carlo: posterior draws of latent functions, alone or together with kernel parameters.

Moves are made in coordinates z in which a Gaussian `reference` is N(0, I): the prior, f = R z with R R^T = K, or the
prior times Gaussian sites exp(nu f - S f^2 / 2), as found by Laplace's method or expectation propagation. The rest of
the posterior, p(t | f) divided by the sites, is nearly constant, so moves along ellipses, on which the reference is
constant, go far. The posterior is the same for any sites; good ones make mixing fast.

A likelihood here is a function of k latent vectors at once, (k, n) or (k, n, C), that returns ln p(t | f), (k,), or a
tuple of that and its gradient in f. With a gradient, moves are Hamiltonian; without, elliptical slices.
"""
