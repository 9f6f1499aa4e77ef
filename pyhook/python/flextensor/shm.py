"""Errors of sessions that share host memory between processes. The sessions themselves do not exist yet; programs that
catch their errors can import them already.
"""


class ShmCoordinatorError(RuntimeError):
    """Shared initialisation failed."""


class ShmCreatorFailedError(ShmCoordinatorError):
    """The process that creates the shared weights said that it failed."""

    def __init__(self, namespace: str, failure_message: str) -> None:
        super().__init__(f"the creator of {namespace!r} failed: {failure_message}")
        self.namespace = namespace
        self.failure_message = failure_message


class ShmCreatorDiedError(ShmCoordinatorError):
    """The process that creates the shared weights gives no sign of life; `creator_identity` is its number as a
    participant."""

    def __init__(self, namespace: str, creator_identity: int | None) -> None:
        super().__init__(
            f"the creator of {namespace!r} (participant {creator_identity}) gives no sign of life"
        )
        self.namespace = namespace
        self.creator_identity = creator_identity
