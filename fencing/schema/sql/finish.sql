-- Guards that an older version has made become this version's. Nothing of it is to be seen before
-- this transaction commits, so every write is checked by the one or by the other.
SELECT fencing.refresh_guards()
--;
SELECT set_config('search_path', current_setting('fencing.path_before'), true),
       set_config('client_min_messages', current_setting('fencing.messages_before'), true)
--;
