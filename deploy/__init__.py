"""How the service is watched: Prometheus rules and a Grafana dashboard, written by `make deploy`."""
