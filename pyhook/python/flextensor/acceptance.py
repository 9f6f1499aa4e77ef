"""What `offload()` looks at before it begins: models that cannot be offloaded, options without effect."""

import json
import logging

from torch import nn

from flextensor import _native
from flextensor.config import OffloadConfig

_LOG = logging.getLogger("flextensor")


def refuse_unfit(model: object) -> None:
    """TypeError for what is no module; RuntimeError for a wrapper of torch.compile, or a model that holds one."""
    if not isinstance(model, nn.Module):
        raise TypeError(f"offload() takes a torch.nn.Module, not {type(model).__name__}")
    for path, part in model.named_modules():
        if type(part).__name__ == "OptimizedModule":
            raise RuntimeError(
                f"{path or type(part).__name__} is compiled already: offload() the eager model, with compile_fn for "
                "units that are to be compiled, or with external_compile=True to compile them after INFERENCE"
            )


def say_without_effect(config: OffloadConfig) -> None:
    """Names the options that somebody set although they have no effect yet."""
    if not config.enabled:
        return
    waiting = {
        row[0]: row[5] for row in _native.option_table() if row[5] and row[5].startswith("NOT SUPPORTED YET")
    }
    default = OffloadConfig()
    for key in sorted(config.model_fields_set & waiting.keys()):
        if getattr(config, key) != getattr(default, key):
            _LOG.warning("%s = %s: %s", key, json.dumps(getattr(config, key), default=str), waiting[key])
