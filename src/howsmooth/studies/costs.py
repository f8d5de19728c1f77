"""How much work a task is, up to a factor that depends on model and machine."""

from howsmooth.studies.tasks import Task


def cost(task: Task) -> float:
    """Estimate the work of a task: projections grow with the length, attention weights with its square."""
    part = 0.3 if task.map.startswith("head:") else 1.0
    bracket = 1.0 if task.certify else 0.5
    return task.length * (500 + task.length) * part * bracket * max(1, task.climb)
