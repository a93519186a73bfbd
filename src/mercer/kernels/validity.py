"""Proofs that kernels are valid, assembled from the construction rules (PRML 6.13-6.22) as a kernel is built.

A kernel is valid if every Gram matrix is positive semidefinite (PRML 6.2). That cannot be tested on matrices, so each
construction states its rule and the validity of the kernels it is made from.
"""

import dataclasses
import textwrap

from mercer.core.text import tree


@dataclasses.dataclass(frozen=True, repr=False)
class Proof:
    """One step of a proof: the rule, its statement, the expression it applies to, and its premises.

    ``str`` gives one line, "6.17 from 6.23 and 6.20"; ``tree()`` draws it.
    """

    rule: str
    says: str
    expression: str
    premises: tuple["Proof", ...] = ()

    def __str__(self) -> str:
        if not self.premises:
            return self.rule
        parts = [f"({p})" if p.premises else str(p) for p in self.premises]
        listed = parts[0] if len(parts) == 1 else f"{', '.join(parts[:-1])} and {parts[-1]}"
        return f"{self.rule} from {listed}"

    __repr__ = __str__

    def tree(self) -> str:
        """The proof as a tree, one rule per line."""
        return tree(
            self,
            label=lambda p: f"[{p.rule}] {textwrap.shorten(p.expression, 60, placeholder=' ...')}: {p.says}",
            children=lambda p: p.premises,
        )

    @property
    def rules(self) -> list[str]:
        """Every rule used, in the order of the tree."""
        return [self.rule, *[rule for p in self.premises for rule in p.rules]]


@dataclasses.dataclass(frozen=True, repr=False)
class Validity:
    """Whether a kernel is valid: ``valid`` is True (proved), False (disproved), or None (unknown).

    ``conditional`` is the order m of a conditionally positive definite kernel: the quadratic form is non-negative
    on coefficients that annihilate polynomials of degree below m. Such a kernel is not valid by itself.
    """

    valid: bool | None
    proof: Proof
    conditional: int | None = None

    def __bool__(self) -> bool:
        return self.valid is True

    @property
    def verdict(self) -> str:
        if self.conditional is not None:
            return f"conditionally valid, of order {self.conditional}"
        return {True: "valid", False: "not valid: indefinite", None: "unknown"}[self.valid]

    def __str__(self) -> str:
        return f"{self.verdict}{', by' if self else ':'} {self.proof}\n{self.proof.tree()}"

    __repr__ = __str__


def proved(rule: str, says: str, expression: str) -> Validity:
    return Validity(True, Proof(rule, says, expression))


def gaussian_proof(expression: str) -> Validity:
    return proved("6.23", "Gaussian: 6.14 and 6.16 applied to a linear kernel, as in 6.25", expression)


def derive(rule: str, says: str, expression: str, premises: list[Validity], *, keeps_failure: bool = False) -> Validity:
    """Validity of a construction from that of its parts.

    If all parts are valid, it is valid, by the rule. Otherwise the rule proves nothing and validity is unknown, unless
    the construction preserves invalidity (``keeps_failure``: a scaled indefinite kernel is indefinite).
    """
    steps = tuple(p.proof for p in premises)
    if all(premises):
        return Validity(True, Proof(rule, says, expression, steps))
    if keeps_failure and len(premises) == 1:
        return Validity(premises[0].valid, Proof(rule, f"would be {says} if its part were valid", expression, steps),
                        premises[0].conditional)  # fmt: skip
    orders = [p.conditional or 0 for p in premises if p or p.conditional is not None]
    if rule in ("6.17", "6.21") and len(orders) == len(premises):
        says = "a sum of conditionally valid kernels, of the highest order among them"
        return Validity(False, Proof(rule, says, expression, steps), max(orders))
    return Validity(None, Proof(rule, f"would be {says} if all were known to be valid", expression, steps))
