"""Word counts from the formula: a dictionary for each document, and a sum over the words of two."""

import math
import re

import numpy as np


def words_of(document, ngrams=(1, 1), stop_words=(), pattern=r"(?u)\b\w\w+\b"):
    """Words of a text or a list of words, as tuples of adjacent ones."""
    tokens = re.findall(pattern, document.lower()) if isinstance(document, str) else list(document)
    tokens = [token for token in tokens if token not in stop_words]
    sizes = range(ngrams[0], ngrams[1] + 1)
    return [tuple(tokens[i : i + size]) for size in sizes for i in range(len(tokens) - size + 1)]


def features(documents, train, idf=True, sublinear=False, binary=False, min_count=0, max_share=1.0, **reading):
    """Weights of the words of each document, as dictionaries; ``train`` are the documents that weights are from."""
    corpus = [set(words_of(document, **reading)) for document in train]
    n, out = len(corpus), []
    for document in documents:
        words, weights = words_of(document, **reading), {}
        for word in set(words):
            df = sum(word in other for other in corpus)
            if df < min_count or df > max_share * n:
                continue
            tf = words.count(word)
            tf = 1.0 if binary else 1 + math.log(tf) if sublinear else tf
            weights[word] = tf * (math.log((1 + n) / (1 + df)) + 1 if idf else 1.0)
        out.append(weights)
    return out


def gram(X, Z=None, **settings):
    """Scalar products of the documents in X, the training rows, with those in Z."""
    Z = X if Z is None else Z
    A, B = features(X, X, **settings), features(Z, X, **settings)
    return np.array([[sum(a[word] * b[word] for word in a.keys() & b.keys()) for b in B] for a in A])
