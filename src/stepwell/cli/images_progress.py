"""How far a generation is: images, and how many a second."""

from __future__ import annotations

from stepwell.cli.bar import Bar, Rate


class ImagesProgress(Bar):
    """Images, rate and time left, of the process that tells it."""

    def __init__(self, total: int, silent: bool) -> None:
        super().__init__(silent)
        self._total, self._there, self._rate = total, 0, Rate()
        self.rate = 0.0
        """Images a second, of those that were made now."""

    def __call__(self, count: int, made: bool) -> None:
        """A batch of images was made, or was there already."""
        self._there += count
        if not made:
            # The clock of the rate starts with the first batch that has to be made.
            self._rate = Rate(self._there)
        self.rate = self._rate(self._there)
        self.update("images", self._there, self._total, f"{self.rate:.1f} images/s")
