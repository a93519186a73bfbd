"""scikit-learn's own checks of every estimator."""

import pytest
from sklearn.utils.estimator_checks import parametrize_with_checks

import mercer as mc

ESTIMATORS = [
    mc.BayesianLinearRegression(),
    mc.GaussianMixtureRegressor(),
    mc.GaussianProcessClassifier(progress=False),
    mc.GaussianProcessRegressor(progress=False),
    mc.KernelFisherDiscriminant(),
    mc.KernelNeighborsClassifier(),
    mc.KernelPCA(),
    mc.KernelPerceptron(),
    mc.KernelRidge(),
    mc.NadarayaWatson(progress=False),
    mc.ParzenDensity(),
    mc.RBFInterpolator(),
    mc.RBFNetwork(),
]


@pytest.mark.filterwarnings("ignore")  # theirs, about data they make on purpose
@parametrize_with_checks(ESTIMATORS)
def test_scikit_learn_contract(estimator, check):
    check(estimator)
