"""Policies on servers, in openpi's protocol: a WebSocket that carries msgpack."""
