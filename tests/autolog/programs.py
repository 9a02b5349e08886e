"""Training programs in other people's frameworks, unchanged but for the places where a test waits."""

from __future__ import annotations

from textwrap import dedent

# `trained(call, step)` is called by each program's own callback after each step. It waits at the steps that are named
# in the file `pause` until the file `go-STEP` exists; where that says "stop", until the learner was asked to leave.
# The main learner alone reports that it waits there: others may be there before it has imported its framework.
WAITING = dedent(
    """
    import os, pathlib, time
    from jupyter_dlaas.learner.training_run import run as running
    _out = pathlib.Path(os.environ["DLAAS_JOB_DIR"]) / "output"
    _out.mkdir(exist_ok=True)
    def trained(call, step):
        with open(_out / "steps", "a") as file:
            file.write(f"{call} {step}\\n")
        if call == 0:
            time.sleep(0.1)  # so that this training is worth storing when it ends
        pauses = (_out / "pause").read_text().split() if (_out / "pause").exists() else []
        if f"{call}-{step}" in pauses:
            if os.environ["RANK"] == "0":
                (_out / f"at-{call}-{step}").touch()
            go = _out / f"go-{call}-{step}"
            boundaries = running._runs[0].internals.boundaries
            while not go.exists() or (go.read_text() == "stop" and not boundaries.is_stopping):
                time.sleep(0.005)
    """
)

KERAS = WAITING + dedent(
    """
    import numpy as np
    import keras
    keras.utils.set_random_seed(3)
    x = np.random.normal(size=(52, 5)).astype("float32")
    y = (x.sum(1) > 0).astype("float32")
    talk = []
    class Recorder(keras.callbacks.Callback):
        def __init__(self, call):
            super().__init__()
            self.call, self.seen, self.steps = call, [], 0
        def on_train_batch_end(self, batch, logs=None):
            self.steps += 1
            self.seen.append(round(float(logs["loss"]), 6))
            trained(self.call, self.steps)
    def make():
        model = keras.Sequential([
            keras.layers.Dense(8, activation="tanh"), keras.layers.Dropout(0.3), keras.layers.Dense(1)
        ])
        model.compile(keras.optimizers.Adam(0.01), "mse", metrics=["mae"])
        return model
    first, second = make(), make()
    recorders = [Recorder(0), Recorder(1)]
    given = [recorders[0]]
    a = first.fit(x, y, epochs=2, batch_size=8, validation_split=0.2, verbose=0, callbacks=given)
    talk.append(a.history["loss"])
    slower = keras.callbacks.ReduceLROnPlateau(monitor="loss", patience=0, min_delta=10.0)
    held = (x[:9], y[:9])
    b = second.fit(x, y, epochs=4, batch_size=8, validation_data=held, verbose=0, callbacks=[recorders[1], slower])
    result = {
        "history": [a.history, b.history], "epochs": [a.epoch, b.epoch], "talk": talk, "given": given == [recorders[0]],
        "weights": [[w.tolist() for w in m.get_weights()] for m in (first, second)],
        "seen": [one.seen for one in recorders], "rate": float(second.optimizer.learning_rate),
        "after": float(np.random.random()), "score": second.evaluate(x, y, verbose=0),
    }
    """
)

