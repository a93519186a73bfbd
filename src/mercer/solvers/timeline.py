"""Kernels of one input met with times: what `linalg.statespace` needs, as compiled programs of the parameters."""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from mercer import gram
from mercer.core.coordinates import Layout, to_free
from mercer.core.errors import DataError, ParameterError
from mercer.core.inputs import Inputs, as_matrix, select_columns
from mercer.core.parameters import bare
from mercer.core.precision import Array, concretely, double
from mercer.kernels.algebra import Sum, split_white
from mercer.kernels.base import Kernel
from mercer.kernels.states import States, refusing, why_none
from mercer.kernels.substitution import Span
from mercer.linalg.statespace import Chain, Matrices, piece_rows


def form_of(kernel: Kernel) -> States | None:
    """State-space form of a kernel at its parameters."""
    with concretely():
        return kernel.state_space()


def required_form(kernel: Kernel) -> States:
    """State-space form of a kernel at its parameters. Raises `ParameterError` where there is none."""
    form = form_of(kernel)
    if form is None:
        raise ParameterError(f"solver='statespace' {_without_form(kernel)}. Use solver='auto'.")
    return form


def _without_form(kernel: Kernel) -> str:
    with concretely():
        part = refusing(kernel)
        why = why_none(part)
    return f"needs a kernel of time with a state-space form, such as Matern of half-integer order; {part!r} {why}"


def times_of(form: States, X: Inputs) -> np.ndarray:
    """The one column that the kernel reads: (n,). Raises `DataError` where there are more, or at times where the kernel
    has no values."""
    t = _column(form, X)
    for check in form.checks:
        check(t)
    return t


def _column(form: States, X: Inputs) -> np.ndarray:
    found: np.ndarray | None = None
    for chain in form.columns or [()]:
        part = gram.raw(X)
        for selection in chain:
            part = select_columns(part, slice(*selection) if isinstance(selection, Span) else selection)
        values = as_matrix(part)
        if values.shape[1] != 1:
            raise DataError(f"one input column was expected, the time; got {values.shape[1]}.")
        if found is not None and not np.array_equal(found, values[:, 0]):
            raise DataError("the terms of the kernel read different columns.")
        found = values[:, 0]
    assert found is not None
    return np.asarray(found, dtype=float)


def refusal(kernel: Kernel, X: Inputs) -> str | None:
    """Why there is no recursion over these rows, as the end of a sentence; None if there is."""
    if kernel.reads == "objects" or kernel.needs_fit:
        return f"is for inputs of one column of numbers, the time; {kernel!r} reads other objects"
    form = form_of(kernel)
    if form is None:
        return _without_form(kernel)
    try:
        _column(form, X)
    except DataError as error:
        return f"is for one input column, the time: {str(error).rstrip('.')}"
    try:
        times_of(form, X)
    except DataError as error:
        return f"cannot take these times: {str(error).rstrip('.')}"
    return None


class Timeline:
    """A kernel's matrices at any times, for many values of its parameters."""

    def __init__(self, kernel: Kernel, n: int) -> None:
        self.kernel, self.layout, self.n = kernel, Layout.of(kernel), n
        self._leaves = [np.asarray(leaf) for leaf in jax.tree.leaves(bare(kernel))]
        self.form = required_form(kernel)

    def __enter__(self) -> "Timeline":
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def at(self, theta: np.ndarray | None = None) -> "At | None":
        """At these parameters, in free coordinates; None where the form has too many states."""
        theta = np.asarray(to_free(self.kernel) if theta is None else theta, dtype=float)
        order, groups = self.form.order, self.form.groups
        if self.form.accuracy is not None:  # the number of states depends on the parameters
            tree = jax.tree.unflatten(self.layout.structure, self.layout.leaves_at(theta, self._leaves))
            form = form_of(tree)
            if form is None:
                return None
            order, groups = form.order, form.groups
        return At(self, theta, order, groups)


class At:
    """`Timeline` at some parameters."""

    def __init__(self, line: Timeline, theta: np.ndarray, order: Any, groups: tuple[tuple[int, int], ...]) -> None:
        self.theta, self._leaves = theta, line._leaves
        self._programs = _programs(line.layout, order)
        self.sizes = np.array([size for count, size in groups for _ in range(count)], dtype=np.int64)
        self.chain = Chain(self.sizes, self.matrices, piece_rows(int(self.sizes.sum()), line.n))

    @functools.cached_property
    def white(self) -> float:
        """Variance of the kernel's white noise."""
        with double():
            return float(self._programs["white"](self.theta, self._leaves))

    def _padded(self, values: np.ndarray) -> np.ndarray:
        size = max(self.chain.piece, 1 << max(len(values) - 1, 0).bit_length())
        if len(values) == size:
            return values
        out = np.zeros((size, *values.shape[1:]))
        out[: len(values)] = values
        return out

    def matrices(self, t: np.ndarray, gaps: np.ndarray) -> Matrices:
        n = len(t)
        with double():
            found = self._programs["matrices"](self.theta, self._leaves, self._padded(t), self._padded(gaps))
            return Matrices(*(np.asarray(part)[:n] for part in found))

    def pull(self, t: np.ndarray, gaps: np.ndarray, bars: Matrices) -> np.ndarray:
        """Gradient in theta, from that in the matrices: (p,)."""
        with double():
            args = (self._padded(part) for part in (t, gaps, *bars))
            return np.asarray(self._programs["pull"](self.theta, self._leaves, *args))

    def pull_white(self, weight: float) -> np.ndarray:
        """Gradient in theta of ``weight`` times the white noise: (p,)."""
        with double():
            return weight * np.asarray(self._programs["pull_white"](self.theta, self._leaves))


@functools.lru_cache(maxsize=256)
def _programs(layout: Layout, order: Any) -> dict[str, Callable]:
    def matrices(theta: Array, leaves: list[Any], t: Array, gaps: Array) -> tuple[jax.Array, ...]:
        form = layout.tree(theta, leaves).state_space(order)
        n = len(t)

        def joined(parts: tuple[jax.Array, ...]) -> jax.Array:
            return jnp.concatenate([jnp.zeros((n, 0)), *(part.reshape(n, -1) for part in parts)], axis=1)

        return joined(form.transition(gaps)), joined(form.left(t)), joined(form.right(t))

    def pull(theta: Array, leaves: list[Any], t: Array, gaps: Array, *bars: Array) -> jax.Array:
        def total(theta: Array) -> jax.Array:
            found = matrices(theta, leaves, t, gaps)
            return sum((jnp.vdot(bar, part) for bar, part in zip(bars, found, strict=True)), jnp.zeros(()))

        return jax.grad(total)(theta)

    def white(theta: Array, leaves: list[Any]) -> jax.Array:
        return jnp.reshape(jnp.asarray(layout.tree(theta, leaves).state_space(order).white, dtype=float), ())

    programs: dict[str, Callable] = {"matrices": matrices, "pull": pull, "white": white, "pull_white": jax.grad(white)}
    return {name: jax.jit(program) for name, program in programs.items()}


def states_of_terms(kernel: Kernel) -> list[tuple[slice, float]]:
    """States of each of the `terms_of` a kernel, in order, and the variance of the white noise in it."""
    found, start = [], 0
    for part in kernel.parts if isinstance(kernel, Sum) else (kernel,):
        size, latent = required_form(part).size, split_white(part)[0]
        if latent is not None:
            found.append((slice(start, start + size), float(required_form(latent).white)))
        start += size
    return found
