"""Conveyor packing: pick furniture parts off a moving belt and place them into a tray in the order named."""
