"""Unmodified Hugging Face Trainer code with curves. A halted job resumes at the same step."""

import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import nn
from transformers import Trainer, TrainingArguments, set_seed

digits = load_digits()
images = torch.tensor(digits.data, dtype=torch.float32) / 16
labels = torch.tensor(digits.target)
data = [{"pixels": x, "labels": y} for x, y in zip(images, labels, strict=True)]


class Digits(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))

    def forward(self, pixels, labels):
        found = self.net(pixels)
        return {"loss": F.cross_entropy(found, labels), "logits": found}


set_seed(0)
model = Digits()
arguments = TrainingArguments(
    "out",
    num_train_epochs=30,
    per_device_train_batch_size=64,
    learning_rate=3e-3,
    logging_steps=29,
    save_strategy="no",
    report_to="none",
    disable_tqdm=True,
    remove_unused_columns=False,
)
Trainer(model, arguments, train_dataset=data).train()

with torch.no_grad():
    accuracy = (model.cpu().net(images).argmax(1) == labels).float().mean().item()
print(f"accuracy {accuracy:.3f}")
