"""Load on a running service, from this machine to itself. `python -m load_tests` starts a service of its own."""
