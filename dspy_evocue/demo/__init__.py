"""The demo's world, and the scripted models that can stand in for real ones in it."""
