"""Several processes on one machine, as ranks of one `torch.distributed` group: started, watched and ended.

And by hand what they do together: collectives on a ring (`ring`), the ledger of what each rank sends (`counted`), `DDP`.
"""

from course_utils.distributed.ddp import DDP
from course_utils.distributed.fsdp import FSDP
from course_utils.distributed.launch import SECONDS, RankError, launch
from course_utils.distributed.sharded_optimizer import ShardedOptimizer
from course_utils.distributed.traffic import Traffic, counted

__all__ = ["DDP", "FSDP", "SECONDS", "RankError", "ShardedOptimizer", "Traffic", "counted", "launch"]
