"""Why a kernel is valid: a proof assembled from the construction rules (PRML 6.13-6.22) as the kernel is built.

A kernel is valid when every Gram matrix it gives is positive semidefinite (PRML 6.2). Nobody can check that by
looking at matrices, so each construction states the rule it rests on and the kernels it rests on in turn.
"""

import dataclasses
import textwrap

from mercer.core.text import tree


@dataclasses.dataclass(frozen=True, repr=False)
class Proof:
    """One step: the rule, what it says, the expression it is about, and the steps it rests on.

    ``str`` gives it in one line, "6.17 from 6.23 and 6.20"; ``tree()`` draws it.
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
        """The proof as a tree, one rule a line."""
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
    """What is known: ``valid`` is True (proved), False (known not to be), or None (unknown).

    ``conditional`` is the order m of a conditionally positive definite kernel: the quadratic form is non-negative
    on coefficients that annihilate polynomials of degree below m. Such a kernel is not valid as it stands.
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


def proved(rule: str, says: str, expression: str, *premises: Proof) -> Validity:
    return Validity(True, Proof(rule, says, expression, premises))


def gaussian_proof(expression: str) -> Validity:
    return proved("6.23", "Gaussian: 6.14 and 6.16 applied to a linear kernel, as in 6.25", expression)


def derive(rule: str, says: str, expression: str, premises: list[Validity], *, keeps_failure: bool = False) -> Validity:
    """What a construction knows from the validity of its parts.

    All parts valid: valid, by the rule. Otherwise the rule proves nothing and the answer is unknown, unless the
    construction cannot mend a failure (``keeps_failure``: scaling an indefinite kernel leaves it indefinite).
    """
    steps = tuple(p.proof for p in premises)
    if all(premises):
        return Validity(True, Proof(rule, says, expression, steps))
    if keeps_failure and len(premises) == 1:
        return Validity(premises[0].valid, Proof(rule, f"would be {says}; it is not one", expression, steps),
                        premises[0].conditional)  # fmt: skip
    orders = [p.conditional or 0 for p in premises if p or p.conditional is not None]
    if rule in ("6.17", "6.21") and len(orders) == len(premises):
        says = "a sum of conditionally valid kernels is so, of the highest order"
        return Validity(False, Proof(rule, says, expression, steps), max(orders))
    return Validity(None, Proof(rule, f"would be {says}; not all are known to be", expression, steps))
