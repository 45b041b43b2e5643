"""A world that does not wait: the time that a policy computes passes in the environment too."""

from __future__ import annotations

from typing import Any

import gymnasium


class RealTime(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Adds :meth:`think`, which advances the world while the policy computes.

    The caller observes, computes an action, passes the latency to :meth:`think`, and steps. The action is due at the
    time of the observation plus the latency, and is latched on the first physics tick at or after that. Until then the
    robot holds its last command, as the environment defines holding (``hold``). Without a call of ``think`` the world
    waits, as without the wrapper.

    The environment has to offer ``tick_ns`` (physics tick, integer nanoseconds) and ``hold(ticks)``.

    Raises:
        TypeError: The environment has no ``tick_ns`` or no ``hold``.

    Example:
        >>> import gymnasium
        >>> import replan.envs
        >>> env = RealTime(gymnasium.make("replan/ConveyorSorting-v0", speed=10))
        >>> observation, info = env.reset(seed=0)
        >>> env.think(57_000_001)  # nanoseconds; the tick is 2 ms
        58000000
        >>> env.close()
    """

    def __init__(self, env: gymnasium.Env[Any, Any]) -> None:
        super().__init__(env)
        world: Any = env.unwrapped
        tick = getattr(world, "tick_ns", None)
        if not isinstance(tick, int) or tick <= 0 or not callable(getattr(world, "hold", None)):
            raise TypeError(
                f"{type(world).__name__} cannot run in real time: it needs tick_ns (whole nanoseconds above zero) "
                f"and hold(ticks), and has tick_ns={tick!r}"
            )

    def think(self, latency_ns: int) -> int:
        """Advances the world until an action that takes ``latency_ns`` to compute is latched.

        Args:
            latency_ns: Nanoseconds from the observation to the action.

        Returns:
            Nanoseconds that the world moved: the latency, rounded up to whole ticks.

        Raises:
            ValueError: The latency is negative or not a whole number.
        """
        if not isinstance(latency_ns, int) or latency_ns < 0:
            raise ValueError(f"latency must be whole nanoseconds of at least 0, got {latency_ns!r}")
        world: Any = self.env.unwrapped
        ticks = -(-latency_ns // world.tick_ns)  # rounds up
        if ticks:
            world.hold(ticks)
        return ticks * world.tick_ns
