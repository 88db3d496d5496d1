"""The SQL of this package: names, templates, and the DDL they make."""
