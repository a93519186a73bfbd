"""Linear operators: what is observed of a function, if not its value (Graepel 2003).

For ``operator=`` of `mercer.GP.condition` and of `GaussianProcessRegressor`. They add up and are multiplied by numbers
and by functions of the input; ``L @ M`` applies first M, then L.

>>> import mercer as mc
>>> from mercer.operators import Derivative, Value
>>> f = mc.GP(mc.kernels.RBF()).condition([0.0], [1.0], noise=1e-9)
>>> decay = f.condition([0.0, 0.5, 1.0, 1.5, 2.0], [0.0] * 5, noise=1e-9, operator=Derivative(0) + Value())
>>> decay.mean([1.0]).round(2)  # exp(-1)
array([0.37])
"""

from mercer.kernels.operators import Derivative, Integral, Linear, Operator, Value

__all__ = ["Derivative", "Integral", "Linear", "Operator", "Value"]
