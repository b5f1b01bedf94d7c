"""How fast this service is, beside others on the same model and beside the bare model. `make bench`."""
