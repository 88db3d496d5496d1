-- Shared text: hands the lock of a resource to whoever has waited for it longest; after issue.lua.
--
-- Who waits has a record in the queue, a sorted set, with the order of arrival as its score:
--   "holder:ttl:floor:nonce:owner"
--     holder   nonce of the acquisition that waits, hexadecimal
--     ttl      length of its lease, in milliseconds
--     floor    its token will be greater than this
--     nonce    of the channel that its process listens to, "<namespace>:wake:<nonce>"
--     owner    a label for people
--
-- hand_over(lock, counter, queue, mine)
--   mine     a record, or nil: whoever is behind it is not handed the lock
-- Returns the new value of the lock, or nil when it is handed to nobody; and what Redis says if we
-- may not tell anybody. The waiter is told "holder token" on its channel, and must make the short
-- ttl that it gets its own one.

-- In milliseconds: how long a lock that was handed to a process that is stopped delays the others.
local HANDED = 2000

local function hand_over(lock, counter, queue, mine)
  local namespace = string.match(lock, '^[^{]*')
  while true do
    local first = redis.call('ZRANGE', queue, 0, 0)[1]
    if not first or first == mine then
      return nil
    end
    local holder, ttl, floor, nonce, owner = string.match(first, '^(%x+):(%d+):(%d+):(%x+):(.*)$')
    if holder then
      local channel = namespace .. 'wake:' .. nonce
      -- A channel without a listener is that of a process that is dead. If we may not ask, it is
      -- taken to be alive.
      local listeners = redis.pcall('PUBSUB', 'NUMSUB', channel)[2]
      if listeners ~= 0 then
        -- Scripts do not roll back: if a later step fails, a token is skipped; the other way
        -- round one would be issued twice.
        local token = next_token(counter, floor)
        if not token then
          return nil
        end
        local told = redis.pcall('PUBLISH', channel, holder .. ' ' .. token)
        if type(told) == 'table' then
          return nil, told['err']
        end
        local value = token .. ':' .. holder .. ':' .. owner
        redis.call('SET', lock, value, 'PX', math.min(tonumber(ttl), HANDED))
        redis.call('ZREM', queue, first)
        return value
      end
    end
    redis.call('ZREM', queue, first)
  end
end