# The first training by Lightning's new name, the second by its old one.
LIGHTNING = WAITING + dedent(
    """
    import torch
    from torch import nn
    import lightning.pytorch
    import pytorch_lightning
    from torchmetrics.classification import BinaryAccuracy
    lightning.pytorch.seed_everything(3)
    class Noisy(torch.utils.data.Dataset):
        def __init__(self):
            self.x = torch.randn(44, 5)
            self.y = (self.x.sum(1) > 0).float()
        def __len__(self):
            return 44
        def __getitem__(self, i):
            return self.x[i] + 0.1 * torch.randn(5), self.y[i]
    data = Noisy()
    def fit(pl, call, epochs):
        class Net(pl.LightningModule):
            def __init__(self):
                super().__init__()
                self.steps, self.order = 0, []
                self.layers = nn.Sequential(nn.Linear(5, 8), nn.Dropout(0.3), nn.Tanh(), nn.Linear(8, 1))
                self.accuracy = BinaryAccuracy()
            def training_step(self, batch, index):
                x, y = batch
                out = self.layers(x)[:, 0]
                loss = nn.functional.binary_cross_entropy_with_logits(out, y)
                self.accuracy(out, y)
                self.log("train_loss", loss, on_step=False, on_epoch=True)
                self.log("train_accuracy", self.accuracy, on_step=False, on_epoch=True)
                if index < 2:  # a halt may follow later in the epoch
                    self.log("early", loss, on_step=True, on_epoch=True, reduce_fx=sum)
                self.order.append(round(float(x.sum()), 5))
                return loss
            def on_train_batch_end(self, *_):
                self.steps += 1
                trained(call, self.steps)
            def validation_step(self, batch, index):
                x, y = batch
                self.log("val_loss", nn.functional.binary_cross_entropy_with_logits(self.layers(x)[:, 0], y))
            def configure_optimizers(self):
                opt = torch.optim.Adam(self.parameters(), lr=0.01)
                plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(opt, patience=0, threshold=10.0)
                return {"optimizer": opt, "lr_scheduler": {"scheduler": plateau, "monitor": "val_loss"}}
        class Curves(pl.Callback):
            def __init__(self):
                self.train, self.val, self.early = [], [], []
            def on_train_epoch_end(self, trainer, module):
                self.train.append(float(trainer.callback_metrics["train_loss"]))
                self.val.append(float(trainer.callback_metrics["val_loss"]))
                self.early.append(float(trainer.callback_metrics["early_epoch"]))
        own = torch.Generator().manual_seed(5) if call else None
        train = torch.utils.data.DataLoader(data, batch_size=8, shuffle=True, generator=own)
        net, curves = Net(), Curves()
        given = [curves, pl.callbacks.EarlyStopping("val_loss", patience=2, min_delta=10.0)][: 2 - call]
        trainer = pl.Trainer(
            max_epochs=epochs, accelerator="cpu", logger=False, enable_progress_bar=False, callbacks=given,
            enable_model_summary=False, default_root_dir=_out / f"lightning-{call}",
        )
        trainer.fit(net, train, torch.utils.data.DataLoader(data, batch_size=22))
        return {
            "curves": [curves.train, curves.val, curves.early], "order": net.order, "given": len(given),
            "weights": {name: one.tolist() for name, one in net.state_dict().items()},
            "at": [trainer.current_epoch, trainer.global_step, len(trainer.callbacks)],
            "metrics": {name: float(one) for name, one in trainer.callback_metrics.items()},
            "best": float(trainer.checkpoint_callback.best_model_score or 0),
            "rate": trainer.optimizers[0].param_groups[0]["lr"],
        }
    result = [fit(lightning.pytorch, 0, 6), fit(pytorch_lightning, 1, 4), torch.rand(1).item()]
    """
)

TRANSFORMERS = WAITING + dedent(
    """
    import torch
    from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainerCallback, TrainingArguments
    torch.manual_seed(3)
    ids = torch.randint(5, 60, (44, 12))
    rows = [{"input_ids": i, "labels": int(i.sum() % 2)} for i in ids]
    class Recorder(TrainerCallback):
        def __init__(self, call):
            self.call, self.losses = call, []
        def on_log(self, args, state, control, logs=None, **_):
            self.losses.append(logs.get("loss"))
        def on_step_end(self, args, state, control, **_):
            trained(self.call, state.global_step)
    def train(call, epochs):
        torch.manual_seed(call)
        model = BertForSequenceClassification(BertConfig(
            vocab_size=64, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16,
            max_position_embeddings=16,
        ))
        args = TrainingArguments(
            output_dir=str(_out / f"trainer-{call}"), num_train_epochs=epochs, per_device_train_batch_size=4,
            logging_steps=4, eval_strategy="epoch", save_strategy="no", use_cpu=True, seed=7, disable_tqdm=True,
            gradient_accumulation_steps=2, learning_rate=1e-3,
        )
        recorder = Recorder(call)
        trainer = Trainer(model=model, args=args, train_dataset=rows, eval_dataset=rows[:8], callbacks=[recorder])
        output = trainer.train()
        timeless = [
            {name: value for name, value in one.items() if not name.endswith(("_runtime", "_per_second"))}
            for one in trainer.state.log_history
        ]
        return {
            "history": timeless, "losses": recorder.losses, "loss": output.training_loss, "steps": output.global_step,
            "weights": {name: one.tolist() for name, one in model.state_dict().items()},
            "files": sorted(path.name for path in (_out / f"trainer-{call}").glob("*")),
        }
    result = [train(0, 2), train(1, 3), torch.rand(1).item()]
    """
)

