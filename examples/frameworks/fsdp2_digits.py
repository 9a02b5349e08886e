"""PyTorch FSDP2 with sharded weights. Checkpoints hold full weights; the job can resume on any number of learners."""

import torch
import torch.distributed as dist
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_state_dict, set_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

import jupyter_dlaas as dlaas

run = dlaas.run()
dist.init_process_group("gloo" if run.device.type == "cpu" else "nccl")
digits = load_digits()
images = torch.tensor(digits.data, dtype=torch.float32) / 16
labels = torch.tensor(digits.target)

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10)).to(run.device)
mesh = init_device_mesh(run.device.type, (run.world_size,))
for layer in (model[0], model[2], model):
    fully_shard(layer, mesh=mesh)
optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
whole = StateDictOptions(full_state_dict=True, cpu_offload=True)
if "model" in run.state:
    weights, moments = run.state["model"]
    set_state_dict(model, optimizer, model_state_dict=weights, optim_state_dict=moments, options=whole)


@run.on_checkpoint
def gather():
    run.state["model"] = get_state_dict(model, optimizer, options=whole)


for epoch in run.epochs(30):
    for x, y in run.batches(torch.utils.data.TensorDataset(images, labels), 64):
        loss = F.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    run.log(loss=loss)
    if epoch % 10 == 9:
        run.checkpoint()

with torch.no_grad():
    accuracy = (model(images.to(run.device)).argmax(1).cpu() == labels).float().mean().item()
print(f"accuracy {accuracy:.3f}")
dist.destroy_process_group()
