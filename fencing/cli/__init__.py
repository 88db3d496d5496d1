"""The command line: ``fencing dev``, ``demo``, ``install`` and ``sql``."""
