"""The same application on a Ray cluster: replicas of it are actors of Ray Serve, whose proxies hand requests to them.

Whatever touches Ray is here. Nothing else of the service imports this package, but for the command that starts it, so
who does not use Ray needs none.
"""
