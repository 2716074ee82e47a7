"""Several processes on one machine, as ranks of one `torch.distributed` group: started, watched and ended.

And by hand what they do together: collectives on a ring (`ring`), the ledger of what each rank sends (`counted`), `DDP`,
`ShardedOptimizer` (ZeRO-1), `FSDP` (ZeRO-2 and 3), `LocalSGD`, and gradients in 8 bits (`QuantizedMean`).
"""

from course_utils.distributed.ddp import DDP
from course_utils.distributed.fsdp import FSDP
from course_utils.distributed.launch import SECONDS, RankError, launch
from course_utils.distributed.local_sgd import LocalSGD, Outer
from course_utils.distributed.quantized import QuantizedMean
from course_utils.distributed.sharded_optimizer import ShardedOptimizer
from course_utils.distributed.traffic import Traffic, counted

__all__ = [
    "DDP",
    "FSDP",
    "SECONDS",
    "LocalSGD",
    "Outer",
    "QuantizedMean",
    "RankError",
    "ShardedOptimizer",
    "Traffic",
    "counted",
    "launch",
]
