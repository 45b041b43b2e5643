"""The stand-in asset tree: another robot and other objects, in the file format that RoboTwin's task code reads."""
