"""What vLLM's worker, wherever it runs, is asked for at the end: the run report of a library in its process.

vLLM mixes this class into its worker by name (`worker_extension_cls`). It does nothing until it is asked.
"""

import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import telling


class EngineReport:
    """One more method of the worker."""

    def report_of_this_process(self) -> str | None:
        """The report as JSON text; None where no library keeps one."""
        report = telling.own_report()
        return None if report is None else json.dumps(report)
