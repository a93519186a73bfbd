"""Small real data sets for examples, free to use for any purpose.

>>> from mercer import datasets
>>> datasets.names()
['co2', 'diabetes', 'flights']
>>> data = datasets.load("co2")
>>> data.X.shape, data.y.shape, data.feature_names, data.target_name
((521, 1), (521,), ['year'], 'co2')

`Chunks` are rows of a file, or of any iterator, that need not fit in memory.

Molecules as graphs, where RDKit is installed: ``datasets.from_smiles(["CCO", "c1ccccc1"])``.
"""

from mercer.datasets.bundled import Dataset, load, names
from mercer.datasets.chunks import Chunks
from mercer.datasets.molecules import from_smiles

__all__ = ["Chunks", "Dataset", "from_smiles", "load", "names"]
