"""Releases on the host: layout, lock, journal, executor, clone, overlay sources, store. Agent-safe."""
