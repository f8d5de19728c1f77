"""howsmooth: how smooth is attention? Measure, bound and attack its Lipschitz constant."""

from howsmooth.lazy_names import names_of_stub
from howsmooth.threads import wait_passively

__version__ = "0.2.0"

wait_passively()

__all__, __getattr__, __dir__ = names_of_stub(__name__, __file__)
