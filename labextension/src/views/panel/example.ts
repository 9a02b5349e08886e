/** The cells that "Insert below" adds: `%%train` must be the first line of its cell. */
export const EXAMPLE = [
  `%load_ext jupyter_dlaas`,
  `%%train spirals --gpus 1:4 -o model
import torch, jupyter_dlaas as dlaas

run = dlaas.run()
angle = torch.linspace(0, 9, 2000)
arms = torch.stack([angle * angle.cos(), angle * angle.sin()], 1) / 9
points = torch.cat([arms, -arms]) + 0.02 * torch.randn(4000, 2)
labels = torch.arange(2).repeat_interleave(2000)

model = torch.nn.Sequential(torch.nn.Linear(2, 64), torch.nn.ReLU(),
                            torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 2))
optimizer = torch.optim.Adam(model.parameters(), lr=0.003)
model, optimizer = run.prepare(model, optimizer)
data = torch.utils.data.TensorDataset(points, labels)
for epoch in run.epochs(40):
    for x, y in run.batches(data, 100):
        loss = torch.nn.functional.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        run.log(loss=loss)`
];
