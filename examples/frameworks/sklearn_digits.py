"""scikit-learn or any other Python code. Each iteration over `run.batches` is one step."""

import numpy as np
from sklearn.datasets import load_digits
from sklearn.linear_model import SGDClassifier

import jupyter_dlaas as dlaas

images, labels = load_digits(return_X_y=True)

run = dlaas.run()
model = run.state.setdefault("model", SGDClassifier(loss="log_loss", random_state=0))
for epoch in run.epochs(60):
    for batch in run.batches(range(len(images)), 64):
        rows = np.asarray(batch)
        model.partial_fit(images[rows], labels[rows], classes=range(10))
    run.log(accuracy=model.score(images, labels))

accuracy = model.score(images, labels)
print(f"accuracy {accuracy:.3f}")
