"""JAX with its checkpoint state in `run.state`. The job resumes at the same batch after a halt or a crash."""

import jax
import numpy as np
import optax
from sklearn.datasets import load_digits

import jupyter_dlaas as dlaas

images, labels = load_digits(return_X_y=True)
images = (images / 16).astype(np.float32)
keys = jax.random.split(jax.random.key(0), 2)
params = {
    "w1": jax.random.normal(keys[0], (64, 32)) * 0.2,
    "w2": jax.random.normal(keys[1], (32, 10)) * 0.2,
}
optimizer = optax.adam(3e-3)


def logits(params, x):
    return jax.nn.relu(x @ params["w1"]) @ params["w2"]


def loss_of(params, x, y):
    return optax.softmax_cross_entropy_with_integer_labels(logits(params, x), y).mean()


@jax.jit
def step(params, moments, x, y):
    loss, gradients = jax.value_and_grad(loss_of)(params, x, y)
    updates, moments = optimizer.update(gradients, moments)
    return optax.apply_updates(params, updates), moments, loss


run = dlaas.run()
params, moments = run.state.get("model", (params, optimizer.init(params)))
for epoch in run.epochs(30):
    for batch in run.batches(range(len(images)), 64):
        rows = np.asarray(batch)
        params, moments, loss = step(params, moments, images[rows], labels[rows])
        run.state["model"] = params, moments
    run.log(loss=loss)

accuracy = float((logits(params, images).argmax(1) == labels).mean())
print(f"accuracy {accuracy:.3f}")
