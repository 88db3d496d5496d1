-- Extends a lease on this node that is still its holder's; never creates a key.
--
-- KEYS[1]  lock       a string "token:holder:owner" that expires
-- ARGV[1]  holder     nonce of the acquisition, hexadecimal
-- ARGV[2]  ttl        new length of the lease from now, in milliseconds
--
-- Answers (the holder is echoed so that a connection out of step is noticed):
--   {"renewed", holder}
--   {"absent", holder}      nobody holds the lock here
--   {"other", holder}       another holder has it here

local lock = KEYS[1]
local holder, ttl = ARGV[1], ARGV[2]

local value = redis.call('GET', lock)
if not value then
  return {'absent', holder}
end
if string.match(value, '^%d+:(%x+):') ~= holder then
  return {'other', holder}
end
-- Never shorter: a request that was held up on its way must not cut short a lease that a later
-- one has extended.
if redis.call('PTTL', lock) < tonumber(ttl) then
  redis.call('PEXPIRE', lock, ttl)
end
return {'renewed', holder}
