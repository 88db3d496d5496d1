-- Extends a lease that is still its holder's; never creates a key.
--
-- KEYS[1]  lock       a string "token:holder:owner" that expires
-- KEYS[2]  counter    the token issued last
-- ARGV[1]  holder     nonce of the acquisition, hexadecimal
-- ARGV[2]  token      the token the holder knows, a decimal string
-- ARGV[3]  ttl        new length of the lease from now, in milliseconds
-- ARGV[4]  keep       see keep_counter in issue.lua
--
-- Answers (the holder is echoed so that a connection out of step is noticed):
--   {"renewed", holder}
--   {"absent", holder}      nobody holds the lock
--   {"other", holder}       another holder, or another token, has it

local lock, counter = KEYS[1], KEYS[2]
local holder, token, ttl, keep = unpack(ARGV)

local value = redis.call('GET', lock)
if not value then
  return {'absent', holder}
end
local mine = token .. ':' .. holder .. ':'
if string.sub(value, 1, #mine) ~= mine then
  return {'other', holder}
end
-- Never shorten: a request that was held up on its way must not cut short a lease that a later
-- one has extended.
if redis.call('PTTL', lock) < tonumber(ttl) then
  redis.call('PEXPIRE', lock, ttl)
end
keep_counter(counter, keep, redis.call('PTTL', counter))
return {'renewed', holder}
