"""A plan is data: make it, read it, edit it, keep it, apply it."""

import json
import pathlib
import tempfile

import budget
import two_towers

import tfplace

two_towers.two_cpu_devices()
model = two_towers.build()
plan = tfplace.plan_model(
  model, batch_size=64, budget_s=budget.seconds(), keep_together=["left_*"]
)
print(plan)

layers = dict(plan.layers)
layers.update({f"right_{number}": "CPU:1" for number in range(4)})
with tempfile.TemporaryDirectory() as folder:
  path = pathlib.Path(folder, "layers.json")
  path.write_text(json.dumps(layers, indent=2))
  kept = json.loads(path.read_text())

placed = tfplace.place_model(model, placement=kept)
x, y = two_towers.data()
placed.fit(x, y, batch_size=64, verbose=2)
print("right_3 computes on", placed.get_layer("right_3").kernel.value.device)
