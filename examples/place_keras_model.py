"""Places a Keras model on two logical CPU devices, and trains it there."""

import budget
import two_towers

import tfplace

two_towers.two_cpu_devices()
x, y = two_towers.data()
model = tfplace.place_model(
  two_towers.build(), budget_s=budget.seconds(), batch_size=64
)
print(model.placement)

# All is as before: the same losses (up to rounding), callbacks, saving.
model.fit(x, y, batch_size=64, epochs=2, verbose=2)
