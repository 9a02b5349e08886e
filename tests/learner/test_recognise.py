"""Metrics in printed lines: line by line, each number that counts and no other."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jupyter_dlaas.learner.log_capture.line_parser import Found, Recogniser

Line = tuple[str, dict[str, float], dict[str, int]]


def at(epoch: int | None = None, epochs: int | None = None, step: int | None = None, steps: int | None = None) -> Any:
    said = {"epoch": epoch, "epochs": epochs, "step": step, "steps": steps}
    return {name: value for name, value in said.items() if value is not None}


nan, inf = math.nan, math.inf

POSITIONS: list[Line] = [
    ("Epoch 3/10", {}, at(3, 10)),
    ("Epoch [3/10]", {}, at(3, 10)),
    ("Epoch: 0", {}, at(0)),
    ("Epoch #7", {}, at(7)),
    ("epoch = 12", {}, at(12)),
    ("===== Epoch 2 of 20 =====", {}, at(2, 20)),
    ("-------- epoch 004 --------", {}, at(4)),
    ("Starting epoch 5 ...", {}, at(5)),
    ("Epoch 3 finished, took 3.2s", {}, at(3)),
    ("EPOCH 9:", {}, at(9)),
    ("Iteration 300/1000", {}, at(step=300, steps=1000)),
    ("step 40", {}, at(step=40)),
    ("-- Epoch 1", {}, at(1)),
]

PAIRS: list[Line] = [
    ("Epoche 3: loss 0,52, acc: 0,915", {"loss": 0.52, "acc": 0.915}, at(3)),
    ("epoch 3/10 loss: 1,204 val_loss: 0,91", {"loss": 1.204, "val_loss": 0.91}, at(3, 10)),
    ("epoch 2 perplexity: 1,234", {"perplexity": 1234}, at(2)),
    ("epoch 5, 1_000 samples, loss 0.5", {"loss": 0.5}, at(5)),
    ("[3,2000] loss: 2", {"loss": 2}, at(3, step=2000)),
    ("loss: 0.52", {"loss": 0.52}, {}),
    ("loss = 0.52", {"loss": 0.52}, {}),
    ("loss=0.52", {"loss": 0.52}, {}),
    ("loss 0.52", {"loss": 0.52}, {}),
    ("Loss :0.52", {"loss": 0.52}, {}),
    ("loss :  .52", {"loss": 0.52}, {}),
    ("LOSS: 1", {"loss": 1}, {}),
    ("epoch 3 loss 0.52", {"loss": 0.52}, at(3)),
    ("Epoch: 3, Loss: 0.5213, Accuracy: 0.8912", {"loss": 0.5213, "accuracy": 0.8912}, at(3)),
    ("Epoch 3/10 - loss: 0.52 - acc: 0.81", {"loss": 0.52, "acc": 0.81}, at(3, 10)),
    ("Epoch [3/10], Step [100/600], Loss: 0.5231", {"loss": 0.5231}, at(3, 10, 100, 600)),
    ("[3, 2000] loss: 2.173", {"loss": 2.173}, at(3, step=2000)),
    ("[1,   200] loss: 0.173", {"loss": 0.173}, at(1, step=200)),
    ("loss: 2.303494  [   64/60000]", {"loss": 2.303494}, at(step=64, steps=60000)),
    ("Train Loss: 0.1 | Val Acc: 92.3%", {"train_loss": 0.1, "val_acc": 0.923}, {}),
    (
        "Test set: Average loss: 0.0301, Accuracy: 9901/10000 (99%)",
        {"test_loss": 0.0301, "test_accuracy": 0.9901},
        {},
    ),
    ("Train Epoch: 1 [6400/60000 (11%)]\tLoss: 0.512300", {"train_loss": 0.5123}, at(1, step=6400, steps=60000)),
    ("test epoch: 1, loss: 0.07, accuracy: 0.97", {"test_loss": 0.07, "test_accuracy": 0.97}, at(1)),
    ("Loss step 10:  38.09", {"loss": 38.09}, at(step=10)),
    ("Training loss (for one batch) at step 0: 131.3794", {"train_loss": 131.3794}, at(step=0)),
    ("Epoch: 1/20... Step: 10... Loss: 3.25... Val Loss: 3.21", {"loss": 3.25, "val_loss": 3.21}, at(1, 20, 10)),
    ("Training loss (for 1 batch) at step 5: 131.3794", {"train_loss": 131.3794}, at(step=5)),
    ("Training acc over epoch: 0.6010", {"train_acc": 0.601}, {}),
    ("Iteration: 500. Loss: 0.28. Accuracy: 0.89", {"loss": 0.28, "accuracy": 0.89}, at(step=500)),
    ("| epoch 1 | 200/ 2928 batches | ms/batch 30.8 | loss 8.26", {"loss": 8.26}, at(1, step=200, steps=2928)),
    ("epoch: 0\ttrain_loss: 1.08\teltime: 0.13", {"train_loss": 1.08}, at(0)),
    ("train Loss: 0.6123 Acc: 0.7012", {"train_loss": 0.6123, "train_acc": 0.7012}, {}),
    ("val Loss: 0.2123 Acc: 0.9012", {"val_loss": 0.2123, "val_acc": 0.9012}, {}),
    ("Epoch 1 \t Training Loss: 0.5 \t Validation Loss: 0.4", {"train_loss": 0.5, "val_loss": 0.4}, at(1)),
    (
        "Epoch: 02 | Train Loss: 0.51, Train Acc: 80.11% | Val. Loss: 0.49, Val. Acc: 81.00%",
        {"train_loss": 0.51, "train_acc": 0.8011, "val_loss": 0.49, "val_acc": 0.81},
        at(2),
    ),
    (
        "\tTrain Loss: 5.052 | Train PPL: 156.386",
        {"train_loss": 5.052, "train_ppl": 156.386},
        {},
    ),
    ("epoch:3 lr:0.01 loss:.523", {"lr": 0.01, "loss": 0.523}, at(3)),
    ("Epoch 5/25, Loss: 0.3, lr: 1e-3", {"loss": 0.3, "lr": 0.001}, at(5, 25)),
    ("Learning rate: 0.0005", {"learning_rate": 0.0005}, {}),
    ("mse: 1.2E-05", {"mse": 1.2e-05}, {}),
    ("iter 7 | objective -1.5e+3", {"objective": -1500}, at(step=7)),
    ("Epoch 3, Loss nan", {"loss": nan}, at(3)),
    ("loss: inf", {"loss": inf}, {}),
    ("log likelihood = -inf at step 5", {"log_likelihood": -inf}, at(step=5)),
    ("Epoch 4: train=0.52, val=0.48", {"train": 0.52, "val": 0.48}, at(4)),
    ("Epoch 4: train 0.52 val 0.48", {"train": 0.52, "val": 0.48}, at(4)),
    ("Epoch 10: w = 1.93, b = 0.12, loss = 0.0003", {"w": 1.93, "b": 0.12, "loss": 0.0003}, at(10)),
    ("epoch 20 energy: -3.51", {"energy": -3.51}, at(20)),
    ("Loss after epoch 3: 0.513", {"loss": 0.513}, at(3)),
    ("Cost after iteration 100: 0.693147", {"cost": 0.693147}, at(step=100)),
    ("Epoch: 0003 cost= 0.123456789", {"cost": 0.123456789}, at(3)),
    ("Iteration 1, loss = 2.30", {"loss": 2.3}, at(step=1)),
    ("step 100: train loss 4.2, val loss 4.3", {"train_loss": 4.2, "val_loss": 4.3}, at(step=100)),
    ("iter 100: loss 4.2012, time 34.5ms, mfu 3.1%", {"loss": 4.2012}, at(step=100)),
    ("Episode 10\tReward: 23.0\tAverage score: 15.2", {"reward": 23, "score": 15.2}, at(step=10)),
    ("Episode: 100, total reward: 200.0, epsilon: 0.05", {"total_reward": 200, "epsilon": 0.05}, at(step=100)),
    ("Episode 3 Return 41", {"return": 41}, at(step=3)),
    ("Best val acc: 0.9213", {"val_best_acc": 0.9213}, {}),
    ("Accuracy: 0.95", {"accuracy": 0.95}, {}),
    ("The final test accuracy is 92.1%", {"test_accuracy": 0.921}, {}),
    ("accuracy on test set: 0.93", {"test_accuracy": 0.93}, {}),
    ("Accuracy of the network on the 10000 test images: 55 %", {"test_accuracy": 0.55}, {}),
    (" Accuracy: 71.2%, Avg loss: 0.789123 ", {"accuracy": 0.712, "loss": 0.789123}, {}),
    ("F1-score: 0.81, Precision: 0.80, Recall: 0.82", {"f1_score": 0.81, "precision": 0.8, "recall": 0.82}, {}),
    ("Test Accuracy 87/100", {"test_accuracy": 0.87}, {}),
    ("Mean IoU: 0.612 | Dice: 0.733", {"mean_iou": 0.612, "dice": 0.733}, {}),
    ("RMSE: 3.2", {"rmse": 3.2}, {}),
    ("PSNR=31.2 SSIM=0.91", {"psnr": 31.2, "ssim": 0.91}, {}),
    ("val/loss: 0.31 val/top1: 71.2", {"val_loss": 0.31, "val_top1": 71.2}, {}),
    ("trainLoss: 0.3 valLoss: 0.4", {"train_loss": 0.3, "val_loss": 0.4}, {}),
    ("第3轮 loss：0.5", {"loss": 0.5}, at(3)),
    ("Époque 2 : perte = 0.51", {"perte": 0.51}, at(2)),
    (
        "[Epoch 0/200] [Batch 0/938] [D loss: 0.693] [G loss: 0.712]",
        {"d_loss": 0.693, "g_loss": 0.712},
        at(0, 200, 0, 938),
    ),
    ("0 [D loss: 0.693, acc.: 50.00%] [G loss: 0.712]", {"d_loss": 0.693, "acc": 0.5, "g_loss": 0.712}, at(step=0)),
    (
        "[0/5][50/1583]\tLoss_D: 0.5213\tLoss_G: 2.3012\tD(x): 0.9123\tD(G(z)): 0.1000 / 0.0512",
        {"loss_d": 0.5213, "loss_g": 2.3012},
        at(0, 5, 50, 1583),
    ),
    (
        "Epoch: [3][ 100/5005]\tTime  0.213 ( 0.3)\tData  0.01 ( 0.0)\tLoss 6.91e+00 (6.93e+00)\tAcc@1   0.39 (  0.12)",
        {"loss": 6.91, "acc@1": 0.39},
        at(3, step=100, steps=5005),
    ),
    (" * Acc@1 71.234 Acc@5 90.123", {"acc@1": 71.234, "acc@5": 90.123}, {}),
    ("Epoch 1 | loss 0.5 | time 3.2s | 1200 samples/s", {"loss": 0.5}, at(1)),
    ("Epoch 3/10 (12.3s): loss=0.5 (best 0.4)", {"loss": 0.5}, at(3, 10)),
    ("Validation: loss 0.31, accuracy 0.89", {"val_loss": 0.31, "val_accuracy": 0.89}, {}),
    ("[train] loss=0.50 acc=0.80", {"train_loss": 0.5, "train_acc": 0.8}, {}),
    ("epoch: 1 train_loss: 0.51 valid_loss: 0.49", {"train_loss": 0.51, "val_loss": 0.49}, at(1)),
    ("3/10: loss 0.25", {"loss": 0.25}, at(3, 10)),
    ("kl_loss: 0.01, recon_loss: 95.2", {"kl_loss": 0.01, "recon_loss": 95.2}, {}),
    ("Loss: 1,234.5", {"loss": 1234.5}, {}),
    ("R^2: 0.84", {"r2": 0.84}, {}),
    ("Loss: 0.512 | Acc: 81.230% (4061/5000)", {"loss": 0.512, "acc": 0.8123}, {}),
    ("(3/10) loss: 0.512", {"loss": 0.512}, at(3, 10)),
    ("loss=0.512, 12.3 it/s", {"loss": 0.512}, {}),
    ("Model accuracy: 95.0 percent", {"accuracy": 0.95}, {}),
    (
        "| epoch   1 |   200/ 2928 batches | lr 5.00 | ms/batch 12.34 | loss  8.12 | ppl  3345.67",
        {"lr": 5, "loss": 8.12, "ppl": 3345.67},
        at(1, step=200, steps=2928),
    ),
    (
        "| end of epoch   1 | time: 40.12s | valid loss  5.78 | valid ppl   323.23",
        {"val_loss": 5.78, "val_ppl": 323.23},
        at(1),
    ),
    ("===> Epoch: 1 Average loss: 164.2345", {"loss": 164.2345}, at(1)),
    ("{'epoch': 3, 'train': {'loss': 0.5}, 'val': {'loss': 0.6}}", {"train_loss": 0.5, "val_loss": 0.6}, at(3)),
    ("Epoch 5 completed in 12.34 seconds. Loss: 0.1234", {"loss": 0.1234}, at(5)),
    ("Fold 2 accuracy: 0.92", {"accuracy": 0.92}, {}),
    ("[EPOCH]: 3, [LOSS]: 0.25", {"loss": 0.25}, at(3)),
    ("3 60% (0m 1s) 0.25", {"loss": 0.25}, at(step=3)),
    ("5000 5% (0m 7s) 2.4725 Hinata / Greek", {"loss": 2.4725}, at(step=5000)),
    ("1m 54s (- 26m 31s) (5000 6%) 2.8499", {"loss": 2.8499}, at(step=5000)),
    ("   1000/  5000: 0.2500", {"loss": 0.25}, at(1000, 5000)),
    ("acc@k=5: 0.8", {"acc_k5": 0.8}, {}),
    ("kNN accuracy (k=5): 0.9", {"knn_accuracy_k5": 0.9}, {}),
    ("accuracy for k = 3 is 0.7", {"accuracy_k3": 0.7}, {}),
    ("F1 at threshold=0.5: 0.83", {"f1_threshold0_5": 0.83}, {}),
    ("k-nn accuracy k= 1 for train split: 50.0", {}, {}),
    ("[640/60000 (1%)]\tLoss: 0.5", {"loss": 0.5}, at(step=640, steps=60000)),
    ("[0/1000 (0%)] Loss: 0.5", {"loss": 0.5}, at(step=0, steps=1000)),
    ("Gen/Dis Loss: 0.7000/0.6000", {"gen_loss": 0.7, "dis_loss": 0.6}, {}),
    ("Epoch 3 Loss_D/Loss_G: 0.7/0.6", {"loss_d": 0.7, "loss_g": 0.6}, at(3)),
    ("grad_norm=1.23 loss=0.5", {"grad_norm": 1.23, "loss": 0.5}, {}),
]

OBJECTS: list[Line] = [
    ("{'loss': 0.5, 'epoch': 1}", {"loss": 0.5}, at(1)),
    (
        "{'loss': 0.6931, 'grad_norm': 2.1, 'learning_rate': 5e-05, 'epoch': 2.32}",
        {"loss": 0.6931, "grad_norm": 2.1, "learning_rate": 5e-05},
        at(2),
    ),
    ('{"eval_loss": 0.4, "eval_accuracy": 0.9}', {"val_loss": 0.4, "val_accuracy": 0.9}, {}),
    ("('loss', 0.523)", {"loss": 0.523}, {}),
    ("('epoch', 2, 'loss', 0.25)", {"loss": 0.25}, at(2)),
    ("loss: tensor(0.5123, grad_fn=<NllLossBackward0>)", {"loss": 0.5123}, {}),
    ("loss tensor(0.5123, device='cuda:0', grad_fn=<MeanBackward0>)", {"loss": 0.5123}, {}),
    ("{'accuracy': np.float64(0.91), 'loss': np.float32(0.3)}", {"accuracy": 0.91, "loss": 0.3}, {}),
    ("OrderedDict([('loss', 0.5), ('acc', 0.9)])", {"loss": 0.5, "acc": 0.9}, {}),
    ("step=10 metrics={'loss': 0.75}", {"loss": 0.75}, at(step=10)),
    ("Loss: Array(0.25, dtype=float32)", {"loss": 0.25}, {}),
]

PREFIXED: list[Line] = [
    ("2024-05-01 12:00:00,123 - INFO - Epoch 1 loss: 0.5", {"loss": 0.5}, at(1)),
    ("INFO:__main__:Epoch 1, loss=0.5", {"loss": 0.5}, at(1)),
    ("INFO:root:train loss 0.25", {"train_loss": 0.25}, {}),
    ("[2024-05-01 12:00:00] [INFO] train loss 0.3", {"train_loss": 0.3}, {}),
    ("I0501 12:00:00.123456 123 main.py:45] step 100 loss 0.4", {"loss": 0.4}, at(step=100)),
    ("12:00:01 | INFO | loss 0.3", {"loss": 0.3}, {}),
    ("2024/05/01 12:00:00 step 3: acc=0.5", {"acc": 0.5}, at(step=3)),
    ("[05/01 12:00:00] Epoch 2: loss 0.5", {"loss": 0.5}, at(2)),
    ("\x1b[32mEpoch 2\x1b[0m loss: \x1b[1m0.5\x1b[0m", {"loss": 0.5}, at(2)),
]

FRAMEWORKS: list[Line] = [
    (
        "100/100 ━━━━━━━━━━ 3s 12ms/step - accuracy: 0.8123 - loss: 0.5123",
        {"accuracy": 0.8123, "loss": 0.5123},
        at(step=100, steps=100),
    ),
    (
        "1875/1875 [=================] - 3s 2ms/step - loss: 0.2912 - accuracy: 0.9153 - val_loss: 0.1402",
        {"loss": 0.2912, "accuracy": 0.9153, "val_loss": 0.1402},
        at(step=1875, steps=1875),
    ),
    ("[10]\ttrain-rmse:0.48123\teval-rmse:0.49123", {"train_rmse": 0.48123, "val_rmse": 0.49123}, at(step=10)),
    (
        "[10]\ttraining's binary_logloss: 0.51\tvalid_1's auc: 0.9",
        {"train_binary_logloss": 0.51, "val_1_auc": 0.9},
        at(step=10),
    ),
    (
        "0:\tlearn: 0.6923\ttest: 0.6924\tbest: 0.6924 (0)\ttotal: 1.2ms\tremaining: 1.2s",
        {"learn": 0.6923, "test": 0.6924},
        at(step=0),
    ),
    ("Norm: 0.93, NNZs: 4, Bias: -0.1, T: 100, Avg. loss: 0.3", {"norm": 0.93, "loss": 0.3}, {}),
    ("Epoch 00003: val_loss improved from 0.52 to 0.41, saving model to best.h5", {}, at(3)),
    ("Restoring model weights from the end of the best epoch: 3.", {}, {}),
]

NOTHING: list[str] = [
    "stop when loss < 0.1",
    "Layers 64,32 and patience 3,5",
    "torch.Size([64, 3, 32, 32])",
    "Input shape: (64, 784), loss function: CrossEntropyLoss()",
    "Batch size: 64",
    "batch_size = 128",
    "Model has 1,234,567 trainable parameters",
    "Number of training examples: 50000",
    "Total params: 11,181,642 (42.65 MB)",
    "took 3.2s",
    "Time per epoch: 12.3 s",
    "Elapsed: 0:03:12",
    "Training completed in 2m 31s",
    "Epochs: 20",
    "num_epochs = 20",
    "max epochs: 100",
    "learning schedule: 10 steps of 0.5 each",
    "Saved model to checkpoints/epoch_3_loss_0.52.pth",
    "Saving best model to /tmp/run-1/model_acc_0.92.pt",
    "See https://example.org/loss/0.5?acc=0.9",
    "torch 2.1.0, loss-lib 0.3.1",
    "GPU memory: 3.2 GB, accuracy in bits: none",
    "Max memory allocated: 1.5 GiB",
    "EarlyStopping counter: 3 out of 5",
    "Early stopping after epoch with patience 5",
    "Validation loss decreased (inf --> 0.632000).  Saving model ...",
    "Loss: [0.5, 0.4, 0.3]",
    "losses: (0.5, 0.4)",
    "Accuracy for class: plane is 60.2 %",
    "Using device: cuda:0",
    "seed: 42, steps: 1000",
    "Step size: 0.1",
    "Loading batch 3 of data took 12 ms",
    "accuracy improved 3 times in a row",
    "The loss did not improve from 0.31",
    "precision",
    "loss",
    "Confusion matrix, accuracy below:",
    "[[50  2]",
    "3 0.523",
    "Downloading 12%|███       | 3/10 [00:01<00:02, 1.2it/s, loss=0.5]",
    "Training: 100%|██████████| 938/938 [00:12<00:00, 75.2it/s, acc=0.5]",
    "File \"train.py\", line 12, in step",
    "recall that there are 10 classes",
    "Dropout rate: 0.5",
    "class_weight={0: 0.5, 1: 1.5}",
    "  (loss_fn): BCEWithLogitsLoss(pos_weight=0.5)",
    "error: index 5 is out of bounds for axis 0 with size 3",
    "UserWarning: lr_scheduler.step() called before optimizer.step(), since 1.1.0",
    "Optimizer: Adam(betas=(0.9, 0.999), eps=1e-08)",
    "patience for loss: 5 epochs",
    "error in estimating w: tensor([0.0004, -0.0002])",
    "Looked at 12800/60000 samples",
    "Train time on cpu: 12.345 seconds",
    "val_loss did not improve from 0.31",
    "Cross-validation scores: [0.91 0.92 0.93]",
    "12345.6 examples/sec on gpu(0)",
    "Loss before training: 2.31",
    "Loss D/G: 0.7000/0.6000",
    "60% (3/5 files) 0.25",
    "5/10: done",
    "x" * 2000 + " loss: 0.5",
]  # fmt: skip


@pytest.mark.parametrize(
    "expected", [*POSITIONS, *PAIRS, *OBJECTS, *PREFIXED, *FRAMEWORKS], ids=lambda one: one[0][:60]
)
def test_each_number_that_counts_is_found_and_no_other(expected: Line) -> None:
    text, values, position = expected
    found = Recogniser().read(text) or Found()

    assert found.values == pytest.approx(values, nan_ok=True)
    assert at(found.epoch, found.epochs, found.step, found.steps) == position
    assert list(found.values) == list(values)


@pytest.mark.parametrize("text", NOTHING, ids=lambda one: one[:60])
def test_lines_that_say_nothing_about_training_are_left_alone(text: str) -> None:
    assert Recogniser().read(text) is None


TABLES: list[tuple[list[str], list[tuple[int | None, int | None, dict[str, float]]]]] = [
    (
        [
            "epoch     train_loss  valid_loss  accuracy  time    ",
            "0         0.523112    0.412000    0.85      00:12   ",
            "1         0.312000    0.311000    0.90      00:11   ",
        ],
        [
            (0, None, {"train_loss": 0.523112, "val_loss": 0.412, "accuracy": 0.85}),
            (1, None, {"train_loss": 0.312, "val_loss": 0.311, "accuracy": 0.9}),
        ],
    ),
    (
        [
            "| Epoch | Loss   | Acc    |",
            "|-------|--------|--------|",
            "| 1     | 0.5000 | 81.25% |",
            "+-------+--------+",
        ],
        [(1, None, {"loss": 0.5, "acc": 0.8125})],
    ),
    (
        ["epoch,loss,val_loss", "1,0.5,0.6", "2,nan,0.5"],
        [(1, None, {"loss": 0.5, "val_loss": 0.6}), (2, None, {"loss": nan, "val_loss": 0.5})],
    ),
    (
        ["Step\tTraining Loss\tValidation Loss", "500\t0.69\tNo log", "1000\t0.51\t0.52"],
        [(None, 1000, {"train_loss": 0.51, "val_loss": 0.52})],
    ),
    (
        [
            "      Iter       Train Loss   Remaining Time ",
            "         1           1.2613            0.03s",
            "         2           1.1900            0.02s",
        ],
        [(None, 1, {"train_loss": 1.2613}), (None, 2, {"train_loss": 1.19})],
    ),
    (
        [
            "  epoch    train_loss    valid_acc     dur",
            "-------  ------------  -----------  ------",
            "      1        0.6905       0.5500  0.0512",
        ],
        [(1, None, {"train_loss": 0.6905, "val_acc": 0.55})],
    ),
    (["name    size", "a       3.5"], []),
]


@pytest.mark.parametrize(("lines", "rows"), TABLES, ids=lambda one: str(one[0])[:50] if one else "")
def test_the_rows_of_a_table_are_read_by_its_header(lines: list[str], rows: list[Any]) -> None:
    reader = Recogniser()
    found = [one for line in lines if (one := reader.read(line)) is not None]

    assert len(found) == len(rows)
    for one, (epoch, step, values) in zip(found, rows, strict=True):
        assert (one.epoch, one.step) == (epoch, step)
        assert one.values == pytest.approx(values, nan_ok=True)


PIECES = st.sampled_from(
    [
        "loss",
        "acc",
        "Epoch",
        "step",
        ":",
        "=",
        "0.5",
        "3/10",
        "(",
        ")",
        "[",
        "]",
        "%",
        "nan",
        "1e-3",
        ",",
        " ",
        "\t",
        "'",
        "|",
        "第",
        "/",
    ]
)


@given(st.lists(st.one_of(PIECES, st.text(max_size=5)), max_size=30).map("".join))
def test_no_line_is_too_odd(text: str) -> None:
    reader = Recogniser()
    reader.read("epoch  loss")
    found = reader.read(text)

    assert found is None or all(isinstance(value, float) for value in found.values.values())


def test_the_lines_of_this_file_are_many() -> None:
    said = [*POSITIONS, *PAIRS, *OBJECTS, *PREFIXED, *FRAMEWORKS]

    assert len({one[0] for one in said}) >= 100
    assert len(set(NOTHING)) >= 45
