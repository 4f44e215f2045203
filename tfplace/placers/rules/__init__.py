"""Rule-based placers: single device, blocks, expert rules, axes, grids."""
