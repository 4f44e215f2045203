"""Planning from a source and a cluster: `planner.make_plan(steps, config)`."""
