"""publication."""
