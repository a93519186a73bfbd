"""Every error mercer raises on purpose. Each message says what was expected, what came and what to try."""


class MercerError(Exception):
    """The root of all errors raised by mercer."""


class InvalidKernelError(MercerError, ValueError):
    """A construction that does not give a positive semidefinite kernel; the message names the broken rule."""


class ParameterError(MercerError, ValueError):
    """A parameter that does not exist, or a value outside the parameter's range."""


class DataError(MercerError, ValueError):
    """Input data that cannot be used: wrong shape, wrong type, missing or infinite values."""


class DataTypeError(DataError, TypeError):
    """Input data of a kind that is no number at all."""


class NotEnoughMemoryError(MercerError, MemoryError):
    """Work refused before it began, because it would not fit in memory; the message has the figures."""


class ForkedProcessError(MercerError, RuntimeError):
    """Arithmetic asked of a forked process, in which it would wait for ever for threads that only its parent has."""


class InfiniteFeaturesError(MercerError, ValueError):
    """Explicit features were asked of a kernel whose feature space is not finite."""


class FileError(MercerError, ValueError):
    """A file that cannot be written or read: missing, damaged, newer than this version, or no model of mercer's."""


class NotPositiveDefiniteError(MercerError, ArithmeticError):
    """A covariance matrix that stays indefinite beyond what rounding explains."""


class NumericalWarning(UserWarning):
    """An answer that is less accurate than usual; the message says why and by how much."""


class InterruptedFitWarning(UserWarning):
    """A fit was interrupted; the model holds the best parameters found until then."""


class ModelWarning(UserWarning):
    """A model that is allowed, but hardly what was meant."""
