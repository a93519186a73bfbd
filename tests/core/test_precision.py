"""Double precision inside, and the caller's JAX left as it was."""

import subprocess
import sys
import textwrap
import warnings

import jax
import jax.numpy as jnp
import numpy as np

import mercer as mc
from mercer import kernels as k


def test_importing_and_using_mercer_leaves_the_callers_precision_alone():
    # In a process of its own: what matters is the state of a program that has just imported the package.
    program = """
        import jax, jax.numpy as jnp, numpy as np
        before = jnp.sin(jnp.arange(4.0))
        compiled = jax.jit(lambda x: x * 2)
        assert compiled(before).dtype == jnp.float32
        import mercer as mc
        from mercer import kernels as k
        assert jnp.ones(3).dtype == jnp.float32, "import switched on double precision"
        K = (k.RBF() + k.Linear())(np.ones((4, 2)))
        assert K.dtype == np.float64
        g = mc.GP(k.Matern()).condition(np.arange(3.0), np.arange(3.0), noise=0.1)
        assert g.mean([0.5]).dtype == np.float64
        assert g.sample(np.linspace(0, 1, 600)).dtype == np.float64
        assert not jax.config.jax_enable_x64
        assert jnp.ones(3).dtype == jnp.float32, "use switched on double precision"
        assert compiled(before).dtype == jnp.float32
        assert jnp.array_equal(before, jnp.sin(jnp.arange(4.0)))
        print("ok")
    """
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", textwrap.dedent(program)], capture_output=True, text=True, timeout=120
    )
    assert done.stdout.strip() == "ok", done.stderr


def test_double_precision_really_is_computed():
    # 1 - k is about 5e-13 here: in single precision it would be 0 or 1e-7.
    K = k.RBF()(np.array([0.0, 1e-6]))
    assert K[0, 1] == np.exp(-0.5e-12) != 1.0


def test_traced_computations_follow_the_callers_setting():
    X = np.linspace(0, 1, 4)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert jax.jit(k.RBF())(X).dtype == jnp.float32
        assert jax.grad(lambda s: k.RBF(s)(X).sum())(1.0).dtype == jnp.float32
        assert k.RBF()(jnp.asarray(X)).dtype == jnp.float32
        with jax.enable_x64(True):
            assert jax.jit(k.RBF())(X).dtype == jnp.float64
            assert jax.grad(lambda s: k.RBF(s)(X).sum())(1.0).dtype == jnp.float64
            assert k.RBF()(jnp.asarray(X)).dtype == jnp.float64


def test_a_caller_who_works_in_double_precision_throughout():
    program = """
        import jax
        jax.config.update("jax_enable_x64", True)
        import numpy as np, jax.numpy as jnp
        from mercer import kernels as k
        assert k.RBF()(np.ones((3, 1))).dtype == np.float64
        assert jnp.ones(3).dtype == jnp.float64
        print("ok")
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(program)], capture_output=True, text=True, timeout=120)
    assert done.stdout.strip() == "ok", done.stderr


def test_seeds_do_not_depend_on_the_callers_precision():
    x = np.linspace(0, 1, 5)
    outside = mc.GP(k.RBF()).sample(x, seed=3)
    with jax.enable_x64(True):
        inside = mc.GP(k.RBF()).sample(x, seed=3)
    np.testing.assert_array_equal(outside, inside)
