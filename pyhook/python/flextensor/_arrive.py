"""Brings the hook into a running program: the interposer executes this text, with `__file__` set, between
two bytecodes of the program.

It may run at any moment and many times, so it acts only once torch is fully imported, never prints and
never lets an exception out. What the hook then does is left to `hook.py`.
"""


def _arrive(text_file):
    import sys

    if sys is None:  # the interpreter is going down
        return
    for name in ("torch", "torch.nn", "torch.nn.modules.module", "torch.utils", "torch.cuda"):
        spec = getattr(sys.modules.get(name), "__spec__", None)
        if spec is None or getattr(spec, "_initializing", False):
            return
    try:
        import importlib.util
        import os

        folder = os.path.dirname(os.path.abspath(text_file))
        package = sys.modules.get("flextensor")
        if package is None:
            spec = importlib.util.spec_from_file_location(
                "flextensor", os.path.join(folder, "__init__.py"), submodule_search_locations=[folder]
            )
            package = importlib.util.module_from_spec(spec)
            sys.modules["flextensor"] = package
            try:
                spec.loader.exec_module(package)
            except BaseException:
                sys.modules.pop("flextensor", None)
                raise
        elif os.path.dirname(os.path.abspath(getattr(package, "__file__", None) or "")) != folder:
            raise ImportError("another package named flextensor is imported in this program")
        elif getattr(package.__spec__, "_initializing", False):
            return
        from flextensor import hook

        hook.arrive()
    except Exception as error:
        if not getattr(sys, "_flextensor_warned", False):
            sys._flextensor_warned = True
            import logging

            logging.getLogger("flextensor").warning(
                "no weight is streamed: the Python hook did not load: %s", error
            )


_arrive(__file__)
