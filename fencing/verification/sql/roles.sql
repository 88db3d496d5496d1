-- Every role. "belongs_to": the roles it is a member of, directly.
SELECT r.rolname AS name,
    r.rolsuper AS is_superuser,
    r.rolcanlogin AS can_login,
    r.rolcreaterole AS can_create_roles,
    ARRAY(SELECT g.rolname FROM pg_auth_members AS m JOIN pg_roles AS g ON g.oid = m.roleid
          WHERE m.member = r.oid) AS belongs_to
FROM pg_roles AS r
ORDER BY r.rolname
