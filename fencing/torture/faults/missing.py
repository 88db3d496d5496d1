"""What a fault says when it comes to nothing."""

__all__ = ["MissedError"]


class MissedError(Exception):
    """What was to be struck is not there now: another fault has taken it away."""
