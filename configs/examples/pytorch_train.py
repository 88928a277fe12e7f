"""A PyTorch loop that can be preempted at any step: the lines marked # aloft joined it."""
import os, sys, time
import torch
import aloft_job as aloft                                           # aloft

steps, seed = int(sys.argv[1]), int(sys.argv[2])
torch.manual_seed(seed)
device = "cuda" if torch.cuda.is_available() else "cpu"
if aloft.world > 1:  # a gang: one process a slice, gloo since slices have no peer access
    host, port = os.environ["ALOFT_RENDEZVOUS"].rsplit(":", 1)      # aloft
    os.environ.update(MASTER_ADDR=host, MASTER_PORT=port)           # aloft
    torch.distributed.init_process_group("gloo", rank=aloft.rank, world_size=aloft.world)

model = torch.nn.Sequential(torch.nn.Linear(32, 64), torch.nn.Tanh(), torch.nn.Linear(64, 1)).to(device)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
first = 0
if aloft.resume_from:                                               # aloft
    state = torch.load(aloft.resume_from, map_location=device)
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    first = state["step"]

for step in range(first + 1, steps + 1):
    # Each member its own part of the data, the same again after a preemption.
    draw = torch.Generator().manual_seed(seed * 1_000_003 + step * aloft.world + aloft.rank)
    x = torch.randn(64, 32, generator=draw).to(device)
    loss = ((model(x) - x.sum(dim=1, keepdim=True)) ** 2).mean()
    optimizer.zero_grad()
    loss.backward()
    stop = aloft.stopping()                                         # aloft
    told = torch.tensor([float(stop or aloft.due()), float(stop)])
    if aloft.world > 1:
        for p in model.parameters():
            grad = p.grad.cpu()
            torch.distributed.all_reduce(grad)
            p.grad.copy_(grad / aloft.world)
        torch.distributed.all_reduce(told)  # all members save and stop at the same step
    optimizer.step()
    if told[0] > 0:                                                 # aloft
        began, path = time.monotonic(), os.path.join(aloft.checkpoints, f"step-{step}.pt")
        if aloft.rank == 0:
            torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step}, path + ".tmp")
            os.replace(path + ".tmp", path)  # whole or not there
        aloft.saved(path, step, steps, time.monotonic() - began)    # aloft: on all members, rank 0's is heard
    if told[1] > 0 and step < steps:                                # aloft
        aloft.requeue()                                             # aloft
    if step % 50 == 0:
        aloft.report(step=step, total=steps, loss=loss.item())      # aloft

if aloft.rank == 0:
    torch.save(model.state_dict(), os.path.join(os.environ.get("ALOFT_OUTPUT_DIR", "."), "model.pt"))
