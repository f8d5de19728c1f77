"""
Training with a smoothness penalty
==================================

A small penalty on the local constant nearly halves it, and the error on the task hardly changes.
"""

import altair as alt
import torch

import howsmooth as hs

torch.manual_seed(0)
X = 2 * torch.randn(16, 12, 8)
Y = hs.Attention.random(heads=2, d=8)(X)  # what the student has to learn
first = hs.Attention.random(heads=2, d=8)


def train(weight):
    """Return the error and the mean constant after every step."""
    names = ("query", "key", "value", "output")
    student = {name: getattr(first, name).clone().requires_grad_() for name in names}
    optimiser = torch.optim.Adam(student.values(), lr=0.03)
    state = hs.training.WarmStart()  # three Krylov steps from the last step's vectors
    for step in range(60):
        f = hs.Attention(**student)
        error = (f(X) - Y).square().mean()
        constant = hs.penalty(f, X[:4], state=state).mean()
        optimiser.zero_grad()
        (error + weight * constant).backward()
        optimiser.step()
        yield {"step": step, "error": error.item(), "constant": constant.item(), "penalty": weight}


rows = [row for weight in (0.0, 0.02, 0.1) for row in train(weight)]
for row in rows[59::60]:
    print("penalty {penalty}: error {error:.3f}, constant {constant:.2f}".format(**row))

base = alt.Chart(alt.Data(values=rows), width=250, height=220).encode(x=alt.X("step:Q"), color="penalty:N")
chart = base.mark_line().encode(y="error:Q") | base.mark_line().encode(y="constant:Q")
chart.save("penalty.svg")
