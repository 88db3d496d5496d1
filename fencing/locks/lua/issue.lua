-- Shared text: issues the tokens of a resource.
--
-- next_token(counter, floor)
--   counter  the key of the token issued last
--   floor    the token will be greater than this, a decimal string
-- Returns the token, a decimal string. Or nil and what is wrong:
--   "exhausted"   the counter stands at 2^53 - 1
--   "garbled"     the counter is not a number from 0 upwards

local function next_token(counter, floor)
  local last = redis.call('GET', counter) or '0'
  if last ~= '0' and not string.match(last, '^[1-9]%d*$') then
    return nil, 'garbled'
  end
  -- A Lua number is a double: from 2^53 upwards it cannot count by one.
  if math.max(tonumber(last), tonumber(floor)) >= 9007199254740991 then
    return nil, 'exhausted'
  end
  if tonumber(floor) > tonumber(last) then
    redis.call('SET', counter, floor)
  end
  -- Formatted, because tostring() of the answer would be "1e+14" one day.
  return string.format('%.0f', redis.call('INCR', counter))
end

