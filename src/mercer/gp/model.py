"""A Gaussian process model: kernels, mean, noise and likelihood as one tree of parameters."""

from mercer.core.parameters import Assembly, Path
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
        (field, number), *_ = path
        return f"class{number}_" if field == "kernels" and len(self.kernels) > 1 else ""
