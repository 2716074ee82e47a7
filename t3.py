import torch,time
from course_utils.distributed import launch
from course_utils.training.rounds import accelerate_on_rank
def build():
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.EmbeddingBag(100,32,padding_idx=0), torch.nn.Linear(32,64), torch.nn.Tanh(), torch.nn.Linear(64,10))
if __name__=="__main__":
    shares=[(torch.randint(1,100,(512,20)),torch.randint(0,10,(512,))) for _ in range(2)]
    P=sum(p.numel() for p in build().parameters()); print(P*4, len(list(build().parameters())))
    for ann,pu in ((False,True),(True,True),(True,False)):
        t=time.time(); a,b=launch(accelerate_on_rank,2,build,shares,16,2,4,ann,pu,seconds=100)
        print(time.time()-t, a["kind"], torch.equal(a["parameters"],b["parameters"])); print(a["counts"])
