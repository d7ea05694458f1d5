"""What counts as a step of the training."""

from __future__ import annotations

import weakref
from typing import Any

_IN_A_ROW = 10
"""Steps that an optimizer takes while the leading one takes none, before it leads: more than a GAN's critic takes."""

_BATCHES_WITHOUT_OPTIMIZER = 256
"""Batches without a step of any optimizer before each is taken for a step: more than gradients are accumulated for."""


class Steps:
    """Counts the steps of the training: those of the optimizer that leads.

    It is the first that steps. It hands over to one that steps many times in a row without it, and then the count
    catches up: a script may train twice. Where no optimizer can be seen to step, each training batch is a step.

    Attributes:
        count: Steps so far.
        unseen: Whether an optimizer is known to step where it cannot be counted: compiled, or in a backward.
        are_led: Whether an optimizer leads; then batches need not be noted.
    """

    def __init__(self) -> None:
        self.count = 0
        self.unseen = False
        self.are_led = False
        self._leading: weakref.ref[Any] | None = None
        self._others: dict[int, int] = {}
        self._longest = 0
        self._batches = 0

    def stepped(self, optimizer: Any) -> bool:
        """Notes a step of an optimizer, and says whether it is a step of the training."""
        leading = None if self._leading is None else self._leading()
        if leading is optimizer:
            if self._others:
                self._longest = max(self._longest, *self._others.values())
        elif leading is not None:
            steps = self._others[id(optimizer)] = self._others.get(id(optimizer), 0) + 1
            if steps <= max(_IN_A_ROW, 2 * self._longest):
                return False
            self.count += steps - 1
        if leading is not optimizer:
            self._leading = weakref.ref(optimizer)
            self.are_led = True
        if self._others:
            self._others.clear()
        self.count += 1
        return True

    def batch_began(self) -> bool:
        """Notes that a model is called with a new training batch, and says whether the one before it was a step."""
        complete = self._batches
        self._batches += 1
        if not self._batches_lead(complete):
            return False
        self.count = complete
        return True

    def batch_ended(self) -> bool:
        """Notes that a training batch has been used that was not seen to begin, and says whether it was a step."""
        self._batches += 1
        if not self._batches_lead(self._batches):
            return False
        self.count = self._batches
        return True

    def _batches_lead(self, complete: int) -> bool:
        return not self.are_led and complete > 0 and (self.unseen or complete >= _BATCHES_WITHOUT_OPTIMIZER)

    def ended(self) -> None:
        """Notes that nothing follows: if no optimizer was seen, the batches so far are the steps."""
        if not self.are_led:
            self.count = self._batches
