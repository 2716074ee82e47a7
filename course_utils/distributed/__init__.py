"""Several processes on one machine, as ranks of one `torch.distributed` group: started, watched and ended.

And by hand what they do together: collectives on a ring (`ring`), `DDP`, `LocalSGD`, gradients in 8 bits (`QSGD`),
`ShardedOptimizer` (ZeRO-1) and `FSDP` (ZeRO-2 and 3), attention on a ring, cuts by width (`tensor_parallel`) and by depth
(`pipeline`, `pipeline_schedules`). `counted` says what each rank sends, `communication` what it should.
"""

from course_utils.distributed.communication import communication, zero_bytes_per_rank
from course_utils.distributed.ddp import DDP
from course_utils.distributed.fsdp import FSDP
from course_utils.distributed.launch import SECONDS, RankError, launch
from course_utils.distributed.local_sgd import LocalSGD, OuterNesterov
from course_utils.distributed.qsgd import QSGD
from course_utils.distributed.sharded_optimizer import ShardedOptimizer
from course_utils.distributed.traffic import Traffic, counted

__all__ = [
    "DDP",
    "FSDP",
    "QSGD",
    "SECONDS",
    "LocalSGD",
    "OuterNesterov",
    "RankError",
    "ShardedOptimizer",
    "Traffic",
    "communication",
    "counted",
    "launch",
    "zero_bytes_per_rank",
]
