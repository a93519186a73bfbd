"""Building a kernel, and why it is valid.

Monthly measurements: a slow trend, a yearly pattern that changes over the decades, an effect of temperature, noise.
Each line is one idea; the sum is the model; the proof comes with it.
"""

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd

import mercer as mc
from mercer import kernels as k

trend = 25.0 * k.RBF(lengthscale=30.0, name="trend")
season = (4.0 * k.RBF(lengthscale=40.0) * k.Periodic(period=1.0, lengthscale=1.2)).named("season")
warmth = 0.05 * k.Linear(name="warmth").on("temperature")
kernel = (trend + season).on("year") + warmth + k.White(0.2)

print(kernel)
print()
print(kernel.parameters)
print()
print(kernel.validity)
print()

years = np.arange(0, 20, 1 / 12)
frame = pd.DataFrame({"temperature": 8 * np.sin(2 * np.pi * years), "year": 2000 + years})
print(mc.check_kernel(kernel, frame))

# What the rules cannot prove, they do not claim.
print()
print((k.RBF() + k.Sigmoid()).validity)
print()
print(k.ThinPlate().validity)
try:
    k.RBF() - 0.5 * k.RBF(lengthscale=2.0)
except mc.InvalidKernelError as error:
    print(f"\n{error}")

figure, (left, right) = plt.subplots(1, 2, figsize=(11, 4), width_ratios=(2, 1), layout="constrained")
left.plot(frame["year"], mc.GP(kernel).sample(frame, size=3, seed=0).T, lw=1)
left.set(xlabel="year", ylabel="measurement", title="three functions that this kernel can imagine", xlim=(2000, 2020))
left.set_xticks(range(2000, 2021, 4))
mc.plot.gram(kernel, frame, ax=right).set_title("its Gram matrix")
plt.show()
