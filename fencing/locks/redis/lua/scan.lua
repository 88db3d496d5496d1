-- Finds the keys of locks, a page at a time; changes nothing.
--
-- ARGV[1]  nonce      anything; comes back
-- ARGV[2]  cursor     "0" to begin with, then the one of the page before
-- ARGV[3]  pattern    which keys, as SCAN's MATCH reads it
-- ARGV[4]  count      how many keys to look at
--
-- Answers (the nonce is echoed so that a connection out of step is noticed):
--   {"page", nonce, cursor, key, key, ...}   cursor: "0" when this was the last one

local nonce, cursor, pattern, count = ARGV[1], ARGV[2], ARGV[3], ARGV[4]

local page = redis.call('SCAN', cursor, 'MATCH', pattern, 'COUNT', count, 'TYPE', 'string')
local answer = {'page', nonce, page[1]}
for _, key in ipairs(page[2]) do
  answer[#answer + 1] = key
end
return answer
