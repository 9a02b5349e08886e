"""Unmodified Lightning code with curves. A halted job resumes at the same batch."""

import lightning
import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import nn

digits = load_digits()
images = torch.tensor(digits.data, dtype=torch.float32) / 16
labels = torch.tensor(digits.target)


class Digits(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))

    def training_step(self, batch, index):
        loss = F.cross_entropy(self.net(batch[0]), batch[1])
        self.log("loss", loss)
        return loss

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=3e-3)


lightning.seed_everything(0)
model = Digits()
loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(images, labels), 64, shuffle=True)
trainer = lightning.Trainer(max_epochs=40, logger=False, enable_checkpointing=False, enable_progress_bar=False)
trainer.fit(model, loader)

with torch.no_grad():
    accuracy = (model.cpu().net(images).argmax(1) == labels).float().mean().item()
print(f"accuracy {accuracy:.3f}")
