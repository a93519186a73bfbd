"""Small real data sets for examples, free to use for any purpose.

>>> from mercer import datasets
>>> datasets.names()
['co2', 'diabetes', 'flights']
>>> data = datasets.load("co2")
>>> data.X.shape, data.y.shape, data.feature_names, data.target_name
((521, 1), (521,), ['year'], 'co2')
"""

from mercer.datasets.bundled import Dataset, load, names

__all__ = ["Dataset", "load", "names"]
