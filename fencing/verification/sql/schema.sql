-- Schema fencing, if there is one.
SELECT n.nspowner AS owner_oid, pg_get_userbyid(n.nspowner) AS owner
FROM pg_namespace AS n WHERE n.nspname = 'fencing'