# Trainings so short that their end is not stored, one of a model that the next one trains further.
SHORT = WAITING + dedent(
    """
    import numpy as np, keras
    keras.utils.set_random_seed(3)
    x = np.random.normal(size=(40, 3)).astype("float32")
    y = x.sum(1)
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(4), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    losses, rounds = [], []
    class Recorder(keras.callbacks.Callback):
        def __init__(self, call):
            super().__init__()
            self.call, self.steps = call, 0
        def on_train_batch_end(self, batch, logs=None):
            self.steps += 1
            trained(self.call, self.steps)
    for call in range(1, 6):
        fitted = model.fit(x, y, batch_size=10, epochs=2, verbose=0, callbacks=[Recorder(call)])
        losses += fitted.history["loss"]
        rounds.append(call)
        if call == 4:
            print("between", flush=True)
            (_out / "between").touch()
            while not (_out / "go-between").exists():
                time.sleep(0.005)
    result = [losses, rounds, [one.tolist() for one in model.get_weights()]]
    """
)

# As people wrote it for TensorFlow 2: tf.keras, tf.data with its own shuffling, early stopping, a schedule.
TF_KERAS = WAITING + dedent(
    """
    import numpy as np
    import tensorflow as tf
    from tensorflow import keras
    tf.random.set_seed(3)
    x = np.random.default_rng(1).normal(size=(48, 4)).astype("float32")
    y = (x.sum(1) > 0).astype("float32")
    data = tf.data.Dataset.from_tensor_slices((x, y)).shuffle(48, seed=4).batch(8)
    class Net(tf.keras.Model):
        def __init__(self):
            super().__init__()
            self.a, self.b = tf.keras.layers.Dense(6, activation="relu"), tf.keras.layers.Dense(1)
        def call(self, x):
            return self.b(self.a(x))
    order = []
    class Recorder(keras.callbacks.Callback):
        steps = 0
        def on_train_batch_end(self, batch, logs=None):
            self.steps += 1
            order.append(round(float(logs["loss"]), 5))
            trained(1, self.steps)
    model = Net()
    loss = keras.losses.BinaryCrossentropy(from_logits=True)
    model.compile(optimizer=keras.optimizers.SGD(0.05, momentum=0.9), loss=loss)
    stop = tf.keras.callbacks.EarlyStopping(monitor="loss", min_delta=0.2, patience=2, restore_best_weights=True)
    warm = tf.keras.callbacks.LearningRateScheduler(lambda epoch, rate: rate * 0.9)
    h = model.fit(data, epochs=9, verbose=2, callbacks=[Recorder(), stop, warm])
    result = [h.history, order, [one.tolist() for one in model.get_weights()], stop.stopped_epoch]
    """
)

