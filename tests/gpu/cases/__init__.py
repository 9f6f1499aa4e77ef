"""All GPU cases: importing this package fills `lab.CASES`."""

from . import allocators, interface, kernels, networks, order, processes, weights  # noqa: F401
