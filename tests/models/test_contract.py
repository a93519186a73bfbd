"""scikit-learn's own checks of every estimator."""

import pytest
from sklearn.utils.estimator_checks import parametrize_with_checks

import mercer as mc

ESTIMATORS = [
    mc.BayesianLinearRegression(),
    mc.GaussianMixtureRegressor(),
    mc.GaussianProcessClassifier(progress=False),
    mc.GaussianProcessLatentVariables(progress=False, init="pca", max_iterations=5),
    mc.GaussianProcessRegressor(progress=False),
    mc.GenerativeTopographicMapping(n_points=8, max_iterations=10, progress=False),
    mc.KernelFisherDiscriminant(),
    mc.KernelNeighborsClassifier(),
    mc.KernelPCA(),
    mc.KernelPerceptron(),
    mc.KernelRidge(),
    mc.MultiOutputGaussianProcessRegressor(mc.kernels.RBF(), progress=False),
    mc.NadarayaWatson(progress=False),
    mc.ParzenDensity(),
    mc.RBFInterpolator(),
    mc.RBFNetwork(),
]


# Columns of a frame are found by name, in any order, where scikit-learn wants another order refused. What else that
# check asks for is in test_frames.py.
EXPECTED = {"check_dataframe_column_names_consistency": "columns in another order are put in order, not refused"}


@pytest.mark.filterwarnings("ignore")  # theirs, about data they make on purpose
@parametrize_with_checks(ESTIMATORS, expected_failed_checks=lambda estimator: EXPECTED)
def test_scikit_learn_contract(estimator, check):
    check(estimator)