TREES = """
import numpy as np, xgboost, lightgbm
rng = np.random.default_rng(3)
x, y = rng.normal(size=(200, 5)), rng.integers(0, 2, 200)
seen, log, rounds = [], {}, {}
class Own(xgboost.callback.TrainingCallback):
    def after_iteration(self, model, epoch, evals_log):
        seen.append(epoch)
        return False
given = [Own()]
data = xgboost.DMatrix(x, y)
booster = xgboost.train(
    {"objective": "binary:logistic", "seed": 1}, data, 6, evals=[(data, "train")], callbacks=given, evals_result=rounds
)
fitted = xgboost.XGBClassifier(n_estimators=5, random_state=1, early_stopping_rounds=3)
fitted.fit(x, y, eval_set=[(x, y), (x[:50], y[:50])], verbose=False)
lines = []
light = lightgbm.train(
    {"objective": "binary", "verbosity": -1, "seed": 1}, lightgbm.Dataset(x, y), 7,
    valid_sets=[lightgbm.Dataset(x[:50], y[:50])], callbacks=[lightgbm.record_evaluation(log)],
)
wrapped = lightgbm.LGBMClassifier(n_estimators=4, random_state=1, verbosity=-1)
wrapped.fit(x, y, eval_set=[(x[:60], y[:60])], eval_names=["held"], eval_metric="auc")
result = {
    "trees": [booster.get_dump(), fitted.get_booster().get_dump()], "seen": seen, "given": len(given),
    "light": light.model_to_string(), "wrapped": wrapped.booster_.model_to_string(), "log": rounds | log,
    "evals": [fitted.evals_result(), wrapped.evals_result_],
}
"""

SKLEARN = """
import numpy as np
from sklearn.ensemble import GradientBoostingClassifier
from sklearn.linear_model import SGDClassifier
from sklearn.model_selection import cross_val_score
from sklearn.neural_network import MLPClassifier
rng = np.random.default_rng(3)
x, y = rng.normal(size=(120, 5)), rng.integers(0, 2, 120)
net = MLPClassifier((6,), max_iter=12, random_state=1, tol=0).fit(x, y)
stages = []
trees = GradientBoostingClassifier(n_estimators=9, random_state=1)
trees.fit(x, y, monitor=lambda stage, estimator, names: stages.append(stage) or stage == 6)
line = SGDClassifier(random_state=1)
for _ in range(8):
    line.partial_fit(x, y, classes=[0, 1])
small = MLPClassifier((3,), random_state=1)
for _ in range(5):
    small.partial_fit(x, y, classes=[0, 1])
result = {
    "loss": net.loss_curve_, "weights": [one.tolist() for one in net.coefs_ + small.coefs_] + line.coef_.tolist(),
    "stages": stages, "train_score": trees.train_score_.tolist(), "small": small.loss_curve_,
    "scores": cross_val_score(net, x, y, cv=2).tolist(),
}
"""

TWO_IN_TURN = """
import numpy as np
from sklearn.neural_network import MLPClassifier
rng = np.random.default_rng(3)
x, y = rng.normal(size=(60, 5)), rng.integers(0, 2, 60)
first, second = MLPClassifier((3,), random_state=1), MLPClassifier((4,), random_state=2)
for _ in range(6):
    first.partial_fit(x, y, classes=[0, 1])
    second.partial_fit(x, y, classes=[0, 1])
whole = MLPClassifier((3,), max_iter=4, random_state=3, tol=0).fit(x, y)
result = {"first": first.loss_curve_, "second": second.loss_curve_, "whole": whole.loss_curve_}
"""

FASTAI = """
import torch
from fastai.basics import DataLoaders, DataLoader, Learner, accuracy, CrossEntropyLossFlat
from fastai.callback.schedule import fit_one_cycle, lr_find
torch.manual_seed(3)
rows = [(torch.randn(5), torch.randint(0, 2, ())) for _ in range(60)]
data = DataLoaders(DataLoader(rows, bs=10, shuffle=True), DataLoader(rows[:20], bs=10), device="cpu")
learn = Learner(data, torch.nn.Linear(5, 2), loss_func=CrossEntropyLossFlat(), metrics=accuracy)
learn.lr_find(num_it=5, show_plot=False)
learn.fit_one_cycle(3, 0.01)
learn.fit(2, 0.01)
result = {
    "values": [list(row) for row in learn.recorder.values], "weights": learn.model.weight.tolist(),
    "callbacks": [type(one).__name__ for one in learn.cbs],
}
"""

