-- Releases the lock on this node if it is still its holder's.
--
-- KEYS[1]  lock       a string "token:holder:owner" that expires
-- KEYS[4]  marks      who has given up; see given_back.lua
-- ARGV[1]  holder     nonce of the acquisition, hexadecimal; or what the nonces of all its rounds
--                     begin with
-- ARGV[2]  unknown    "unknown" when requests of this holder for the lock may still be on their
--                     way; where it is not found here, that is assumed. They take nothing any more
--
-- Answers (the holder is echoed so that a connection out of step is noticed):
--   {"released", holder}
--   {"absent", holder}      nobody holds the lock here
--   {"other", holder}       another holder has it here

local lock, marks = KEYS[1], KEYS[4]
local holder, unknown = ARGV[1], ARGV[2]

local value = redis.call('GET', lock)
local current = string.match(value or '', '^%d+:(%x+):') or ''
local found = (not value and 'absent')
  or (string.sub(current, 1, #holder) == holder and 'released')
  or 'other'
if unknown == 'unknown' or found ~= 'released' then
  note_given_back(marks, holder)
end
if found == 'released' then
  redis.call('DEL', lock)
end
return {found, holder}
