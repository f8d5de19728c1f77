"""What a worker of a Dask cluster holds for an executor; imported only where Dask is."""

from typing import Any

from distributed import WorkerPlugin

from howsmooth.studies.resources import Resources


class Equipment(WorkerPlugin):
    """Models and texts of one executor on one worker; taken back, they are released."""

    def setup(self, worker: Any) -> None:
        """Begin with nothing."""
        self.resources = Resources()

    def teardown(self, worker: Any) -> None:
        """Forget everything."""
        self.resources.release()
