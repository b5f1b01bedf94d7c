"""What `python -m service` does besides serving: it asks the service, a running one or one inside this process.

`asking` who answers, and the exit codes | `inputs` files and standard input | `options` what commands share |
`console`, `metric_tables`, `heat_map` what a terminal shows | the rest a command each
"""
