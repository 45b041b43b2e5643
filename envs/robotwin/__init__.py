"""RoboTwin 2.0: upstream's task code as a Gymnasium environment, on stand-in or on the user's own assets."""
