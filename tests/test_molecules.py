"""Molecules as graphs."""

import sys

import numpy as np
import pytest

from mercer import datasets
from mercer import kernels as k
from mercer.core.errors import MercerError, ObjectError


def test_smiles_become_graphs():
    pytest.importorskip("rdkit")
    ethanol, benzene, same = datasets.from_smiles(["CCO", "c1ccccc1", "OCC"])
    assert sorted(label for _, label in ethanol.nodes(data="label")) == ["C", "C", "O"]
    assert {label for *_, label in ethanol.edges(data="label")} == {"single"}
    assert {label for *_, label in benzene.edges(data="label")} == {"aromatic"}
    K = k.WeisfeilerLehman(3)([ethanol, benzene, same])
    assert K[0, 0] == K[0, 2] == K[2, 2]
    assert K[0, 1] == 2 * 6  # two carbons and six, which their neighbours tell apart
    (full,) = datasets.from_smiles(np.array(["CCO"]), hydrogens=True)
    assert len(full) == 9


def test_invalid_smiles_are_refused_by_row():
    pytest.importorskip("rdkit")
    with pytest.raises(ObjectError, match=r"row 1: 'C1CC' is not a valid SMILES string"):
        datasets.from_smiles(["CCO", "C1CC"])
    with pytest.raises(ObjectError, match=r"row 0: a SMILES string was expected; got None"):
        datasets.from_smiles([None])


def test_without_rdkit_it_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "rdkit", None)
    with pytest.raises(MercerError, match=r"rdkit is not installed. Try pip install 'mercer\[molecules\]'"):
        datasets.from_smiles(["CCO"])
