"""The closed form of a step's instants, compared with the allocator."""

import pytest
import torch

from course_utils import models, optim
from course_utils.memory import instants, measure, phase, predicted_peak, saved_bytes
from course_utils.settings import SCALES


@pytest.mark.parametrize(("batch", "sequence"), [(2, 16), (8, 32)])
def test_closed_form_and_measurement_of_a_transformer_agree(batch, sequence):
    model = models.build("distilbert", labels=3, scale=SCALES["laptop"])
    ids = torch.randint(5, 1000, (batch, sequence))
    inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": torch.zeros(batch, dtype=torch.long)}
    optimizer = optim.AdamW(model.parameters())

    def step():
        with phase("forward"):
            loss = model(**inputs).loss
        with phase("backward"):
            loss.backward()
        with phase("update"):
            optimizer.step()
        optimizer.zero_grad()

    measured = measure((model, optimizer), step).peak
    predicted = predicted_peak(
        instants(
            parameters=models.parameter_bytes(model),
            state=sum(optim.AdamW.state_bytes(p.shape) for p in model.parameters()),
            activations=saved_bytes(lambda: model(**inputs), model),
            temporaries=max(optim.AdamW.temporary_bytes(p.shape) for p in model.parameters()),
        )
    )
    assert predicted == pytest.approx(measured, rel=0.05)
