"""Coverage-guided fuzzing of every body format: `python -m tests.fuzz --help`."""
