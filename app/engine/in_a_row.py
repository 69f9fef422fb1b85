"""One figure that is off by much is an accident; several in a row are not."""

from __future__ import annotations

NO_ACCIDENT = 3


class InARow:
    """Figures that were off by much, one after the other and to one side.

    Of NO_ACCIDENT in a row the mildest is believed: the last of three accidents may have been a
    hundred times too long.
    """

    def __init__(self) -> None:
        self._figures: list[float] = []
        self._too_long = False

    def end(self) -> None:
        """One was as expected: what came before it was an accident."""
        self._figures.clear()

    def add(self, figure: float, *, too_long: bool) -> float | None:
        """One more was off.

        Args:
            figure: it.
            too_long: longer than expected, or else shorter.

        Returns:
            What is believed, whereupon a new row begins; None: this may be an accident.
        """
        if too_long is not self._too_long:
            self._figures.clear()
            self._too_long = too_long
        self._figures.append(figure)
        if len(self._figures) < NO_ACCIDENT:
            return None
        mildest = min(self._figures) if too_long else max(self._figures)
        self._figures.clear()
        return mildest
