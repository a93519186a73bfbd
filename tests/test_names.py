"""The public names: all there, loaded when asked for, and estimators of scikit-learn from the start."""

import ast
import inspect
import subprocess
import sys
from pathlib import Path

import pytest
from sklearn.base import BaseEstimator

import mercer as mc

ESTIMATORS = [
    value for name in mc.__all__ if inspect.isclass(value := getattr(mc, name)) and hasattr(value, "get_params")
]


def test_names_have_the_homes_that_type_checkers_see():
    source = ast.parse(Path(mc.__file__).read_text())
    block = next(node for node in source.body if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING")
    seen = {name.name: node.module for node in block.body for name in node.names}
    assert seen == mc._HOMES | dict.fromkeys(mc._SUBMODULES, "mercer")
    assert sorted(seen) == sorted(mc.__all__)
    assert set(mc.__all__) <= set(dir(mc))
    with pytest.raises(AttributeError, match="no attribute 'Nothing'"):
        mc.Nothing  # noqa: B018


def test_importing_is_light():
    code = "import sys, mercer; print([name for name in ('jax', 'scipy', 'sklearn', 'pandas') if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_estimators_are_those_of_scikit_learn_right_after_import():
    code = "import mercer, sklearn.base; print(isinstance(mercer.KernelRidge(), sklearn.base.BaseEstimator))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "True"


@pytest.mark.parametrize("kind", ESTIMATORS)
def test_notebooks_show_estimators(kind):
    assert issubclass(kind, BaseEstimator)
    assert kind.__name__ in kind()._repr_html_()