# The two frameworks that train one model on several learners by themselves: 16 samples a step, 60 steps.
GANG_TRANSFORMERS = WAITING + dedent(
    """
    import torch
    from transformers import Trainer, TrainerCallback, TrainingArguments
    torch.manual_seed(3)
    rows = [{"x": x, "labels": x.sum()} for x in torch.randn(160, 5)]
    class Net(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = torch.nn.Sequential(torch.nn.Linear(5, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1))
        def forward(self, x, labels):
            return {"loss": torch.nn.functional.mse_loss(self.layers(x)[:, 0], labels)}
    class Recorder(TrainerCallback):
        def on_step_end(self, args, state, control, **_):
            trained(0, state.global_step)
    net = Net()
    args = TrainingArguments(
        output_dir=str(_out / "trainer"), num_train_epochs=6, per_device_train_batch_size=16, logging_steps=10,
        save_strategy="no", use_cpu=True, seed=7, disable_tqdm=True, learning_rate=1e-2, report_to="none",
        remove_unused_columns=False,
    )
    trainer = Trainer(model=net, args=args, train_dataset=rows, callbacks=[Recorder()])
    trainer.train()
    weights = torch.cat([one.detach().flatten() for one in net.parameters()]).tolist()
    """
)

GANG_LIGHTNING = WAITING + dedent(
    """
    import lightning.pytorch as pl
    import torch
    pl.seed_everything(3)
    x = torch.randn(160, 5)
    class Net(pl.LightningModule):
        def __init__(self):
            super().__init__()
            self.layers = torch.nn.Sequential(torch.nn.Linear(5, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1))
            self.done = 0
        def training_step(self, batch, index):
            loss = torch.nn.functional.mse_loss(self.layers(batch[0])[:, 0], batch[1])
            self.log("loss", loss)
            return loss
        def on_train_batch_end(self, *_):
            self.done += 1
            trained(0, self.done)
        def configure_optimizers(self):
            opt = torch.optim.Adam(self.parameters(), lr=0.01)
            steps = torch.optim.lr_scheduler.StepLR(opt, step_size=20, gamma=0.5)
            return {"optimizer": opt, "lr_scheduler": {"scheduler": steps, "interval": "step"}}
    net = Net()
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, x.sum(1)), batch_size=16, shuffle=True)
    trainer = pl.Trainer(
        max_epochs=6, accelerator="cpu", strategy="ddp", devices=int(os.environ["LOCAL_WORLD_SIZE"]), logger=False,
        enable_progress_bar=False, enable_checkpointing=False, enable_model_summary=False,
    )
    trainer.fit(net, loader)
    weights = torch.cat([one.detach().flatten() for one in net.parameters()]).tolist()
    """
)
# Averages over an epoch that Lightning reduces over the learners, and one that it does not.
AVERAGED_LIGHTNING = (
    GANG_LIGHTNING.replace(
        'self.log("loss", loss)',
        """self.log("loss", loss, on_step=False, on_epoch=True, sync_dist=True)
        self.log("largest", loss, on_step=False, on_epoch=True, sync_dist=True, reduce_fx="max")
        self.error(self.layers(batch[0])[:, 0], batch[1])
        self.log("error", self.error, on_step=False, on_epoch=True)
        self.log("own", float(self.global_rank), on_step=False, on_epoch=True)""",
    )
    .replace("self.done = 0", "self.done = 0; self.error, self.averages = torchmetrics.MeanSquaredError(), []")
    .replace(
        "    def configure_optimizers",
        """    def on_train_epoch_end(self):
        self.averages.append({name: one.item() for name, one in sorted(self.trainer.callback_metrics.items())})
    def configure_optimizers""",
    )
    .replace("import torch\n", "import torch, torchmetrics\n", 1)
    + "averages = net.averages\n"
)
