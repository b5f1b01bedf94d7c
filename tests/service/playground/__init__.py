"""The page in a real browser. A package, so that its fixtures end with it: the browser runs an event loop."""
