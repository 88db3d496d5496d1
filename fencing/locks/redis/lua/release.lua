-- Releases a lock that is still its holder's: to whoever has waited for it longest.
--
-- The holder alone is compared: it is new for each acquisition, so it says more than a token, and
-- it also fits when the answer that told us our token was lost.
--
-- KEYS[1]  lock       a string "token:holder:owner" that expires
-- KEYS[2]  counter    the token issued last, a decimal string
-- KEYS[3]  queue      a sorted set of who waits; see hand_over.lua
-- KEYS[4]  marks      who has given up; see given_back.lua
-- ARGV[1]  holder     nonce of the acquisition, hexadecimal
-- ARGV[2]  unknown    "unknown" when requests of this holder to acquire may still be on their way:
--                     they shall not acquire it any more; absent or empty: there are none
-- ARGV[3]  record     of an acquisition that is given up while it may wait; absent: of none
--
-- Answers (the holder is echoed so that a connection out of step is noticed), as lists or as texts of
-- the same words:
--   {"released", holder}                 to nobody
--   {"released", holder, "", "handed"}   to whoever has waited for it longest
--   {"released", holder, trouble}        it could not be handed over, as Redis says why
--   {"absent", holder}      nobody holds the lock
--   {"other", holder}       another holder has it

local counter, marks = KEYS[2], KEYS[4]

if unknown == 'unknown' then
  note_given_back(marks, holder)
end
if record then
  redis.call('ZREM', queue, record)
end
local value = redis.call('GET', lock)
if not value then
  return {'absent', holder}
end
if string.match(value, '^%d+:(%x+):') ~= holder then
  return {'other', holder}
end
-- Whatever is wrong with the counter or the queue, the lock is released; who asks next is told.
local fine, handed, trouble = pcall(hand_over, lock, counter, queue)
if fine and handed then
  return {'released', holder, '', 'handed'}
end
redis.call('DEL', lock)
return {'released', holder, fine and trouble or nil}
