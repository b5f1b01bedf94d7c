"""The HTTP endpoints: thin. Each reads its request, calls what does the work, and writes the answer."""
