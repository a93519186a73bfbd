"""Layout of a report, and the suggestions that regression and classification share."""

import dataclasses
from typing import Any

from mercer.core.text import listed, table
from mercer.learning.chains import problems
from mercer.learning.columns import Columns
from mercer.models.doubt import about_doubt, parameter_table
from mercer.report.diagnostics import Finding

HELD_OUT = "Held-out rows"  # section heading
MAX_DROPPED_SHARE = 0.05  # of the variance of y; an input that explains less can be dropped


@dataclasses.dataclass(frozen=True)
class Report:
    """Sections by their headings; prints as text.

    ``suggestions`` are sentences, the most important first; ``findings`` are the objects behind those that come from
    leave-one-out or held-out predictions. ``calibration`` is that of the leave-one-out predictions. ``basis`` says what
    was checked, and is printed if nothing looks wrong.
    """

    title: str
    sections: dict[str, str]
    suggestions: list[str]
    calibration: Any
    relevance: Any
    findings: tuple[Finding, ...] = ()
    basis: str = ""

    def __str__(self):
        parts = [self.title, "=" * len(self.title)]
        for heading, text in self.sections.items():
            parts += ["", heading, "-" * len(heading), text]
        parts += ["", "Suggestions", "-----------"]
        parts += [f"- {text}" for text in self.suggestions] or [f"none: nothing looks wrong. {self.basis}".strip()]
        return "\n".join(parts)

    __repr__ = __str__


def in_order(findings) -> list[Finding]:
    """Warnings before notes."""
    return sorted(findings, key=lambda finding: finding.severity != "warning")


def entries(rows) -> str:
    """Lines of a name and its value."""
    return "\n".join(f"{name:<27}{value}" for name, value in rows)


def optima(model) -> str:
    """Table of the optima found."""
    if not model.optima_:
        return "nothing was learned: parameters are as given."
    best = model.optima_[0].value
    rows = [
        [
            "chosen" if i == 0 else "",
            f"{found.value:.3f}",
            f"{found.value - best:.3f}" if i else "",
            f"{found.times_found}",
            "yes" if found.converged else "no",
            found.start,
        ]
        for i, found in enumerate(model.optima_)
    ]
    return table(["", "log evidence", "difference", "times found", "converged", "start"], rows)


def parameter_section(model, classes=()) -> str:
    """Table of parameters, with priors and intervals where there are any, and how they were integrated over."""
    return "\n\n".join([parameter_table(model, model._model(), classes), *about_doubt(model)])


def columns(model) -> dict[str, str]:
    """Section on how columns were read, where they are not all numbers."""
    found = getattr(model, "columns_", None)
    return {"Columns": str(found)} if isinstance(found, Columns) and not found.all_numbers else {}


def about_learning(model) -> list[str]:
    """Suggestions about convergence and competing optima."""
    found = []
    if model.optima_ and not model.optima_[0].converged:
        found.append("learning stopped before it converged: raise max_iterations, or fit again.")
    if model.theta_posterior_ is not None:
        return found + [f"sampling of the parameters: {problem}." for problem in problems(model.theta_posterior_)]
    if len(model.optima_) > 1 and model.optima_[1].value > model.optima_[0].value - 2:
        found.append("another optimum is nearly as good: other parameters explain the data as well; see optima_.")
    return found


def about_inputs(relevance, but=()) -> list[str]:
    """Suggest dropping inputs that certainly explain little, except those in ``but``, which have a finding."""
    if relevance is None or relevance.irrelevant.all():
        return []
    # With few rows an input may matter without a significant share: its upper limit has to be small.
    small = relevance.irrelevant & (relevance.effect + 2 * relevance.error < MAX_DROPPED_SHARE)
    names = [name for name, out in zip(relevance.names, small, strict=True) if out and name not in but]
    if not names:
        return []
    them = "it" if len(names) == 1 else "them"
    return [f"{listed(names)} explain{'s' * (len(names) == 1)} little of y: dropping {them} should change little."]
