"""Molecules as graphs."""

from collections.abc import Iterable
from typing import Any

from mercer.core.errors import MercerError, ObjectError


def from_smiles(smiles: Iterable[str], hydrogens: bool = False) -> list[Any]:
    """Convert SMILES to graphs of networkx, for kernels on graphs: ``k.WeisfeilerLehman(3)(from_smiles(smiles))``.

    The label of a node is the symbol of its element, such as "C" or "Cl", that of an edge its bond: "single", "double",
    "triple", "aromatic". ``hydrogens`` adds those that SMILES leaves out. Needs RDKit: ``pip install
    mercer[molecules]``.
    """
    try:
        import networkx
        from rdkit import Chem, rdBase
    except ImportError as error:
        raise MercerError(
            f"from_smiles needs RDKit and networkx, and {error.name} is not installed. Try pip install "
            "'mercer[molecules]'."
        ) from None
    graphs = []
    for row, text in enumerate(smiles):
        if not isinstance(text, str):
            raise ObjectError(row, f"a SMILES string was expected; got {text!r} ({type(text).__name__}).")
        with rdBase.BlockLogs():  # the error below says which row it is
            molecule = Chem.MolFromSmiles(text)
        if molecule is None:
            raise ObjectError(row, f"{text!r} is not a valid SMILES string. Correct it, or drop the row.")
        molecule = Chem.AddHs(molecule) if hydrogens else molecule
        graph = networkx.Graph()
        graph.add_nodes_from((atom.GetIdx(), {"label": atom.GetSymbol()}) for atom in molecule.GetAtoms())
        graph.add_edges_from(
            (bond.GetBeginAtomIdx(), bond.GetEndAtomIdx(), {"label": str(bond.GetBondType()).lower()})
            for bond in molecule.GetBonds()
        )
        graphs.append(graph)
    return graphs
