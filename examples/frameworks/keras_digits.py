"""Unmodified Keras code on TensorFlow with curves. A halted job resumes at the same batch."""

import os

os.environ.setdefault("KERAS_BACKEND", "tensorflow")

import keras
from sklearn.datasets import load_digits

images, labels = load_digits(return_X_y=True)
keras.utils.set_random_seed(0)
model = keras.Sequential([keras.layers.Input((64,)), keras.layers.Dense(32, activation="relu"), keras.layers.Dense(10)])
model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True), metrics=["accuracy"])
model.fit(images / 16, labels, batch_size=64, epochs=40, verbose=2)

accuracy = float(model.evaluate(images / 16, labels, verbose=0)[1])
print(f"accuracy {accuracy:.3f}")
