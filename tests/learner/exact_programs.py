"""A training program in exact mode, and random lives for its job."""

from __future__ import annotations

import random
from textwrap import dedent

from tests.learner.live_programs import trains
from tests.runtime.jobs import Job

__all__ = ["EXACT", "disturb"]

# A CNN with dropout and BatchNorm, data that is changed at random when it is read, a tail that is not a whole batch.
EXACT = dedent(
    """
    import hashlib, os, pathlib, random, time
    import torch
    from torch import nn
    import jupyter_dlaas as dlaas
    out = pathlib.Path(os.environ["DLAAS_JOB_DIR"]) / "output"
    me = os.environ["DLAAS_MEMBER"]
    torch.manual_seed(0)
    SAMPLES, BATCH, EPOCHS, SHARDS = 150, 16, 12, 8
    labels = torch.arange(SAMPLES) % 2
    images = torch.randn(SAMPLES, 1, 8, 8, generator=torch.Generator().manual_seed(1)) + labels[:, None, None, None]
    class Pictures(torch.utils.data.Dataset):
        def __len__(self):
            return SAMPLES
        def __getitem__(self, i):
            x = images[i] + 0.1 * torch.randn(1, 8, 8)
            return (x.flip(2) if random.random() < 0.5 else x), labels[i], i
    model = nn.Sequential(
        nn.Conv2d(1, 6, 3, padding=1), nn.BatchNorm2d(6), nn.ReLU(), nn.MaxPool2d(2), nn.Dropout(0.2),
        nn.Conv2d(6, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Dropout(0.2), nn.Linear(128, 2),
    )
    opt = torch.optim.AdamW(model.parameters(), lr=0.01)
    scheduler = torch.optim.lr_scheduler.OneCycleLR(opt, 0.02, total_steps=10 * EPOCHS)
    def loss_of(part):
        x, y, i = part
        return nn.functional.cross_entropy(model(x), y)
    def update():
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        opt.step()
        scheduler.step()
    losses, steps = [], 0
    if __name__ == "__main__":
        run = dlaas.run()
        model, opt, scheduler = run.prepare(model, opt, scheduler=scheduler, shards=SHARDS)
        for epoch in run.epochs(EPOCHS):
            for index, batch in enumerate(run.batches(Pictures(), BATCH)):
                steps += 1
                parts = [] if run.internals.is_joining else [part for part, _ in batch.own.values()]
                mine = [number for x, y, i in parts for number in i.tolist()]
                row = [run.internals.boundaries.membership_epoch, run.step, epoch, run.world_size]
                with open(out / f"live-{me}", "a") as file:
                    print(*row, ",".join(map(str, mine)), file=file)
                loss = run.train_step(loss_of, batch, update)
                losses.append((index, loss.item()))
                time.sleep(0.0 if (out / "hurry").exists() else 0.1)
            run.log(loss=loss, size=run.world_size)
        history = run.history
        digest = hashlib.sha256()
        for tensor in [*model.state_dict().values(), *(v for s in opt.state.values() for v in s.values())]:
            digest.update(tensor.numpy().tobytes())
        weights = digest.hexdigest()
    """
)


def disturb(job: Job, seed: int, *, changes: int, kills: int) -> list[str]:
    """Give a job a random life: at least so many planned changes, and so many `kill -9`, the first one of rank 0.

    Returns what was done. The size stays within 1 to 4.
    """
    chance = random.Random(seed)
    todo = ["change"] * changes + ["kill"] * kills
    chance.shuffle(todo)
    members, disturbances = [0], list[str]()
    is_first = True
    job.run(1)
    trains(job, 0)
    for act in todo:
        if act == "change" or len(members) == 1:
            size = chance.choice([one for one in (1, 2, 3, 4) if one != len(members)])
            members = _change(job, members, size, disturbances)
        if act == "kill":
            victim = members[0] if is_first else chance.choice(members)
            is_first = False
            job.kill_learner(victim)
            members = [one for one in members if one != victim]
            disturbances.append(f"kill -9 {victim}")
            trains(job, members[-1], steps=chance.randint(1, 3), size=len(members))
    return disturbances


def _change(job: Job, members: list[int], size: int, disturbances: list[str]) -> list[int]:
    kept = members[-size:]  # who is rank 0 leaves first, so that ranks move
    fresh = list(range(job.next_member, job.next_member + size - len(kept)))
    job.resize(*kept, fresh=len(fresh))
    disturbances.append(f"{len(members)} -> {size}")
    members = kept + fresh
    trains(job, members[-1], steps=2, size=size)
    return members
