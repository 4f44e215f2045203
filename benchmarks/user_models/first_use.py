"""A new user's first script: a small Keras model on two logical devices."""

import json
import time

BEGAN = time.perf_counter()

import keras  # noqa: E402
import numpy as np  # noqa: E402
import tensorflow as tf  # noqa: E402

import tfplace  # noqa: E402

cpu = tf.config.list_physical_devices("CPU")[0]
two = [tf.config.LogicalDeviceConfiguration() for _ in range(2)]
tf.config.set_logical_device_configuration(cpu, two)
IMPORTED = time.perf_counter()

inputs = keras.Input((64,))
left = keras.layers.Dense(128, activation="relu", name="left")(inputs)
right = keras.layers.Dense(128, activation="relu", name="right")(inputs)
outputs = keras.layers.Dense(1, name="head")(left + right)
model = keras.Model(inputs, outputs)
model.compile(optimizer="adam", loss="mse")
model = tfplace.place_model(model, budget_s=10)
model.fit(np.ones((256, 64)), np.ones((256, 1)), verbose=0)
DONE = time.perf_counter()

print(model.placement)
seconds = {k: round(v, 1) for k, v in model.placement.seconds.items()}
found = {"import_s": IMPORTED - BEGAN, "place_and_fit_s": DONE - IMPORTED}
found = {k: round(v, 1) for k, v in found.items()}
print(json.dumps({**found, "stages_s": seconds}))
