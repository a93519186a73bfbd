"""A Gaussian process model: kernels, mean, noise and likelihood as one tree of parameters."""

from collections.abc import Sequence

import numpy as np

from mercer.core.parameters import Assembly, Path, Slot, slots_of
from mercer.core.text import number, rounded
from mercer.gp.likelihood import LatentLikelihood
from mercer.gp.mean import MeanFunction
from mercer.gp.noise import Noise
from mercer.kernels.base import Kernel


class Model(Assembly):
    """Prior of one latent function, or of one for each class, and how measurements depend on it: by Gaussian ``noise``
    (regression) or by a ``likelihood`` of targets or labels; of more than two classes that is the softmax.

    Its parameters are those of its parts, in the order of the fields; optimisers see them as one vector
    (`core.coordinates`).
    """

    kernels: tuple[Kernel, ...]
    mean: MeanFunction = MeanFunction()
    noise: Noise | None = None
    likelihood: LatentLikelihood | None = None

    @property
    def kernel(self) -> Kernel:
        """The kernel, where there is one."""
        (kernel,) = self.kernels
        return kernel

    def prefix(self, path: Path) -> str:
        (field, place), *_ = path
        if field == "mean":
            return "mean_"
        return f"class{place}_" if field == "kernels" and len(self.kernels) > 1 else ""

    def table_slots(self) -> list[Slot]:
        """Parameters that `table_rows` has, in their order."""

        def hidden(slot: Slot) -> bool:
            """A mean that is zero, and the parameters of given basis functions."""
            given = slot.path[0][0] == "mean" and not slot.free
            return given and (slot.field != "constant" or slot.value == 0)

        return [slot for slot in slots_of(self) if not hidden(slot)]

    def table_rows(self, classes: Sequence[object] = ()) -> list[list[str]]:
        """Name and value of every parameter, to be printed: of variances of the rows, the mean; without a mean that is
        always zero. Kernels of several ``classes`` are distinguished by these."""
        rows = []
        for slot in self.table_slots():
            (field, place), *_ = slot.path
            prefix, name = self.prefix(slot.path), slot.name
            if field == "kernels" and prefix and classes:
                name = f"{classes[place or 0]}: {name.removeprefix(prefix)}"
            of_rows = field == "noise" and self.noise is not None and not self.noise.size
            rows.append([name, number(rounded(np.mean(slot.value) if of_rows else slot.value))])
        return rows
