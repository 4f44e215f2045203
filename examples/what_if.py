"""Predicts the gain of four V100s on a machine that has none."""

import budget
import two_towers

import tfplace

model = two_towers.build(width=4096)
plan = tfplace.plan_model(
  model, "v100x4", batch_size=256, budget_s=budget.seconds()
)
print(plan)
milliseconds = plan.evaluation.step_time_us / 1e3
print(
  f"a step of {milliseconds:.2f} ms, {plan.evaluation.ratio_to_bound:.2f}"
  " times the proven bound"
)
