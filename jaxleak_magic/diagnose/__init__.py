"""From live evidence to plain data in the user's terms. After this room no tracer, trace or frame is held."""
