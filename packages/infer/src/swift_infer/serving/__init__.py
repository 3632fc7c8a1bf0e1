"""Requests of `swift serve` to the server of an inference engine."""
