"""scikit-learn's own checks of every estimator."""

import pytest
from sklearn.utils.estimator_checks import parametrize_with_checks

import mercer as mc

ESTIMATORS = [mc.GaussianProcessRegressor(progress=False), mc.BayesianLinearRegression()]


@pytest.mark.filterwarnings("ignore")  # theirs, about data they make on purpose
@parametrize_with_checks(ESTIMATORS)
def test_scikit_learn_contract(estimator, check):
    check(estimator)
