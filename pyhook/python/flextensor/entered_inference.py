"""What the configuration asks to be told when a plan comes into force: tables (`enable_diagnostics`) and a dump of what
components were made with (`enable_instrumentation`)."""

import logging
import tempfile
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from flextensor.managed_model import ManagedModel

_LOG = logging.getLogger("flextensor")


def say(managed: "ManagedModel") -> None:
    """Logs and writes what is asked for. What cannot be told is said in one line; the model runs all the same."""
    try:
        if managed.config.enable_diagnostics and managed.session is not None:
            _log_tables(managed)
        if managed.config.enable_instrumentation:
            _dump(managed)
    except (OSError, RuntimeError, ValueError) as error:
        _LOG.warning("tables of %s cannot be shown: %s", managed.describe(), error)


def _log_tables(managed: "ManagedModel") -> None:
    from flextensor import applied_strategy, diagnostics, state_handler

    with tempfile.TemporaryDirectory(prefix="flextensor-") as folder:
        managed.session.save_profile(folder)
        state = state_handler.load(folder)
    weights = {name for name, _ in managed.model.named_parameters(remove_duplicate=False)}
    diagnostics.log_tables(
        applied_strategy.layers_of(state, weights),
        applied_strategy.link_of(state),
        managed.timing.profiled() if managed.timing is not None else {},
        state.result(),
        str(managed.config.load_strategy or "our planner"),
    )


def _dump(managed: "ManagedModel") -> None:
    from flextensor import instrumentation

    report = managed.session.report() if managed.session is not None else {}
    instrumentation.dump_to_directory(managed.config.instrumentation_output_dir, extra={"report": report})
