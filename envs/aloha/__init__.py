"""ALOHA: two arms hand a cube over, in the MuJoCo scene of the package gym-aloha."""
