"""How many examples a random test draws."""

from hypothesis import settings

FULL = 100
"""The examples of a random test that names no number, with random seeds; other profiles draw a share of them."""


def examples(many: int) -> settings:
    """So many examples, or the share of them that the profile asks for. Call it after the profile is loaded."""
    return settings(max_examples=max(many * settings().max_examples // FULL, 1))
