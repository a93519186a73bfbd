"""The scripts of benchmarks/ import, and what they name of mercer exists, also in functions that are not run here."""

import ast
import importlib
import inspect
import sys
from pathlib import Path

import numpy as np
import pytest

import mercer as mc

SCRIPTS = sorted((Path(__file__).parents[1] / "benchmarks").glob("*.py"))


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.stem)
def test_a_benchmark_imports(script, monkeypatch):
    _imported(script.stem, monkeypatch)


def _imported(name, monkeypatch):
    """A script as a module; the test is skipped where it imports what is not installed."""
    monkeypatch.syspath_prepend(SCRIPTS[0].parent)
    before = set(sys.modules)
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if _ours(error.name) or error.name in {each.stem for each in SCRIPTS}:
            raise
        pytest.skip(f"{error.name} is not installed")
    finally:
        for name in {each.stem for each in SCRIPTS} & set(sys.modules) - before:
            del sys.modules[name]


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.stem)
def test_what_a_benchmark_names_of_mercer_exists(script):
    assert list(_unknown(ast.parse(script.read_text()))) == []


def _unknown(tree):
    """What is named of mercer and does not exist: imports, attributes of modules, and keywords of calls."""
    texts = [node.value for node in ast.walk(tree) if isinstance(node, ast.Constant) and isinstance(node.value, str)]
    programs = [ast.parse(text) for text in texts if "\nimport mercer" in text or "\nfrom mercer" in text]
    nodes = [node for each in (tree, *programs) for node in ast.walk(each)]
    known = {}
    for node in nodes:
        if isinstance(node, ast.Import):
            named = [(name.asname, importlib.import_module(name.name)) for name in node.names if _ours(name.name)]
        elif isinstance(node, ast.ImportFrom) and _ours(node.module):
            source = importlib.import_module(node.module)
            yield from (f"{node.module}.{name.name}" for name in node.names if not hasattr(source, name.name))
            named = [(name.asname or name.name, getattr(source, name.name, None)) for name in node.names]
        else:
            continue
        known |= {name: found for name, found in named if found is not None}
    for node in nodes:
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in known:
            if not hasattr(known[node.value.id], node.attr):
                yield ast.unparse(node)
        elif isinstance(node, ast.Call):
            yield from (f"{ast.unparse(node.func)}({name}=...)" for name in _unknown_keywords(node, known))


def _ours(module):
    return module is not None and module.partition(".")[0] == "mercer"


def _unknown_keywords(call, known):
    if isinstance(call.func, ast.Attribute) and isinstance(call.func.value, ast.Name):
        called = getattr(known.get(call.func.value.id), call.func.attr, None)
    else:
        called = known.get(call.func.id) if isinstance(call.func, ast.Name) else None
    if called is None:
        return []
    accepted = inspect.signature(called).parameters
    if any(each.kind is each.VAR_KEYWORD for each in accepted.values()):
        return []
    return [each.arg for each in call.keywords if each.arg is not None and each.arg not in accepted]


def test_what_does_not_exist_is_named():
    code = """
import mercer as mc
from mercer import kernels as k
from mercer.gp.noise import LearnedNoise, lost
script = "import sys\\nimport mercer as m\\nm.gone"
mc.GaussianProcessRegressor(k.RBF(lengthscale=1.0), noises=0.1), k.RBFF(2.0)
"""
    wrong = ["mercer.gp.noise.lost", "k.RBFF", "m.gone", "mc.GaussianProcessRegressor(noises=...)"]
    assert sorted(_unknown(ast.parse(code))) == sorted(wrong)


def test_the_benchmark_of_optima_climbs(monkeypatch):
    optima = _imported("optima", monkeypatch)
    monkeypatch.setattr(optima, "CLIMBS", 1)
    rng = np.random.default_rng(0)
    X = rng.normal(size=(25, 1))
    y = 3 + 2 * np.sin(2 * X[:, 0]) + 0.1 * rng.normal(size=25)
    model = mc.GaussianProcessRegressor(progress=False).fit(X, y)
    objective = optima.objective_of(model, X, y)
    calibration = np.log(model.calibration_) * objective.amplitude()
    evidence = model.log_marginal_likelihood(model.theta_ - calibration)
    assert evidence == pytest.approx(model.optima_[0].value, abs=0.5)
    assert optima.best_of_random(objective, rng) < evidence + 0.5
    assert float(optima.best_member(model.choice_, objective.n)) == pytest.approx(evidence, abs=5.0)
