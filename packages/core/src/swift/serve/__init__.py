"""What `swift serve` hands to the server of an inference engine."""
