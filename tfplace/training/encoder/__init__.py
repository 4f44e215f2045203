"""Graph encoder of `gdp` and `ordered`, trained by PPO."""
