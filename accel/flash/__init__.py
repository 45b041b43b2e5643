"""Realtime-VLA FLASH: speculative rounds from a one-layer draft, verified in one batch by the action expert."""
