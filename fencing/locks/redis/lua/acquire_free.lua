-- Shared text: acquires a lock that is free, that nobody waits for and nobody has given up; the
-- beginning of acquire.lua, whose header says what the keys and arguments are.
--
-- It does what the rest would do, in fewer calls, and before the functions are made that only the
-- rest needs: most locks are free. What is not plain here is left to the rest. For the same reason it
-- answers with words in one text, which is the same as a list of them.

local lock, counter, queue, marks = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local holder, ttl, floor, owner, keep = ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5]

if floor == '0' and redis.call('EXISTS', lock, queue, marks) == 0 then
  local left = redis.call('PTTL', counter)
  local count = redis.pcall('INCR', counter)
  -- An error, which says that it is no number, is a table.
  if type(count) == 'number' and count >= 1 and count < 9007199254740992 then
    -- Read back: a Lua number is a double, and to format one takes longer.
    local token = redis.call('GET', counter)
    redis.call('SET', lock, token .. ':' .. holder .. ':' .. owner, 'PX', ttl)
    -- As keep_counter does it.
    if left ~= -1 then
      if not keep or keep == '0' then
        if left >= 0 then
          redis.call('PERSIST', counter)
        end
      elseif left < tonumber(keep) then
        redis.call('PEXPIRE', counter, keep)
      end
    end
    return 'granted ' .. holder .. ' ' .. token
  elseif type(count) == 'number' then
    redis.call('DECR', counter) -- it is exhausted, or none of ours: the rest says so
  end
end

