"""The schedule of chapter 00, which is a library's; `optim.schedules` has schedules by hand."""

import torch


def linear_decay(optimizer: torch.optim.Optimizer, steps: int, warmup: int = 0) -> torch.optim.lr_scheduler.LambdaLR:
    """Rise linearly from 0 over `warmup` updates, then fall linearly to 0 at update `steps` (Devlin et al. 2019)."""
    from transformers import get_linear_schedule_with_warmup

    return get_linear_schedule_with_warmup(optimizer, warmup, steps)
