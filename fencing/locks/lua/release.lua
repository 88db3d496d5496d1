-- Releases a lock that is still its holder's.
--
-- The holder alone is compared: it is new for each acquisition, so it says more than a token, and
-- it also fits when the answer that told us our token was lost.
--
-- KEYS[1]  lock       a string "token:holder:owner" that expires
-- KEYS[2]  counter    unused; the tokens go on from where they are
-- ARGV[1]  holder     nonce of the acquisition, hexadecimal
--
-- Answers (the holder is echoed so that a connection out of step is noticed):
--   {"released", holder}
--   {"absent", holder}      nobody holds the lock
--   {"other", holder}       another holder has it

local lock = KEYS[1]
local holder = ARGV[1]

local value = redis.call('GET', lock)
if not value then
  return {'absent', holder}
end
if string.match(value, '^%d+:(%x+):') ~= holder then
  return {'other', holder}
end
redis.call('DEL', lock)
return {'released', holder}
