"""Verifications that come to what a test says."""

from replan.kernels.decision import Decision, numbers


def verifying(method, distance, endpoints):
    """Lets verification come to these distances [K, H] and endpoints [K, H, A]."""

    def verify(call, chunk, delta):
        about = method.channels, method.command(call, chunk), call.window, delta
        return Decision(endpoints, distance, numbers(endpoints, distance, chunk, *about))

    method.verify = verify
