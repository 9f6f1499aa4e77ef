"""All GPU cases: importing this package fills `lab.CASES`."""

from . import interface, kernels, networks, order, weights  # noqa: F401
