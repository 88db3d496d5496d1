-- Who may SET session_replication_role without being a superuser.
SELECT CASE a.grantee WHEN 0 THEN 'PUBLIC' ELSE CAST(pg_get_userbyid(a.grantee) AS text) END
    AS grantee
FROM pg_parameter_acl AS p, aclexplode(p.paracl) AS a
WHERE p.parname = 'session_replication_role' AND a.grantee <> 10
GROUP BY 1 ORDER BY 1
