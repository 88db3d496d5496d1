"""Stand-ins for the locks of other libraries, for systems that move to fencing step by step."""
