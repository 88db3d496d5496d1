-- Says which commands this user may not call; calls none of them. Touches no key.
--
-- ARGV     pairs of a command ("get", or "pubsub|numsub") and its first argument, a key of ours say
--
-- Answers:
--   {"denied", command, ...}     those that are not permitted, or that the server does not know
--   {"unknown"}                  this server cannot tell: Redis before 7.0

if not redis.acl_check_cmd then
  return {'unknown'}
end

local answer = {'denied'}
for i = 1, #ARGV, 2 do
  local words = {}
  for word in string.gmatch(ARGV[i], '[^|]+') do
    words[#words + 1] = word
  end
  words[#words + 1] = ARGV[i + 1]
  local known, permitted = pcall(redis.acl_check_cmd, unpack(words))
  if not (known and permitted) then
    answer[#answer + 1] = ARGV[i]
  end
end
return answer
