"""Memory that clients on the same machine share with the service, so that their tensors pass no socket."""
