"""The command line: ``fencing dev``, ``demo``, ``install``, ``verify`` and others."""
