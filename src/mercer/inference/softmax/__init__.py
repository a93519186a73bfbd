"""More than two classes: C latent functions f_c and p(class c | f) = softmax(f)_c (PRML 4.104, 6.4.5; RW06 3.5).

The functions are independent Gaussian processes a priori; the softmax couples them, one row at a time, through
W = diag(s) - s s^T / sum(s): at a mode s is pi = softmax(f), and its sum one. Arrays over classes and rows are (C, n).
No matrix of size nC x nC is ever formed: O(C n^3) flops, and C + 2 matrices n x n beside those of the priors.
"""
