-- Which version of the schema this is, and the oldest version of the package that it serves: an
-- application may go on while the schema is brought forward.
CREATE OR REPLACE FUNCTION fencing.versions(OUT schema_version integer, OUT oldest_client integer)
LANGUAGE sql IMMUTABLE PARALLEL SAFE
AS $fencing$ SELECT 2, 1 $fencing$
--;
